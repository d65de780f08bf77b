# SPDX-License-Identifier: Apache-2.0
"""Legs of the sensors in every mode, without a database: what they wait for, and what fails them at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowSensorTimeout, AirflowTaskTimeout

from airflow_provider_dispatch.core.holds import Actor, ActorKind, HoldRequest
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.exceptions import (
    DispatchError,
    JobExitedError,
    JobFailedError,
    JobNotFoundError,
    UnavailableError,
)
from airflow_provider_dispatch.hooks.dispatch import DispatchHook
from airflow_provider_dispatch.sensors.gate import DispatchGateSensor
from airflow_provider_dispatch.sensors.hold import DispatchHoldSensor
from airflow_provider_dispatch.sensors.job import DispatchJobSensor
from tests.operators.task_run import Airflow, Leg
from tests.triggers.world import CONNECTION_ID, JOB, World

HOLD = HoldRequest("key", Actor(ActorKind.HUMAN, "ann"), "maintenance")


class ImpatientGateSensor(DispatchGateSensor):
    """Defers at once what is not so yet: nobody moves the backend while a test's worker waits."""

    wait_in_worker = timedelta(0)


class ImpatientHoldSensor(DispatchHoldSensor):
    """The same."""

    wait_in_worker = timedelta(0)


class ImpatientJobSensor(DispatchJobSensor):
    """The same."""

    wait_in_worker = timedelta(0)


def build(kind: type = DispatchJobSensor, **arguments: object):
    given: dict[str, object] = {
        "task_id": "wait",
        "dispatch_conn_id": CONNECTION_ID,
        "job_id": JOB,
        "poke_interval": 0,
        "timeout": 0,
    }
    if "job_task_id" in arguments or "job_ref" in arguments:
        given.pop("job_id")
    with DAG("d", schedule=None):
        return kind(**{**given, **arguments})


def start(world: World, *command: str, is_open: bool = True) -> JobRef:
    return asyncio.run(world.start(*command, is_open=is_open))


def hold(world: World) -> None:
    DispatchHook(CONNECTION_ID).hold(JOB, HOLD)
    world.backend.advance(timedelta(seconds=1))


def release(world: World) -> None:
    (placed,) = DispatchHook(CONNECTION_ID).inspect(JOB).holds
    DispatchHook(CONNECTION_ID).release(JOB, placed)
    world.backend.advance(timedelta(seconds=1))


def start_and_hold(world: World) -> None:
    start(world)
    hold(world)


def start_hold_and_release(world: World) -> None:
    start_and_hold(world)
    release(world)


REACHED: list[tuple[str, type, dict, Callable[[World], object]]] = [
    ("gated", ImpatientGateSensor, {"until": "gated"}, lambda world: start(world, is_open=False)),
    ("opened", ImpatientGateSensor, {"until": "opened"}, start),
    ("admitted", ImpatientGateSensor, {"until": "admitted"}, start),
    ("held", ImpatientHoldSensor, {"until": "held"}, start_and_hold),
    ("released", ImpatientHoldSensor, {"until": "released"}, start_hold_and_release),
    ("running", ImpatientJobSensor, {"until": {"running"}}, start),
    ("any of two", ImpatientJobSensor, {"until": ["succeeded", "failed"]}, lambda world: start(world, "exit", "1")),
    ("a single name", ImpatientJobSensor, {"until": "running"}, start),
]
reached = pytest.mark.parametrize(
    ("kind", "arguments", "reach"), [row[1:] for row in REACHED], ids=[row[0] for row in REACHED]
)
in_every_mode = pytest.mark.parametrize(
    "mode",
    [{"mode": "poke"}, {"mode": "reschedule", "poke_interval": 10}, {"deferrable": True}],
    ids=["poke", "reschedule", "deferrable"],
)


@reached
@in_every_mode
def test_what_is_so_already_needs_one_leg(
    world: World, airflow: Airflow, kind: type, arguments: dict, reach: Callable[[World], object], mode: dict
) -> None:
    reach(world)

    leg = airflow.run(build(kind, **arguments, **mode))

    assert leg.state == "success", leg.done.error


