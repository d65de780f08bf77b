# SPDX-License-Identifier: Apache-2.0
"""Preflight on a cluster: each of the four required capabilities, with a reason that names what was seen."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.queue_guard import QueueView, describe_lease, explain_unguarded
from airflow_provider_dispatch.adapters.kubeflow.model.resources import ACCESS_REVIEWS, LEASES, TRAINJOBS, Resource
from airflow_provider_dispatch.adapters.kubeflow.preflight import run_preflight
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings, RuntimeSettings
from airflow_provider_dispatch.core.capabilities import REQUIRED, Answer, Capability, Preflight, check_may_start
from airflow_provider_dispatch.exceptions import CapabilityError, RefusedError, UnavailableError
from tests.adapters.kubeflow.cluster_parts import NOW, build_cluster
from tests.adapters.kubeflow.memory_client import Fault, MemoryClient, Object

KUEUE = KubeflowSettings(queue="lq", runtime=RuntimeSettings(name="plain"))
PLAIN = KubeflowSettings()
ALONE = KubeflowSettings(has_controller=False)


class Webhooks(MemoryClient):
    """A server whose dry runs go through Kueue's webhook and whose access reviews are answered."""

    is_allowed = True
    has_kueue = True
    looks_at_gates = True
    is_trainer_served = True

    async def create(self, resource: Resource, body: Any, namespace: str | None = None, *, dry_run=False) -> Object:
        if resource == ACCESS_REVIEWS:
            return {"status": {"allowed": self.is_allowed}}
        if resource != TRAINJOBS or not dry_run:
            return await super().create(resource, body, namespace, dry_run=dry_run)
        gate = body["metadata"]["annotations"][words.ADMISSION_GATED_BY]
        if self.looks_at_gates and gate != words.GATE:
            raise RefusedError("metadata.annotations: Invalid value")
        answer = await super().create(resource, body, namespace, dry_run=True)
        items = [{"manager": words.KUEUE_PATCH_MANAGER}] if self.has_kueue else []
        return {**answer, "spec": {**answer["spec"], "runtimePatches": items}}

    async def is_served(self, resource: Resource) -> bool:
        return self.is_trainer_served


def cluster(**traits: bool) -> Webhooks:
    client = build_cluster()
    client.__class__ = Webhooks  # the same cluster, seen through its webhooks
    assert isinstance(client, Webhooks)
    for name, value in traits.items():
        setattr(client, name, value)
    return client


def look(client: MemoryClient, settings: KubeflowSettings = KUEUE) -> Preflight:
    return asyncio.run(run_preflight(client, settings, now=NOW))


def test_a_guarded_queue_may_be_started_on_and_nothing_is_left() -> None:
    client = cluster()
    before = len(client.peek_all(TRAINJOBS))
    found = look(client)
    check_may_start(found.capabilities)
    assert all(finding.value is Answer.YES for finding in found.checks.values())
    assert {found.capabilities[one].source for one in REQUIRED} == {"probed"}
    assert "Lease dispatch-system/dispatch-admission: held by pod-1" in (
        found.capabilities[Capability.READMISSION_GATE].reason
    )
    assert len(client.peek_all(TRAINJOBS)) == before


@pytest.mark.parametrize(
    ("traits", "capability", "said"),
    [
        ({"is_allowed": False}, Capability.HOLD, "may not patch Workloads"),
        ({"has_kueue": False}, Capability.START_GATE, "doesn't manage TrainJobs"),
        ({"looks_at_gates": False}, Capability.START_GATE, "AdmissionGatedBy is off"),
    ],
)
def test_what_the_cluster_does_not_do_is_told(traits, capability: Capability, said: str) -> None:
    found = look(cluster(**traits))
    assert found.capabilities[capability].value is Answer.NO
    with pytest.raises(CapabilityError, match=said):
        check_may_start(found.capabilities)


