# SPDX-License-Identifier: Apache-2.0
"""What waiters wait for, for every goal against every state."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_dispatch.core.goals import STATES_OF_GOAL, Goal, Judgement, Verdict, judge, judge_states
from airflow_provider_dispatch.core.observation import Gates, Observation
from airflow_provider_dispatch.core.state import Cause, State
from tests.core.strategies import observe

LETTERS = {"D": Verdict.DONE, "w": Verdict.WAIT, "F": Verdict.FAIL}
# Rows are goals; columns are the states in the order of precedence, then GONE of which nobody ever heard.
OPEN_GATE = """
            succ fail stopping holding held gated queued starting running gone unknown unheard
gated        F    F      F        F     F     F     F       F        F      F     w       w
opened       D    F      D        D     D     D     D       D        D      F     w       w
admitted     D    F      w        w     w     w     w       D        D      F     w       w
running      D    F      w        w     w     w     w       w        D      F     w       w
held         F    F      w        w     D     w     w       w        w      F     w       w
released     D    F      w        w     w     D     D       D        D      F     w       w
queued       D    F      w        w     w     D     D       D        D      F     w       w
finished     D    F      w        w     w     w     w       w        w      F     w       w
"""
CLOSED_GATE = """
            succ fail stopping holding held gated queued starting running gone unknown unheard
gated        F    F      D        D     D     D     D       D        D      F     w       w
opened       D    F      w        w     w     w     w       w        w      F     w       w
"""


def read_table(table: str, *, is_open: bool) -> list[tuple[Goal, Observation, Verdict]]:
    columns = [*(observe(state, cause=Cause.STOPPED if state is State.GONE else None) for state in State)]
    columns.append(observe(State.GONE))
    rows = []
    for row in table.strip().splitlines()[1:]:
        name, *letters = row.split()
        for seen, letter in zip(columns, letters, strict=True):
            gated = Observation(seen.state, seen.ref, cause=seen.cause, gates=Gates(is_open=is_open))
            rows.append((Goal(name), gated, LETTERS[letter]))
    return rows


CASES = read_table(OPEN_GATE, is_open=True) + read_table(CLOSED_GATE, is_open=False)


@pytest.mark.parametrize(
    ("goal", "seen", "verdict"), CASES, ids=[f"{g}-{o.state}-{o.gates.is_open}" for g, o, _ in CASES]
)
def test_each_goal_against_each_state(goal: Goal, seen: Observation, verdict: Verdict) -> None:
    assert judge(goal, seen).verdict is verdict


def test_the_table_names_every_goal() -> None:
    assert {goal for goal, _, _ in CASES} == set(Goal) == set(STATES_OF_GOAL)


def test_a_goal_out_of_reach_says_why() -> None:
    seen = observe(State.FAILED, cause=Cause.EXITED, detail="rank 1 exited with code 3")

    assert judge(Goal.HELD, seen) == Judgement(
        Verdict.FAIL, "it will never be held: it is failed, exited: rank 1 exited with code 3"
    )
    assert judge(Goal.ADMITTED, observe(State.FAILED)).reason == "it will never be running or starting: it is failed"


def test_an_open_gate_is_never_waited_for() -> None:
    seen = observe(State.QUEUED, gates=Gates(is_open=True))

    assert judge(Goal.GATED, seen) == Judgement(Verdict.FAIL, "its gate is open already and can't be closed")


def test_a_verdict_that_is_no_failure_needs_no_reason() -> None:
    assert {judge(goal, seen).reason for goal, seen, verdict in CASES if verdict is not Verdict.FAIL} == {""}


@given(st.frozensets(st.sampled_from(State)), st.sampled_from(State), st.sampled_from([None, *Cause]))
def test_a_job_that_is_over_is_never_waited_for(wanted: frozenset, state: State, cause: Cause | None) -> None:
    seen = observe(state, cause=cause)

    verdict = judge_states(wanted, seen).verdict

    assert (verdict is Verdict.WAIT) == (not seen.is_over and (state not in wanted or seen.is_unheard_of))
    assert (verdict is Verdict.DONE) == (state in wanted and not seen.is_unheard_of)


@given(st.sampled_from(Goal), st.sampled_from([State.SUCCEEDED, State.FAILED]), st.booleans())
def test_an_end_is_never_taken_back(goal: Goal, state: State, is_open: bool) -> None:
    seen = observe(state, gates=Gates(is_open=is_open))

    assert judge(goal, seen).verdict is not Verdict.WAIT


def test_a_job_nobody_heard_of_may_be_wanted_gone_only_once_it_was_there() -> None:
    assert judge_states({State.GONE}, observe(State.GONE)).verdict is Verdict.WAIT
    assert judge_states({State.GONE}, observe(State.GONE, cause=Cause.STOPPED)).verdict is Verdict.DONE
