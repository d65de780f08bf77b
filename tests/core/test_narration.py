# SPDX-License-Identifier: Apache-2.0
"""The exact line for each state, and which observations deserve a new one."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_dispatch.core.clocks import Clock, ClockReading, Clocks
from airflow_provider_dispatch.core.holds import Actor, ActorKind, Hold
from airflow_provider_dispatch.core.identity import Identity
from airflow_provider_dispatch.core.narration import build_fingerprint, describe, describe_duration, describe_stop
from airflow_provider_dispatch.core.observation import Gates, Observation, Pending, Progress, RoleRanks
from airflow_provider_dispatch.core.records import ObjectReport, StopReport
from airflow_provider_dispatch.core.state import Cause, State
from tests.core.strategies import JOB, NOW, at, moments, observe, seconds

SECOND, MINUTE, HOUR, DAY = 1, 60, 3600, 86400
EPOCH = Identity(JOB, 1, 1, 1, 0)
RANKS = (RoleRanks("leader", 1, ready=1, running=1), RoleRanks("worker", 3, ready=1, running=2))


def hold(actor: str, reason: str = "", until: Any = None, instance: int = 1) -> Hold:
    return Hold(instance, actor, Actor(ActorKind.HUMAN, actor), reason, NOW, until)


@pytest.mark.parametrize(
    ("report", "line"),
    [
        (StopReport(JOB), "stopped: 0 parts are gone"),
        (StopReport(JOB, stopped=(ObjectReport("submission 1"),)), "stopped: 1 part is gone"),
        (
            StopReport(
                JOB, stopped=(ObjectReport("a"), ObjectReport("b")), alive=(ObjectReport("pod c", "is ending"),)
            ),
            "stopping: 2 parts are gone; still alive: pod c (is ending)",
        ),
        (
            StopReport(JOB, alive=(ObjectReport("c"), ObjectReport("d")), unproven=(ObjectReport("e", "on\nnode-2"),)),
            "stopping: 0 parts are gone; still alive: c, d; not proved dead: e (on node-2)",
        ),
    ],
)
def test_what_a_stop_did_is_one_line(report: StopReport, line: str) -> None:
    assert describe_stop(report) == line


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (0, "0 s"),
        (0.999, "0 s"),
        (45, "45 s"),
        (59.999, "59 s"),
        (MINUTE, "1 min"),
        (12 * MINUTE + 59, "12 min"),
        (59 * MINUTE + 59, "59 min"),
        (HOUR, "1 h"),
        (HOUR + 59, "1 h"),
        (HOUR + MINUTE, "1 h 1 min"),
        (3 * HOUR + 20 * MINUTE, "3 h 20 min"),
        (23 * HOUR + 59 * MINUTE + 59, "23 h 59 min"),
        (DAY, "1 d"),
        (DAY + 59 * MINUTE, "1 d"),
        (2 * DAY + 4 * HOUR, "2 d 4 h"),
        (400 * DAY + 23 * HOUR, "400 d 23 h"),
    ],
)
def test_a_duration_has_two_units_at_most(duration: float, text: str) -> None:
    assert describe_duration(timedelta(seconds=duration)) == text


@pytest.mark.parametrize(
    ("state", "fields", "line"),
    [
        (State.SUCCEEDED, {}, "succeeded"),
        (State.FAILED, {}, "failed"),
        (State.FAILED, {"cause": Cause.OUT_OF_MEMORY}, "failed, out of memory"),
        (State.FAILED, {"cause": Cause.EXITED, "detail": "rank 1 exited"}, "failed, exited: rank 1 exited"),
        (State.FAILED, {"detail": "nobody knows"}, "failed: nobody knows"),
        (State.STOPPING, {}, "stopping"),
        (State.HOLDING, {}, "held; its processes are still ending"),
        (State.HOLDING, {"holds": (hold("ann"),)}, "held by ann; its processes are still ending"),
        (State.HELD, {}, "held"),
        (State.HELD, {"holds": (hold("ann", "maintenance"),)}, "held by ann: maintenance"),
        (
            State.HELD,
            {"holds": (hold("ann", "maintenance", at(6 * HOUR)), hold("bob", instance=2))},
            "held by ann until 2026-03-01 18:00 UTC: maintenance and by bob",
        ),
        (State.GATED, {}, "gated: waiting for its gate to be opened"),
        (State.GATED, {"gates": Gates(others=("other.example/gate",))}, "gated by other.example/gate"),
        (State.GATED, {"gates": Gates(others=("a/b", "c/d"))}, "gated by a/b, c/d"),
        (State.QUEUED, {}, "queued"),
        (State.QUEUED, {"gates": Gates(is_open=True, others=("a/b", "c/d"))}, "gated by a/b, c/d"),
        (State.QUEUED, {"pending": Pending("", "")}, "queued"),
        (State.QUEUED, {"pending": Pending("", ""), "detail": "can't fit"}, "queued: can't fit"),
        (State.QUEUED, {"pending": Pending("Q", "no cpu", "team-a"), "detail": "x"}, "queued in team-a: no cpu"),
        (State.QUEUED, {"pending": Pending("Q", "", "team-a", 1)}, "queued in team-a, position 1"),
        (
            State.QUEUED,
            {"pending": Pending("Q", "insufficient quota for cpu", "team-a", 3)},
            "queued in team-a, position 3: insufficient quota for cpu",
        ),
        (State.STARTING, {}, "admitted, 0 of 0 ranks ready"),
        (State.STARTING, {"ranks": RANKS}, "admitted, 2 of 4 ranks ready"),
        (
            State.STARTING,
            {"ranks": RANKS, "waiting_role": "worker", "execution": EPOCH},
            "admitted, 2 of 4 ranks ready, waiting for worker, epoch 1000001",
        ),
        (State.RUNNING, {"ranks": RANKS}, "running: 4 of 4 ranks"),
        (
            State.RUNNING,
            {"ranks": RANKS, "execution": EPOCH, "waiting_role": "x"},
            "running: 4 of 4 ranks, epoch 1000001",
        ),
        (State.GONE, {}, "not started yet"),
        (State.GONE, {"cause": Cause.STOPPED}, "gone, stopped"),
        (State.GONE, {"cause": Cause.DELETED, "detail": "by ann"}, "gone, deleted: by ann"),
        (State.UNKNOWN, {"detail": "two ends"}, "unknown: two ends"),
    ],
)
def test_the_line_of_each_state(state: State, fields: dict[str, Any], line: str) -> None:
    assert describe(observe(state, **fields), NOW) == line


@pytest.mark.parametrize(
    ("state", "clock", "line"),
    [
        (State.GATED, Clock.GATED, "gated: waiting for its gate to be opened (12 min)"),
        (State.QUEUED, Clock.QUEUED, "queued (12 min)"),
        (State.STARTING, Clock.STARTING, "admitted, 0 of 0 ranks ready (12 min)"),
        (State.HOLDING, Clock.HELD, "held; its processes are still ending (12 min)"),
        (State.HELD, Clock.HELD, "held (12 min)"),
        (State.RUNNING, Clock.RUNNING, "running: 0 of 0 ranks"),
        (State.STOPPING, Clock.RUNNING, "stopping"),
    ],
)
def test_the_line_says_how_long_it_has_been_so(state: State, clock: Clock, line: str) -> None:
    clocks = Clocks(**{clock.value: ClockReading(at(-60), seconds(11 * MINUTE))})

    assert describe(observe(state, clocks=clocks), NOW) == line


@pytest.mark.parametrize(("elapsed", "line"), [(0.999, "queued"), (1, "queued (1 s)")])
def test_less_than_a_second_is_not_worth_telling(elapsed: float, line: str) -> None:
    seen = observe(State.QUEUED, clocks=Clocks(queued=ClockReading(NOW)))

    assert describe(seen, at(elapsed)) == line


def test_a_reason_cannot_forge_a_line() -> None:
    seen = observe(State.HELD, holds=(hold("ann", "first\nsucceeded\r\nthird\x85\u2028last"),))

    assert describe(seen, NOW) == "held by ann: first succeeded third  last"


observations = st.builds(
    observe,
    st.sampled_from(State),
    cause=st.none() | st.sampled_from(Cause),
    detail=st.text(),
    execution=st.none() | st.just(EPOCH),
    gates=st.from_type(Gates),
    holds=st.lists(st.from_type(Hold), max_size=2).map(tuple),
    pending=st.none() | st.from_type(Pending),
    waiting_role=st.none() | st.text(),
    clocks=st.from_type(Clocks),
)


@given(observations, moments)
def test_every_observation_has_one_line(seen: Observation, now) -> None:
    line = describe(seen, now)

    assert line
    assert line.splitlines() == [line]


SEEN = observe(State.QUEUED, pending=Pending("Q", "no cpu", "team-a", 3))


@pytest.mark.parametrize(
    "changes",
    [
        {"state": State.STARTING},
        {"cause": Cause.NO_CAPACITY},
        {"detail": "new"},
        {"execution": EPOCH},
        {"gates": Gates(is_open=True)},
        {"holds": (hold("ann"),)},
        {"pending": None},
        {"pending": Pending("R", "no cpu", "team-a", 3)},
        {"pending": Pending("Q", "no memory", "team-a", 3)},
        {"pending": Pending("Q", "no cpu", "team-a", 2)},
        {"ranks": RANKS},
        {"waiting_role": "leader"},
        {"ref": replace(SEEN.ref, submission=2)},
    ],
)
def test_what_people_want_to_hear_of_is_news(changes: dict[str, Any]) -> None:
    assert build_fingerprint(replace(SEEN, **changes)) != build_fingerprint(SEEN)


@pytest.mark.parametrize(
    "changes",
    [
        {"clocks": Clocks(queued=ClockReading(NOW, seconds(99)))},
        {"observed_at": NOW},
        {"pending": Pending("Q", "no cpu", "team-a", 3, evictions=4, since=NOW)},
        {"progress": Progress(percent=3.0)},
        {"ref": replace(SEEN.ref, uid="other")},
    ],
)
def test_waiting_alone_is_no_news(changes: dict[str, Any]) -> None:
    assert build_fingerprint(replace(SEEN, **changes)) == build_fingerprint(SEEN)


def test_another_holder_is_news_but_not_another_wording() -> None:
    held = replace(SEEN, holds=(hold("ann", "a"),))

    assert build_fingerprint(held) == build_fingerprint(replace(SEEN, holds=(hold("ann", "b"),)))
    assert build_fingerprint(held) != build_fingerprint(replace(SEEN, holds=(hold("ann", "a", instance=2),)))
    assert hash(build_fingerprint(held)) is not None
