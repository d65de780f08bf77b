# SPDX-License-Identifier: Apache-2.0
"""The wait loop: what ends it, when it wakes, what it tells people."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import datetime, timedelta

import pytest

from airflow_provider_dispatch.core.clocks import Budgets
from airflow_provider_dispatch.core.decision import Supervision
from airflow_provider_dispatch.core.goals import Goal
from airflow_provider_dispatch.core.holds import Actor, ActorKind, HoldRequest
from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.core.state import State
from airflow_provider_dispatch.exceptions import RefusedError, UnavailableError
from airflow_provider_dispatch.triggers.judging import (
    Assessment,
    Judge,
    build_end_judge,
    build_goal_judge,
    build_states_judge,
)
from airflow_provider_dispatch.triggers.waiting import Outcome, StarterProbe, Timing, wait_for_job
from tests.triggers.world import JOB, CountingAdapter, World, settle, soon

MINUTE = timedelta(minutes=1)


class Wait:
    """A wait that runs beside the test, with the lines that it told."""

    def __init__(
        self,
        world: World,
        judge: Judge,
        *,
        adapter: CountingAdapter | None = None,
        deadline: timedelta | None = None,
        starter: StarterProbe | None = None,
    ) -> None:
        self.lines: list[str] = []
        self.adapter = adapter or world.build_adapter()
        timing = Timing(
            deadline=world.clock() + deadline if deadline is not None else None, clock=world.clock, sleeper=world.sleep
        )
        wait: Coroutine[object, object, Outcome] = wait_for_job(
            self.adapter, JOB, judge, narrator=self.lines.append, timing=timing, starter=starter
        )
        self.task = asyncio.create_task(wait)

    async def is_over(self) -> bool:
        await settle()
        return self.task.done()

    async def cancel(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


def test_what_is_so_already_ends_the_wait_at_once(world: World) -> None:
    async def scenario() -> Outcome:
        await world.start("run", nodes=2)
        return await asyncio.wait_for(Wait(world, build_goal_judge(Goal.RUNNING)).task, 5)

    outcome = asyncio.run(scenario())

    assert outcome.observation is not None
    assert (outcome.verdict, outcome.observation.state) == ("done", State.RUNNING)


def test_a_change_ends_the_wait(world: World) -> None:
    async def scenario() -> tuple[bool, bool, list[str]]:
        ref = await world.start("run", is_open=False)
        wait = Wait(world, build_goal_judge(Goal.RUNNING))
        before = await wait.is_over()
        await wait.adapter.open(ref, deadline=soon())
        return before, await wait.is_over(), wait.lines

    before, after, lines = asyncio.run(scenario())

    assert (before, after) == (False, True)
    assert lines == ["gated: waiting for its gate to be opened", "running: 1 of 1 ranks, epoch 1000001"]


def test_a_job_that_is_over_fails_a_wait_for_something_else_with_its_cause(world: World) -> None:
    async def scenario() -> Outcome:
        await world.start("exit", "3")
        return await asyncio.wait_for(Wait(world, build_goal_judge(Goal.HELD)).task, 5)

    outcome = asyncio.run(scenario())

    assert outcome.verdict == "failed"
    assert "never be held" in outcome.reason
    assert "exited" in outcome.reason


def test_the_deadline_ends_the_wait_and_says_what_was_seen_last(world: World) -> None:
    async def scenario() -> tuple[bool, Outcome]:
        await world.start("run", is_open=False)
        wait = Wait(world, build_goal_judge(Goal.RUNNING), deadline=MINUTE)
        await world.advance(MINUTE - timedelta(seconds=1))
        early = await wait.is_over()
        await world.advance(timedelta(seconds=1))
        return early, await asyncio.wait_for(wait.task, 5)

    early, outcome = asyncio.run(scenario())

    assert not early
    assert outcome.verdict == "timeout"
    assert outcome.reason.startswith("the time to wait is over: gated")


def test_a_clock_that_runs_out_wakes_the_wait_though_nothing_changed(world: World) -> None:
    supervision = Supervision(budgets=Budgets(gated=3 * MINUTE))

    async def scenario() -> Outcome:
        await world.start("run", is_open=False)
        wait = Wait(world, build_end_judge(supervision))
        await world.advance(3 * MINUTE)
        return await asyncio.wait_for(wait.task, 5)

    outcome = asyncio.run(scenario())

    assert outcome.verdict == "timeout"
    assert "gated clock" in outcome.reason


def test_the_end_of_a_job_ends_the_wait_for_its_end(world: World) -> None:
    async def scenario() -> Outcome:
        ref = await world.start("run")
        wait = Wait(world, build_end_judge(Supervision(), submission=1))
        await settle()
        world.finish(ref)
        return await asyncio.wait_for(wait.task, 5)

    assert asyncio.run(scenario()).verdict == "done"


def test_an_end_that_a_person_has_to_look_at_is_reported_as_failed(world: World) -> None:
    async def scenario() -> Outcome:
        await world.start("exit", "7")
        return await asyncio.wait_for(Wait(world, build_end_judge(Supervision())).task, 5)

    assert asyncio.run(scenario()).verdict == "failed"


def test_a_supervised_job_that_nobody_has_heard_of_is_no_reason_to_wait(world: World) -> None:
    outcome = asyncio.run(_wait_briefly(world, build_end_judge(Supervision())))

    assert outcome.verdict == "failed"
    assert "nobody has heard of it" in outcome.reason


async def _wait_briefly(world: World, judge: Judge) -> Outcome:
    return await asyncio.wait_for(Wait(world, judge).task, 5)


@pytest.mark.parametrize(
    ("meant", "seen", "verdict"),
    [(1, 1, "done"), (None, 1, "done"), (2, 1, "timeout"), (1, 2, "failed")],
)
def test_only_the_submission_that_is_meant_counts(world: World, meant: int | None, seen: int, verdict: str) -> None:
    async def scenario() -> Outcome:
        await world.start("run", submission=seen)
        wait = Wait(world, build_states_judge({State.RUNNING}, submission=meant), deadline=MINUTE)
        await world.advance(MINUTE)
        return await asyncio.wait_for(wait.task, 5)

    assert asyncio.run(scenario()).verdict == verdict


def test_lines_are_told_on_change_and_again_after_a_while(world: World) -> None:
    async def scenario() -> list[int]:
        await world.start("run", is_open=False)
        wait = Wait(world, build_goal_judge(Goal.RUNNING))
        told = []
        for minutes in (0.9, 0.2, 4.8, 0.2, 14.8, 0.2, 29.8, 0.2, 29.8, 0.2):
            await world.advance(timedelta(minutes=minutes))
            told.append(len(wait.lines))
        await wait.cancel()
        return told

    assert asyncio.run(scenario()) == [1, 2, 2, 3, 3, 4, 4, 5, 5, 6]


def test_a_hold_is_told_with_who_and_why(world: World) -> None:
    async def scenario() -> list[str]:
        ref = await world.start("run")
        wait = Wait(world, build_goal_judge(Goal.HELD))
        await settle()
        request = HoldRequest("k", Actor(ActorKind.HUMAN, "ann"), "maintenance")
        await wait.adapter.hold(ref, request, deadline=soon())
        await world.advance(timedelta(seconds=1))
        await asyncio.wait_for(wait.task, 5)
        return wait.lines

    assert "held by ann: maintenance" in asyncio.run(scenario())[-1]


@pytest.mark.parametrize("error", [UnavailableError("away"), None])
def test_a_watch_that_breaks_is_begun_again_after_a_pause(world: World, error: UnavailableError | None) -> None:
    async def scenario() -> tuple[Outcome, Wait]:
        adapter = CountingAdapter(world.backend, [error, error])
        await world.start("run", is_open=False)
        wait = Wait(world, build_goal_judge(Goal.GATED), adapter=adapter)
        await world.advance(timedelta(seconds=3))
        return await asyncio.wait_for(wait.task, 5), wait

    outcome, wait = asyncio.run(scenario())

    assert outcome.verdict == "done"
    assert wait.adapter.watches == 3
    assert len([line for line in wait.lines if "trying again" in line]) == 2


def test_the_deadline_holds_while_the_backend_is_away(world: World) -> None:
    async def scenario() -> Outcome:
        adapter = CountingAdapter(world.backend, [UnavailableError("away")] * 50)
        wait = Wait(world, build_goal_judge(Goal.GATED), adapter=adapter, deadline=MINUTE)
        await world.advance(3 * MINUTE)
        return await asyncio.wait_for(wait.task, 5)

    outcome = asyncio.run(scenario())

    assert (outcome.verdict, outcome.observation) == ("timeout", None)


def test_what_no_repetition_cures_is_raised(world: World) -> None:
    async def scenario() -> None:
        adapter = CountingAdapter(world.backend, [RefusedError("no rights")])
        await Wait(world, build_goal_judge(Goal.GATED), adapter=adapter).task

    with pytest.raises(RefusedError, match="no rights"):
        asyncio.run(scenario())


def test_the_end_of_the_starting_task_without_a_job_ends_the_wait(world: World) -> None:
    states: list[str | None] = [None, "failed"]

    async def probe() -> str | None:
        return states.pop(0)

    async def scenario() -> tuple[bool, Outcome]:
        wait = Wait(world, build_goal_judge(Goal.RUNNING), starter=probe)
        await world.advance(timedelta(seconds=6))
        early = await wait.is_over()
        await world.advance(timedelta(seconds=20))
        return early, await asyncio.wait_for(wait.task, 5)

    early, outcome = asyncio.run(scenario())

    assert not early
    assert outcome.verdict == "failed"
    assert "has ended without" in outcome.reason


def test_a_job_started_as_the_last_deed_of_its_task_is_not_missed(world: World) -> None:
    async def probe() -> str | None:
        await world.start("run")
        return "success"

    async def scenario() -> Outcome:
        wait = Wait(world, build_goal_judge(Goal.RUNNING), starter=probe)
        await world.advance(timedelta(seconds=6))
        return await asyncio.wait_for(wait.task, 5)

    assert asyncio.run(scenario()).verdict == "done"


def test_nobody_is_asked_about_the_starter_of_a_job_that_was_heard_of(world: World) -> None:
    """The moment of the next question has passed by then, and must not wake the wait again and again."""
    looks: list[State] = []
    is_held = build_goal_judge(Goal.HELD)

    def judge(observation: Observation, now: datetime) -> Assessment:
        looks.append(observation.state)
        assert len(looks) < 50, "woken again and again"
        return is_held(observation, now)

    async def probe() -> str | None:
        return None

    async def scenario() -> None:
        wait = Wait(world, judge, starter=probe)
        await world.advance(timedelta(seconds=3))
        await world.start("run")
        await world.advance(timedelta(minutes=4))
        assert not await wait.is_over()
        await wait.cancel()

    asyncio.run(scenario())
    assert looks[-1] is State.RUNNING
    assert len(looks) < 10


def test_a_cancelled_wait_unsubscribes(world: World) -> None:
    async def scenario() -> int:
        await world.start("run", is_open=False)
        wait = Wait(world, build_goal_judge(Goal.RUNNING))
        await settle()
        await wait.cancel()
        await settle()
        return len(world.backend._listeners)

    assert asyncio.run(scenario()) == 0