def test_a_gate_that_can_not_be_tried_is_unknown() -> None:
    found = look(cluster(), KUEUE.model_copy(update={"runtime": None}))
    assert found.capabilities[Capability.START_GATE].value is Answer.UNKNOWN


def test_a_missing_trainer_is_a_check_that_says_no() -> None:
    assert look(cluster(is_trainer_served=False)).checks["trainer"].value is Answer.NO


def test_a_server_that_does_not_answer_is_an_error() -> None:
    client = cluster()
    client.faults.append(Fault("get", LEASES, UnavailableError("down")))
    with pytest.raises(UnavailableError):
        look(client)


def test_plain_mode_needs_the_controller_unless_it_is_declared_absent() -> None:
    client = cluster()
    assert look(client, PLAIN).capabilities[Capability.POD_FENCE].value is Answer.YES
    client.drop(LEASES, words.LEASE_NAME, words.LEASE_NAMESPACE)
    with pytest.raises(CapabilityError, match="has never run"):
        check_may_start(look(client, PLAIN).capabilities)
    alone = look(client, ALONE).capabilities
    check_may_start(alone)
    assert alone[Capability.POD_FENCE].value is Answer.NO


@pytest.mark.parametrize(
    ("lease", "fresh", "said"),
    [
        (None, False, "never run"),
        ({"spec": {}}, False, "nobody holds"),
        ({"spec": {"holderIdentity": "", "renewTime": "2026-09-01T12:00:00Z"}}, False, "nobody holds"),
        ({"spec": {"holderIdentity": "a", "renewTime": "2026-09-01T11:59:40Z"}}, True, "renewed 20 s ago"),
        ({"spec": {"holderIdentity": "a", "renewTime": "2026-09-01T11:59:20Z"}}, False, "renewed 40 s ago"),
        (
            {"spec": {"holderIdentity": "a", "renewTime": "2026-09-01T11:59:20Z", "leaseDurationSeconds": 20}},
            True,
            "40 s",
        ),
    ],
)
def test_a_heartbeat_counts_while_it_is_fresh(lease, fresh: bool, said: str) -> None:
    lease = lease and lease | {"metadata": {"annotations": {words.HOLDER_ANNOTATION: "a"}}}
    told = describe_lease(lease, NOW)
    assert told[0] is fresh
    assert said in told[1]
    assert describe_lease(lease, NOW + timedelta(hours=1))[0] is False


def view(entries=({"name": "ours"},), conditions=("True",), **more) -> QueueView:
    listed = {"admissionChecksStrategy": {"admissionChecks": list(entries)}}
    status = {"conditions": [{"type": "Active", "status": value, "message": "why"} for value in conditions]}
    parts: dict[str, Any] = {
        "local_queue": {"spec": {"clusterQueue": "cq"}},
        "cluster_queue": {"metadata": {"name": "cq"}, "spec": listed},
        "check": {"spec": {"controllerName": words.CONTROLLER_NAME}, "status": status},
    }
    return QueueView("lq", **(parts | more))


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (view(), None),
        (view(local_queue=None), "no LocalQueue lq"),
        (view(cluster_queue=None), "ClusterQueue cq of LocalQueue lq is missing"),
        (view(entries=()), "doesn't list AdmissionCheck ours"),
        (view(entries=[{"name": "ours", "onFlavors": ["a"]}]), "take onFlavors away"),
        (view(entries=[{"name": "ours"}, {"name": "theirs"}]), "beside ours: theirs"),
        (view(check=None), "there is no AdmissionCheck ours"),
        (view(check={"spec": {"controllerName": "x"}}), "is x's"),
        (view(conditions=["False"]), "is not active: why"),
        (view(conditions=[]), "has never seen it"),
    ],
)
def test_a_queue_is_guarded_by_our_check_alone(seen: QueueView, said: str | None) -> None:
    told = explain_unguarded(seen, "ours")
    assert (told is None) if said is None else (told is not None and said in told)
