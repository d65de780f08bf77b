# SPDX-License-Identifier: Apache-2.0
"""What to do after a job has failed, as data: causes → resubmit, fail or hold, so many times, after a pause.

The policy is stored with the job at start and read again at its end, so an edited DAG doesn't change a running job.
Its budget is its own: a lost node costs no retry of the task. A resubmission is a new submission.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from fractions import Fraction

from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.quantity import CPU
from airflow_provider_dispatch.core.state import Cause
from airflow_provider_dispatch.exceptions import SpecError

LONGEST_BACK_OFF = timedelta(hours=1)


class Recovery(StrEnum):
    """What a rule does. ``hold`` submits again behind a hold that a person has to release."""

    RESUBMIT = "resubmit"
    FAIL = "fail"
    HOLD = "hold"


@dataclass(frozen=True, slots=True)
class RecoveryRule:
    """One row of a policy.

    :param causes: for which it is meant; empty means any.
    :param limit: how often it may act for one job; ignored by ``fail``.
    :param back_off: pause before the new submission, doubled each time up to an hour.
    :param scale: resource → factor applied to every role that asks for it, for instance ``{"memory": 1.5}``.
    """

    causes: tuple[Cause, ...]
    action: Recovery = Recovery.RESUBMIT
    limit: int = 1
    back_off: timedelta = timedelta(0)
    scale: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.limit < 0:
            raise SpecError("recovery.limit", "must not be negative", self.limit)
        if self.back_off < timedelta(0):
            raise SpecError("recovery.back_off", "must not be negative", self.back_off)
        for resource, factor in self.scale.items():
            if not 0 < factor <= 1000:
                raise SpecError(f"recovery.scale.{resource}", "must be above 0 and at most 1000", factor)


@dataclass(frozen=True, slots=True)
class RecoveryPolicy:
    """Rules in order; the first that names the cause and has not used up its limit decides. No rule: fail.

    It is not asked about a job that was stopped or whose objects are gone: those fail.
    """

    rules: tuple[RecoveryRule, ...] = ()


DEFAULT_POLICY = RecoveryPolicy(
    (RecoveryRule((Cause.NODE_LOST, Cause.EVICTED), limit=3, back_off=timedelta(seconds=1)),)
)
"""Lost machines are nobody's fault; everything else is for a person or an explicit rule."""


@dataclass(frozen=True, slots=True)
class RecoveryStep:
    """What the policy says now.

    :param rule: index of the rule that acts; None when none does.
    """

    action: Recovery
    rule: int | None = None
    back_off: timedelta = timedelta(0)


def decide_recovery(policy: RecoveryPolicy, cause: Cause, used: Sequence[int]) -> RecoveryStep:
    """Ask the policy about an end.

    :param used: indices of the rules that have acted for this job, once each time.
    """
    for index, rule in enumerate(policy.rules):
        if rule.causes and cause not in rule.causes:
            continue
        if rule.action is Recovery.FAIL:
            return RecoveryStep(Recovery.FAIL, index)
        times = used.count(index)
        if times < rule.limit:
            return RecoveryStep(rule.action, index, _backed_off(rule.back_off, times))
    return RecoveryStep(Recovery.FAIL)


def _backed_off(back_off: timedelta, times: int) -> timedelta:
    # Both factors are bounded first: the product of a day and 2**32 is more than a timedelta holds.
    return min(min(back_off, LONGEST_BACK_OFF) * (1 << min(times, 32)), LONGEST_BACK_OFF)


def scale_resources(spec: JobSpec, scale: Mapping[str, float]) -> JobSpec:
    """The spec with its requests multiplied; a role that doesn't ask for a resource is left alone."""
    roles = []
    for role in spec.roles:
        changed = {name: _scaled(name, role.requests[name], scale[name]) for name in scale if name in role.resources}
        roles.append(role.model_copy(update={"resources": role.resources | changed}))
    return spec.model_copy(update={"roles": tuple(roles)})


def _scaled(resource: str, amount: int, factor: float) -> str:
    product = math.ceil(amount * Fraction(str(factor)))
    return f"{product}m" if resource == CPU else str(product)
