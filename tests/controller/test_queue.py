# SPDX-License-Identifier: Apache-2.0
import asyncio

from airflow_provider_dispatch.controller.queue import BackOff, WorkQueue
from tests.controller.world import World, asynchronous


def build_queue() -> tuple[World, WorkQueue]:
    world = World()
    return world, WorkQueue(lambda: world.seconds)


@asynchronous
async def test_many_wishes_are_one_turn():
    _, queue = build_queue()
    for _ in range(5):
        queue.add("a")
    assert queue.depth == 1
    assert await queue.take() == "a"
    assert queue.depth == 0


@asynchronous
async def test_key_is_never_taken_twice_at_once():
    _, queue = build_queue()
    queue.add("a")
    assert await queue.take() == "a"
    queue.add("a")
    queue.add("b")
    assert await queue.take() == "b"
    queue.finish("a")
    assert await queue.take() == "a"


@asynchronous
async def test_key_rests_whenever_it_is_added():
    world, queue = build_queue()
    queue.add("a")
    assert await queue.take() == "a"
    queue.add("a")
    queue.finish("a", rest_seconds=3)
    queue.add("a")
    assert queue.depth == 0
    world.pass_time(3)
    assert await queue.take() == "a"
    queue.finish("a")
    queue.add("a")
    assert queue.depth == 1


@asynchronous
async def test_earlier_wish_counts():
    world, queue = build_queue()
    queue.add("late", 10)
    queue.add("soon", 60)
    queue.add("soon", 5)
    queue.add("soon", 30)
    world.pass_time(6)
    assert await queue.take() == "soon"
    world.pass_time(5)
    assert await queue.take() == "late"
    assert queue.depth == 0


@asynchronous
async def test_taker_waits_for_what_comes():
    _, queue = build_queue()
    taking = asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    queue.add("a")
    assert await taking == "a"


@asynchronous
async def test_closed_queue_gives_nothing():
    _, queue = build_queue()
    taking = [asyncio.create_task(queue.take()) for _ in range(3)]
    await asyncio.sleep(0)
    queue.close()
    queue.add("a")
    assert await asyncio.gather(*taking) == [None, None, None]


def test_pauses_grow_to_a_limit_and_begin_anew():
    back_off = BackOff(first_seconds=1, longest_seconds=10, draw=lambda: 1.0)
    assert [back_off.next_pause("a") for _ in range(6)] == [1, 2, 4, 8, 10, 10]
    assert back_off.next_pause("b") == 1
    back_off.reset("a")
    assert back_off.next_pause("a") == 1


def test_jitter_takes_up_to_half():
    assert BackOff(first_seconds=8, draw=lambda: 0.0).next_pause("a") == 4
