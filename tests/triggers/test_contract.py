# SPDX-License-Identifier: Apache-2.0
"""What Airflow stores of a trigger and expects of it, for every trigger of the provider.

``frozen/<version>.json`` holds each trigger as that release stored it. Rows outlive an upgrade, so every later version
must build them; a release adds its file and never changes an older one.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from datetime import timedelta
from pathlib import Path

import pytest
from airflow.sdk.serde import deserialize, serialize
from airflow.triggers.base import BaseTrigger, TriggerEvent

import airflow_provider_dispatch
from airflow_provider_dispatch.core import wire
from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.core.state import State
from airflow_provider_dispatch.triggers import job as triggers
from airflow_provider_dispatch.triggers.base import DispatchJobTrigger
from airflow_provider_dispatch.triggers.job import DispatchJobFinishedTrigger, DispatchJobRunningTrigger
from tests.triggers.world import CONNECTION_ID, JOB, World, settle

FROZEN = Path(__file__).parent / "frozen"
COMMON: dict = {
    "dispatch_conn_id": CONNECTION_ID,
    "job": JOB,
    "submission": 1,
    "not_before": "2030-01-01T00:00:07+00:00",
    "deadline": "2030-01-02T00:00:00+00:00",
    "starter": ["dag", "run", "train", -1],
}
OWN: dict[str, dict] = {
    "DispatchJobFinishedTrigger": {
        "owner_instance": "ti-1",
        "stream_ranks": [[None, 0], ["worker", 3]],
        "cancel_on_kill": False,
    },
    "DispatchJobGoalTrigger": {"goal": "held"},
    "DispatchJobHeldTrigger": {},
    "DispatchJobRunningTrigger": {},
    "DispatchJobStatesTrigger": {"states": ["failed", "succeeded"]},
}
CLASSES: dict[str, type[DispatchJobTrigger]] = {
    name: kind
    for name, kind in vars(triggers).items()
    if inspect.isclass(kind) and issubclass(kind, DispatchJobTrigger) and kind is not DispatchJobTrigger
}
every_trigger = pytest.mark.parametrize("kind", CLASSES.values(), ids=CLASSES)


def build(kind: type[DispatchJobTrigger], world: World | None = None, **changes) -> DispatchJobTrigger:
    trigger = kind(**{**COMMON, **OWN[kind.__name__], **changes})
    if world is not None:
        trigger.clock, trigger.sleeper = world.clock, world.sleep
    return trigger


async def read_events(trigger: BaseTrigger) -> list[TriggerEvent]:
    return [event async for event in trigger.run()]


def test_every_trigger_has_a_sample() -> None:
    assert set(OWN) == set(CLASSES)


@every_trigger
def test_what_is_stored_is_what_is_asked_for(kind: type[DispatchJobTrigger]) -> None:
    """An argument that isn't stored would be lost on the way to the triggerer."""
    parameters = set(inspect.signature(kind.__init__).parameters) - {"self"}

    assert set(build(kind).serialize()[1]) == parameters


@every_trigger
def test_a_trigger_survives_json_and_airflows_own_encoding(kind: type[DispatchJobTrigger]) -> None:
    path, arguments = build(kind).serialize()

    plain, encoded = json.loads(json.dumps(arguments)), deserialize(serialize(arguments))

    assert path == f"airflow_provider_dispatch.triggers.job.{kind.__name__}"
    assert plain == arguments == encoded == {**COMMON, **OWN[kind.__name__]}
    assert kind(**plain).serialize() == (path, arguments)


@every_trigger
def test_arguments_that_need_not_be_given_have_defaults(kind: type[DispatchJobTrigger]) -> None:
    """An older row lacks newer arguments."""
    needed = {"dispatch_conn_id", "job", "goal", "states"}
    given = {name: value for name, value in {**COMMON, **OWN[kind.__name__]}.items() if name in needed}

    assert kind(**given).serialize()[1].keys() == build(kind).serialize()[1].keys()


def test_this_version_is_frozen() -> None:
    stored = json.loads((FROZEN / f"{airflow_provider_dispatch.__version__}.json").read_text())

    assert stored == [list(build(kind).serialize()) for kind in CLASSES.values()]


@pytest.mark.parametrize("path", sorted(FROZEN.glob("*.json")), ids=lambda path: path.stem)
def test_rows_of_every_release_are_still_understood(path: Path) -> None:
    for class_path, arguments in json.loads(path.read_text()):
        kind = CLASSES[class_path.rpartition(".")[2]]

        stored_again = kind(**arguments).serialize()

        assert stored_again[0] == class_path
        assert arguments.items() <= stored_again[1].items()


