# SPDX-License-Identifier: Apache-2.0
"""One adapter for all triggers of a connection, and what a thousand of them cost."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from airflow_provider_dispatch.adapters.protocol import DispatchAdapter
from airflow_provider_dispatch.exceptions import SpecError
from airflow_provider_dispatch.hooks.settings import ConnectionSettings
from airflow_provider_dispatch.triggers.job import DispatchJobFinishedTrigger
from airflow_provider_dispatch.triggers.shared import borrow
from tests.triggers.world import CONNECTION_ID, JOB, OWNER, World, settle


def test_those_who_ask_at_once_get_the_same_adapter(world: World) -> None:
    async def scenario() -> tuple[int, list[bool]]:
        leases = await asyncio.gather(*(borrow(CONNECTION_ID) for _ in range(20)))
        different = len({id(lease.adapter) for lease in leases})
        closed = []
        for lease in leases:
            closed.append(world.adapters[0].is_closed)
            await lease.give_back()
        return different, [*closed, world.adapters[0].is_closed]

    different, closed = asyncio.run(scenario())

    assert different == len(world.adapters) == 1
    assert closed == [False] * 20 + [True]


def test_a_lease_given_back_twice_counts_once(world: World) -> None:
    async def scenario() -> list[bool]:
        first, _second = await borrow(CONNECTION_ID), await borrow(CONNECTION_ID)
        await first.give_back()
        await first.give_back()
        return [world.adapters[0].is_closed]

    assert asyncio.run(scenario()) == [False]


def test_every_loop_and_every_new_beginning_has_its_own(world: World) -> None:
    async def scenario() -> None:
        lease = await borrow(CONNECTION_ID)
        await lease.give_back()

    asyncio.run(scenario())
    asyncio.run(scenario())

    assert [adapter.is_closed for adapter in world.adapters] == [True, True]


def test_a_wrong_connection_is_told_to_all_and_tried_anew(world: World) -> None:
    problems = [SpecError("backend", "is wrong")]

    async def opener(_: str) -> tuple[ConnectionSettings, DispatchAdapter]:
        if problems:
            raise problems.pop()
        return ConnectionSettings(), world.build_adapter()

    async def scenario() -> list[object]:
        told = await asyncio.gather(*(borrow("x", opener) for _ in range(3)), return_exceptions=True)
        lease = await borrow("x", opener)
        await lease.give_back()
        return [*told, lease.adapter]

    *told, adapter = asyncio.run(scenario())

    assert [type(error) for error in told] == [SpecError] * 3
    assert adapter is world.adapters[0]


def test_one_who_gives_up_while_it_opens_takes_nothing_from_the_others(world: World) -> None:
    opened = asyncio.Event()

    async def opener(_: str) -> tuple[ConnectionSettings, DispatchAdapter]:
        await opened.wait()
        return ConnectionSettings(), world.build_adapter()

    async def scenario() -> bool:
        impatient, patient = (asyncio.ensure_future(borrow("x", opener)) for _ in range(2))
        await settle()
        impatient.cancel()
        await settle()
        opened.set()
        lease = await patient
        was_open = not world.adapters[0].is_closed
        await lease.give_back()
        return was_open and world.adapters[0].is_closed

    assert asyncio.run(scenario())


@pytest.mark.parametrize("count", [1000])
def test_a_thousand_waiting_triggers_ask_nothing_while_nothing_happens(world: World, count: int) -> None:
    async def scenario() -> tuple[list[str], int, int]:
        await world.start("run", is_open=False)
        triggers = [
            DispatchJobFinishedTrigger(dispatch_conn_id=CONNECTION_ID, job=JOB, owner_instance=OWNER.instance_id)
            for _ in range(count)
        ]
        for trigger in triggers:
            trigger.clock, trigger.sleeper = world.clock, world.sleep
        running = [asyncio.ensure_future(anext(trigger.run())) for trigger in triggers]
        await settle()
        (adapter,) = world.adapters
        asked, wakes = len(adapter.calls), world.wakes
        await world.advance(timedelta(seconds=50))
        asked_meanwhile, woken_meanwhile = adapter.calls[asked:], world.wakes - wakes
        for task in running:
            task.cancel()
        await asyncio.wait(running)
        for trigger in triggers:
            await trigger.cleanup()
        return asked_meanwhile, woken_meanwhile, adapter.watches

    asked, woken, watches = asyncio.run(scenario())

    assert asked == []
    assert woken == 0
    assert watches == count
