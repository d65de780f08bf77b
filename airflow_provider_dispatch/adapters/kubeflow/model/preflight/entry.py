# SPDX-License-Identifier: Apache-2.0
"""Whether we get in, and find the kinds, rights, namespace and runtime that everything else needs."""

from __future__ import annotations

import re

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.access import describe_rights
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.answers import confirm, doubt, doubt_unseen, refute
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.selectors import matches_labels
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.sights import (
    PreflightTerms,
    ServedGroup,
    Sights,
    Unseen,
)
from airflow_provider_dispatch.adapters.kubeflow.model.resources import (
    ADMISSION_CHECKS,
    CLUSTER_QUEUES,
    CLUSTER_TRAINING_RUNTIMES,
    JOBSETS,
    LOCAL_QUEUES,
    TRAINING_RUNTIMES,
    TRAINJOBS,
    WORKLOADS,
    Resource,
)
from airflow_provider_dispatch.core.capabilities import Finding

OLDEST_KUBERNETES = (1, 34)
_ALWAYS = (TRAINJOBS, TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES, JOBSETS)
_WITH_QUEUE = (WORKLOADS, LOCAL_QUEUES, CLUSTER_QUEUES, ADMISSION_CHECKS)
_MAKERS = {TRAINJOBS.group: "Trainer 2.3", JOBSETS.group: "JobSet 0.12", WORKLOADS.group: "Kueue 0.19"}


def list_apis(terms: PreflightTerms) -> tuple[Resource, ...]:
    """The kinds that a connection needs."""
    return (*_ALWAYS, *(_WITH_QUEUE if terms.queue else ()))


def derive_credentials(sights: Sights) -> Finding:
    """The API server knows us."""
    if isinstance(sights.user, Unseen):
        return refute(
            f"the API server doesn't know us: {sights.user.said}",
            "renew the token or certificate that the connection names",
        )
    return confirm(f"the API server knows us as {sights.user}")


def derive_kubernetes(sights: Sights) -> Finding:
    """Its version is one that all this was seen on."""
    found = re.match(r"v?(\d+)\.(\d+)", sights.version)
    oldest = ".".join(map(str, OLDEST_KUBERNETES))
    if found is None:
        return doubt(f"its version reads {sights.version!r}", f"use Kubernetes {oldest} or newer")
    if (int(found[1]), int(found[2])) < OLDEST_KUBERNETES:
        return doubt(f"{sights.version} is older than {oldest}, the oldest that was tried", "upgrade the cluster")
    return confirm(sights.version)


def derive_apis(sights: Sights) -> Finding:
    """Each kind is served by its own group in the version that we speak."""
    needed = list_apis(sights.terms)
    missing = [one for one in needed if one.plural not in sights.served.get(one.group, ServedGroup()).plurals]
    if not missing:
        return confirm(", ".join(dict.fromkeys(one.api_version for one in needed)))
    told = [_describe_missing(one, sights.served.get(one.group, ServedGroup())) for one in missing]
    makers = dict.fromkeys(_MAKERS[one.group] for one in missing)
    return refute(f"not served: {', '.join(told)}", f"install {' and '.join(makers)} or newer, with its CRDs")


def _describe_missing(resource: Resource, group: ServedGroup) -> str:
    name = f"{resource.plural}.{resource.group}/{resource.version}"
    if not group.versions:
        return f"{name} (no such group)"
    if resource.version in group.versions:
        return f"{name} (the version is, the kind is not)"
    return f"{name} (served: {', '.join(group.versions)})"


def derive_permissions(sights: Sights) -> Finding:
    """We may do what the verbs need."""
    denied, place = sights.denied, sights.terms.namespace
    if isinstance(denied, Unseen):
        return doubt_unseen("what we may do", denied)
    if denied:
        return refute(
            f"in namespace {place} we may not {describe_rights(denied)}",
            "bind the roles of `dispatch setup` to this account, in this namespace",
        )
    return confirm(f"all that is needed in namespace {place} and of the cluster is allowed")


def derive_namespace(sights: Sights) -> Finding:
    """It is there, and the queue takes jobs from it."""
    namespace, name = sights.namespace, sights.terms.namespace
    if isinstance(namespace, Unseen):
        return doubt_unseen(f"namespace {name}", namespace)
    if namespace is None:
        return refute(f"there is no namespace {name}", "create it, or correct the connection's namespace")
    if fields.is_deleting(namespace):
        return refute(f"namespace {name} is being removed", "correct the connection's namespace")
    queue = sights.queue.cluster_queue
    if queue is None or isinstance(queue, Unseen):
        return confirm(f"{name} is there")
    labels = fields.texts(namespace, "metadata", "labels")
    if not matches_labels(fields.dig(queue, "spec", "namespaceSelector"), labels):
        return refute(
            f"ClusterQueue {fields.name(queue)} takes no jobs from namespace {name}: its namespaceSelector doesn't fit",
            "change the selector, or label the namespace as it wants",
        )
    return confirm(f"{name} is there, and ClusterQueue {fields.name(queue)} takes its jobs")


def derive_runtime(sights: Sights) -> Finding:
    """The training runtime of jobs that name none is there."""
    runtime, name = sights.runtime, sights.terms.runtime
    if not name:
        return confirm("the connection names none: each job names its own", is_probed=False)
    if isinstance(runtime, Unseen):
        return doubt_unseen(f"training runtime {name}", runtime)
    if runtime is None:
        return refute(f"there is no training runtime {name}", "create it, or name another one in the connection")
    return confirm(f"{fields.text(runtime, 'kind')} {name} is there")