@reached
def test_what_is_not_so_yet_is_waited_for_in_the_triggerer(
    world: World, airflow: Airflow, kind: type, arguments: dict, reach: Callable[[World], object]
) -> None:
    sensor = build(kind, **arguments, deferrable=True, timeout=600)

    first = airflow.run(sensor)
    assert first.state == "deferred", first.done.error
    reach(world)
    second = airflow.resume(sensor, first)

    assert second.state == "success", second.done.error


@in_every_mode
def test_a_job_that_is_over_fails_the_sensor_at_once_by_its_cause(world: World, airflow: Airflow, mode: dict) -> None:
    start(world, "exit", "3")

    leg = airflow.run(build(ImpatientHoldSensor, **mode, retries=0, **LONG))

    assert leg.state == "failed"
    assert isinstance(leg.done.error, JobExitedError)
    assert "never be held" in str(leg.done.error)
    assert "code 3" in str(leg.done.error)
    assert leg.done.error.diagnosis is not None


LONG: dict = {"timeout": 3600}


@in_every_mode
def test_a_gate_that_is_open_can_never_be_waited_for(world: World, airflow: Airflow, mode: dict) -> None:
    start(world)

    leg = airflow.run(build(ImpatientGateSensor, until="gated", **mode, **LONG))

    assert isinstance(leg.done.error, JobFailedError)
    assert "can't be closed" in str(leg.done.error)


@pytest.mark.parametrize("skip", ["soft_fail", "never_fail"])
@in_every_mode
def test_a_sensor_that_shall_not_fail_skips(world: World, airflow: Airflow, mode: dict, skip: str) -> None:
    start(world, "exit", "3")

    leg = airflow.run(build(ImpatientHoldSensor, **mode, **{skip: True}, **LONG))

    assert leg.state == "skipped", leg.done.error


def test_a_deferred_sensor_that_shall_not_fail_skips(world: World, airflow: Airflow) -> None:
    sensor = build(ImpatientHoldSensor, deferrable=True, soft_fail=True, **LONG)

    first = airflow.run(sensor)
    start(world, "exit", "3")

    assert airflow.resume(sensor, first).state == "skipped"


@in_every_mode
def test_an_unknown_job_fails_a_sensor_that_does_not_want_to_wait(world: World, airflow: Airflow, mode: dict) -> None:
    leg = airflow.run(build(ImpatientJobSensor, until="running", if_unknown="fail", **mode, **LONG))

    assert isinstance(leg.done.error, JobNotFoundError)


def test_a_poke_of_a_backend_that_is_away_for_a_moment_is_made_again(world: World, airflow: Airflow) -> None:
    start(world)
    world.failures.append(UnavailableError("503"))

    leg = airflow.run(build(ImpatientJobSensor, until="running", mode="poke", **LONG))

    assert leg.state == "success", leg.done.error
    assert world.failures == []


def test_a_first_look_at_a_backend_that_is_away_leaves_the_waiting_to_the_trigger(
    world: World, airflow: Airflow
) -> None:
    sensor = build(ImpatientJobSensor, until="running", deferrable=True, **LONG)
    start(world)
    world.failures.append(UnavailableError("503"))

    first = airflow.run(sensor)

    assert first.state == "deferred", first.done.error
    assert airflow.resume(sensor, first).state == "success"


@pytest.mark.parametrize("state", ["failed", "success", "skipped"])
def test_a_poke_fails_once_the_starting_task_has_ended_without_a_job(
    world: World, airflow: Airflow, state: str
) -> None:
    airflow.states["train"] = state
    with DAG("d", schedule=None) as dag:
        sensor = ImpatientJobSensor(
            task_id="wait", dispatch_conn_id=CONNECTION_ID, job_task_id="train", until="running", **LONG
        )
        ImpatientJobSensor(task_id="train", job_id=JOB, until="running")
    assert "train" in dag.task_dict

    leg = airflow.run(sensor)

    assert isinstance(leg.done.error, JobFailedError)
    assert "has ended without" in str(leg.done.error)


