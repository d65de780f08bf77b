# SPDX-License-Identifier: Apache-2.0
"""What happens to the job when somebody kills its deferred task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import (
    ErrorResponse,
    GetTaskStates,
    GetXCom,
    SetXCom,
    TaskStatesResult,
    XComResult,
)
from airflow.sdk.execution_time.supervisor import set_supervisor_comms

from airflow_provider_dispatch.adapters import registry
from airflow_provider_dispatch.core.owner import Owner
from airflow_provider_dispatch.core.records import StopReport
from airflow_provider_dispatch.core.state import State
from airflow_provider_dispatch.triggers.base import DispatchJobTrigger
from airflow_provider_dispatch.triggers.job import DispatchJobFinishedTrigger, DispatchJobHeldTrigger
from airflow_provider_dispatch.triggers.streaming import OutputPrinter
from airflow_provider_dispatch.version_compat import AIRFLOW_V_3_4_PLUS
from tests.triggers.world import CONNECTION_ID, JOB, OWNER, CountingAdapter, World, settle

USER_ACTION = "__airflow_user_action__"


class SlowStop(CountingAdapter):
    """Its stop takes as long as the test wants."""

    def __init__(self, world: World) -> None:
        super().__init__(world.backend)
        self.may_go_on = asyncio.Event()
        self.is_stopping = False

    async def stop(self, *arguments: object, **named: object) -> StopReport:
        self.is_stopping = True
        await self.may_go_on.wait()
        return await super().stop(*arguments, **named)  # type: ignore[arg-type]  # handed through


def build(world: World, **changes) -> DispatchJobFinishedTrigger:
    given: dict = {"dispatch_conn_id": CONNECTION_ID, "job": JOB, "submission": 1, "owner_instance": OWNER.instance_id}
    trigger = DispatchJobFinishedTrigger(**{**given, **changes})
    trigger.clock, trigger.sleeper = world.clock, world.sleep
    return trigger


async def run_as_triggerer(trigger: DispatchJobTrigger) -> None:
    """What Airflow's runner does with a trigger, as far as its end is concerned."""
    try:
        async for _ in trigger.run():
            pass
    except asyncio.CancelledError as cancelled:
        if cancelled.args == (USER_ACTION,):
            await asyncio.wait_for(trigger.on_kill(), 30)
        raise
    finally:
        await trigger.cleanup()


def is_gone(world: World) -> bool:
    world.backend.advance(timedelta(0))
    return not world.backend.submissions


async def kill(world: World, trigger: DispatchJobTrigger, message: str = USER_ACTION) -> None:
    await world.start("run")
    running = asyncio.ensure_future(run_as_triggerer(trigger))
    await settle()
    running.cancel(message)
    await settle()
    await asyncio.wait([running], timeout=5)
    assert running.cancelled()


def test_a_killed_task_stops_its_job_and_closes_the_adapter(world: World) -> None:
    asyncio.run(kill(world, build(world)))

    assert is_gone(world)
    assert [adapter.is_closed for adapter in world.adapters] == [True]


@pytest.mark.parametrize(("code", "state"), [(0, State.SUCCEEDED), (3, State.FAILED)])
def test_a_job_that_has_ended_is_left_as_it_is(world: World, code: int, state: State) -> None:
    """By a trigger that Airflow has left over from a task that is done, for instance."""

    async def scenario() -> None:
        ref = await world.start("run")
        world.backend.exit_rank((ref.job, 1), code=code)
        await build(world).on_kill()
        record = await world.adapters[-1].find(ref.job)
        assert record.newest is not None
        assert record.newest.state is state

    asyncio.run(scenario())

    assert not is_gone(world)


def test_a_moving_trigger_leaves_the_job_alone(world: World) -> None:
    asyncio.run(kill(world, build(world), message=""))

    assert not is_gone(world)


