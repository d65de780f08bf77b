# SPDX-License-Identifier: Apache-2.0
"""A cluster in memory on which everything is as preflight wants it, with webhooks and controllers that play along.

A test spoils one thing of it and sees that very thing named.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.resources import (
    JOBSETS,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    PODS,
    POLICIES,
    POLICY_BINDINGS,
    RESOURCE_FLAVORS,
    TRAINING_RUNTIMES,
    TRAINJOBS,
    VALIDATING_WEBHOOKS,
    WORKLOADS,
    Resource,
)
from airflow_provider_dispatch.adapters.kubeflow.setup.kinds import find_resource
from airflow_provider_dispatch.adapters.kubeflow.setup.rendering import build_manifests
from airflow_provider_dispatch.adapters.kubeflow.setup.terms import JobsNamespace, SetupTerms
from airflow_provider_dispatch.exceptions import RefusedError
from tests.adapters.kubeflow.cluster_parts import build_cluster
from tests.adapters.kubeflow.memory_client import MemoryClient, Object

CONFIGURATIONS = {
    "kueue": (*words.KUEUE_WEBHOOKS, *words.JOBSET_WEBHOOKS),
    "trainer": words.TRAINER_WEBHOOKS,
    "jobset": words.JOBSET_WEBHOOKS,
}


@dataclass
class ProvedCluster(MemoryClient):
    """What its webhooks and controllers do.

    :param away: errors that a create of a kind meets, dry runs included.
    :param is_managed: Kueue's webhook looks after TrainJobs.
    :param looks_at_gates: Kueue refuses a gate that is none.
    :param lazy: controllers that do nothing: ``kueue``, ``trainer``, ``jobset``.
    :param reason: why Kueue lets the probe wait; empty lets it in.
    :param leaks: a pod appears behind the gate.
    :param strips: the fence is taken out of runtimes.
    """

    away: dict[Resource, Exception] = field(default_factory=dict)
    is_managed: bool = True
    looks_at_gates: bool = True
    lazy: set[str] = field(default_factory=set)
    reason: str = words.ADMISSION_GATED
    leaks: bool = False
    strips: bool = False
    manager: str = words.TRAINJOB_CONTROLLER
    default_queue: str = ""
    keeps: bool = False

    async def create(
        self, resource: Resource, body: Mapping[str, Any], namespace: str | None = None, *, dry_run: bool = False
    ) -> Object:
        """A new object, after the webhooks."""
        if resource in self.away:
            raise self.away[resource]
        changed: Object = copy.deepcopy(dict(body))
        if resource == TRAINING_RUNTIMES and self.strips:
            strip(changed)
        if resource == TRAINJOBS:
            self._admit(changed)
        return await super().create(resource, changed, namespace, dry_run=dry_run)

    def _admit(self, trainjob: Object) -> None:
        labels, gate = trainjob["metadata"]["labels"], trainjob["metadata"]["annotations"][words.ADMISSION_GATED_BY]
        trainjob["spec"]["managedBy"] = self.manager
        if self.default_queue:
            labels.setdefault(words.QUEUE_LABEL, self.default_queue)
        if words.QUEUE_LABEL not in labels or not self.is_managed:
            return
        if self.looks_at_gates and " " in gate:
            raise RefusedError("metadata.annotations: Invalid value")
        trainjob["spec"]["runtimePatches"] = [{"manager": words.KUEUE_PATCH_MANAGER}]


def build_proved_cluster(**traits: Any) -> ProvedCluster:
    """One on which nothing is wrong but what *traits* say."""
    client = ProvedCluster(**traits)
    build_cluster(client)
    client.reactions[:] = [play_controllers]
    client.put(NAMESPACES, {"metadata": {"name": "default", "labels": {"kubernetes.io/metadata.name": "default"}}})
    client.put(RESOURCE_FLAVORS, {"metadata": {"name": "default"}})
    for manifest in build_manifests(SetupTerms((JobsNamespace("default"),))):
        if find_resource(manifest) in (POLICIES, POLICY_BINDINGS):
            client.put(find_resource(manifest), manifest)
    for name, webhooks in CONFIGURATIONS.items():
        for kind in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
            client.put(kind, build_configuration(name, webhooks))
    return client


def build_configuration(name: str, webhooks: tuple[str, ...], bundle: str = "Q0E=", **labels: str) -> Object:
    """A configuration of a component's webhooks."""
    listed = [{"name": webhook, "clientConfig": {"caBundle": bundle}} for webhook in webhooks]
    return {"metadata": {"name": name, "labels": labels}, "webhooks": listed}


def play_controllers(client: MemoryClient, verb: str, resource: Resource, body: Object) -> None:
    """What becomes of a TrainJob, and what goes with it."""
    assert isinstance(client, ProvedCluster)
    if resource != TRAINJOBS:
        return
    name, namespace = body["metadata"]["name"], body["metadata"]["namespace"]
    if verb == "create":
        play_kueue(client, body)
        play_trainer(client, body)
        if client.leaks:
            pod = {"metadata": {"name": f"{name}-node-0-0-abcde", "labels": {words.JOBSET_NAME_LABEL: name}}}
            client.put(PODS, pod, namespace)
    elif verb == "delete" and not client.keeps:
        for kind in (WORKLOADS, JOBSETS, PODS):
            for one in client.peek_all(kind):
                client.drop(kind, one["metadata"]["name"], namespace)


def play_kueue(client: ProvedCluster, trainjob: Object) -> None:
    if "kueue" in client.lazy or words.QUEUE_LABEL not in trainjob["metadata"]["labels"]:
        return
    waits = {"type": words.QUOTA_RESERVED, "status": "False", "reason": client.reason, "message": "wait"}
    let_in = {"type": words.QUOTA_RESERVED, "status": "True", "reason": words.QUOTA_RESERVED}
    meta = {
        "name": f"trainjob-{trainjob['metadata']['name']}",
        "labels": {words.JOB_UID_LABEL: trainjob["metadata"]["uid"]},
        "annotations": {words.ADMISSION_GATED_BY: words.GATE},
    }
    status = {"conditions": [waits if client.reason else let_in]}
    client.put(WORKLOADS, {"metadata": meta, "status": status}, trainjob["metadata"]["namespace"])


def play_trainer(client: ProvedCluster, trainjob: Object) -> None:
    if "trainer" in client.lazy:
        return
    suspended = {"conditions": [{"type": "Suspended", "status": "True"}]}
    trainjob["status"] = suspended
    name, namespace = trainjob["metadata"]["name"], trainjob["metadata"]["namespace"]
    runtime = client.peek(TRAINING_RUNTIMES, name, namespace)
    if runtime is None or "jobset webhook" in client.lazy:
        return
    jobset = {"metadata": {"name": name}, "spec": copy.deepcopy(runtime["spec"]["template"]["spec"])}
    client.put(JOBSETS, jobset | ({} if "jobset" in client.lazy else {"status": suspended}), namespace)


def strip(runtime: Object) -> None:
    """Take the fence out."""
    for job in runtime["spec"]["template"]["spec"]["replicatedJobs"]:
        job["template"]["spec"]["template"]["spec"]["schedulingGates"] = []
