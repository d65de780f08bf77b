# SPDX-License-Identifier: Apache-2.0
"""The controller removes what a killed preflight has left, once, in time, and asks for nothing before."""

import asyncio
from datetime import timedelta

import pytest

from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.probe import build_probe_runtime, build_probe_trainjob
from airflow_provider_dispatch.adapters.kubeflow.model.probe_marks import MARGIN, build_probe_name, build_probe_until
from airflow_provider_dispatch.adapters.kubeflow.model.resources import (
    EVENTS,
    TRAINING_RUNTIMES,
    TRAINJOBS,
    Resource,
)
from airflow_provider_dispatch.adapters.kubeflow.model.terms import Terms
from airflow_provider_dispatch.controller.apply import LeaseLostError
from airflow_provider_dispatch.controller.probes import AGAIN_SECONDS
from airflow_provider_dispatch.controller.running import Replica
from airflow_provider_dispatch.core.identity import build_job_id
from airflow_provider_dispatch.exceptions import UnavailableError
from tests.adapters.kubeflow.memory_client import Fault, MemoryClient, Object
from tests.adapters.kubeflow.objects import NOW
from tests.controller.test_running import build_replica, wait_until
from tests.controller.world import World, asynchronous, show

JOB = build_job_id(0, b"0123456789")
NAME = build_probe_name(JOB)
TERMS = Terms("default", "lq", is_fenced=True)
UNTIL = build_probe_until(NOW, 10.0)
END = (UNTIL + MARGIN - NOW).total_seconds()


def place_probe(world: World) -> str:
    """A probe; the UID of its runtime."""
    world.client.put(TRAINJOBS, build_probe_trainjob(JOB, TERMS, UNTIL))
    uid: str = world.client.put(TRAINING_RUNTIMES, build_probe_runtime(JOB, TERMS, UNTIL))["metadata"]["uid"]
    return uid


def list_left(world: World) -> list[str]:
    return [one["kind"] for kind in (TRAINJOBS, TRAINING_RUNTIMES) for one in world.client.peek_all(kind)]


def peek(world: World) -> Object:
    found = world.client.peek(TRAINJOBS, NAME)
    assert found is not None
    return found


def count_removed(replica: Replica) -> float:
    return replica.metrics.registry.get_sample_value("dispatch_decisions_total", {"kind": "probe-removed"}) or 0.0


@asynchronous
async def test_a_probe_is_waited_for_without_a_request_and_removed_at_its_end(world: World):
    uid = place_probe(world)
    replica = await world.start_replica()
    asked = len(world.client.requests)

    assert await replica.loop.look(uid) == END
    world.pass_time(END - 1)
    assert await replica.loop.look(uid) == 1.0
    assert len(world.client.requests) == asked
    assert list_left(world) == ["TrainJob", "TrainingRuntime"]

    world.pass_time(1)
    await replica.lease.attempt()
    assert await replica.loop.look(uid) is None
    assert list_left(world) == []
    assert count_removed(replica) == 1.0


@asynchronous
async def test_a_runtime_alone_goes_too(world: World):
    uid = place_probe(world)
    world.client.drop(TRAINJOBS, NAME)
    world.pass_time(END)
    replica = await world.start_replica()
    await replica.loop.look(uid)
    assert list_left(world) == []


@asynchronous
async def test_a_probe_that_is_on_its_way_out_keeps_no_runtime(world: World):
    uid = place_probe(world)
    peek(world)["metadata"]["deletionTimestamp"] = world.wall().isoformat()
    world.pass_time(END)
    replica = await world.start_replica()
    await replica.loop.look(uid)
    assert list_left(world) == ["TrainJob"]


@asynchronous
async def test_who_has_no_lease_removes_nothing(world: World):
    uid = place_probe(world)
    await world.start_replica("other")
    world.pass_time(1)
    follower = await world.start_replica("follower")
    world.pass_time(END)
    with pytest.raises(LeaseLostError):
        await follower.loop.look(uid)
    assert list_left(world) == ["TrainJob", "TrainingRuntime"]