@pytest.mark.parametrize(
    "changes",
    [{"owner_instance": "ti-0"}, {"owner_instance": ""}, {"cancel_on_kill": False}],
    ids=["another try owns it", "nobody knows who asks", "not wanted"],
)
def test_a_job_that_is_not_to_be_stopped_is_left_alone(world: World, changes: dict[str, object]) -> None:
    asyncio.run(kill(world, build(world, **changes)))

    assert not is_gone(world)


def build_for(world: World, instance: object, *, map_index: int = -1, **changes: object) -> DispatchJobFinishedTrigger:
    """A trigger that knows its task instance, as Airflow tells it."""
    trigger = build(world, **changes)
    ti: Any = SimpleNamespace(id=instance, task_id="train", dag_id="dag", run_id="run", map_index=map_index)
    trigger.task_instance = ti
    return trigger


NO_ANSWER = AirflowRuntimeError(ErrorResponse(error=ErrorType.GENERIC_ERROR, detail={"message": "locked"}))


@pytest.mark.skipif(AIRFLOW_V_3_4_PLUS, reason="this Airflow tells a move from a kill")
@pytest.mark.parametrize("map_index", [-1, 3])
@pytest.mark.parametrize(
    ("state", "is_stopped"),
    [
        ("deferred", False),
        ("failed", True),
        ("success", True),
        ("skipped", True),
        ("running", True),
        (None, True),
        (NO_ANSWER, True),
    ],
)
def test_a_task_that_is_still_deferred_was_not_killed(
    world: World, state: str | Exception | None, is_stopped: bool, map_index: int
) -> None:
    """Its triggers have moved to another triggerer, or it was cleared and its next try is deferred by now."""
    supervisor = Supervisor(world, state)
    with set_supervisor_comms(supervisor):
        asyncio.run(kill(world, build_for(world, OWNER.instance_id, map_index=map_index)))

    assert is_gone(world) is is_stopped
    (question,) = supervisor.questions
    assert (question.dag_id, question.run_ids, question.task_ids) == ("dag", ["run"], ["train"])
    assert question.map_index == (None if map_index == -1 else map_index)


def test_the_task_instance_that_deferred_is_the_owner_unless_told_otherwise(world: World) -> None:
    instance = UUID(int=7)
    trigger = build_for(world, instance, owner_instance="")

    async def scenario() -> None:
        ref = await world.start("run")
        world.backend.set_owner((ref.job, 1), Owner("airflow", "dag", "run", "train", -1, 1, str(instance)))
        await trigger.on_kill()

    with set_supervisor_comms(Supervisor(world)):
        asyncio.run(scenario())

    assert is_gone(world)


def test_an_owner_of_another_deployment_is_somebody_else(world: World) -> None:
    async def scenario() -> None:
        ref = await world.start("run")
        world.backend.set_owner((ref.job, 1), Owner("elsewhere", "dag", "run", "train", -1, 1, OWNER.instance_id))
        await build(world).on_kill()

    asyncio.run(scenario())

    assert not is_gone(world)


def test_a_trigger_that_owns_nothing_stops_nothing(world: World) -> None:
    trigger = DispatchJobHeldTrigger(dispatch_conn_id=CONNECTION_ID, job=JOB)
    trigger.clock, trigger.sleeper = world.clock, world.sleep

    asyncio.run(kill(world, trigger))

    assert not is_gone(world)


def stop_while_cancelled(world: World, times: int) -> tuple[bool, bool]:
    """Whether the job was there after *times* cancellations in the middle of the stop, and whether it was gone then."""

    async def scenario() -> tuple[bool, bool]:
        slow = SlowStop(world)
        registry.register_adapter("fake", lambda _: slow)
        await world.start("run")
        running = asyncio.ensure_future(run_as_triggerer(build(world)))
        await settle()
        for _ in range(1 + times):
            running.cancel(USER_ACTION)
            await settle()
        assert slow.is_stopping
        before = is_gone(world)
        slow.may_go_on.set()
        await settle()
        await asyncio.wait([running], timeout=5)
        return before, is_gone(world)

    return asyncio.run(scenario())


