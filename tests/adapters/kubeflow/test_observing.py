# SPDX-License-Identifier: Apache-2.0
"""What an observer asks for beyond the objects that a watch brings: the events of a job that gets no pods."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from airflow_provider_dispatch.adapters.kubeflow.fetching import fetch_objects
from airflow_provider_dispatch.adapters.kubeflow.model.resources import EVENTS, TRAINJOBS, WORKLOADS
from airflow_provider_dispatch.adapters.kubeflow.observing import STUCK, Observer
from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.core.state import Cause, State
from airflow_provider_dispatch.exceptions import UnavailableError
from tests.adapters.kubeflow.memory_client import Fault, MemoryClient
from tests.adapters.kubeflow.objects import SETTINGS, build_ref, place_job

ADMITTED_AT = datetime(2026, 9, 1, 12, tzinfo=UTC)


def place_admitted() -> MemoryClient:
    """A job that was admitted, and whose pods a quota refuses."""
    client = MemoryClient()
    place_job(client, pods=0)
    (workload,), (trainjob,) = client.peek_all(WORKLOADS), client.peek_all(TRAINJOBS)
    stamp = ADMITTED_AT.isoformat()
    workload["status"] = {
        "admission": {"clusterQueue": "cq"},
        "conditions": [
            {"type": kind, "status": "True", "reason": kind, "lastTransitionTime": stamp}
            for kind in ("QuotaReserved", "Admitted")
        ],
    }
    name, uid = trainjob["metadata"]["name"], trainjob["metadata"]["uid"]
    event = {
        "metadata": {"name": "refused"},
        "involvedObject": {"kind": "TrainJob", "name": name, "uid": uid},
        "reason": "FailedCreate",
        "message": "forbidden: exceeded quota: none",
        "lastTimestamp": stamp,
    }
    client.put(EVENTS, event)
    return client


def observe(client: MemoryClient, after: timedelta) -> Observation:
    async def look() -> Observation:
        objects = await fetch_objects(client, SETTINGS.namespace, build_ref())
        return await Observer(client, SETTINGS).observe(objects, build_ref(), ADMITTED_AT + after)

    return asyncio.run(look())


def test_the_events_of_a_job_that_gets_no_pods_are_read() -> None:
    client = place_admitted()
    seen = observe(client, STUCK)
    assert (seen.state, seen.cause) == (State.STARTING, Cause.NO_CAPACITY)
    assert "exceeded quota: none" in seen.detail
    # By the names of the TrainJob and of its Workload.
    assert client.count("list", EVENTS) == 2


def test_a_job_that_has_just_been_admitted_costs_no_look_at_events() -> None:
    client = place_admitted()
    assert observe(client, STUCK / 2).cause is None
    assert client.count("list", EVENTS) == 0


def test_a_watch_goes_on_without_events() -> None:
    client = place_admitted()
    client.faults.append(Fault("list", EVENTS, UnavailableError("away")))
    seen = observe(client, STUCK)
    assert (seen.state, seen.cause) == (State.STARTING, None)