@asynchronous
async def test_what_uses_a_probes_name_and_is_none_stays_with_its_runtime(world: World):
    uid = place_probe(world)
    del peek(world)["metadata"]["annotations"][words.ADMISSION_GATED_BY]
    world.pass_time(END)
    replica = await world.start_replica()
    assert await replica.loop.look(uid) is None
    assert list_left(world) == ["TrainJob", "TrainingRuntime"]
    assert count_removed(replica) == 0.0


@asynchronous
async def test_a_probe_that_was_made_later_than_its_runtime_is_waited_for(world: World):
    uid = place_probe(world)
    peek(world)["metadata"]["creationTimestamp"] = (UNTIL - timedelta(seconds=20)).isoformat()
    world.pass_time(END)
    replica = await world.start_replica()
    assert await replica.loop.look(uid) == 10.0
    assert list_left(world) == ["TrainJob", "TrainingRuntime"]


class BusyClient(MemoryClient):
    """Somebody writes each probe just after it was read."""

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Object | None:
        found = await super().get(resource, name, namespace)
        if resource is TRAINJOBS and found is not None:
            self.put(resource, found)
        return found


@asynchronous
async def test_a_probe_that_has_changed_since_it_was_read_is_read_again(world: World):
    world.client = BusyClient()
    uid = place_probe(world)
    world.pass_time(END)
    replica = await world.start_replica()
    assert await replica.loop.look(uid) == AGAIN_SECONDS
    assert list_left(world) == ["TrainJob", "TrainingRuntime"]


@asynchronous
async def test_a_runtime_that_has_changed_is_left_until_the_watch_tells(world: World):
    uid = place_probe(world)
    world.pass_time(END)
    replica = await world.start_replica()
    runtime = world.client.peek(TRAINING_RUNTIMES, NAME)
    assert runtime is not None
    world.client.put(TRAINING_RUNTIMES, runtime)
    assert await replica.loop.look(uid) is None
    assert list_left(world) == ["TrainingRuntime"]
    assert count_removed(replica) == 0.0
    await show(replica)
    await replica.loop.look(uid)
    assert list_left(world) == []


@asynchronous
async def test_what_fails_is_tried_again_and_the_runtime_goes_last(world: World):
    uid = place_probe(world)
    world.pass_time(END)
    replica = await world.start_replica()
    world.client.faults.append(Fault("delete", TRAINJOBS, UnavailableError("down")))
    with pytest.raises(UnavailableError):
        await replica.loop.look(uid)
    assert list_left(world) == ["TrainJob", "TrainingRuntime"]
    assert await replica.loop.look(uid) is None
    assert list_left(world) == []


@asynchronous
async def test_the_watch_of_runtimes_leads_to_it(world: World):
    replica, stop = build_replica(world), asyncio.Event()
    running = asyncio.create_task(replica.run(stop))
    await wait_until(world, lambda: replica.is_ready)
    world.pass_time(END)
    place_probe(world)
    await wait_until(world, lambda: list_left(world) == [])
    await wait_until(world, lambda: count_removed(replica) == 1.0)
    await replica.journal.flush()
    stop.set()
    await running
    assert [one for one in world.client.peek_all(EVENTS) if one["metadata"]["namespace"] == "default"] == []


@asynchronous
async def test_the_cache_knows_a_probes_runtime_from_a_jobs(world: World):
    world.place_job()
    uid = place_probe(world)
    replica = await world.start_replica()
    runtimes = [one["metadata"]["uid"] for one in world.client.peek_all(TRAINING_RUNTIMES)]
    assert len(runtimes) == 2
    assert [one for one in runtimes if replica.cache.probe(one) is not None] == [uid]
    world.client.drop(TRAINING_RUNTIMES, NAME)
    await show(replica)
    assert replica.cache.probe(uid) is None
