# SPDX-License-Identifier: Apache-2.0
"""The tutorial that this adapter grew from, line by line, with its names and quotas, on real pods."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_provider_dispatch.adapters.kubeflow.model.ledger import build_ledger_name
from airflow_provider_dispatch.adapters.protocol import DispatchAdapter, OutputRequest
from airflow_provider_dispatch.adapters.registry import build_adapter
from airflow_provider_dispatch.core.capabilities import Answer, Capability, Source
from airflow_provider_dispatch.core.holds import Actor, ActorKind, HoldRequest
from airflow_provider_dispatch.core.identity import JobID, build_job_id
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.core.records import StartRequest
from airflow_provider_dispatch.core.state import Cause, State
from tests.cluster.testbed import objects
from tests.cluster.testbed.bed import Bed
from tests.cluster.testbed.pins import TRAINER_IMAGE

NAMESPACE, QUEUE, RUNTIME = "tutorial", "lq", "dispatch-kind"
TRAINER, KUEUE = objects.TRAINER_VERSION, objects.KUEUE_VERSION
DOMAIN = "dispatch.phpboyscout.uk"
SCRIPT = (
    "env | grep '^DISPATCH_' | sort; echo tutorial-ready; trap 'exit 143' TERM; while :; do sleep 1 & wait $!; done"
)
PATIENCE_SECONDS = 90.0


@pytest.fixture
def tutorial(controlled_bed: Bed) -> Iterator[Bed]:
    """What the reader sets up before the program."""
    bed = controlled_bed
    queue, local_queue = objects.build_queue(NAMESPACE, cpu="250m", memory="256Mi")
    made = [objects.build_namespace(NAMESPACE), objects.build_runtime(RUNTIME), queue, local_queue]
    bed.api.apply(*made)
    yield bed
    for manifest in reversed(made):
        bed.api.delete(manifest)


@asynccontextmanager
async def opened(bed: Bed) -> AsyncIterator[DispatchAdapter]:
    adapter = build_adapter(
        "kubeflow",
        {
            "kubeconfig": str(bed.kubeconfig),
            "namespace": NAMESPACE,
            "queue": QUEUE,
            "priority_class": "low",
            "admission_check": "dispatch-admission",
            "runtime": {"name": RUNTIME},
        },
    )
    try:
        yield adapter
    finally:
        await adapter.close()


def a_minute_from_now() -> datetime:
    return datetime.now(UTC) + timedelta(minutes=1)


async def until(adapter: DispatchAdapter, ref: JobRef, is_there: Callable[[Observation], bool]) -> Observation:
    async def look() -> Observation:
        async for seen in adapter.watch([ref]):
            if is_there(seen):
                return seen
        raise AssertionError("the watch ended")

    return await asyncio.wait_for(look(), PATIENCE_SECONDS)


async def read_log(adapter: DispatchAdapter, ref: JobRef, epoch: int) -> list[str]:
    """Rank 0's lines up to the marker."""

    async def look() -> list[str]:
        lines = []
        async for line in adapter.output(ref, OutputRequest(epoch=epoch, follow=True)):
            lines.append(line.text)
            if line.text == "tutorial-ready":
                break
        return lines

    return await asyncio.wait_for(look(), PATIENCE_SECONDS)


def notes_of(raw: Any) -> dict[str, str]:
    found: dict[str, str] = raw["metadata"].get("annotations", {})
    return found


def objects_of(bed: Bed, kind: str, version: str) -> list[Any]:
    found: list[Any] = bed.api.get(kind, namespace=NAMESPACE, version=version)["items"]
    return found


async def a_started_job_waits_behind_its_gate(bed: Bed, adapter: DispatchAdapter, ref: JobRef) -> None:
    seen = await adapter.inspect(ref)
    assert (ref.id, seen.state, seen.detail) == (f"tutorial/dj-{ref.job.lower()}-s1", State.GATED, "")
    (trainjob,) = objects_of(bed, "TrainJob", TRAINER)
    assert notes_of(trainjob)["kueue.x-k8s.io/admission-gated-by"] == f"{DOMAIN}/gate"
    assert len(objects_of(bed, "Workload", KUEUE)) == 1
    assert objects_of(bed, "Pod", "v1") == []
    (runtime,) = objects_of(bed, "TrainingRuntime", TRAINER)
    assert runtime["metadata"]["name"] == trainjob["metadata"]["name"]


def edit_the_original(bed: Bed) -> None:
    """Somebody gives the runtime an image that doesn't exist, and its pods another time zone and another label."""
    edited = objects.build_runtime(RUNTIME, image="localhost/not-there:1")
    (job,) = edited["spec"]["template"]["spec"]["replicatedJobs"]
    pod = job["template"]["spec"]["template"]
    pod.setdefault("metadata", {}).setdefault("labels", {})["example.com/edited"] = "yes"
    pod["spec"]["containers"][0].setdefault("env", []).append({"name": "TZ", "value": "Asia/Tokyo"})
    bed.api.apply(edited)


def the_pods_know_nothing_of_the_edit(bed: Bed) -> None:
    pods = objects_of(bed, "Pod", "v1")
    assert len(pods) == 2
    for pod in pods:
        assert "example.com/edited" not in pod["metadata"]["labels"]
        assert "TZ" not in {one["name"] for one in pod["spec"]["containers"][0]["env"]}


