# SPDX-License-Identifier: Apache-2.0
"""The keeper of a job: what it does about every state, clock, deadline and end, and that no end is ever undone."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_dispatch.core.clocks import Budgets, ClockReading, Clocks
from airflow_provider_dispatch.core.decision import Action, Decision, OnTimeout, OnUnfittable, Supervision, decide
from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.core.recovery import Recovery, RecoveryPolicy, RecoveryRule
from airflow_provider_dispatch.core.state import Cause, State
from tests.core.strategies import NOW, at, moments, observe, seconds

observations = st.builds(
    observe,
    st.sampled_from(State),
    cause=st.none() | st.sampled_from(Cause),
    clocks=st.from_type(Clocks),
    waiting_role=st.none() | st.just("leader"),
)
LIVE = sorted(set(State) - {State.SUCCEEDED, State.FAILED, State.GONE})
PLAIN = Supervision(policy=RecoveryPolicy())
ANY_CAUSE = Supervision(policy=RecoveryPolicy((RecoveryRule((), limit=99),)))
ACTS = [(OnTimeout.STOP, Action.STOP), (OnTimeout.HOLD, Action.HOLD), (OnTimeout.LEAVE, Action.LEAVE)]


def running_for(clock: str, elapsed: float) -> Clocks:
    return Clocks(**{clock: ClockReading(at(-elapsed))})


def test_the_closed_sets() -> None:
    assert [*OnTimeout] == ["stop", "hold", "leave"]
    assert [*OnUnfittable] == ["fail", "wait"]
    assert [*Action] == ["wait", "succeed", "fail", "stop", "hold", "leave", "resubmit", "resubmit_held"]


def test_how_a_job_is_looked_after_unless_told() -> None:
    plain = Supervision()

    assert (plain.budgets, plain.on_timeout, plain.on_unfittable) == (Budgets(), OnTimeout.STOP, OnUnfittable.FAIL)
    assert (plain.used_rules, plain.deadline) == ((), None)
    assert plain.policy.rules[0].causes == (Cause.NODE_LOST, Cause.EVICTED)


def test_a_rule_that_acted_is_remembered() -> None:
    supervision = Supervision(used_rules=(1,), deadline=NOW)

    assert supervision.after_rule(2) == Supervision(used_rules=(1, 2), deadline=NOW)
    assert supervision.used_rules == (1,)


@pytest.mark.parametrize("state", LIVE)
def test_a_live_job_is_waited_for(state: State) -> None:
    assert decide(observe(state), PLAIN, NOW) == Decision(Action.WAIT)
    assert Decision(Action.WAIT) == Decision(Action.WAIT, None, "", None, None, timedelta(0))


def test_a_job_nobody_heard_of_yet_is_waited_for() -> None:
    assert decide(observe(State.GONE), PLAIN, NOW) == Decision(Action.WAIT)


def test_success_is_success_whatever_the_clocks_say() -> None:
    supervision = Supervision(Budgets(running=seconds(1)), deadline=at(-9))
    seen = observe(State.SUCCEEDED, cause=Cause.NO_CAPACITY, clocks=running_for("running", 99))

    assert decide(seen, supervision, NOW) == Decision(Action.SUCCEED)


@pytest.mark.parametrize("cause", [None, *Cause])
def test_a_failed_job_without_a_rule_fails_with_its_cause(cause: Cause | None) -> None:
    seen = observe(State.FAILED, cause=cause, detail="so it was")

    assert decide(seen, PLAIN, NOW) == Decision(Action.FAIL, cause or Cause.UNKNOWN, "so it was")


@pytest.mark.parametrize("cause", Cause)
def test_no_rule_brings_back_what_is_gone(cause: Cause) -> None:
    seen = observe(State.GONE, cause=cause, detail="removed")

    assert decide(seen, ANY_CAUSE, NOW) == Decision(Action.FAIL, cause, "removed")


def test_no_rule_brings_back_what_was_stopped() -> None:
    seen = observe(State.FAILED, cause=Cause.STOPPED, detail="asked for")

    assert decide(seen, ANY_CAUSE, NOW) == Decision(Action.FAIL, Cause.STOPPED, "asked for")


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (Recovery.RESUBMIT, Decision(Action.RESUBMIT, Cause.NODE_LOST, "lost", None, 1, seconds(6))),
        (Recovery.HOLD, Decision(Action.RESUBMIT_HELD, Cause.NODE_LOST, "lost", None, 1, seconds(6))),
        (Recovery.FAIL, Decision(Action.FAIL, Cause.NODE_LOST, "lost", None, 1)),
    ],
)
def test_a_failed_job_is_recovered_by_its_policy(action: Recovery, expected: Decision) -> None:
    rules = (RecoveryRule((Cause.EXITED,)), RecoveryRule((Cause.NODE_LOST,), action, limit=9, back_off=seconds(3)))
    supervision = Supervision(policy=RecoveryPolicy(rules), used_rules=(1, 0))

    assert decide(observe(State.FAILED, cause=Cause.NODE_LOST, detail="lost"), supervision, NOW) == expected


def test_a_failure_of_unknown_cause_is_asked_about_as_such() -> None:
    supervision = Supervision(policy=RecoveryPolicy((RecoveryRule((Cause.UNKNOWN,)),)))

    assert decide(observe(State.FAILED), supervision, NOW).action is Action.RESUBMIT


@pytest.mark.parametrize(("on_timeout", "action"), ACTS)
def test_a_clock_that_ran_out_ends_the_wait(on_timeout: OnTimeout, action: Action) -> None:
    supervision = Supervision(Budgets(queued=seconds(60)), on_timeout=on_timeout)
    seen = observe(State.QUEUED, clocks=running_for("queued", 60))

    assert decide(seen, supervision, NOW) == Decision(action, Cause.TIMEOUT, "the queued clock ran out after 0:01:00")
    assert decide(seen, supervision, at(-0.001)) == Decision(Action.WAIT, wake_at=NOW)


def test_a_startup_that_ran_out_names_the_role() -> None:
    supervision = Supervision(Budgets(starting=seconds(5)))
    seen = observe(State.STARTING, clocks=running_for("starting", 9), waiting_role="leader")

    assert decide(seen, supervision, NOW).reason == "the starting clock ran out after 0:00:05 (leader is not ready)"


@pytest.mark.parametrize(("on_timeout", "action"), ACTS)
@pytest.mark.parametrize("state", LIVE)
def test_the_deadline_is_absolute(state: State, on_timeout: OnTimeout, action: Action) -> None:
    supervision = Supervision(on_timeout=on_timeout, deadline=NOW)
    reason = "the task's execution_timeout is over"

    assert decide(observe(state), supervision, NOW) == Decision(action, Cause.TIMEOUT, reason)
    assert decide(observe(state), supervision, at(1)) == Decision(action, Cause.TIMEOUT, reason)
    assert decide(observe(state), supervision, at(-1)) == Decision(Action.WAIT, wake_at=NOW)


def test_the_deadline_comes_before_clocks_and_capacity() -> None:
    supervision = Supervision(Budgets(queued=seconds(1)), deadline=NOW)
    seen = observe(State.QUEUED, cause=Cause.NO_CAPACITY, clocks=running_for("queued", 9))

    assert decide(seen, supervision, NOW).reason == "the task's execution_timeout is over"


def test_a_job_that_can_never_fit_is_stopped() -> None:
    seen = observe(State.QUEUED, cause=Cause.NO_CAPACITY, detail="needs 2 cpu", clocks=running_for("queued", 9))
    supervision = Supervision(Budgets(queued=seconds(1)))

    assert decide(seen, supervision, NOW) == Decision(Action.STOP, Cause.NO_CAPACITY, "needs 2 cpu")


def test_a_job_that_can_never_fit_waits_on_wish() -> None:
    seen = observe(State.QUEUED, cause=Cause.NO_CAPACITY, clocks=running_for("queued", 1))
    patient = Supervision(Budgets(queued=seconds(9)), on_unfittable=OnUnfittable.WAIT)

    assert decide(seen, patient, NOW) == Decision(Action.WAIT, wake_at=at(8))
    assert decide(seen, patient, at(8)).cause is Cause.TIMEOUT


@pytest.mark.parametrize(
    ("state", "cause"), [(State.RUNNING, Cause.NO_CAPACITY), (State.QUEUED, Cause.IMAGE), (State.QUEUED, None)]
)
def test_only_a_queued_job_without_capacity_can_never_fit(state: State, cause: Cause | None) -> None:
    assert decide(observe(state, cause=cause), PLAIN, NOW).action is Action.WAIT


@pytest.mark.parametrize(
    ("budget", "deadline", "wake_at"),
    [(None, None, None), (20, None, 15), (None, 30, 30), (20, 30, 15), (40, 30, 30)],
)
def test_it_wakes_for_whatever_comes_first(budget: int | None, deadline: int | None, wake_at: int | None) -> None:
    budgets = Budgets(running=seconds(budget) if budget else None)
    supervision = Supervision(budgets, deadline=at(deadline) if deadline else None)
    seen = observe(State.RUNNING, clocks=running_for("running", 5))

    assert decide(seen, supervision, NOW) == Decision(Action.WAIT, wake_at=at(wake_at) if wake_at else None)


@given(observations, st.from_type(Supervision), moments)
def test_every_decision_is_whole(seen: Observation, supervision: Supervision, now) -> None:
    decision = decide(seen, supervision, now)

    assert (decision.cause is None) == (decision.action in {Action.WAIT, Action.SUCCEED})
    assert (decision.action is Action.SUCCEED) == (seen.state is State.SUCCEEDED)
    if seen.is_over:
        assert decision.action in {Action.SUCCEED, Action.FAIL, Action.RESUBMIT, Action.RESUBMIT_HELD}
    else:
        assert decision.action in {Action.WAIT, Action.STOP, Action.HOLD, Action.LEAVE}
    if decision.action in {Action.RESUBMIT, Action.RESUBMIT_HELD}:
        assert decision.rule is not None
        assert supervision.used_rules.count(decision.rule) < supervision.policy.rules[decision.rule].limit


@given(observations, st.from_type(Supervision), moments)
def test_a_wait_ends_at_its_own_time_even_if_nothing_changes(seen: Observation, supervision: Supervision, now) -> None:
    decision = decide(seen, supervision, now)

    if decision.wake_at is not None:
        assert decision.action is Action.WAIT
        assert decision.wake_at > now
        assert decide(seen, supervision, decision.wake_at).action is not Action.WAIT
