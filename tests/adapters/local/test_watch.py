# SPDX-License-Identifier: Apache-2.0
"""Watching: one thread for all, the present state at once, each change, and no death in silence."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_provider_dispatch.adapters.local.adapter import LocalAdapter
from airflow_provider_dispatch.adapters.local.lifecycle import intents as rules
from airflow_provider_dispatch.adapters.local.lifecycle.status import Status
from airflow_provider_dispatch.adapters.local.store import agency, intents, reading
from airflow_provider_dispatch.adapters.local.store.database import Database
from airflow_provider_dispatch.adapters.local.watch import StoreWatch, find_watch
from airflow_provider_dispatch.core.records import StartRequest
from airflow_provider_dispatch.core.state import Cause, State
from airflow_provider_dispatch.exceptions import ConflictError, RefusedError
from tests.adapters.local.world import World, new_job, python_job, soon

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SPEC = python_job("pass")


@pytest.fixture
def database(world):
    """The world's store, written by the test itself; no agent lives, and none has anything to do."""
    made = Database(world.layout)
    yield made
    made.close()


def add(database: Database, job=None):
    """A submission that an agent has seen: it waits at its gate and needs nobody."""
    request, accepted = StartRequest(job or new_job(), 1, 1, SPEC), intents.Acceptance("q", 0, _place(database))
    with database.write(5) as connection:
        ref = intents.add_submission(connection, request, accepted, NOW)
        connection.execute("DELETE FROM wish")
        return ref


def _place(database: Database) -> str:
    with database.read() as connection:
        return f"{reading.fetch_meta(connection)['store']}@{socket.gethostname()}"


def settle(database: Database, ref, status: Status) -> None:
    """Write a status as an agent does."""
    with database.write(5) as connection:
        submission = reading.fetch_view(connection, ref.job).pairs[0][0]
        meta = reading.fetch_meta(connection)
        tenure = agency.Tenure(meta["store"], int(meta["generation"]))
        key = (ref.job, ref.submission)
        agency.commit_ledger(connection, agency.Ledger(NOW, {key: status}, {key: submission}), tenure)


def watch_threads() -> int:
    return sum(thread.name == "dispatch-watch" and thread.is_alive() for thread in threading.enumerate())


async def next_of(watch):
    return await asyncio.wait_for(anext(watch), 20)


async def end(watch: Any) -> None:
    await watch.aclose()


