# SPDX-License-Identifier: Apache-2.0
"""What a waiter waits for, and whether an observation is it, may still become it, or never will.

Triggers and sensors declare a goal; the wait loop asks here. A job nobody has heard of yet is waited for: tasks that
name a job often run before the task that starts it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.core.state import State


class Goal(StrEnum):
    """Points in a job's life worth waiting for."""

    GATED = "gated"
    OPENED = "opened"
    ADMITTED = "admitted"
    RUNNING = "running"
    HELD = "held"
    RELEASED = "released"
    QUEUED = "queued"
    FINISHED = "finished"


class Verdict(StrEnum):
    """Answer to "is it there yet?"."""

    DONE = "done"
    WAIT = "wait"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, and for FAIL why it can never be."""

    verdict: Verdict
    reason: str = ""


_LIVE = frozenset(State) - {State.SUCCEEDED, State.FAILED, State.GONE, State.UNKNOWN}
STATES_OF_GOAL: dict[Goal, frozenset[State]] = {
    Goal.GATED: frozenset({State.GATED}),
    Goal.OPENED: frozenset({State.QUEUED, State.STARTING, State.RUNNING}),
    Goal.ADMITTED: frozenset({State.STARTING, State.RUNNING}),
    Goal.RUNNING: frozenset({State.RUNNING}),
    Goal.HELD: frozenset({State.HELD}),
    Goal.RELEASED: frozenset({State.GATED, State.QUEUED, State.STARTING, State.RUNNING}),
    Goal.QUEUED: frozenset({State.GATED, State.QUEUED, State.STARTING, State.RUNNING}),
    Goal.FINISHED: frozenset({State.SUCCEEDED}),
}
"""``QUEUED`` means "in the queue or further", which a gated job that was held and released is as well."""

_PASSED = {Goal.OPENED, Goal.ADMITTED, Goal.RUNNING, Goal.RELEASED, Goal.QUEUED}
"""Goals that a job which succeeded has reached on its way."""


def judge(goal: Goal, observation: Observation) -> Judgement:
    """Compare an observation with a goal."""
    if goal in (Goal.GATED, Goal.OPENED) and observation.state in _LIVE:
        return _judge_gate(goal, is_open=observation.gates.is_open)
    if goal in _PASSED and observation.state is State.SUCCEEDED:
        return Judgement(Verdict.DONE)
    return judge_states(STATES_OF_GOAL[goal], observation)


def judge_states(wanted: Collection[State], observation: Observation) -> Judgement:
    """Compare an observation with a set of states; a job that is over and not in it will never be."""
    if observation.state in wanted and not observation.is_unheard_of:
        return Judgement(Verdict.DONE)
    if observation.is_over:
        names = " or ".join(sorted(wanted))
        cause = f", {observation.cause}" if observation.cause else ""
        detail = f": {observation.detail}" if observation.detail else ""
        return Judgement(Verdict.FAIL, f"it will never be {names}: it is {observation.state}{cause}{detail}")
    return Judgement(Verdict.WAIT)


def _judge_gate(goal: Goal, *, is_open: bool) -> Judgement:
    if is_open == (goal is Goal.OPENED):
        return Judgement(Verdict.DONE)
    return (
        Judgement(Verdict.FAIL, "its gate is open already and can't be closed") if is_open else Judgement(Verdict.WAIT)
    )
