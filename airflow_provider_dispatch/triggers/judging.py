# SPDX-License-Identifier: Apache-2.0
"""When a wait is over: judges made of a goal, of states, or of how a job is supervised.

The wait loop asks one about each observation. Pure: it looks at what it is given and at the time it is told.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime

from airflow_provider_dispatch.core.decision import Action, Supervision, decide
from airflow_provider_dispatch.core.goals import Goal, Judgement, Verdict, judge, judge_states
from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.core.state import Cause, State


@dataclass(frozen=True, slots=True)
class Assessment:
    """What a judge says.

    :param reason: of FAIL, for people.
    :param is_timeout: of FAIL: a clock ran out, rather than the job having ended.
    :param wake_at: of WAIT: when to ask again even if nothing changes.
    """

    verdict: Verdict
    reason: str = ""
    is_timeout: bool = False
    wake_at: datetime | None = None


Judge = Callable[[Observation, datetime], Assessment]


def build_goal_judge(goal: Goal, *, submission: int | None = None) -> Judge:
    """Wait for a point in a job's life; see :func:`airflow_provider_dispatch.core.goals.judge`.

    :param submission: the one meant; None means whichever is the newest.
    """
    return lambda observation, _: _assess(judge(goal, observation), observation, submission)


def build_states_judge(states: Collection[State], *, submission: int | None = None) -> Judge:
    """Wait for one of some states."""
    return lambda observation, _: _assess(judge_states(states, observation), observation, submission)


def build_end_judge(supervision: Supervision, *, submission: int | None = None) -> Judge:
    """Wait until there is something to decide about a job that was started: its end, or a clock that ran out."""

    def assess(observation: Observation, now: datetime) -> Assessment:
        if observation.is_unheard_of:
            return Assessment(Verdict.FAIL, "nobody has heard of it here; was it started on another machine?")
        return _assess_submission(observation, submission) or _assess_end(observation, supervision, now)

    return assess


def _assess_end(observation: Observation, supervision: Supervision, now: datetime) -> Assessment:
    decision = decide(observation, supervision, now)
    if decision.action is Action.WAIT:
        return Assessment(Verdict.WAIT, wake_at=decision.wake_at)
    if decision.action is Action.SUCCEED:
        return Assessment(Verdict.DONE)
    is_timeout = decision.cause is Cause.TIMEOUT and not observation.is_over
    return Assessment(Verdict.FAIL, decision.reason or str(decision.cause or ""), is_timeout)


def _assess(judgement: Judgement, observation: Observation, submission: int | None) -> Assessment:
    other = _assess_submission(observation, submission)
    return other or Assessment(judgement.verdict, judgement.reason)


def _assess_submission(observation: Observation, submission: int | None) -> Assessment | None:
    """An answer when another submission was seen than the one meant."""
    seen = observation.ref.submission
    if submission is None or observation.is_unheard_of or seen == submission:
        return None
    if seen < submission:
        return Assessment(Verdict.WAIT)
    return Assessment(Verdict.FAIL, f"submission {seen} has taken the place of {submission}")
