# SPDX-License-Identifier: Apache-2.0
"""What the keeper of a job does next, given what it sees: wait, report, stop, hold, or submit again.

One pure function for deferred tasks, for waiting in the worker and for plain programs, so that they can't differ.
The triggers ask it whether to wake the worker; the worker asks it again, with a fresh observation, and acts.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from airflow_provider_dispatch.core.clocks import Budgets, expired_clock, next_clock_expiry
from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.core.recovery import DEFAULT_POLICY, Recovery, RecoveryPolicy, decide_recovery
from airflow_provider_dispatch.core.state import Cause, State


class OnTimeout(StrEnum):
    """What happens to a job one of whose clocks ran out; the task fails in any case."""

    STOP = "stop"
    HOLD = "hold"
    LEAVE = "leave"


class OnUnfittable(StrEnum):
    """What happens to a job that can never fit its queue."""

    FAIL = "fail"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Supervision:
    """How a job is looked after; stored with the submission, so that a later edit of the DAG doesn't change it.

    :param used_rules: recovery rules that have acted for this job so far, carried into each new submission.
    :param deadline: absolute end for the caller, by the wall clock; None means none.
    """

    budgets: Budgets = field(default_factory=Budgets)
    policy: RecoveryPolicy = DEFAULT_POLICY
    on_timeout: OnTimeout = OnTimeout.STOP
    on_unfittable: OnUnfittable = OnUnfittable.FAIL
    used_rules: tuple[int, ...] = ()
    deadline: datetime | None = None

    def after_rule(self, rule: int) -> Supervision:
        """The supervision of the submission that rule makes."""
        return replace(self, used_rules=(*self.used_rules, rule))


class Action(StrEnum):
    """What to do. STOP and HOLD end the task as failed after acting on the job; LEAVE fails and touches nothing."""

    WAIT = "wait"
    SUCCEED = "succeed"
    FAIL = "fail"
    STOP = "stop"
    HOLD = "hold"
    LEAVE = "leave"
    RESUBMIT = "resubmit"
    RESUBMIT_HELD = "resubmit_held"


@dataclass(frozen=True, slots=True)
class Decision:
    """An action with its reason.

    :param cause: for everything but WAIT and SUCCEED.
    :param wake_at: for WAIT: when to ask again even if nothing changes.
    :param rule: for RESUBMIT: index of the recovery rule.
    :param back_off: for RESUBMIT: pause before it.
    """

    action: Action
    cause: Cause | None = None
    reason: str = ""
    wake_at: datetime | None = None
    rule: int | None = None
    back_off: timedelta = timedelta(0)


_AFTER_TIMEOUT = {OnTimeout.STOP: Action.STOP, OnTimeout.HOLD: Action.HOLD, OnTimeout.LEAVE: Action.LEAVE}
_AFTER_END = {
    Recovery.RESUBMIT: Action.RESUBMIT,
    Recovery.HOLD: Action.RESUBMIT_HELD,
    Recovery.FAIL: Action.FAIL,
}


def decide(observation: Observation, supervision: Supervision, now: datetime) -> Decision:
    """What to do about *observation*.

    :param now: wall-clock time; compared with clocks and the deadline.
    """
    if observation.state is State.SUCCEEDED:
        return Decision(Action.SUCCEED)
    if observation.is_over:
        return _decide_after_end(observation, supervision)
    if supervision.deadline is not None and now >= supervision.deadline:
        return Decision(_AFTER_TIMEOUT[supervision.on_timeout], Cause.TIMEOUT, "the task's execution_timeout is over")
    if _is_unfittable(observation) and supervision.on_unfittable is OnUnfittable.FAIL:
        return Decision(Action.STOP, Cause.NO_CAPACITY, observation.detail)
    clock = expired_clock(observation.clocks, supervision.budgets, now)
    if clock is not None:
        limit = supervision.budgets.limit(clock)
        blamed = f" ({observation.waiting_role} is not ready)" if observation.waiting_role else ""
        return Decision(
            _AFTER_TIMEOUT[supervision.on_timeout], Cause.TIMEOUT, f"the {clock} clock ran out after {limit}{blamed}"
        )
    return Decision(Action.WAIT, wake_at=_next_wake(observation, supervision))


def _decide_after_end(observation: Observation, supervision: Supervision) -> Decision:
    cause = observation.cause or Cause.UNKNOWN
    # Nothing is left to submit again, or somebody wanted the end: no rule may undo that, not even one for any cause.
    if observation.state is State.GONE or cause is Cause.STOPPED:
        return Decision(Action.FAIL, cause, observation.detail)
    step = decide_recovery(supervision.policy, cause, supervision.used_rules)
    return Decision(_AFTER_END[step.action], cause, observation.detail, rule=step.rule, back_off=step.back_off)


def _is_unfittable(observation: Observation) -> bool:
    return observation.state is State.QUEUED and observation.cause is Cause.NO_CAPACITY


def _next_wake(observation: Observation, supervision: Supervision) -> datetime | None:
    times = (next_clock_expiry(observation.clocks, supervision.budgets), supervision.deadline)
    return min((time for time in times if time is not None), default=None)
