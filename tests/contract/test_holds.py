# SPDX-License-Identifier: Apache-2.0
"""hold and release: the execution ends, the room is given back, and what comes later has a higher epoch."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_dispatch.core.holds import Actor, ActorKind, Hold, HoldRequest
from airflow_provider_dispatch.core.state import State
from airflow_provider_dispatch.exceptions import RefusedError, SpecError, StaleHoldError
from tests.contract.stage import ANN, Stage, soon


def test_a_held_job_gives_its_room_back_and_goes_on_under_a_higher_epoch(make_stage) -> None:
    async def scenario(at: Stage) -> None:
        first = await at.run(at.spec("run", nodes=2, queue="q", resources={"cpu": "1"}))
        await at.begun(first, 1_000_001)
        other = await at.start(at.spec("run", nodes=2, queue="q", resources={"cpu": "1"}))
        await at.adapter.open(other, deadline=soon())
        await at.reach(other, State.QUEUED)
        hold = await at.hold(first)
        held = await at.reach(first, State.HELD)
        assert [h.instance for h in held.holds] == [1]
        assert (held.holds[0].reason, held.holds[0].actor) == ("maintenance", ANN)
        await at.reach(other, State.RUNNING)
        assert await at.adapter.release(first, hold, deadline=soon()) == ()
        await at.reach(first, State.QUEUED)
        await at.tell(other, "exit 0", rank=0)
        await at.tell(other, "exit 0", rank=1)
        seen = await at.reach(first, State.RUNNING)
        assert seen.execution is not None
        assert (seen.execution.a, seen.execution.j, seen.execution.epoch) == (2, 0, 1_000_002)
        await at.begun(first, 1_000_002)
        assert at.epochs(first.job) == [1_000_001, 1_000_002]
        assert seen.executions == 2

    make_stage({"q": {"cpu": "2"}}).play(scenario)


def test_a_job_is_not_held_while_a_process_lives(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        ref = await at.run(at.spec("stubborn", grace_period=timedelta(seconds=2)))
        await at.hold(ref)
        assert (await at.adapter.inspect(ref)).state is State.HOLDING
        seen = await at.reach(ref, State.HELD)
        assert (seen.ranks[0].running, seen.cause) == (0, None)

    stage.play(scenario)


def test_release_before_the_end_waits_until_the_old_processes_are_gone(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        ref = await at.run(at.spec("slow", "1", nodes=2, grace_period=timedelta(seconds=10)))
        hold = await at.hold(ref)
        await at.adapter.release(ref, hold, deadline=soon())
        assert (await at.adapter.inspect(ref)).state is State.QUEUED
        seen = await at.until(ref, lambda o: o.state is State.RUNNING and o.executions == 2)
        assert seen.execution is not None
        assert seen.execution.epoch == 1_000_002

    stage.play(scenario)


def test_the_same_key_is_the_same_hold_and_another_key_adds_a_holder(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        ref = await at.run(at.spec("run"))
        one, again, two = await at.hold(ref, "a"), await at.hold(ref, "a"), await at.hold(ref, "b")
        assert again == one
        assert (one.instance, two.instance) == (1, 2)
        await at.reach(ref, State.HELD)
        assert await at.adapter.release(ref, one, deadline=soon()) == (two,)
        assert (await at.adapter.inspect(ref)).state is State.HELD
        assert await at.adapter.release(ref, one, deadline=soon()) == (two,)
        assert await at.adapter.release(ref, two, deadline=soon()) == ()
        await at.until(ref, lambda o: o.state is State.RUNNING and o.executions == 2)
        three = await at.hold(ref, "a")
        assert three.instance == 3

    stage.play(scenario)


def test_a_hold_that_was_never_placed_is_not_lifted(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        ref = await at.run(at.spec("run"))
        placed = await at.hold(ref)
        for foreign in (Hold(7, "k", ANN, "", placed.since), Hold(1, "x", ANN, "", placed.since)):
            with pytest.raises(StaleHoldError):
                await at.adapter.release(ref, foreign, deadline=soon())
        assert (await at.adapter.inspect(ref)).holds == (placed,)

    stage.play(scenario)


def test_a_gated_job_can_be_held_and_starts_only_when_both_locks_are_off(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        ref = await at.start(at.spec("run"))
        hold = await at.hold(ref)
        assert (await at.adapter.inspect(ref)).state is State.HELD
        await at.adapter.open(ref, deadline=soon())
        assert (await at.adapter.inspect(ref)).state is State.HELD
        await at.adapter.release(ref, hold, deadline=soon())
        seen = await at.reach(ref, State.RUNNING)
        assert seen.execution is not None
        assert seen.execution.epoch == 1_000_001

    stage.play(scenario)


def test_a_hold_by_bare_job_id_meets_the_newest_submission(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        ref = await at.run(at.spec("run"))
        request = HoldRequest("k", Actor(ActorKind.POLICY, "dag.hold"))
        hold = await at.adapter.hold(ref.job, request, deadline=soon())
        seen = await at.reach(ref.job, State.HELD)
        assert (seen.ref, seen.holds) == (ref, (hold,))

    stage.play(scenario)


def test_a_hold_with_an_end_is_lifted_by_itself(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        ref = await at.run(at.spec("run"))
        seen = await at.adapter.inspect(ref)
        assert seen.observed_at is not None
        hold = await at.hold(ref, until=seen.observed_at + at.hold_span)
        await at.reach(ref, State.HELD)
        again = await at.until(ref, lambda o: o.state is State.RUNNING and o.executions == 2)
        assert again.holds == ()
        assert hold.until is not None

    stage.play(scenario)


def test_an_end_in_the_past_is_a_wrong_value(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        ref = await at.run(at.spec("run"))
        with pytest.raises(SpecError, match=r"hold\.until"):
            await at.hold(ref, until=datetime(2001, 1, 1, tzinfo=UTC))
        assert (await at.adapter.inspect(ref)).state is State.RUNNING

    stage.play(scenario)


def test_an_ended_job_refuses_a_hold_with_its_end(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        ref = await at.run(at.spec("run"))
        await at.tell(ref, "exit 3")
        await at.reach(ref, State.FAILED)
        with pytest.raises(RefusedError, match=r"failed.*exited with code 3"):
            await at.hold(ref)

    stage.play(scenario)


def test_a_job_done_before_the_first_signal_has_succeeded_and_the_hold_is_void(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        ref = await at.run(at.spec("run"))
        await at.tell(ref, "exit 0")
        await at.reach(ref, State.SUCCEEDED)
        with pytest.raises(RefusedError):
            await at.hold(ref)
        assert (await at.adapter.inspect(ref)).holds == ()

    stage.play(scenario)


def test_after_our_signal_the_exit_code_means_nothing(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        ref = await at.run(at.spec("stubborn", grace_period=timedelta(seconds=1)))
        hold = await at.hold(ref)
        seen = await at.reach(ref, State.HELD)
        assert (seen.cause, seen.failed_rank) == (None, None)
        await at.adapter.release(ref, hold, deadline=soon())
        await at.reach(ref, State.RUNNING)

    stage.play(scenario)


def test_held_time_is_not_run_time(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        ref = await at.run(at.spec("run"))
        await at.hold(ref)
        held = await at.reach(ref, State.HELD)
        before = held.clocks.running.accumulated
        await at.pass_time(timedelta(seconds=1))
        later = await at.adapter.inspect(ref)
        assert later.observed_at is not None
        assert later.clocks.running.accumulated == before
        assert later.clocks.held.elapsed(later.observed_at) >= timedelta(seconds=1)
        assert later.clocks.running.since is None

    stage.play(scenario)


def test_losing_the_machine_costs_a_held_job_nothing(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        ref = await at.run(at.spec("run"))
        hold = await at.hold(ref)
        await at.reach(ref, State.HELD)
        await at.lose_node()
        assert (await at.adapter.inspect(ref)).state is State.HELD
        await at.adapter.release(ref, hold, deadline=soon())
        seen = await at.reach(ref, State.RUNNING)
        assert seen.execution is not None
        assert (seen.execution.epoch, seen.cause) == (1_000_002, None)

    stage.play(scenario)


def test_no_budget_pays_for_a_hold(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        ref = await at.run(at.spec("run", max_restarts=1, max_preemptions=0))
        for _ in range(3):
            hold = await at.hold(ref)
            await at.reach(ref, State.HELD)
            await at.adapter.release(ref, hold, deadline=soon())
            await at.reach(ref, State.RUNNING)
        await at.tell(ref, "exit 1")
        seen = await at.until(ref, lambda o: o.executions == 5 and o.state is State.RUNNING)
        assert (seen.cause, seen.execution and seen.execution.j) == (None, 1)

    stage.play(scenario)
