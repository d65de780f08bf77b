# SPDX-License-Identifier: Apache-2.0
"""Everything that there is of a job, of every submission and with its orphans, uncached. `stop` and `find` ask it.

Found by our label, and by the UIDs of what carries it: Kueue copies no label of ours, and objects that another
implementation made may lack it further down. Never writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.fetching import fetch_ledger, fetch_workloads
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.job_objects import JobObjects, select_objects
from airflow_provider_dispatch.adapters.kubeflow.model.ledger import build_ledger_name
from airflow_provider_dispatch.adapters.kubeflow.model.object_set import ObjectSet
from airflow_provider_dispatch.adapters.kubeflow.model.resources import (
    JOBS,
    JOBSETS,
    PODS,
    TRAINING_RUNTIMES,
    TRAINJOBS,
    WORKLOADS,
    Resource,
)
from airflow_provider_dispatch.adapters.kubeflow.model.submission import is_ours, read_ref, read_submission_number
from airflow_provider_dispatch.adapters.kubeflow.targets import build_job_selector
from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.exceptions import CapabilityError

DELETION_ORDER = (TRAINJOBS, TRAINING_RUNTIMES, WORKLOADS, JOBSETS, JOBS, PODS)
"""What makes others comes first, so that nothing is made again of what was deleted."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """The objects of a job by kind.

    :param pods_version: from which a watch of the pods goes on.
    """

    namespace: str
    objects: dict[Resource, tuple[Raw, ...]]
    ledger: Raw | None = None
    pods_version: str = ""

    def __iter__(self) -> Iterator[tuple[Resource, Raw]]:
        for resource in DELETION_ORDER:
            for raw in self.objects.get(resource, ()):
                yield resource, raw

    def of(self, resource: Resource) -> tuple[Raw, ...]:
        """Those of a kind, the oldest submission first."""
        return tuple(sorted(self.objects.get(resource, ()), key=read_submission_number))

    @property
    def submissions(self) -> tuple[int, ...]:
        """Numbers of those that have left anything, in order."""
        return tuple(sorted({number for _, raw in self if (number := read_submission_number(raw))}))

    def select(self, trainjob: Raw) -> ObjectSet:
        """The objects of one submission."""
        return select_objects(JobObjects(self.namespace, self.objects, self.ledger), read_ref(trainjob))


async def fetch_inventory(
    client: KubeClient, namespace: str, job: JobID, *, trainjob_uids: Collection[str] = ()
) -> Inventory:
    """All objects of the job.

    :param trainjob_uids: of TrainJobs that may be gone already, whose Workloads are wanted all the same.
    """
    selector = build_job_selector(job)
    labelled = (TRAINJOBS, TRAINING_RUNTIMES, JOBSETS, JOBS, PODS)
    answers = await asyncio.gather(
        *(client.list(resource, namespace, labels=selector) for resource in labelled),
    )
    found = {resource: answer.items for resource, answer in zip(labelled, answers, strict=True)}
    uids = {*trainjob_uids, *(fields.uid(raw) for raw in found[TRAINJOBS])}
    found[WORKLOADS] = await _fetch_workloads(client, namespace, job, uids)
    for trainjob in found[TRAINJOBS]:
        await _add_unlabelled(client, trainjob, found)
    ledger = await fetch_ledger(client, namespace, job)
    return Inventory(namespace, found, ledger, answers[labelled.index(PODS)].resource_version)


async def _fetch_workloads(client: KubeClient, namespace: str, job: JobID, uids: Collection[str]) -> tuple[Raw, ...]:
    """Of these TrainJobs; where none is known, those that name a TrainJob of the job as their owner."""
    if uids:
        return await fetch_workloads(client, namespace, uids)
    try:
        everything = await client.list(WORKLOADS, namespace)
    except CapabilityError:
        return ()  # A cluster without Kueue.
    prefix = f"{build_ledger_name(job)}-s"
    return tuple(raw for raw in everything.items if _has_owner(raw, TRAINJOBS.kind, prefix))


async def _add_unlabelled(client: KubeClient, trainjob: Raw, found: dict[Resource, tuple[Raw, ...]]) -> None:
    """What belongs to the TrainJob by UID and carries no label of ours."""
    name, namespace = fields.name(trainjob), fields.text(trainjob, "metadata", "namespace")
    if any(fields.has_controller(raw, fields.uid(trainjob)) for raw in found[JOBSETS]):
        return
    jobset = await client.get(JOBSETS, name, namespace)
    if jobset is None or is_ours(jobset) or not fields.has_controller(jobset, fields.uid(trainjob)):
        return
    found[JOBSETS] += (jobset,)
    selector = f"{words.JOBSET_NAME_LABEL}={name}"
    for resource in (JOBS, PODS):
        beneath = await client.list(resource, namespace, labels=selector)
        known = {fields.uid(raw) for raw in found[resource]}
        found[resource] += tuple(raw for raw in beneath.items if fields.uid(raw) not in known)


def _has_owner(raw: Raw, kind: str, prefix: str) -> bool:
    owners = fields.items(raw, "metadata", "ownerReferences")
    return any(fields.text(owner, "kind") == kind and fields.text(owner, "name").startswith(prefix) for owner in owners)