def test_no_secret_of_the_connection_is_stored(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"backend": "fake", "queue": "hidden-words"}
    monkeypatch.setenv("AIRFLOW_CONN_FAKE", json.dumps({"conn_type": "dispatch", "extra": extra, "password": "hush"}))

    async def scenario() -> str:
        await world.start("run")
        trigger = build(DispatchJobRunningTrigger, world, not_before=None)
        await read_events(trigger)
        return json.dumps(trigger.serialize()) + repr(trigger)

    stored = asyncio.run(scenario())

    assert CONNECTION_ID in stored
    assert "hush" not in stored
    assert "hidden-words" not in stored


def test_the_event_tells_the_verdict_and_what_was_seen(world: World) -> None:
    async def scenario() -> list[TriggerEvent]:
        await world.start("run", nodes=2)
        return await read_events(build(DispatchJobRunningTrigger, world, not_before=None))

    (event,) = asyncio.run(scenario())
    payload = json.loads(json.dumps(event.payload))

    assert set(payload) == {"verdict", "reason", "observation"}
    assert (payload["verdict"], payload["reason"]) == ("done", "")
    assert wire.load(Observation, payload["observation"]).state is State.RUNNING


def test_two_triggerers_may_run_the_same_trigger(world: World) -> None:
    async def scenario() -> list[list[TriggerEvent]]:
        ref = await world.start("run")
        _, arguments = build(DispatchJobFinishedTrigger, not_before=None, stream_ranks=[]).serialize()
        twins = [build(DispatchJobFinishedTrigger, world, **arguments) for _ in range(2)]
        reading = asyncio.gather(*(read_events(twin) for twin in twins))
        await settle()
        world.finish(ref)
        return await asyncio.wait_for(reading, 5)

    first, second = asyncio.run(scenario())

    assert len(first) == len(second) == 1
    assert first[0].payload["verdict"] == second[0].payload["verdict"] == "done"


@every_trigger
def test_no_event_comes_before_its_time(world: World, kind: type[DispatchJobTrigger]) -> None:
    """Also not when the wait is hopeless from the start: the scheduler would fail the task for the short leg."""

    async def scenario() -> tuple[bool, list[TriggerEvent]]:
        await world.start("exit", "3")
        trigger = build(kind, world, stream_ranks=[]) if "stream_ranks" in OWN[kind.__name__] else build(kind, world)
        reading = asyncio.ensure_future(read_events(trigger))
        await world.advance(timedelta(seconds=6.9))
        early = reading.done()
        await world.advance(timedelta(seconds=0.2))
        return early, await asyncio.wait_for(reading, 5)

    early, events = asyncio.run(scenario())

    assert not early
    assert len(events) == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dispatch_conn_id": "missing"}, "SpecError: dispatch_conn_id"),
        ({"job": "nonsense"}, "SpecError: job_id"),
        ({"deadline": "tomorrow"}, "ValueError"),
    ],
)
def test_a_trigger_that_can_not_go_on_says_so_in_its_event(world: World, changes: dict[str, str], reason: str) -> None:
    async def scenario() -> tuple[bool, list[TriggerEvent]]:
        reading = asyncio.ensure_future(read_events(build(DispatchJobRunningTrigger, world, **changes)))
        await world.advance(timedelta(seconds=5))
        early = reading.done()
        await world.advance(timedelta(seconds=5))
        return early, await asyncio.wait_for(reading, 5)

    early, (event,) = asyncio.run(scenario())

    assert not early
    assert (event.payload["verdict"], event.payload["observation"]) == ("failed", None)
    assert event.payload["reason"].startswith(reason)


def test_a_trigger_needs_no_task_instance(world: World) -> None:
    """`dag.test()` gives it none."""

    async def scenario() -> list[TriggerEvent]:
        ref = await world.start("run")
        world.print_lines(ref, "hello")
        trigger = build(DispatchJobFinishedTrigger, world, not_before=None)
        assert trigger.task_instance is None
        reading = asyncio.ensure_future(read_events(trigger))
        await settle()
        world.finish(ref)
        await world.advance(timedelta(seconds=5))
        return await asyncio.wait_for(reading, 5)

    assert len(asyncio.run(scenario())) == 1


def test_the_adapter_is_given_back_before_the_event(world: World) -> None:
    """`dag.test()` never calls ``cleanup``."""

    async def scenario() -> bool:
        await world.start("run")
        trigger = build(DispatchJobRunningTrigger, world, not_before=None)
        await anext(trigger.run())
        return world.adapters[0].is_closed

    assert asyncio.run(scenario())


def test_a_cancelled_trigger_keeps_its_adapter_until_cleanup(world: World) -> None:
    """``on_kill`` comes in between and has no time to open another one."""

    async def scenario() -> list[bool]:
        await world.start("run", is_open=False)
        trigger = build(DispatchJobRunningTrigger, world)
        reading = asyncio.ensure_future(read_events(trigger))
        await settle()
        reading.cancel()
        await asyncio.wait([reading])
        seen = [world.adapters[0].is_closed]
        await trigger.cleanup()
        await trigger.cleanup()
        return [*seen, world.adapters[0].is_closed]

    assert asyncio.run(scenario()) == [False, True]
