# SPDX-License-Identifier: Apache-2.0
"""Where a trigger remembers how far it printed, and how seldom it bothers Airflow with that."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from airflow.sdk.exceptions import AirflowException
from airflow.sdk.execution_time.comms import GetXCom, SetXCom, XComResult
from airflow.sdk.execution_time.supervisor import set_supervisor_comms

from airflow_provider_dispatch.triggers.cursors import XCOM_KEY, Cursors, CursorSaver, NoCursors, XComCursors
from tests.triggers.world import settle

TI = SimpleNamespace(dag_id="dag", task_id="train", run_id="run", map_index=None)


class Supervisor:
    """Answers a trigger's questions from memory."""

    def __init__(self) -> None:
        self.values: dict = {}
        self.messages: list[SetXCom | GetXCom] = []

    async def asend(self, message: SetXCom | GetXCom) -> XComResult | None:
        self.messages.append(message)
        match message:
            case SetXCom():
                self.values[message.key] = message.value
                return None
            case GetXCom():
                return XComResult(key=message.key, value=self.values.get(message.key))


def test_what_is_saved_is_loaded_again() -> None:
    supervisor = Supervisor()

    async def scenario() -> list[Cursors]:
        store = XComCursors(TI)
        before = await store.load()
        await store.save({"submission": "1", "/0": "abc"})
        return [before, await XComCursors(TI).load()]

    with set_supervisor_comms(supervisor):
        loaded = asyncio.run(scenario())

    assert loaded == [{}, {"submission": "1", "/0": "abc"}]
    addressed = {(m.dag_id, m.task_id, m.run_id, m.map_index, m.key) for m in supervisor.messages}
    assert addressed == {("dag", "train", "run", -1, XCOM_KEY)}


@pytest.mark.parametrize("foreign", ["text", 7, ["list"]])
def test_something_else_under_the_key_counts_as_nothing(foreign: object) -> None:
    supervisor = Supervisor()
    supervisor.values[XCOM_KEY] = foreign

    with set_supervisor_comms(supervisor):
        assert asyncio.run(XComCursors(TI).load()) == {}


def test_without_a_task_instance_nothing_is_remembered() -> None:
    async def scenario() -> Cursors:
        await NoCursors().save({"a": "b"})
        return await NoCursors().load()

    assert asyncio.run(scenario()) == {}


class SlowStore:
    """Saves when it is allowed to, and counts how many saves are on their way."""

    def __init__(self, together: SlowStore | None = None) -> None:
        self.saved: list[Cursors] = []
        self.gate = asyncio.Event()
        self.counter: list[int] = together.counter if together else [0, 0]
        self.error: Exception | None = None

    async def load(self) -> Cursors:
        return {}

    async def save(self, cursors: Cursors) -> None:
        self.counter[0] += 1
        self.counter[1] = max(self.counter)
        try:
            self.saved.append(dict(cursors))
            await self.gate.wait()
            if self.error is not None:
                raise self.error
        finally:
            self.counter[0] -= 1


async def _no_pause(_: float) -> None:
    await asyncio.sleep(0)


def test_only_the_newest_is_saved() -> None:
    async def scenario() -> list[Cursors]:
        store = SlowStore()
        saver = CursorSaver(store, sleeper=_no_pause)
        for number in range(100):
            saver.remember({"at": str(number)})
            await asyncio.sleep(0)
        store.gate.set()
        await settle()
        return store.saved

    assert asyncio.run(scenario()) == [{"at": "0"}, {"at": "99"}]


def test_one_save_at_a_time_is_on_its_way_in_a_process() -> None:
    async def scenario() -> tuple[int, list[int]]:
        first = SlowStore()
        stores = [first, *(SlowStore(first) for _ in range(9))]
        for store in stores:
            CursorSaver(store, sleeper=_no_pause).remember({"at": "1"})
        for store in stores:
            await settle()
            store.gate.set()
        await settle()
        return first.counter[1], [len(store.saved) for store in stores]

    most, saves = asyncio.run(scenario())

    assert most == 1
    assert saves == [1] * 10


def test_settling_saves_the_rest_without_waiting_for_its_turn() -> None:
    async def scenario() -> list[Cursors]:
        busy, store = SlowStore(), SlowStore()
        CursorSaver(busy, sleeper=_no_pause).remember({"at": "busy"})
        await settle()
        saver = CursorSaver(store, sleeper=_no_pause)
        saver.remember({"at": "last"})
        store.gate.set()
        await saver.settle()
        return store.saved

    assert asyncio.run(scenario()) == [{"at": "last"}]


def test_settling_saves_what_another_save_had_taken_up() -> None:
    async def scenario() -> list[Cursors]:
        store = SlowStore()
        saver = CursorSaver(store, sleeper=_no_pause)
        saver.remember({"at": "under way"})
        await settle()
        taken_up = list(store.saved)
        store.gate.set()
        await saver.settle()
        return [*taken_up, *store.saved]

    assert asyncio.run(scenario()) == [{"at": "under way"}] * 3


def test_settling_keeps_the_newer_of_two() -> None:
    async def scenario() -> Cursors:
        store = SlowStore()
        saver = CursorSaver(store, sleeper=_no_pause)
        saver.remember({"at": "under way"})
        await settle()
        saver.remember({"at": "newer"})
        store.gate.set()
        await saver.settle()
        return store.saved[-1]

    assert asyncio.run(scenario()) == {"at": "newer"}


def test_settling_sends_the_request_even_when_nobody_answers_any_more() -> None:
    """The triggerer's comms die before its triggers do; the supervisor still reads what was sent."""

    async def scenario() -> list[Cursors]:
        store = SlowStore()
        saver = CursorSaver(store, sleeper=_no_pause)
        saver.remember({"at": "last"})
        await asyncio.wait_for(saver.settle(), 5)
        return store.saved

    # Perhaps for the second time: nobody knows whether the first one was read.
    assert asyncio.run(scenario())[-1] == {"at": "last"}


def test_settling_twice_or_with_nothing_new_saves_nothing() -> None:
    async def scenario() -> list[Cursors]:
        store = SlowStore()
        store.gate.set()
        saver = CursorSaver(store, sleeper=_no_pause)
        await saver.settle()
        saver.remember({"at": "1"})
        await settle()
        await saver.settle()
        return store.saved

    assert asyncio.run(scenario()) == [{"at": "1"}]


def test_a_save_that_fails_does_not_end_the_saving() -> None:
    async def scenario() -> list[Cursors]:
        store = SlowStore()
        store.gate.set()
        store.error = AirflowException("the database is away")
        saver = CursorSaver(store, sleeper=_no_pause)
        saver.remember({"at": "1"})
        await settle()
        saver.remember({"at": "2"})
        await settle()
        return store.saved

    assert asyncio.run(scenario()) == [{"at": "1"}, {"at": "2"}]
