# SPDX-License-Identifier: Apache-2.0
"""Which submission a try looks after: its own, one it adopts, or a new one. Pure; the keeper asks and acts.

A retry goes on with a live job. A cleared task begins anew, and so does one whose job has another spec by now.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from airflow_provider_dispatch.core.identity import next_submission
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.core.owner import Owner
from airflow_provider_dispatch.core.records import JobRecord, SubmissionRecord
from airflow_provider_dispatch.core.recovery import Recovery, RecoveryRule, scale_resources
from airflow_provider_dispatch.core.state import State


class Step(StrEnum):
    """What to do next on the way to a submission of one's own.

    KEEP ends the way; GIVE_WAY too: a later try looks after the job. After any other, look again.
    """

    KEEP = "keep"
    ADOPT = "adopt"
    REPLACE = "replace"
    START = "start"
    GIVE_WAY = "give_way"


@dataclass(frozen=True, slots=True)
class Plan:
    """A step with its reason.

    :param submission: for START: the number of the new one.
    """

    step: Step
    reason: str = ""
    submission: int = 0


@dataclass(frozen=True, slots=True)
class Claim:
    """Who wants to look after which job.

    :param cleared_try: the last try before the task was cleared; 0 when it never was.
    """

    owner: Owner
    spec: JobSpec
    cleared_try: int = 0


def decide_submission(record: JobRecord, observation: Observation | None, claim: Claim) -> Plan:
    """The next step.

    :param observation: of the newest submission; None when there is none.
    """
    newest = record.newest
    if newest is None or observation is None:
        return _start(record, claim, "nothing runs for it")
    if newest.owner.is_same_caller(claim.owner):
        return Plan(Step.KEEP)
    if newest.owner.instance_id > claim.owner.instance_id:
        return Plan(Step.GIVE_WAY, f"try {newest.owner.try_number}, which began later, looks after it")
    if observation.is_over:
        return _start(record, claim, f"submission {newest.ref.submission} is {observation.state}")
    if is_cleared(newest.owner, claim):
        return Plan(Step.REPLACE, "the task was cleared")
    if observation.state is State.STOPPING:
        return Plan(Step.REPLACE, "it is being stopped")
    if not has_equal_spec(newest, claim.spec):
        return Plan(Step.REPLACE, "its spec differs from the task's arguments")
    return Plan(Step.ADOPT, f"try {newest.owner.try_number} left it {observation.state}")


def is_cleared(former: Owner, claim: Claim) -> bool:
    """True when the former owner is a try that was cleared, or of a task instance that was deleted.

    A deleted task instance counts its tries anew, so an older one can have the same number.
    """
    return former.try_number <= claim.cleared_try or former.try_number >= claim.owner.try_number


def has_equal_spec(record: SubmissionRecord, spec: JobSpec) -> bool:
    """True when the task's arguments would make this submission again, after the same recovery steps."""
    for index in record.supervision.used_rules:
        spec = scale_resources(spec, record.supervision.policy.rules[index].scale)
    return spec.digest == record.spec.digest


def last_rule(record: SubmissionRecord) -> RecoveryRule | None:
    """The recovery rule that made this submission; None for one that the task itself asked for."""
    used = record.supervision.used_rules
    return record.supervision.policy.rules[used[-1]] if used else None


def is_made_held(record: SubmissionRecord) -> bool:
    """True when this submission must be held before its gate is opened."""
    rule = last_rule(record)
    return rule is not None and rule.action is Recovery.HOLD


def _start(record: JobRecord, claim: Claim, reason: str) -> Plan:
    found = (submission.ref.submission for submission in record.submissions)
    return Plan(Step.START, reason, next_submission(record.ledger, found, claim.owner.try_number))
