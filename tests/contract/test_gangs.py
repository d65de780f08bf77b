# SPDX-License-Identifier: Apache-2.0
"""Gangs and queues: all ranks or none, priorities, preemption with grace, and a reason for every wait."""

from __future__ import annotations

from datetime import timedelta

from airflow_provider_dispatch.core.state import Cause, State
from tests.contract.stage import Difference, Stage, soon


async def opened(at: Stage, **fields: object):
    behaviour = fields.pop("behaviour", ("run",))
    ref = await at.start(at.spec(*behaviour, **fields))  # type: ignore[misc]  # a table's fields
    await at.adapter.open(ref, deadline=soon())
    return ref


def test_two_gangs_of_four_on_five_slots_run_one_after_the_other(make_stage) -> None:
    async def scenario(at: Stage) -> None:
        one = await opened(at, nodes=4, queue="q", resources={at.slot: 1})
        two = await opened(at, nodes=4, queue="q", resources={at.slot: 1})
        await at.reach(one, State.RUNNING)
        seen = await at.until(two, lambda o: o.pending is not None and at.slot in o.pending.message)
        assert seen.state is State.QUEUED
        assert sum(role.running for role in seen.ranks) == 0
        assert seen.pending is not None
        assert seen.pending.queue == "q"
        if Difference.OWN_WORDS not in at.differences:
            assert seen.pending.code == "quota"
        for rank in range(4):
            await at.tell(one, "exit 0", rank=rank)
        await at.reach(one, State.SUCCEEDED)
        await at.reach(two, State.RUNNING)

    make_stage({"q": {"slot": 5, "cpu": 8}}).play(scenario)


def test_a_gang_that_can_never_fit_is_told_at_once_and_blocks_nobody(make_stage) -> None:
    async def scenario(at: Stage) -> None:
        large = await opened(at, nodes=6, queue="q", resources={at.slot: 1})
        fits = await opened(at, nodes=4, queue="q", resources={at.slot: 1})
        await at.reach(fits, State.RUNNING)
        seen = await at.until(large, lambda o: o.cause is not None)
        assert (seen.state, seen.cause) == (State.QUEUED, Cause.NO_CAPACITY)
        assert "6" in seen.detail
        assert "5" in seen.detail

    make_stage({"q": {"slot": 5}}).play(scenario)


def test_hundredths_of_a_cpu_count(make_stage) -> None:
    async def scenario(at: Stage) -> None:
        small = [await opened(at, nodes=2, queue="q", resources={"cpu": "100m"}) for _ in range(2)]
        third = await opened(at, nodes=1, queue="q", resources={"cpu": "100m"})
        for ref in small:
            await at.reach(ref, State.RUNNING)
        seen = await at.until(third, lambda o: o.pending is not None and "cpu" in o.pending.message)
        assert seen.pending is not None
        if Difference.OWN_WORDS not in at.differences:
            assert ("100m" in seen.pending.message, "50m" in seen.pending.message) == (True, True)

    make_stage({"q": {"cpu": "450m"}}).play(scenario)


