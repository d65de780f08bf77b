# SPDX-License-Identifier: Apache-2.0
"""Time is added up by clock: what was held or queued never counts as run time, and no time is lost or counted twice."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_dispatch.core.clocks import (
    CLOCK_OF_STATE,
    LONGEST_BUDGET,
    Budgets,
    Clock,
    ClockReading,
    Clocks,
    advance_clocks,
    expired_clock,
    next_clock_expiry,
)
from airflow_provider_dispatch.core.state import State
from airflow_provider_dispatch.exceptions import SpecError
from tests.core.strategies import NOW, at, seconds

FIELDS = ("gated", "queued", "starting", "running", "held")
STANDING = {State.SUCCEEDED, State.FAILED, State.STOPPING, State.GONE, State.UNKNOWN}
histories = st.lists(st.tuples(st.sampled_from(State), st.integers(0, 10**6)), max_size=30)


def run_through(history: list[tuple[State, int]]) -> tuple[Clocks, datetime]:
    """The clocks after states that lasted so many milliseconds each."""
    clocks, now = Clocks(), NOW
    for state, milliseconds in history:
        clocks = advance_clocks(clocks, state, now)
        now += timedelta(milliseconds=milliseconds)
    return clocks, now


def only(clock: str, value: Any) -> dict[str, Any]:
    return {clock: value}


def test_the_clocks_are_those_of_the_contract() -> None:
    assert [*Clock] == [*FIELDS]


@pytest.mark.parametrize(
    ("state", "clock"),
    [
        (State.GATED, Clock.GATED),
        (State.QUEUED, Clock.QUEUED),
        (State.STARTING, Clock.STARTING),
        (State.RUNNING, Clock.RUNNING),
        (State.HOLDING, Clock.HELD),
        (State.HELD, Clock.HELD),
        *((state, None) for state in sorted(STANDING)),
    ],
)
def test_each_state_lets_one_clock_run_or_none(state: State, clock: Clock | None) -> None:
    clocks = advance_clocks(Clocks(), state, NOW)

    assert {name for name in Clock if clocks.reading(name).since == NOW} == ({clock} if clock else set())
    assert CLOCK_OF_STATE.get(state) is clock


@given(histories)
def test_accumulated_time_is_the_sum_of_the_intervals(history: list[tuple[State, int]]) -> None:
    clocks, now = run_through(history)

    for clock in Clock:
        lasted = sum(milliseconds for state, milliseconds in history if CLOCK_OF_STATE.get(state) is clock)
        assert clocks.reading(clock).elapsed(now) == timedelta(milliseconds=lasted)


@given(histories)
def test_at_most_one_clock_runs(history: list[tuple[State, int]]) -> None:
    clocks, _ = run_through(history)

    running = [clock for clock in Clock if clocks.reading(clock).since is not None]
    assert running == ([CLOCK_OF_STATE[history[-1][0]]] if history and history[-1][0] not in STANDING else [])


@given(histories, st.integers(1, 10**9))
def test_time_held_or_queued_is_no_run_time(history: list[tuple[State, int]], longer: int) -> None:
    stretched = [
        (
            state,
            milliseconds + longer if state in {State.HELD, State.HOLDING, State.QUEUED, State.GATED} else milliseconds,
        )
        for state, milliseconds in history
    ]
    (clocks, now), (later_clocks, later) = run_through(history), run_through(stretched)

    assert later_clocks.running.elapsed(later) == clocks.running.elapsed(now)
    assert later_clocks.starting.elapsed(later) == clocks.starting.elapsed(now)


@given(histories, st.integers(0, 5))
def test_looking_more_often_changes_nothing(history: list[tuple[State, int]], times: int) -> None:
    once, now = run_through(history)
    often, same_now = run_through([(state, part) for state, lasted in history for part in split(lasted, times)])

    assert same_now == now
    assert [often.reading(clock).elapsed(now) for clock in Clock] == [once.reading(c).elapsed(now) for c in Clock]


def split(milliseconds: int, times: int) -> list[int]:
    return [0] * times + [milliseconds // 2, milliseconds - milliseconds // 2]


def test_a_reading_stops_and_starts() -> None:
    fresh = ClockReading()
    running = fresh.start(at(0))
    stopped = running.stop(at(5))

    assert fresh == ClockReading(None, seconds(0))
    assert running == ClockReading(at(0), seconds(0))
    assert running.start(at(3)) is running
    assert running.elapsed(at(5)) == seconds(5)
    assert stopped == ClockReading(None, seconds(5))
    assert stopped.stop(at(9)) == stopped
    assert stopped.elapsed(at(9)) == seconds(5)
    assert stopped.start(at(9)) == ClockReading(at(9), seconds(5))
    assert stopped.start(at(9)).elapsed(at(10)) == seconds(6)


def test_a_stamp_before_its_start_counts_nothing() -> None:
    running = ClockReading(at(10), seconds(3))

    assert running.elapsed(at(4)) == seconds(3)
    assert running.stop(at(4)) == ClockReading(None, seconds(3))


@pytest.mark.parametrize("clock", FIELDS)
def test_readings_and_budgets_are_found_by_name(clock: str) -> None:
    reading = ClockReading(NOW, seconds(1))

    assert Clocks(**only(clock, reading)).reading(Clock(clock)) is reading
    assert [Clocks(**only(clock, reading)).reading(other) is reading for other in Clock].count(True) == 1
    assert Budgets(**only(clock, seconds(9))).limit(Clock(clock)) == seconds(9)
    assert [Budgets(**only(clock, seconds(9))).limit(other) for other in Clock].count(None) == 4


@pytest.mark.parametrize("clock", FIELDS)
@pytest.mark.parametrize(
    ("limit", "accumulated", "elapsed", "is_expired"),
    [
        (10, 0, 9.999, False),
        (10, 0, 10, True),
        (10, 4, 5.999, False),
        (10, 4, 6, True),
        (10, 40, 0, True),
        (0, 0, 0, True),
    ],
)
def test_the_running_clock_expires_with_its_budget(
    clock: str, limit: float, accumulated: float, elapsed: float, is_expired: bool
) -> None:
    clocks = Clocks(**only(clock, ClockReading(NOW, seconds(accumulated))))
    budgets = Budgets(**only(clock, seconds(limit)))

    assert expired_clock(clocks, budgets, at(elapsed)) == (clock if is_expired else None)
    assert next_clock_expiry(clocks, budgets) == at(max(limit - accumulated, 0))


@pytest.mark.parametrize("clock", FIELDS)
def test_a_clock_without_a_budget_never_expires(clock: str) -> None:
    clocks = Clocks(**only(clock, ClockReading(NOW, timedelta(days=900))))
    others = Budgets(**{other: seconds(0) for other in FIELDS if other != clock})

    assert expired_clock(clocks, others, at(9)) is None
    assert next_clock_expiry(clocks, others) is None


@pytest.mark.parametrize("clock", FIELDS)
def test_a_standing_clock_has_expired_no_more(clock: str) -> None:
    """The job has moved on in time."""
    clocks = Clocks(**only(clock, ClockReading(None, timedelta(days=900))))

    assert expired_clock(clocks, Budgets(**only(clock, seconds(1))), NOW) is None
    assert next_clock_expiry(clocks, Budgets(**only(clock, seconds(1)))) is None


@given(histories, st.builds(Budgets, *[st.none() | st.timedeltas(seconds(0), seconds(2000))] * 5))
def test_a_clock_expires_exactly_when_foretold(history: list[tuple[State, int]], budgets: Budgets) -> None:
    clocks, now = run_through(history)

    foretold = next_clock_expiry(clocks, budgets)

    assert (expired_clock(clocks, budgets, now) is not None) == (foretold is not None and foretold <= now)
    if foretold is not None:
        assert expired_clock(clocks, budgets, foretold) is not None
    if foretold is not None and foretold > now:
        assert expired_clock(clocks, budgets, foretold - timedelta(microseconds=1)) is None


@pytest.mark.parametrize("clock", FIELDS)
@pytest.mark.parametrize(
    ("limit", "shown"),
    [
        (timedelta(microseconds=-1), "-1 day, 23:59:59.999999"),
        (LONGEST_BUDGET + timedelta(microseconds=1), "3650 days, 0:00:00.000001"),
        (timedelta.max, "999999999 days, 23:59:59.999999"),
    ],
)
def test_a_budget_that_is_no_time_is_refused(clock: str, limit: timedelta, shown: str) -> None:
    with pytest.raises(SpecError) as caught:
        Budgets(**only(clock, limit))

    assert str(caught.value) == (f"budgets.{clock} = {shown!r}: must lie between 0 and ten years; None means no limit")


def test_the_longest_budget_is_ten_years() -> None:
    budgets = Budgets(running=timedelta(days=3650))

    assert next_clock_expiry(Clocks(running=ClockReading(NOW)), budgets) == NOW + timedelta(days=3650)
