# SPDX-License-Identifier: Apache-2.0
"""Builds the objects of a queue, wired as preflight wants them: flavors, ClusterQueue, LocalQueue, our check alone.

Pure. :mod:`.queue_keeping` applies, reads and removes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.resources import (
    CLUSTER_QUEUES,
    LOCAL_QUEUES,
    RESOURCE_FLAVORS,
    Resource,
)
from airflow_provider_dispatch.adapters.kubeflow.setup.queue_terms import (
    FlavorTerms,
    Preemption,
    QueueTerms,
    Reclaim,
    Toleration,
)
from airflow_provider_dispatch.adapters.kubeflow.setup.rendering import INSTANCE_LABEL, PART_LABEL, Manifest
from airflow_provider_dispatch.adapters.kubeflow.setup.terms import NAME

WITHIN = {
    Preemption.NEVER: "Never",
    Preemption.LOWER: "LowerPriority",
    Preemption.LOWER_OR_NEWER: "LowerOrNewerEqualPriority",
}
RECLAIM = {Reclaim.NEVER: "Never", Reclaim.LOWER: "LowerPriority", Reclaim.ANY: "Any"}


def build_queue_manifests(terms: QueueTerms) -> list[Manifest]:
    """All objects of the queue, in the order in which they are to be made."""
    flavors = [_build_flavor(terms, flavor) for flavor in terms.flavors if not flavor.is_given]
    return [*flavors, _build_cluster_queue(terms), _build_local_queue(terms)]


def _build_flavor(terms: QueueTerms, flavor: FlavorTerms) -> Manifest:
    spec: dict[str, Any] = {}
    if flavor.node_labels:
        spec["nodeLabels"] = dict(flavor.node_labels)
    if flavor.tolerations:
        spec["tolerations"] = [_build_toleration(one) for one in flavor.tolerations]
    return _build(terms, RESOURCE_FLAVORS, flavor.name) | ({"spec": spec} if spec else {})


def _build_toleration(toleration: Toleration) -> Mapping[str, str]:
    built = {"key": toleration.key, "operator": "Exists" if toleration.value is None else "Equal"}
    if toleration.value is not None:
        built["value"] = toleration.value
    return built | ({"effect": toleration.effect} if toleration.effect else {})


def _build_cluster_queue(terms: QueueTerms) -> Manifest:
    covered = list(terms.flavors[0].quotas)
    # Kueue wants each flavor to list the resources in the order of the group.
    flavors = [
        {
            "name": flavor.name,
            "resources": [{"name": name, "nominalQuota": flavor.quotas[name]} for name in covered],
        }
        for flavor in terms.flavors
    ]
    spec: dict[str, Any] = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": terms.namespace}},
        "queueingStrategy": "StrictFIFO" if terms.is_strict else "BestEffortFIFO",
        "resourceGroups": [{"coveredResources": covered, "flavors": flavors}],
        # Without onFlavors: a check that minds some flavors alone guards none of the others.
        "admissionChecksStrategy": {"admissionChecks": [{"name": terms.admission_check}]},
        "preemption": {
            "withinClusterQueue": WITHIN[terms.preemption],
            "reclaimWithinCohort": RECLAIM[terms.reclaim],
        },
    }
    if terms.cohort:
        spec["cohortName"] = terms.cohort
    if terms.weight is not None:
        spec["fairSharing"] = {"weight": f"{terms.weight:g}"}
    return _build(terms, CLUSTER_QUEUES, terms.cluster_queue_name) | {"spec": spec}


def _build_local_queue(terms: QueueTerms) -> Manifest:
    built = _build(terms, LOCAL_QUEUES, terms.name)
    built["metadata"]["namespace"] = terms.namespace
    return built | {"spec": {"clusterQueue": terms.cluster_queue_name}}


def _build(terms: QueueTerms, resource: Resource, name: str) -> Manifest:
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {
            "name": name,
            "labels": {PART_LABEL: NAME, INSTANCE_LABEL: terms.instance},
            "annotations": {words.QUEUE_ANNOTATION: describe_queue(terms.namespace, terms.name)},
        },
    }


def describe_queue(namespace: str, name: str) -> str:
    """What all objects of a queue say of themselves: by it they are found when their LocalQueue is gone."""
    return f"{namespace}/{name}"
