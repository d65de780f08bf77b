# SPDX-License-Identifier: Apache-2.0
"""Makes, shows and removes queues on a cluster. The command calls it under the rights of an administrator.

A queue is removed with all that was made for it and with nothing else: a flavor that another queue uses stays, and so
does whatever doesn't carry our label.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.queue_guard import explain_unguarded
from airflow_provider_dispatch.adapters.kubeflow.model.resources import (
    ADMISSION_CHECKS,
    CLUSTER_QUEUES,
    LOCAL_QUEUES,
    RESOURCE_FLAVORS,
    WORKLOADS,
)
from airflow_provider_dispatch.adapters.kubeflow.queue_lookup import fetch_queue_names, fetch_queue_view
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings
from airflow_provider_dispatch.adapters.kubeflow.setup.applying import (
    Result,
    Tell,
    apply_manifests,
    is_made_by_us,
    remove_manifests,
)
from airflow_provider_dispatch.adapters.kubeflow.setup.places import check_namespaces
from airflow_provider_dispatch.adapters.kubeflow.setup.queue_terms import FlavorTerms, QueueTerms
from airflow_provider_dispatch.adapters.kubeflow.setup.queues import build_queue_manifests, describe_queue
from airflow_provider_dispatch.adapters.kubeflow.setup.rendering import Manifest
from airflow_provider_dispatch.exceptions import CapabilityError, ConflictError, RefusedError, SpecError


@dataclass(frozen=True, slots=True)
class Usage:
    """One resource of one flavor, as Kueue writes amounts.

    :param used: by admitted jobs and reservations.
    """

    flavor: str
    resource: str
    quota: str
    used: str


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue as it stands.

    :param problem: why jobs of it can't be started safely; empty when our check guards it and it is active.
    """

    name: str
    namespace: str
    cluster_queue: str
    problem: str
    pending: int
    admitted: int
    cohort: str
    usage: tuple[Usage, ...]


async def create_queue(client: KubeClient, terms: QueueTerms, *, tell: Tell) -> list[Result]:
    """Make the queue, or make it as the terms say.

    :raises CapabilityError: there is no Kueue, or the check is missing.
    :raises ConflictError: one of its names is taken by somebody else's object, or the LocalQueue is fed by another.
    """
    if not await client.is_served(CLUSTER_QUEUES):
        raise CapabilityError(f"this cluster doesn't serve {CLUSTER_QUEUES.api_version}: install Kueue first")
    await check_namespaces(client, [terms.namespace])
    await _check_check(client, terms.admission_check)
    flavors = tuple(await asyncio.gather(*(_settle_flavor(client, flavor) for flavor in terms.flavors)))
    await _check_names(client, terms)
    return await apply_manifests(client, build_queue_manifests(replace(terms, flavors=flavors)), tell=tell)


async def fetch_queue_state(client: KubeClient, settings: KubeflowSettings, name: str) -> QueueState:
    """How a queue stands.

    :raises SpecError: there is none of that name; tells which there are.
    """
    view = await fetch_queue_view(client, settings, name)
    if view.local_queue is None:
        known = await fetch_queue_names(client, settings)
        raise SpecError("queue", f"is not one of {known} in namespace {settings.namespace}", name)
    problem = explain_unguarded(view, settings.admission_check) or _explain_inactive(view.local_queue)
    return QueueState(
        name,
        settings.namespace,
        fields.text(view.local_queue, "spec", "clusterQueue"),
        problem,
        fields.number(view.local_queue, "status", "pendingWorkloads"),
        fields.number(view.local_queue, "status", "admittedWorkloads"),
        fields.text(view.cluster_queue, "spec", "cohortName"),
        tuple(_read_usage(view.cluster_queue)),
    )


async def fetch_queue_states(client: KubeClient, settings: KubeflowSettings) -> list[QueueState]:
    """All queues of a namespace."""
    found = await client.list(LOCAL_QUEUES, settings.namespace)
    return [await fetch_queue_state(client, settings, fields.name(one)) for one in found.items]


async def delete_queue(
    client: KubeClient,
    settings: KubeflowSettings,
    name: str,
    *,
    although_used: bool,
    deadline: datetime,
    clock: Callable[[], datetime],
    tell: Tell,
) -> list[Result]:
    """Remove the queue with its ClusterQueue and the flavors that were made for it; also what an earlier call has left.

    :param although_used: also with jobs in it. They never start then, and those that run keep the ClusterQueue until
        they have ended.
    :raises RefusedError: jobs are in it.
    :raises SpecError: there is none of that name; tells which there are.
    """
    local_queue = await client.get(LOCAL_QUEUES, name, settings.namespace)
    if local_queue is None:
        if not (manifests := await _find_remains(client, describe_queue(settings.namespace, name))):
            known = await fetch_queue_names(client, settings)
            raise SpecError("queue", f"is not one of {known} in namespace {settings.namespace}", name)
        return await remove_manifests(client, manifests, deadline=deadline, clock=clock, tell=tell)
    if not although_used and (jobs := await _fetch_jobs(client, settings.namespace, name)):
        raise RefusedError(f"queue {name} has jobs that have not ended: {', '.join(jobs)}; stop them, or give --yes")
    manifests = await _find_objects(client, local_queue)
    return await remove_manifests(client, manifests, deadline=deadline, clock=clock, tell=tell)


