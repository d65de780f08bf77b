# SPDX-License-Identifier: Apache-2.0
"""The adapter as a whole over a cluster in memory: from the registry to each verb and back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import pytest

from airflow_provider_dispatch.adapters.kubeflow.adapter import KubeflowAdapter
from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.job_cache import SELECTORS
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.resources import (
    CLUSTER_QUEUES,
    PODS,
    TRAINJOBS,
    WORKLOADS,
    Resource,
)
from airflow_provider_dispatch.adapters.kubeflow.queue_lookup import QueueMemory
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings, RuntimeSettings
from airflow_provider_dispatch.adapters.protocol import OutputRequest
from airflow_provider_dispatch.adapters.registry import build_adapter
from airflow_provider_dispatch.core.capabilities import Answer, Preflight, check_may_start
from airflow_provider_dispatch.core.holds import Actor, ActorKind, HoldRequest
from airflow_provider_dispatch.core.identity import JobID, build_object_name
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.core.owner import Owner
from airflow_provider_dispatch.core.records import JobSelector, StartRequest
from airflow_provider_dispatch.core.state import Cause, State
from airflow_provider_dispatch.exceptions import CapabilityError, ConflictError, SpecError, UnavailableError
from tests.adapters.kubeflow.api_server import ApiServer
from tests.adapters.kubeflow.cluster_parts import NOW, build_cluster
from tests.adapters.kubeflow.memory_client import Fault, MemoryClient

JOB = JobID("01K0000000000000000000000A")
KUEUE = KubeflowSettings(queue="lq", runtime=RuntimeSettings(name="plain"))
PLAIN = KubeflowSettings(runtime=RuntimeSettings(name="plain"), has_controller=False)
SOON = NOW + timedelta(seconds=10)
T = TypeVar("T")


def play(
    scenario: Callable[[KubeflowAdapter], Awaitable[T]],
    client: MemoryClient | None = None,
    settings: KubeflowSettings = KUEUE,
) -> T:
    there = client or build_cluster()

    async def open_client(_settings: KubeflowSettings) -> KubeClient:
        return there

    async def run() -> T:
        adapter = KubeflowAdapter(settings, open_client=open_client, memory=QueueMemory(), clock=lambda: NOW)
        try:
            return await scenario(adapter)
        finally:
            await adapter.close()

    return asyncio.run(run())


def ask(**spec) -> StartRequest:
    return StartRequest(
        JOB, 1, 1, JobSpec(command=["train"], **spec), Owner("", "dag", "run", "task", instance_id="i1")
    )


def test_the_registry_makes_one_without_asking_a_cluster() -> None:
    adapter = build_adapter("kubeflow", {"namespace": "team"})
    assert (type(adapter), adapter.name) == (KubeflowAdapter, "kubeflow")
    with pytest.raises(SpecError, match="namspace"):
        build_adapter("kubeflow", {"namspace": "team"})


def test_a_started_job_is_gated_found_and_listed() -> None:
    async def scenario(adapter: KubeflowAdapter) -> None:
        ref = await adapter.start(ask(nodes=2), deadline=SOON)
        seen = await adapter.inspect(ref)
        assert (seen.state, seen.ref, seen.gates.is_open, seen.detail) == (State.GATED, ref, False, "")
        assert (await adapter.inspect(JOB)).ref == ref
        record = await adapter.find(JOB)
        assert (record.ledger, record.newest is not None and record.newest.ref) == (1, ref)
        assert [one.ref for one in await adapter.list(JobSelector(queue="lq"))] == [ref]
        await adapter.open(ref, deadline=SOON)
        assert (await adapter.inspect(ref)).gates.is_open
        assert [event.kind for event in await adapter.events(ref)] == ["opened"]

    play(scenario)


def test_a_lower_case_id_is_the_same_job() -> None:
    async def scenario(adapter: KubeflowAdapter) -> None:
        ref = await adapter.start(ask(), deadline=SOON)
        small = JobID(JOB.lower())
        assert (await adapter.inspect(small)).ref == ref
        await adapter.open(JobRef(small, 1, ref.backend, ref.place, ref.uid), deadline=SOON)
        assert (await adapter.inspect(ref)).gates.is_open

    play(scenario)


def test_a_hold_is_placed_and_lifted_and_an_owner_changed() -> None:
    async def scenario(adapter: KubeflowAdapter) -> None:
        ref = await adapter.start(ask(), deadline=SOON)
        held = await adapter.hold(ref, HoldRequest("k", Actor(ActorKind.HUMAN, "ann")), deadline=SOON)
        assert (await adapter.inspect(ref)).holds == (held,)
        assert await adapter.release(ref, held, deadline=SOON) == ()
        other = Owner("", "dag", "run", "task", instance_id="i2")
        await adapter.adopt(ref, other, expected=ask().owner, deadline=SOON)
        with pytest.raises(ConflictError):
            await adapter.stop(JOB, reason="over", deadline=SOON, if_owner=ask().owner)

    play(scenario)


def test_a_job_never_heard_of_is_gone_under_its_own_name() -> None:
    async def scenario(adapter: KubeflowAdapter) -> None:
        seen = await adapter.inspect(JOB)
        assert (seen.state, seen.cause, seen.ref) == (State.GONE, None, JobRef(JOB, 0, "kubeflow", "default"))

    play(scenario)


def test_a_job_of_another_place_is_a_conflict_for_readers_too() -> None:
    async def scenario(adapter: KubeflowAdapter) -> None:
        with pytest.raises(ConflictError, match="lives in kubeflow elsewhere"):
            await adapter.inspect(JobRef(JOB, 1, "kubeflow", "elsewhere"))
        with pytest.raises(ConflictError, match="lives in local store@host"):
            async for _ in adapter.watch([JobRef(JOB, 1, "local", "store@host")]):
                pass

    play(scenario)


async def queue_misfit(adapter: KubeflowAdapter, client: MemoryClient) -> JobRef:
    """An opened job that asks for more than its queue has, as Kueue 0.19 leaves it: without saying why."""
    ref = await adapter.start(ask(nodes=3, resources={"cpu": "100m"}), deadline=SOON)
    await adapter.open(ref, deadline=SOON)
    (workload,) = client.peek_all(WORKLOADS)
    pod = {"containers": [{"resources": {"requests": {"cpu": "100m"}}}]}
    workload["metadata"]["annotations"] = {}
    workload["spec"]["podSets"] = [{"name": "node", "count": 3, "template": {"spec": pod}}]
    workload["status"] = {"conditions": [{"type": "QuotaReserved", "status": "False", "reason": "Pending"}]}
    return ref


def test_a_job_that_can_never_fit_is_told_by_the_queues_arithmetic() -> None:
    client = build_cluster()

    async def scenario(adapter: KubeflowAdapter) -> None:
        ref = await queue_misfit(adapter, client)
        seen = await adapter.inspect(ref)
        assert (seen.state, seen.cause) == (State.QUEUED, Cause.NO_CAPACITY)
        assert "250m of 300m cpu" in seen.detail
        before = len(client.requests)
        await adapter.inspect(ref)
        assert not {"LocalQueue", "ClusterQueue"} & {one.resource.kind for one in client.requests[before:]}

    play(scenario, client)


def test_many_who_look_at_once_ask_for_their_queue_once() -> None:
    client = build_cluster()

    async def scenario(adapter: KubeflowAdapter) -> None:
        ref = await adapter.start(ask(nodes=3, resources={"cpu": "100m"}), deadline=SOON)
        await adapter.open(ref, deadline=SOON)
        (workload,) = client.peek_all(WORKLOADS)
        workload["metadata"]["annotations"] = {}
        workload["status"] = {"conditions": [{"type": "QuotaReserved", "status": "False", "reason": "Pending"}]}
        before = client.count("get", CLUSTER_QUEUES)
        seen = await asyncio.gather(*(adapter.inspect(ref) for _ in range(5)))
        assert {one.state for one in seen} == {State.QUEUED}
        assert client.count("get", CLUSTER_QUEUES) == before + 1

    play(scenario, client)


def test_whoever_looks_at_an_open_job_in_plain_mode_brings_it_on() -> None:
    client = build_cluster()

    async def scenario(adapter: KubeflowAdapter) -> None:
        ref = await adapter.start(ask(), deadline=SOON)
        labels = {"dispatch.phpboyscout.uk/job": JOB.lower(), "dispatch.phpboyscout.uk/submission": "0"}
        client.put(PODS, {"metadata": {"name": "old", "labels": labels}, "status": {"phase": "Running"}})
        await adapter.open(ref, deadline=SOON)
        (trainjob,) = client.peek_all(TRAINJOBS)
        assert trainjob["spec"]["suspend"] is True
        client.drop(PODS, "old")
        await adapter.inspect(ref)
        (trainjob,) = client.peek_all(TRAINJOBS)
        assert trainjob["spec"]["suspend"] is False

    play(scenario, client, PLAIN)


def test_a_failed_job_is_told_with_the_last_lines_of_the_rank_that_failed() -> None:
    client = build_cluster()

    async def scenario(adapter: KubeflowAdapter) -> None:
        ref = await adapter.start(ask(), deadline=SOON)
        await adapter.open(ref, deadline=SOON)
        (trainjob,) = client.peek_all(TRAINJOBS)
        failed = {"type": "Failed", "status": "True", "reason": "FailedJobs", "lastTransitionTime": NOW.isoformat()}
        trainjob["status"] = {"conditions": [failed]}
        client.put(PODS, build_failed_pod())
        client.logs["rank-0"] = b"2026-09-01T11:59:58Z loading\n2026-09-01T11:59:59Z no such file: a b\n"
        seen = await adapter.inspect(ref)
        assert (seen.state, seen.cause) == (State.FAILED, Cause.EXITED)
        assert seen.last_lines == ("loading", "no such file: a b")
        client.logs.clear()
        assert (await adapter.inspect(ref)).last_lines == seen.last_lines

    play(scenario, client)


def look_at_failed(client: MemoryClient) -> Observation:
    """What is told of a job that its TrainJob calls failed, once the objects of *client* are there."""

    async def scenario(adapter: KubeflowAdapter) -> Observation:
        ref = await adapter.start(ask(), deadline=SOON)
        (trainjob,) = client.peek_all(TRAINJOBS)
        failed = {"type": "Failed", "status": "True", "reason": "FailedJobs", "lastTransitionTime": NOW.isoformat()}
        trainjob["status"] = {"conditions": [failed]}
        return await adapter.inspect(ref)

    return play(scenario, client)


class BreakingClient(MemoryClient):
    """Every log breaks off before its end."""

    async def read_log(self, pod: str, namespace: str, **_options: object) -> AsyncGenerator[bytes]:
        async for piece in super().read_log(pod, namespace):
            yield piece
        raise UnavailableError(f"the log of {pod} has broken off")


def test_a_failure_is_told_without_its_last_lines_where_they_can_not_be_read_to_the_end() -> None:
    client = build_cluster(BreakingClient())
    client.logs["rank-0"] = b"2026-09-01T11:59:58Z not the last\n"
    client.put(PODS, build_failed_pod())
    seen = look_at_failed(client)
    assert (seen.state, seen.cause, seen.last_lines) == (State.FAILED, Cause.EXITED, ())


def test_a_failed_pod_that_belongs_to_no_execution_has_no_last_lines() -> None:
    client = build_cluster()
    pod = build_failed_pod()
    pod["metadata"]["annotations"] = {}
    client.put(PODS, pod)
    client.logs["rank-0"] = b"2026-09-01T11:59:58Z of whom?\n"
    seen = look_at_failed(client)
    assert (seen.failed_rank is not None, seen.last_lines) == (True, ())


def test_a_queue_that_can_not_be_looked_at_is_left_out_and_asked_for_at_the_next_look() -> None:
    client = build_cluster()

    async def scenario(adapter: KubeflowAdapter) -> None:
        ref = await queue_misfit(adapter, client)
        client.faults.append(Fault("get", CLUSTER_QUEUES, UnavailableError("away")))
        told = [await adapter.inspect(ref) for _ in range(2)]
        assert [(seen.state, seen.cause) for seen in told] == [
            (State.QUEUED, None),
            (State.QUEUED, Cause.NO_CAPACITY),
        ]

    play(scenario, client)


def test_the_output_of_a_rank_is_that_of_the_job_in_either_spelling() -> None:
    client = build_cluster()

    async def scenario(adapter: KubeflowAdapter) -> None:
        ref = await adapter.start(ask(), deadline=SOON)
        client.put(PODS, build_failed_pod())
        client.logs["rank-0"] = b"2026-09-01T11:59:58Z loading\n2026-09-01T11:59:59Z over\n"
        for job in (JOB, JobID(JOB.lower())):
            lines = adapter.output(JobRef(job, 1, ref.backend, ref.place, ref.uid), OutputRequest())
            assert [(line.execution, line.text) async for line in lines] == [(1, "loading"), (1, "over")]

    play(scenario, client)


class BareClient(MemoryClient):
    """A cluster on which nothing is installed."""

    async def is_served(self, resource: Resource) -> bool:
        return False

    async def list_versions(self, group: str) -> tuple[str, ...]:
        return ()


def test_preflight_refuses_a_cluster_on_which_nothing_is_installed() -> None:
    async def scenario(adapter: KubeflowAdapter) -> Preflight:
        return await adapter.preflight()

    found = play(scenario, BareClient())
    assert found.checks["apis"].value is Answer.NO
    assert f"{TRAINJOBS.plural}.{TRAINJOBS.api_version} (no such group)" in found.checks["apis"].reason
    with pytest.raises(CapabilityError):
        check_may_start(found.capabilities)


def test_a_watch_tells_each_change_once_and_ends_with_the_last_job(tmp_path: Path) -> None:
    one, other = (JobRef(JobID(f"01k000000000000000000000{number:02}"), 1, "kubeflow", "team") for number in (1, 2))

    def put(server: ApiServer, ref: JobRef, *ends: str, note: str = "") -> None:
        server.put(
            TRAINJOBS,
            build_object_name(ref.job, 1),
            ref.place,
            labels={words.JOB_LABEL: ref.job, words.SUBMISSION_LABEL: "1"},
            metadata={"annotations": {"note": note}},
            spec={},
            status={"conditions": [{"type": end, "status": "True"} for end in ends]},
        )

    async def scenario() -> list[tuple[str, State]]:
        async with ApiServer() as server:
            put(server, one)
            put(server, other)
            adapter = build_adapter("kubeflow", {"namespace": "team", "kubeconfig": server.write_kubeconfig(tmp_path)})
            told = []
            async for seen in adapter.watch([one, other, one]):
                told.append((seen.ref.job.lower(), seen.state))
                if len(told) == 2:
                    await server.wait_for_watches(len(SELECTORS))
                    put(server, one, note="nothing that a job is asked for")
                    put(server, other, "Complete")
                elif len(told) == 3:
                    put(server, one, "Complete")
            await adapter.close()
            return told

    told = asyncio.run(scenario())
    assert sorted(told[:2]) == [(one.job, State.STARTING), (other.job, State.STARTING)]
    assert told[2:] == [(other.job, State.SUCCEEDED), (one.job, State.SUCCEEDED)]


def build_failed_pod() -> dict:
    """Rank 0 of the first execution, which exited with 3."""
    labels = {
        words.JOB_LABEL: JOB.lower(),
        words.SUBMISSION_LABEL: "1",
        words.ROLE_LABEL: "node",
        words.REPLICATED_JOB_LABEL: "node",
        words.JOB_INDEX_LABEL: "0",
        words.COMPLETION_INDEX_LABEL: "0",
        words.RESTART_LABEL: "0",
    }
    ended = {"exitCode": 3, "reason": "Error", "finishedAt": "2026-09-01T11:59:59Z"}
    notes = {words.EPOCH_ANNOTATION: "1000001", words.ATTEMPT_ANNOTATION: f"{JOB}.1.1.1.0"}
    return {
        "metadata": {"name": "rank-0", "labels": labels, "annotations": notes},
        "status": {"phase": "Failed", "containerStatuses": [{"name": "node", "state": {"terminated": ended}}]},
    }