@pytest.mark.parametrize("times", [0, 1, 3])
def test_the_stop_outlives_being_cancelled_again_and_again(world: World, times: int) -> None:
    """Airflow does that about once a second."""
    assert stop_while_cancelled(world, times) == (False, True)


def test_the_stop_is_not_forgotten_by_the_garbage_collector(world: World) -> None:
    """The event loop itself keeps weak references to tasks only."""
    import gc

    async def scenario() -> bool:
        slow = SlowStop(world)
        registry.register_adapter("fake", lambda _: slow)
        await world.start("run")
        killing = asyncio.ensure_future(build(world).on_kill())
        await settle()
        release: Callable[[], None] = slow.may_go_on.set
        del killing
        gc.collect()
        release()
        await settle()
        return is_gone(world)

    assert asyncio.run(scenario())


def test_a_job_whose_ranks_are_slow_is_told_as_still_ending(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> State:
        await world.start("stubborn")
        await build(world).on_kill()
        return (await world.adapters[0].inspect(JOB)).state

    assert asyncio.run(scenario()) is State.STOPPING


def test_a_kill_that_fails_is_told_and_raises_nothing(world: World) -> None:
    asyncio.run(build(world, dispatch_conn_id="missing").on_kill())

    assert world.adapters == []


class Supervisor:
    """Airflow's end of a trigger's line: says in what state a task is, and records when a cursor was saved.

    :param state: of every task; an error is raised.
    :ivar saves: whether the job was gone by then.
    """

    def __init__(self, world: World, state: str | Exception | None = "failed") -> None:
        self.world, self.state = world, state
        self.saves: list[bool] = []
        self.questions: list[GetTaskStates] = []

    def send(self, message: GetTaskStates) -> TaskStatesResult:
        self.questions.append(message)
        if isinstance(self.state, Exception):
            raise self.state
        key = "train" if message.map_index is None else f"train_{message.map_index}"
        return TaskStatesResult(task_states={"run": {key: self.state}})

    async def asend(self, message: SetXCom | GetXCom) -> XComResult | None:
        if isinstance(message, SetXCom):
            self.saves.append(is_gone(self.world))
            return None
        return XComResult(key=message.key, value=None)


async def settle_until(condition: Callable[[], bool]) -> None:
    """A slow machine may cut reading into pieces."""
    for _ in range(100):
        await settle()
        if condition():
            return
    raise AssertionError("it never came to that")


def is_unsaved(trigger: DispatchJobTrigger) -> bool:
    assert isinstance(trigger.output, OutputPrinter)
    return trigger.output._saver._wanted is not None


@pytest.mark.parametrize(("message", "gone_when_saved"), [(USER_ACTION, True), ("", False)])
def test_nothing_is_written_into_airflow_before_the_job_is_stopped(
    world: World, message: str, *, gone_when_saved: bool
) -> None:
    """A moving trigger saves how far it printed; a killed one stops the job first."""
    supervisor = Supervisor(world)

    async def scenario() -> list[bool]:
        ref = await world.start("run")
        trigger = build_for(world, OWNER.instance_id, stream_ranks=[[None, 0]])
        running = asyncio.ensure_future(run_as_triggerer(trigger))
        await settle()
        world.print_lines(ref, "one")
        await settle_until(lambda: bool(supervisor.saves))
        world.print_lines(ref, "two")
        await world.advance(timedelta(seconds=1))
        await settle_until(lambda: is_unsaved(trigger))
        saved_while_running = len(supervisor.saves)
        running.cancel(message)
        await settle()
        await asyncio.wait([running], timeout=5)
        return supervisor.saves[saved_while_running:]

    with set_supervisor_comms(supervisor):
        assert asyncio.run(scenario()) == [gone_when_saved]