def test_many_waiters_share_a_thread_and_each_is_told_of_its_own_job(world, database) -> None:
    refs = [add(database) for _ in range(50)]
    before = watch_threads()

    async def scenario(at: World) -> None:
        watches = [at.adapter.watch([ref]) for ref in refs for _ in range(2)]
        first = await asyncio.gather(*map(next_of, watches))
        assert {seen.state for seen in first} == {State.GATED}
        assert watch_threads() == before + 1
        nexts = [asyncio.ensure_future(anext(watch)) for watch in watches]
        settle(database, refs[7], Status(end=State.SUCCEEDED))
        done, _ = await asyncio.wait(nexts, timeout=20, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait(nexts[14:16], timeout=20)
        told = [task for task in nexts if task.done()]
        assert done
        assert [task.result().ref for task in told] == [refs[7], refs[7]]
        for task in nexts:
            task.cancel()
        await asyncio.gather(*nexts, return_exceptions=True)
        await asyncio.gather(*map(end, watches))

    world.play(scenario)
    for thread in threading.enumerate():
        if thread.name == "dispatch-watch":
            thread.join(10)
    assert watch_threads() == 0


def test_who_waits_for_no_job_costs_no_thread_and_is_not_remembered(world, database) -> None:
    async def scenario(at: World) -> None:
        watch, before = StoreWatch(at.settings), watch_threads()
        with watch.subscribe([]):
            assert watch_threads() == before
        assert watch.take_fresh() == []

    world.play(scenario)


def test_a_late_waiter_is_told_at_once_how_things_are(world, database) -> None:
    ref = add(database)

    async def scenario(at: World) -> None:
        early = at.adapter.watch([ref])
        await next_of(early)
        settle(database, ref, Status(end=State.FAILED, detail="it broke"))
        assert (await next_of(early)).detail == "it broke"
        late = at.adapter.watch([ref])
        assert (await next_of(late)).detail == "it broke"
        for watch in (early, late):
            with pytest.raises(StopAsyncIteration):
                await next_of(watch)

    world.play(scenario)


def test_one_waiter_hears_of_all_its_jobs_until_the_last_is_over(world, database) -> None:
    first, second = add(database), add(database)

    async def scenario(at: World) -> None:
        watch = at.adapter.watch([first, second])
        assert [(await next_of(watch)).ref for _ in range(2)] == [first, second]
        for ref in (second, first):
            settle(database, ref, Status(end=State.FAILED))
            seen = await next_of(watch)
            assert (seen.ref, seen.state) == (ref, State.FAILED)
        with pytest.raises(StopAsyncIteration):
            await next_of(watch)

    world.play(scenario)


def test_a_bare_id_is_followed_from_before_the_first_submission_to_the_next(world, database) -> None:
    job = new_job()

    async def scenario(at: World) -> None:
        watch = at.adapter.watch([job])
        assert (await next_of(watch)).is_unheard_of
        ref = add(database, job)
        assert (await next_of(watch)).ref == ref
        settle(database, ref, Status(end=State.FAILED))
        assert (await next_of(watch)).state is State.FAILED
        with database.write(5) as connection:
            request = StartRequest(job, 2, 1, SPEC)
            intents.add_submission(connection, request, intents.Acceptance("q", 0, ref.place), NOW)
            connection.execute("DELETE FROM wish")
        assert (await next_of(watch)).ref.submission == 2
        await end(watch)

    world.play(scenario)


def test_loops_in_two_threads_are_served_by_one_watch(world, database) -> None:
    ref = add(database)
    found: list[State] = []
    settled = threading.Event()

    async def wait_for_end() -> None:
        async for seen in LocalAdapter(world.settings).watch([ref]):
            found.append(seen.state)
            settled.set()

    threads = [threading.Thread(target=lambda: asyncio.run(wait_for_end())) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert settled.wait(20)
    settle(database, ref, Status(end=State.SUCCEEDED))
    for thread in threads:
        thread.join(20)
    assert sorted(found)[-2:] == [State.SUCCEEDED, State.SUCCEEDED]


def test_those_behind_hear_that_they_have_moved_up(world, database) -> None:
    first, second = add(database), add(database)
    for ref in (first, second):
        with database.write(5) as connection:
            intents.change_intent(connection, ref, lambda s, _: rules.open_gate(s, NOW))
            connection.execute("DELETE FROM wish")
    # Neither fits: nobody needs an agent.
    waiting = [Status(queued_since=NOW + timedelta(seconds=n), cause=Cause.NO_CAPACITY, detail="never") for n in (1, 2)]
    settle(database, first, waiting[0])
    settle(database, second, waiting[1])

    async def scenario(at: World) -> None:
        watch = at.adapter.watch([second])
        assert (await next_of(watch)).pending.position == 2
        settle(database, first, Status(end=State.FAILED))
        assert (await next_of(watch)).pending.position == 1
        await end(watch)

    world.play(scenario)


def test_a_store_that_is_damaged_is_told_to_those_who_wait(world, database) -> None:
    ref = add(database)

    async def scenario(at: World) -> None:
        watch = at.adapter.watch([ref])
        await next_of(watch)
        draft = at.layout.database.with_name("draft")
        draft.write_bytes(b"no database" * 1000)
        draft.replace(at.layout.database)
        with pytest.raises(RefusedError, match="no database"):
            await next_of(watch)

    world.play(scenario)


def test_a_ref_of_another_store_is_not_waited_for(world, make_world) -> None:
    async def scenario(at: World) -> None:
        ref = await at.start(SPEC)
        other = make_world()
        with pytest.raises(ConflictError, match="lives in local"):
            await anext(other.adapter.watch([ref]))

    world.play(scenario)


def test_a_fork_gets_a_watch_of_its_own(world) -> None:
    watch = find_watch(world.settings)
    assert find_watch(world.settings) is watch
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write_fd, b"same" if find_watch(world.settings) is watch else b"another")
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(write_fd)
    with open(read_fd) as told:
        assert told.read() == "another"
    assert isinstance(watch, StoreWatch)


def test_a_job_too_large_for_its_queue_runs_once_the_file_says_so_though_nobody_rings(world) -> None:
    async def scenario(at: World) -> None:
        at.layout.folder.mkdir(parents=True)
        at.layout.queues.write_text('queues.q.quota = {cpu = "1"}')
        ref = await at.start(python_job("pass", resources={"cpu": "1100m"}, queue="q"))
        await at.adapter.open(ref, deadline=soon())
        assert (await at.until(ref, lambda seen: seen.cause is not None)).cause is Cause.NO_CAPACITY
        waiting = asyncio.ensure_future(at.reach(ref, State.SUCCEEDED))
        await asyncio.to_thread(at.end_agent)
        at.layout.queues.write_text('queues.q.quota = {cpu = "1200m"}')
        await waiting

    world.play(scenario)
