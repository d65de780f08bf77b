# SPDX-License-Identifier: Apache-2.0
"""`start` on a cluster that lacks something: it says what, by the lines of a preflight, and no job is left."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.resources import (
    CLUSTER_QUEUES,
    LEASES,
    NAMESPACES,
    TRAINING_RUNTIMES,
    TRAINJOBS,
    WORKLOADS,
    Resource,
)
from airflow_provider_dispatch.adapters.kubeflow.preflight import run_preflight
from airflow_provider_dispatch.adapters.kubeflow.queue_lookup import QueueMemory
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings, RuntimeSettings
from airflow_provider_dispatch.adapters.kubeflow.starting import start
from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.records import StartRequest
from airflow_provider_dispatch.exceptions import CapabilityError, DispatchError, RefusedError, UnavailableError
from tests.adapters.kubeflow.cluster_parts import NOW
from tests.adapters.kubeflow.memory_client import Fault, MemoryClient
from tests.adapters.kubeflow.proved_cluster import ProvedCluster, build_proved_cluster

KUEUE = KubeflowSettings(queue="lq", runtime=RuntimeSettings(name="plain"))
PLAIN = KubeflowSettings(runtime=RuntimeSettings(name="plain"), has_controller=False)
REQUEST = StartRequest(JobID("01K0000000000000000000000A"), 1, 1, JobSpec(command=["python", "train.py"], nodes=2))


def begin(client: MemoryClient, settings: KubeflowSettings = KUEUE, *, memory: QueueMemory | None = None) -> JobRef:
    deadline, memory = NOW + timedelta(seconds=5), memory or QueueMemory()
    return asyncio.run(start(client, settings, REQUEST, memory=memory, deadline=deadline, now=NOW))


def no_lease(client: ProvedCluster) -> None:
    client.drop(LEASES, words.LEASE_NAME, words.LEASE_NAMESPACE)


def change_lease(client: ProvedCluster, **spec: object) -> None:
    lease = client.peek(LEASES, words.LEASE_NAME, words.LEASE_NAMESPACE)
    assert lease is not None
    lease["spec"].update(spec)


def ago(**parts: int) -> str:
    return fields.format_time(NOW - timedelta(**parts))


def no_check(client: ProvedCluster) -> None:
    queue = client.peek(CLUSTER_QUEUES, "cq", "")
    assert queue is not None
    queue["spec"].pop("admissionChecksStrategy")


def no_kueue(client: ProvedCluster) -> None:
    client.is_managed = False


def no_right(client: ProvedCluster) -> None:
    client.denied.add(("create", "trainjobs"))
    client.faults.append(Fault("create", TRAINJOBS, RefusedError("403")))


def no_gates(client: ProvedCluster) -> None:
    def forget(client: MemoryClient, verb: str, resource: Resource, body: Any) -> None:
        for workload in client.peek_all(WORKLOADS):
            workload["metadata"]["annotations"] = {}

    client.reactions.append(forget)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (no_lease, "readmission_gate is no .* controller has never run"),
        (no_check, "doesn't list AdmissionCheck dispatch-admission"),
        (no_kueue, "readmission_gate is no .* Kueue doesn't manage TrainJobs here"),
        (no_right, r"permissions: no: in namespace default we may not create trainjobs.trainer.kubeflow.org; bind"),
        (no_gates, "start_gate is no .* AdmissionGatedBy is off"),
    ],
)
def test_on_a_cluster_that_is_not_proved_no_job_is_left(spoil, said: str) -> None:
    client = build_proved_cluster()
    spoil(client)
    with pytest.raises(CapabilityError, match=said):
        begin(client)
    assert client.peek_all(TRAINJOBS) == []


@pytest.mark.parametrize(
    ("lease", "kind"),
    [
        ({"holderIdentity": ""}, UnavailableError),
        ({"renewTime": ago(minutes=3)}, UnavailableError),
        ({"holderIdentity": "", "renewTime": ago(minutes=4)}, UnavailableError),
        ({"renewTime": ago(minutes=4, seconds=1)}, CapabilityError),
        ({"holderIdentity": "", "renewTime": ago(minutes=5)}, CapabilityError),
        ({"holderIdentity": "stranger"}, CapabilityError),
        ({"renewTime": None}, CapabilityError),
    ],
)
def test_a_controller_that_was_there_a_moment_ago_may_be_waited_for(lease: dict[str, object], kind: type) -> None:
    client = build_proved_cluster()
    change_lease(client, **lease)
    with pytest.raises(kind, match="controller"):
        begin(client)
    assert client.peek_all(TRAINJOBS) == []


def test_what_no_controller_would_mend_is_not_waited_for() -> None:
    client = build_proved_cluster()
    change_lease(client, holderIdentity="")
    no_check(client)
    with pytest.raises(CapabilityError, match="doesn't list AdmissionCheck"):
        begin(client)


def test_what_a_preflight_has_found_is_gone_by_for_a_minute() -> None:
    client, memory = build_proved_cluster(), QueueMemory()
    no_lease(client)
    with pytest.raises(CapabilityError, match="checked 0 s ago"):
        begin(client, memory=memory)
    asked = len(client.requests)
    with pytest.raises(CapabilityError, match="has never run"):
        begin(client, memory=memory)
    assert len(client.requests) - asked <= 4
    assert memory.recall(KUEUE, NOW + timedelta(seconds=59)) is not None
    assert memory.recall(KUEUE, NOW + timedelta(seconds=60)) is None


def test_whom_the_server_refuses_after_a_preflight_gets_its_lines_too() -> None:
    client, memory = build_proved_cluster(), QueueMemory()
    no_lease(client)
    memory.keep(KUEUE, asyncio.run(run_preflight(client, KUEUE.model_copy(update={"probe_seconds": 0.0}), now=NOW)))
    client.faults.append(Fault("list", TRAINJOBS, RefusedError("401")))
    asked = client.count("create", TRAINING_RUNTIMES)
    with pytest.raises(CapabilityError, match=r"controller: no: .* has never run"):
        begin(client, memory=memory)
    assert client.count("create", TRAINING_RUNTIMES) == asked


def test_a_cluster_of_which_nothing_more_can_be_found_out_is_told_as_it_answered() -> None:
    client = build_proved_cluster()
    client.faults += [
        Fault("create", TRAINJOBS, RefusedError("quota")),
        Fault("get", NAMESPACES, UnavailableError("down")),
    ]
    with pytest.raises(RefusedError, match="quota"):
        begin(client)


def test_a_default_queue_that_takes_jobs_without_one_is_told() -> None:
    client = build_proved_cluster(default_queue="default")
    with pytest.raises(CapabilityError, match="into queue 'default'; name that queue"):
        begin(client, settings=PLAIN)
    assert client.peek_all(TRAINJOBS) == []


@pytest.mark.parametrize("error", [RefusedError("quota"), UnavailableError("down")])
def test_an_error_of_the_cluster_is_handed_on_as_it_is(error: DispatchError) -> None:
    client = build_proved_cluster()
    client.faults.append(Fault("create", TRAINJOBS, error))
    with pytest.raises(type(error), match=str(error)):
        begin(client)
