# SPDX-License-Identifier: Apache-2.0
"""A cluster in memory that jobs can be started on: a queue guarded by our check, a controller's heartbeat, a runtime.

Kueue is a reaction that makes the Workload of a TrainJob, as its webhook and its controller would.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.resources import (
    ADMISSION_CHECKS,
    CLUSTER_QUEUES,
    CLUSTER_TRAINING_RUNTIMES,
    LEASES,
    LOCAL_QUEUES,
    PRIORITY_CLASSES,
    TRAINJOBS,
    WORKLOADS,
    Resource,
)
from tests.adapters.kubeflow.memory_client import MemoryClient, Object

NOW = datetime(2026, 9, 1, 12, tzinfo=UTC)


def build_cluster(empty: MemoryClient | None = None) -> MemoryClient:
    """One queue ``lq`` of 250m cpu, priority classes ``high`` and ``low``, runtime ``plain``."""
    client = empty or MemoryClient()
    check = {"name": words.DEFAULT_CHECK}
    quota = {"name": "cpu", "nominalQuota": "250m"}
    client.put(LOCAL_QUEUES, {"metadata": {"name": "lq"}, "spec": {"clusterQueue": "cq"}})
    client.put(
        CLUSTER_QUEUES,
        {
            "metadata": {"name": "cq"},
            "spec": {
                "namespaceSelector": {},
                "admissionChecksStrategy": {"admissionChecks": [check]},
                "resourceGroups": [
                    {"coveredResources": ["cpu"], "flavors": [{"name": "default", "resources": [quota]}]}
                ],
            },
        },
    )
    client.put(
        ADMISSION_CHECKS,
        {
            "metadata": check,
            "spec": {"controllerName": words.CONTROLLER_NAME},
            "status": {"conditions": [{"type": "Active", "status": "True", "reason": "Active"}]},
        },
    )
    client.put(
        LEASES,
        {
            "metadata": {"name": words.LEASE_NAME, "annotations": {words.HOLDER_ANNOTATION: "pod-1"}},
            "spec": {"holderIdentity": "pod-1", "renewTime": "2026-09-01T11:59:55.000000Z", "leaseDurationSeconds": 15},
        },
        words.LEASE_NAMESPACE,
    )
    for name in ("high", "low"):
        client.put(PRIORITY_CLASSES, {"metadata": {"name": name}})
    client.put(CLUSTER_TRAINING_RUNTIMES, build_runtime("plain"))
    client.reactions.append(play_kueue)
    return client


def build_runtime(name: str) -> Object:
    """A training runtime of one kind of pod."""
    labels = {words.ANCESTOR_STEP_LABEL: "trainer"}
    pod = {"containers": [{"name": "node", "image": "runtime:1"}]}
    job = {"name": "node", "template": {"metadata": {"labels": labels}, "spec": {"template": {"spec": pod}}}}
    return {"metadata": {"name": name}, "spec": {"template": {"spec": {"replicatedJobs": [job]}}}}


def play_kueue(client: MemoryClient, verb: str, resource: Resource, body: Object) -> None:
    """Admission by its webhook, and a Workload that copies the gate."""
    if (verb, resource) != ("create", TRAINJOBS) or words.QUEUE_LABEL not in body["metadata"]["labels"]:
        return
    body["spec"]["runtimePatches"] = [{"manager": words.KUEUE_PATCH_MANAGER}]
    gates = body["metadata"]["annotations"].get(words.ADMISSION_GATED_BY)
    meta: dict[str, Any] = {
        "name": f"trainjob-{body['metadata']['name']}",
        "labels": {words.JOB_UID_LABEL: body["metadata"]["uid"]},
        "annotations": {words.ADMISSION_GATED_BY: gates} if gates else {},
        "ownerReferences": [{"uid": body["metadata"]["uid"], "controller": True}],
    }
    spec = {"queueName": body["metadata"]["labels"][words.QUEUE_LABEL], "active": True}
    client.put(WORKLOADS, {"metadata": meta, "spec": spec}, body["metadata"]["namespace"])