async def it_runs_under(bed: Bed, adapter: DispatchAdapter, ref: JobRef, a: int) -> None:
    await until(adapter, ref, lambda seen: seen.state is State.RUNNING)
    (trainjob,) = objects_of(bed, "TrainJob", TRAINER)
    assert notes_of(trainjob)[f"{DOMAIN}/admissions"] == str(a)
    log = await read_log(adapter, ref, 1_000_000 + a)
    assert f"DISPATCH_ATTEMPT={ref.job}.1.1.{a}.0" in log
    assert f"DISPATCH_EPOCH={1_000_000 + a}" in log
    assert {f"DISPATCH_JOB_ID={ref.job}", "DISPATCH_SUBMISSION=1", "tutorial-ready"} <= set(log)


async def another_job_gets_the_quota(adapter: DispatchAdapter, request: StartRequest) -> None:
    other = StartRequest(build_job_id(0, os.urandom(10)), 1, 1, request.spec)
    ref = await adapter.start(other, deadline=a_minute_from_now())
    await adapter.open(ref, deadline=a_minute_from_now())
    await until(adapter, ref, lambda seen: seen.state is State.RUNNING)
    report = await adapter.stop(other.job, reason="room for the first", deadline=a_minute_from_now())
    assert report.is_complete, report


def test_the_tutorial(tutorial: Bed) -> None:
    async def program() -> None:
        async with opened(tutorial) as adapter:
            found = (await adapter.preflight()).capabilities
            for capability in (Capability.READMISSION_GATE, Capability.ATTEMPT_INJECTION, Capability.HOLD):
                finding = found[capability]
                assert (finding.value, finding.source) == (Answer.YES, Source.PROBED), finding.reason
            assert "tutorial" in found[Capability.READMISSION_GATE].reason
            assert "dispatch-system/dispatch-admission" in found[Capability.READMISSION_GATE].reason

            spec = JobSpec(command=["/bin/sh", "-c", SCRIPT], nodes=2, image=TRAINER_IMAGE)
            request = StartRequest(build_job_id(0, os.urandom(10)), 1, 1, spec)
            ref = await adapter.start(request, deadline=a_minute_from_now())
            await a_started_job_waits_behind_its_gate(tutorial, adapter, ref)
            assert notes_of(objects_of(tutorial, "TrainJob", TRAINER)[0])[f"{DOMAIN}/admissions"] == "0"
            edit_the_original(tutorial)

            await adapter.open(ref, deadline=a_minute_from_now())
            await it_runs_under(tutorial, adapter, ref, 1)
            the_pods_know_nothing_of_the_edit(tutorial)

            until_then = datetime.now(UTC) + timedelta(hours=1)
            wish = HoldRequest("tutorial", Actor(ActorKind.HUMAN, "tutorial"), "the tutorial's hold", until_then)
            hold = await adapter.hold(ref, wish, deadline=a_minute_from_now())
            held = await until(adapter, ref, lambda seen: seen.state is State.HELD)
            assert [one.instance for one in held.holds] == [1]
            (workload,) = objects_of(tutorial, "Workload", KUEUE)
            noted = notes_of(workload)
            assert not workload["spec"]["active"]
            assert noted[f"{DOMAIN}/hold-instance"] == "1"
            assert "tutorial" in noted[f"{DOMAIN}/hold-who"]
            assert noted[f"{DOMAIN}/hold-reason"] == "the tutorial's hold"
            assert datetime.fromisoformat(noted[f"{DOMAIN}/hold-until"]) == until_then
            assert datetime.fromisoformat(noted[f"{DOMAIN}/hold-since"]) <= datetime.now(UTC)
            tutorial.api.apply(objects.build_runtime(RUNTIME))
            await another_job_gets_the_quota(adapter, request)

            assert await adapter.release(ref, hold, deadline=a_minute_from_now()) == ()
            await it_runs_under(tutorial, adapter, ref, 2)

            report = await adapter.stop(request.job, reason="the tutorial is over", deadline=a_minute_from_now())
            assert report.is_complete, report
            counted = Counter(one.object.split()[0] for one in report.stopped)
            assert counted == {"TrainJob": 1, "TrainingRuntime": 1, "JobSet": 1, "Job": 1, "Pod": 2, "Workload": 1}
            gone = await adapter.inspect(ref)
            assert (gone.state, gone.cause, gone.detail) == (State.GONE, Cause.STOPPED, "the tutorial is over")
        only_the_ledgers_are_left(tutorial, request.job)

    asyncio.run(program())


def only_the_ledgers_are_left(bed: Bed, job: JobID) -> None:
    for kind, version in (
        ("TrainJob", TRAINER),
        ("TrainingRuntime", TRAINER),
        ("JobSet", "jobset.x-k8s.io/v1alpha2"),
        ("Job", "batch/v1"),
        ("Pod", "v1"),
        ("Workload", KUEUE),
    ):
        assert objects_of(bed, kind, version) == [], kind
    # The other job's ledger is the second one.
    names = {raw["metadata"]["name"] for raw in objects_of(bed, "ConfigMap", "v1")} - {"kube-root-ca.crt"}
    assert build_ledger_name(job) in names
    assert len(names) == 2, names
