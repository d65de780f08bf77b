# SPDX-License-Identifier: Apache-2.0
"""What each side may do with the rights that `dispatch setup` gives it, shown by trying, and that they are enough.

Tokens of the service accounts, nothing else. What must be refused is tried one by one as a dry run of a change to an
object that is there: policies judge a dry run like any other. What must be allowed is the life of a job.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dispatch.adapters.protocol import DispatchAdapter, OutputRequest
from airflow_provider_dispatch.adapters.registry import build_adapter
from airflow_provider_dispatch.core.capabilities import Answer
from airflow_provider_dispatch.core.holds import Actor, ActorKind, HoldRequest
from airflow_provider_dispatch.core.identity import build_job_id, build_object_name
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.core.records import JobSelector, StartRequest
from airflow_provider_dispatch.core.state import State
from airflow_provider_dispatch.testing.waiting import Waiter
from tests.cluster.controller_process import ControllerProcess
from tests.cluster.fixtures import CONTROLLER_FLAGS
from tests.cluster.set_up import Installation, installed
from tests.cluster.testbed import objects
from tests.cluster.testbed.api import Api, ApiError, Manifest
from tests.cluster.testbed.bed import Bed

DOMAIN = "dispatch.phpboyscout.uk"
TRAINER, KUEUE = objects.TRAINER_VERSION, objects.KUEUE_VERSION
PATIENCE_SECONDS = 90.0
FORBIDDEN = 403
SPEC = JobSpec(command=["sh", "-c", "echo here; trap 'exit 143' TERM; while :; do sleep 1 & wait $!; done"])


@pytest.fixture(scope="module")
def made(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    bed.api.apply(*objects.build_shared_objects())
    with installed(bed, tmp_path_factory.mktemp("rights")) as installation:
        controllers = installation.write_kubeconfig(installation.terms.system_namespace, "controller")
        with ControllerProcess(controllers, installation.folder, (*CONTROLLER_FLAGS, *installation.flags)):
            Waiter().wait_for(lambda: is_active(installation), timeout_seconds=60, what="the controller's check")
            yield installation


def is_active(made: Installation) -> bool:
    check = made.bed.api.get("AdmissionCheck", made.check, version=KUEUE)
    return any(one["status"] == "True" for one in check.get("status", {}).get("conditions", ()))


@asynccontextmanager
async def opened(made: Installation, namespace: str, **fields: object) -> AsyncIterator[DispatchAdapter]:
    """The adapter with the rights of Airflow's side."""
    adapter = build_adapter(
        "kubeflow",
        {
            "kubeconfig": str(made.write_kubeconfig(namespace, "airflow")),
            "namespace": namespace,
            "admission_check": made.check,
            "lease_namespace": made.terms.system_namespace,
            "lease_name": made.check,
            "runtime": {"name": objects.RUNTIME},
            **fields,
        },
    )
    try:
        yield adapter
    finally:
        await adapter.close()


def soon() -> datetime:
    return datetime.now(UTC) + timedelta(seconds=PATIENCE_SECONDS)


async def until(adapter: DispatchAdapter, ref: JobRef, *states: State) -> Observation:
    async def look() -> Observation:
        async for seen in adapter.watch([ref]):
            if seen.state in states:
                return seen
        raise AssertionError("the watch ended")

    return await asyncio.wait_for(look(), PATIENCE_SECONDS)


async def start(adapter: DispatchAdapter, **fields: object) -> JobRef:
    request = StartRequest(build_job_id(0, os.urandom(10)), 1, 1, SPEC.model_copy(update=fields))
    return await adapter.start(request, deadline=soon())


async def live_a_life(adapter: DispatchAdapter) -> int:
    """Start, open, hold, release, stop, and every look between; the epoch of the last execution."""
    ref = await start(adapter)
    await adapter.open(ref, deadline=soon())
    first = await until(adapter, ref, State.RUNNING)
    async for line in adapter.output(ref, OutputRequest(follow=True)):
        assert line.text == "here"
        break
    held = await adapter.hold(ref, HoldRequest("rights", Actor(ActorKind.HUMAN, "ann"), "to see"), deadline=soon())
    await until(adapter, ref, State.HELD)
    assert await adapter.release(ref, held, deadline=soon()) == ()
    second = await until(adapter, ref, State.RUNNING)
    assert first.execution is not None
    assert second.execution is not None
    assert second.execution.epoch > first.execution.epoch
    assert {event.kind for event in await adapter.events(ref)} >= {"opened", "held", "released"}
    assert [record.ref.job for record in await adapter.list(JobSelector())] == [ref.job]
    report = await adapter.stop(ref.job, reason="enough", deadline=soon())
    assert report.is_complete, report
    assert (await adapter.find(ref.job)).orphans == ()
    return second.execution.epoch


def list_refused(made: Installation, since: int) -> list[str]:
    users = {
        *(made.user(namespace, "airflow") for namespace in (made.jobs, made.alone)),
        made.user(made.terms.system_namespace, "controller"),
    }
    found = [one for one in made.bed.fetch_requests(since=since) if one.user in users]
    assert found, "nobody asked for anything with those rights"
    return [f"{one.user} {one.verb} {one.uri}: {one.status}" for one in found if one.status in {401, FORBIDDEN}]


@pytest.mark.parametrize("mode", ["queue", "plain", "alone"])
def test_the_rights_are_enough_for_a_life(made: Installation, mode: str) -> None:
    namespace = made.alone if mode == "alone" else made.jobs
    fields: dict[str, object] = {"queue": objects.LOCAL_QUEUE} if mode == "queue" else {}

    async def program() -> int:
        async with opened(made, namespace, has_controller=mode != "alone", **fields) as adapter:
            found = await adapter.preflight()
            assert all(check.value is Answer.YES for check in found.checks.values()), found.checks
            # Preflight sends a job that Kueue must refuse; of all that comes after nothing may be refused.
            since = made.bed.mark_requests()
            epoch = await live_a_life(adapter)
            assert list_refused(made, since) == []
            return epoch

    assert asyncio.run(program()) == 1_000_002
