# SPDX-License-Identifier: Apache-2.0
"""Which submission a try looks after."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_dispatch.core.decision import Supervision
from airflow_provider_dispatch.core.identity import JobID, build_task_job_id
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.core.owner import Owner
from airflow_provider_dispatch.core.records import JobRecord, SubmissionRecord
from airflow_provider_dispatch.core.recovery import Recovery, RecoveryPolicy, RecoveryRule
from airflow_provider_dispatch.core.state import State
from airflow_provider_dispatch.operators.submission import (
    Claim,
    Plan,
    Step,
    decide_submission,
    is_cleared,
    is_made_held,
)

JOB: JobID = build_task_job_id("airflow", "d", "r", "train")
SPEC = JobSpec(command=["run"], resources={"memory": "1Gi"})
OURS = Owner("airflow", "d", "r", "train", try_number=2, instance_id="0002")
FORMER = replace(OURS, try_number=1, instance_id="0001")
LIVE = sorted(set(State) - {State.SUCCEEDED, State.FAILED, State.GONE, State.STOPPING})


def submitted(owner: Owner = FORMER, spec: JobSpec = SPEC, number: int = 1, **supervision: Any) -> SubmissionRecord:
    ref = JobRef(JOB, number, "fake", "here")
    return SubmissionRecord(ref, State.RUNNING, spec, owner, Supervision(**supervision))


def plan(found: SubmissionRecord | None, state: State = State.RUNNING, *, cleared_try: int = 0) -> Plan:
    claim = Claim(OURS, SPEC, cleared_try)
    if found is None:
        return decide_submission(JobRecord(JOB), None, claim)
    record = JobRecord(JOB, found.ref.submission, (found,))
    return decide_submission(record, Observation(state, found.ref), claim)


def test_a_first_try_starts_the_first_submission() -> None:
    first = Claim(replace(OURS, try_number=1), SPEC)

    assert decide_submission(JobRecord(JOB), None, first).submission == 1


def test_a_later_try_starts_above_those_that_left_no_trace() -> None:
    found = plan(None)

    assert (found.step, found.submission) == (Step.START, 2)


@pytest.mark.parametrize("state", list(State))
def test_a_try_keeps_its_own_submission_whatever_its_state(state: State) -> None:
    assert plan(submitted(OURS), state).step is Step.KEEP


@pytest.mark.parametrize("state", LIVE)
def test_a_retry_adopts_a_live_job(state: State) -> None:
    assert plan(submitted(), state).step is Step.ADOPT


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED])
def test_a_retry_starts_anew_after_an_end(state: State) -> None:
    found = plan(submitted(number=4), state)

    assert (found.step, found.submission) == (Step.START, 5)


@pytest.mark.parametrize("state", LIVE)
def test_a_cleared_task_replaces_a_live_job(state: State) -> None:
    assert plan(submitted(), state, cleared_try=1).step is Step.REPLACE


def test_a_retry_after_a_clear_adopts_again() -> None:
    claim = Claim(replace(OURS, try_number=3, instance_id="0003"), SPEC, cleared_try=1)
    found = submitted(OURS)

    decided = decide_submission(JobRecord(JOB, 1, (found,)), Observation(State.RUNNING, found.ref), claim)

    assert decided.step is Step.ADOPT


def test_a_deleted_task_instance_counts_anew_and_replaces() -> None:
    """Both are try 1; the older instance id tells them apart."""
    claim = Claim(replace(OURS, try_number=1), SPEC)

    assert is_cleared(replace(FORMER, try_number=3), claim)
    assert is_cleared(FORMER, claim)


def test_a_job_that_is_being_stopped_is_not_adopted() -> None:
    assert plan(submitted(), State.STOPPING).step is Step.REPLACE


def test_another_spec_replaces() -> None:
    assert plan(submitted(spec=JobSpec(command=["other"]))).step is Step.REPLACE


def test_a_spec_that_recovery_scaled_is_still_the_same() -> None:
    policy = RecoveryPolicy((RecoveryRule((), scale={"memory": 1.5}),))
    scaled = JobSpec(command=["run"], resources={"memory": "1536Mi"})

    assert plan(submitted(spec=scaled, policy=policy, used_rules=(0,))).step is Step.ADOPT
    assert plan(submitted(spec=scaled, policy=policy)).step is Step.REPLACE


def test_an_old_process_gives_way_to_a_later_try() -> None:
    assert plan(submitted(replace(OURS, try_number=3, instance_id="0003"))).step is Step.GIVE_WAY


def test_only_the_last_recovery_step_decides_about_a_hold() -> None:
    policy = RecoveryPolicy((RecoveryRule((), Recovery.HOLD), RecoveryRule(())))

    assert not is_made_held(submitted(policy=policy))
    assert is_made_held(submitted(policy=policy, used_rules=(1, 0)))
    assert not is_made_held(submitted(policy=policy, used_rules=(0, 1)))