async def _find_objects(client: KubeClient, local_queue: Raw) -> list[Manifest]:
    """What goes with a LocalQueue, in the order in which it was made. What others still need isn't named."""
    name = fields.text(local_queue, "spec", "clusterQueue")
    queues, locals_ = await asyncio.gather(client.list(CLUSTER_QUEUES), client.list(LOCAL_QUEUES))
    found: list[Manifest] = [dict(local_queue)]
    fed = [one for one in locals_.items if fields.text(one, "spec", "clusterQueue") == name]
    cluster_queue = next((one for one in queues.items if fields.name(one) == name), None)
    if cluster_queue is None or len(fed) > 1:
        return found
    found.insert(0, dict(cluster_queue))
    needed = {flavor for one in queues.items if fields.name(one) != name for flavor in _list_flavors(one)}
    for flavor in _list_flavors(cluster_queue):
        raw = None if flavor in needed else await client.get(RESOURCE_FLAVORS, flavor)
        if raw is not None and is_made_by_us(raw):
            found.insert(0, dict(raw))
    return found


async def _find_remains(client: KubeClient, queue: str) -> list[Manifest]:
    """What was made for a queue and is there without it, in the order in which it was made."""
    queues, locals_, flavors = await asyncio.gather(
        client.list(CLUSTER_QUEUES), client.list(LOCAL_QUEUES), client.list(RESOURCE_FLAVORS)
    )
    feeding = {fields.text(one, "spec", "clusterQueue") for one in locals_.items}
    going = [one for one in queues.items if _is_made_for(one, queue) and fields.name(one) not in feeding]
    needed = {flavor for one in queues.items if one not in going for flavor in _list_flavors(one)}
    idle = [one for one in flavors.items if _is_made_for(one, queue) and fields.name(one) not in needed]
    return [dict(one) for one in (*idle, *going)]


def _is_made_for(raw: Raw, queue: str) -> bool:
    return is_made_by_us(raw) and fields.annotation(raw, words.QUEUE_ANNOTATION) == queue


async def _check_check(client: KubeClient, name: str) -> None:
    check = await client.get(ADMISSION_CHECKS, name)
    if check is None:
        raise CapabilityError(f"there is no AdmissionCheck {name}: run dispatch setup --apply first")
    if fields.text(check, "spec", "controllerName") != words.CONTROLLER_NAME:
        raise CapabilityError(f"AdmissionCheck {name} is not {words.CONTROLLER_NAME}'s: take another name")


async def _settle_flavor(client: KubeClient, flavor: FlavorTerms) -> FlavorTerms:
    """A flavor that somebody else has made is used as it is."""
    found = await client.get(RESOURCE_FLAVORS, flavor.name)
    if found is None or is_made_by_us(found):
        return flavor
    if flavor.node_labels or flavor.tolerations:
        said = f"is there already, and not by dispatch: leave out node labels and tolerations of {flavor.name}"
        raise SpecError("flavor", said, flavor.name)
    return replace(flavor, is_given=True)


async def _check_names(client: KubeClient, terms: QueueTerms) -> None:
    cluster_queue = await client.get(CLUSTER_QUEUES, terms.cluster_queue_name)
    if cluster_queue is not None and not is_made_by_us(cluster_queue):
        raise ConflictError(
            f"ClusterQueue {terms.cluster_queue_name} is somebody else's; give another name with --cluster-queue"
        )
    local_queue = await client.get(LOCAL_QUEUES, terms.name, terms.namespace)
    feeding = fields.text(local_queue, "spec", "clusterQueue")
    if local_queue is not None and feeding != terms.cluster_queue_name:
        raise ConflictError(
            f"LocalQueue {terms.namespace}/{terms.name} is fed by ClusterQueue {feeding}, which can't be changed; "
            "delete it or take another name"
        )


async def _fetch_jobs(client: KubeClient, namespace: str, queue: str) -> Sequence[str]:
    workloads = await client.list(WORKLOADS, namespace)
    return [
        _name_job(one)
        for one in workloads.items
        if fields.text(one, "spec", "queueName") == queue and not fields.is_true(one, words.FINISHED)
    ]


def _name_job(workload: Raw) -> str:
    owners = fields.items(workload, "metadata", "ownerReferences")
    return fields.text(owners[0], "name") if owners else fields.name(workload)


def _explain_inactive(local_queue: Raw) -> str:
    active = fields.conditions(local_queue).get("Active")
    if active is None:
        return "Kueue has not looked at it yet"
    return "" if active.is_true else active.message or active.reason


def _read_usage(cluster_queue: Raw | None) -> list[Usage]:
    used = {
        (fields.text(flavor, "name"), fields.text(resource, "name")): str(fields.dig(resource, "total") or "0")
        for flavor in fields.items(cluster_queue, "status", "flavorsReservation")
        for resource in fields.items(flavor, "resources")
    }
    return [
        Usage(
            fields.text(flavor, "name"),
            fields.text(resource, "name"),
            str(fields.dig(resource, "nominalQuota") or "0"),
            used.get((fields.text(flavor, "name"), fields.text(resource, "name")), "0"),
        )
        for group in fields.items(cluster_queue, "spec", "resourceGroups")
        for flavor in fields.items(group, "flavors")
        for resource in fields.items(flavor, "resources")
    ]


def _list_flavors(cluster_queue: Raw) -> list[str]:
    return [
        fields.text(flavor, "name")
        for group in fields.items(cluster_queue, "spec", "resourceGroups")
        for flavor in fields.items(group, "flavors")
    ]