def test_ten_thousand_ranks_do_not_fit_one_machine(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        at.needs(Difference.NO_QUEUES)
        ref = await opened(at, nodes=10_000)
        seen = await at.until(ref, lambda o: o.cause is not None)
        assert (seen.state, seen.cause) == (State.QUEUED, Cause.NO_CAPACITY)
        if Difference.OWN_WORDS not in at.differences:
            assert "10000" in seen.detail.replace(",", "").replace(" ", "")

    stage.play(scenario)


def test_within_a_queue_the_higher_priority_goes_first_then_the_longer_wait(make_stage) -> None:
    async def scenario(at: Stage) -> None:
        at.needs(Difference.NO_POSITION)
        running = await opened(at, queue="q", priority="high", resources={"cpu": 1})
        await at.reach(running, State.RUNNING)
        low = await opened(at, queue="q", priority="low", resources={"cpu": 1})
        first = await opened(at, queue="q", resources={"cpu": 1})
        await at.until(first, lambda o: o.pending is not None and o.pending.position == 1)
        await at.pass_time(timedelta(milliseconds=10))
        second = await opened(at, queue="q", resources={"cpu": 1})
        await at.until(second, lambda o: o.pending is not None and o.pending.position == 2)
        await at.until(low, lambda o: o.pending is not None and o.pending.position == 3)
        for done, following in ((running, first), (first, second), (second, low)):
            await at.tell(done, "exit 0")
            await at.reach(following, State.RUNNING)
        assert [at.epochs(ref.job)[:1] for ref in (first, second)] == [[1_000_001]] * 2

    make_stage({"q": {"cpu": 1}}).play(scenario)


def test_preemption_gives_grace_names_the_victim_and_queues_it_again(make_stage) -> None:
    async def scenario(at: Stage) -> None:
        victim = await at.run(
            at.spec("slow", "0.5", queue="q", priority="low", resources={"cpu": 1}, grace_period=timedelta(seconds=5))
        )
        preemptor = await opened(at, queue="q", priority="high", resources={"cpu": 1})
        await at.reach(preemptor, State.RUNNING)
        seen = await at.adapter.inspect(victim)
        assert (seen.state, seen.cause) == (State.QUEUED, None)
        assert seen.pending is not None
        assert seen.pending.evictions == 1
        kinds = [event.kind for event in await at.adapter.events(victim)]
        if Difference.OWN_EVENTS in at.differences:
            assert "preempted" in kinds
        else:
            assert kinds.index("preempting") < kinds.index("preempted")
        await at.tell(preemptor, "exit 0")
        again = await at.reach(victim, State.RUNNING)
        assert again.execution is not None
        assert again.execution.epoch == 1_000_002

    make_stage({"q": {"cpu": 1}}).play(scenario)


def test_a_preempted_job_is_never_failed_unless_its_spec_limits_it(make_stage) -> None:
    async def scenario(at: Stage) -> None:
        victim = await at.run(at.spec("run", queue="q", priority="low", resources={"cpu": 1}, max_preemptions=1))
        for evictions in (1, 2):
            preemptor = await opened(at, queue="q", priority="high", resources={"cpu": 1})
            await at.reach(preemptor, State.RUNNING)
            if evictions == 1:
                await at.tell(preemptor, "exit 0")
                await at.reach(victim, State.RUNNING)
        seen = await at.reach(victim, State.FAILED)
        assert seen.cause is Cause.PREEMPTED
        assert "allows 1" in seen.detail

    make_stage({"q": {"cpu": 1}}).play(scenario)


def test_room_is_not_free_before_the_last_process_is_gone(make_stage) -> None:
    async def scenario(at: Stage) -> None:
        first = await at.run(at.spec("stubborn", queue="q", resources={"cpu": 1}, grace_period=timedelta(seconds=2)))
        second = await opened(at, queue="q", resources={"cpu": 1})
        await at.hold(first)
        seen = await at.adapter.inspect(second)
        assert seen.state is State.QUEUED
        await at.reach(second, State.RUNNING)
        if Difference.ROOM_BEFORE_DEATH not in at.differences:
            assert (await at.adapter.inspect(first)).state is State.HELD
        await at.reach(first, State.HELD)

    make_stage({"q": {"cpu": 1}}).play(scenario)


def test_two_queues_have_their_own_room(make_stage) -> None:
    async def scenario(at: Stage) -> None:
        a = await opened(at, queue="a", resources={"cpu": 1})
        b = await opened(at, queue="b", resources={"cpu": 1})
        blocked = await opened(at, queue="a", priority="high", resources={"cpu": 1}, nodes=1, max_preemptions=5)
        await at.reach(b, State.RUNNING)
        await at.reach(blocked, State.RUNNING)
        seen = await at.reach(a, State.QUEUED)
        assert (await at.adapter.inspect(b)).state is State.RUNNING
        assert seen.pending is not None
        assert seen.pending.queue == "a"

    make_stage({"a": {"cpu": 1}, "b": {"cpu": 1}}).play(scenario)
