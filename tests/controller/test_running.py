# SPDX-License-Identifier: Apache-2.0
import asyncio
import socket
from collections.abc import Callable

import aiohttp
import pytest

from airflow_provider_dispatch.adapters.kubeflow.errors import ExpiredVersionError
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.resources import (
    ADMISSION_CHECKS,
    EVENTS,
    LEASES,
    PODS,
    TRAINJOBS,
    WORKLOADS,
)
from airflow_provider_dispatch.controller.config import ControllerConfig
from airflow_provider_dispatch.controller.health import HealthServer
from airflow_provider_dispatch.controller.running import Replica
from airflow_provider_dispatch.exceptions import CapabilityError, RefusedError, UnavailableError
from tests.adapters.kubeflow.memory_client import Fault
from tests.controller.world import WORKLOAD, World, asynchronous


def build_replica(world: World) -> Replica:
    """One with a real clock: its parts wait for each other."""
    return Replica(world.client, ControllerConfig(identity="one", workers=2, lease_renew_seconds=0.05), wall=world.wall)


async def wait_until(world: World, is_so: Callable[[], bool]) -> None:
    """Look after each write; the Lease sees to it that there is always another."""
    changed = asyncio.Event()

    def ring(*_write: object) -> None:
        changed.set()

    world.client.reactions.append(ring)
    while not is_so():
        await changed.wait()
        changed.clear()
    world.client.reactions.remove(ring)


def list_kinds(world: World) -> set[str]:
    return {event["reason"] for event in world.client.peek_all(EVENTS) if event["metadata"]["namespace"] == "default"}


@asynchronous
async def test_job_is_seen_admitted_and_lifted_by_its_watches(world: World):
    world.client.put(
        ADMISSION_CHECKS,
        {"metadata": {"name": words.DEFAULT_CHECK, "generation": 3}, "spec": {"controllerName": words.CONTROLLER_NAME}},
    )
    replica, stop = build_replica(world), asyncio.Event()
    running = asyncio.create_task(replica.run(stop))
    await wait_until(world, lambda: replica.is_ready)

    world.place_job()
    world.reserve()
    await wait_until(world, lambda: world.check()["state"] == "Ready")
    world.admit()
    world.place_jobset()
    world.place_pod(0)
    await wait_until(world, lambda: world.epochs() == ["1000001"])
    await wait_until(world, lambda: {"admission-raised", "check-ready", "started"} <= list_kinds(world))
    await wait_until(world, lambda: "status" in (world.client.peek(ADMISSION_CHECKS, words.DEFAULT_CHECK) or {}))
    stop.set()
    await running

    check = world.client.peek(ADMISSION_CHECKS, words.DEFAULT_CHECK)
    assert check is not None
    (condition,) = check["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["observedGeneration"]) == ("Active", "True", 3)


@asynchronous
async def test_stop_gives_the_lease_up(world: World):
    replica, stop = build_replica(world), asyncio.Event()
    running = asyncio.create_task(replica.run(stop))
    await wait_until(world, lambda: replica.lease.is_held)
    stop.set()
    await running
    lease = world.client.peek(LEASES, words.LEASE_NAME, words.LEASE_NAMESPACE)
    assert lease is not None
    assert lease["spec"]["holderIdentity"] == ""


@asynchronous
async def test_broken_watch_begins_anew_with_a_list(world: World):
    world.client.faults.append(Fault("watch", PODS, ExpiredVersionError("410")))
    world.client.faults.append(Fault("list", TRAINJOBS, UnavailableError("away")))

    async def hurry(_seconds: float) -> None:
        await asyncio.sleep(0)

    config = ControllerConfig(identity="one", lease_renew_seconds=0.05)
    replica, stop = Replica(world.client, config, wall=world.wall, sleep=hurry), asyncio.Event()
    running = asyncio.create_task(replica.run(stop))
    await wait_until(world, lambda: replica.is_ready and world.client.count("list", PODS) >= 2)
    stop.set()
    await running
    assert b'dispatch_watch_restarts_total{resource="pods"} 2.0' in replica.metrics.render()


@asynchronous
async def test_right_that_is_missing_is_waited_for(world: World):
    world.client.faults.extend(Fault("list", TRAINJOBS, RefusedError("not allowed")) for _ in range(3))

    async def hurry(_seconds: float) -> None:
        await asyncio.sleep(0)

    config = ControllerConfig(identity="one", lease_renew_seconds=0.05)
    replica, stop = Replica(world.client, config, wall=world.wall, sleep=hurry), asyncio.Event()
    running = asyncio.create_task(replica.run(stop))
    await wait_until(world, lambda: replica.is_ready)
    assert world.client.count("list", TRAINJOBS) == 4
    stop.set()
    await running


@asynchronous
async def test_cluster_without_kueue_is_watched_all_the_same(world: World):
    world.client.faults.extend(Fault("list", WORKLOADS, CapabilityError("not served")) for _ in range(1))
    replica, stop = build_replica(world), asyncio.Event()
    running = asyncio.create_task(replica.run(stop))
    await wait_until(world, lambda: replica.is_ready)
    stop.set()
    await running
    assert world.client.count("list", WORKLOADS) == 1


@asynchronous
async def test_event_that_cannot_be_written_hinders_nothing(world: World):
    world.client.faults.append(Fault("create", EVENTS, RefusedError("not allowed")))
    world.place_job()
    world.reserve()
    replica, stop = build_replica(world), asyncio.Event()
    running = asyncio.create_task(replica.run(stop))
    await wait_until(
        world, lambda: world.client.peek(WORKLOADS, WORKLOAD) is not None and world.check()["state"] == "Ready"
    )
    await replica.journal.flush()
    stop.set()
    await running
    assert world.client.peek_all(EVENTS) != []


@pytest.mark.parametrize("ports", [(0, 0), (0, -1)], ids=["one server", "two servers"])
@asynchronous
async def test_health_and_metrics_answer(world: World, ports: tuple[int, int]):
    replica = build_replica(world)
    ready = [False]
    # Two different ports that are both free: 0 twice would be one server.
    metrics_port = 0 if ports[1] == 0 else find_free_port()
    server = HealthServer(
        replica.metrics, lambda: ready[0], address="127.0.0.1", port=ports[0], metrics_port=metrics_port
    )
    async with server, aiohttp.ClientSession() as session:
        (health, metrics) = (server.addresses[0], server.addresses[-1])
        answers = []
        for host, port, path in ((*health, "healthz"), (*health, "readyz"), (*metrics, "metrics")):
            async with session.get(f"http://{host}:{port}/{path}") as answer:
                answers.append((answer.status, await answer.text()))
        ready[0] = True
        async with session.get(f"http://{health[0]}:{health[1]}/readyz") as answer:
            assert answer.status == 200
    assert [status for status, _ in answers] == [200, 503, 200]
    assert "dispatch_lease_held 0.0" in answers[2][1]


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