def defer(airflow: Airflow, **arguments: object) -> Leg:
    return airflow.run(build(ImpatientJobSensor, until="running", deferrable=True, **arguments))


def test_the_trigger_knows_when_it_may_and_must_end(world: World, airflow: Airflow) -> None:
    """Five seconds are Airflow's default for the interval in which a worker still lingers."""
    before = datetime.now(UTC)

    leg = defer(airflow, timeout=600)

    stored = {name: str(value) for name, value in leg.trigger_kwargs.items()}
    not_before, deadline = (datetime.fromisoformat(stored[name]) for name in ("not_before", "deadline"))
    assert timedelta(seconds=11) <= not_before - before <= timedelta(seconds=30)
    assert timedelta(seconds=590) <= deadline - before <= timedelta(seconds=610)
    assert leg.deferral.trigger_timeout >= timedelta(seconds=640)


def test_execution_timeout_holds_over_a_deferral(world: World, airflow: Airflow) -> None:
    before = datetime.now(UTC)

    leg = defer(airflow, timeout=600, execution_timeout=timedelta(seconds=60))

    assert datetime.fromisoformat(str(leg.trigger_kwargs["deadline"])) - before <= timedelta(seconds=70)


def test_a_reference_narrows_the_wait_to_its_submission(world: World, airflow: Airflow) -> None:
    ref = start(world, is_open=False)

    leg = defer(airflow, job_ref={"job": ref.job, "submission": 1, "backend": "fake", "place": "fake"})

    assert (leg.trigger_kwargs["job"], leg.trigger_kwargs["submission"]) == (JOB, 1)


@in_every_mode
def test_what_a_finished_task_returned_is_enough_of_a_reference(world: World, airflow: Airflow, mode: dict) -> None:
    ref = start(world)
    returned = {"job": ref.job, "submission": 1, "epoch": 1_000_001, "result": None}

    leg = airflow.run(build(ImpatientJobSensor, until="running", job_ref=returned, **mode, **LONG))

    assert leg.state == "success", leg.done.error


EVENTS = [
    ({"verdict": "timeout", "reason": "too long", "observation": None}, AirflowSensorTimeout),
    ({"verdict": "failed", "reason": "no rights", "observation": None}, DispatchError),
]


@pytest.mark.parametrize(("event", "error"), EVENTS)
def test_an_event_is_concluded_from(world: World, airflow: Airflow, event: dict, error: type[BaseException]) -> None:
    sensor = build(ImpatientJobSensor, until="running", deferrable=True)
    leg = defer(airflow, timeout=600)

    concluded = airflow.resume(sensor, leg, event)

    assert isinstance(concluded.done.error, error), concluded.done
    assert str(event["reason"]) in str(concluded.done.error)


def test_which_time_was_over_decides_whether_airflow_may_retry() -> None:
    sensor = build(until="running", deferrable=True, execution_timeout=timedelta(seconds=60))
    timeout = {"verdict": "timeout", "reason": "too long", "observation": None}

    def resume(age: timedelta) -> None:
        sensor.execute_complete({"ti": SimpleNamespace(start_date=datetime.now(UTC) - age)}, timeout)

    with pytest.raises(AirflowTaskTimeout, match="execution_timeout: too long"):
        resume(timedelta(seconds=61))
    with pytest.raises(AirflowSensorTimeout, match="too long"):
        resume(timedelta(seconds=30))


def test_poking_goes_on_while_nothing_is_wrong(world: World, airflow: Airflow) -> None:
    start(world, is_open=False)

    leg = airflow.run(build(DispatchJobSensor, until="running", timeout=0.05))

    assert isinstance(leg.done.error, AirflowSensorTimeout)


def test_rescheduling_goes_on_while_nothing_is_wrong(world: World, airflow: Airflow) -> None:
    start(world, is_open=False)

    leg = airflow.run(build(DispatchJobSensor, until="running", mode="reschedule", poke_interval=10, timeout=600))

    assert leg.state == "up_for_reschedule", leg.done.error
