# SPDX-License-Identifier: Apache-2.0
"""The objects of one submission as they are now, uncached, in few requests at once. `inspect` and the watch call it.

What belongs to a job over all its submissions is the inventory's business. Never writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.job_objects import JobObjects, select_objects
from airflow_provider_dispatch.adapters.kubeflow.model.ledger import build_ledger_name
from airflow_provider_dispatch.adapters.kubeflow.model.object_set import ObjectSet
from airflow_provider_dispatch.adapters.kubeflow.model.resources import (
    CONFIG_MAPS,
    EVENTS,
    JOBS,
    JOBSETS,
    PODS,
    TRAINJOBS,
    WORKLOADS,
    Resource,
)
from airflow_provider_dispatch.adapters.kubeflow.targets import Target, build_job_selector, job_of
from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.exceptions import CapabilityError

LABELLED = (TRAINJOBS, JOBSETS, JOBS, PODS)
"""What carries our labels and is asked for by them. The runtime tells nothing of a state."""


async def fetch_objects(client: KubeClient, namespace: str, target: Target, *, with_events: bool = False) -> ObjectSet:
    """Everything of one submission that tells its state; of the newest one for a bare id.

    Five requests at once where the UID is known. The ledger is read only once the TrainJob is gone or going.
    """
    lists = asyncio.gather(*(_list(client, resource, namespace, target) for resource in LABELLED))
    uid = target.uid if isinstance(target, JobRef) else ""
    answers, workloads = await asyncio.gather(lists, fetch_workloads(client, namespace, {uid} if uid else set()))
    objects = dict(zip(LABELLED, answers, strict=True))
    if not uid:
        newest = select_objects(JobObjects(namespace, objects), target).trainjob
        workloads = await fetch_workloads(client, namespace, {fields.uid(newest)} if newest is not None else set())
    found = await _add_unlabelled(client, JobObjects(namespace, {**objects, WORKLOADS: workloads}), target)
    chosen = select_objects(found, target)
    if chosen.trainjob is None or fields.is_deleting(chosen.trainjob):
        chosen = replace(chosen, ledger=await fetch_ledger(client, namespace, job_of(target)))
    return replace(chosen, events=await fetch_events(client, chosen)) if with_events else chosen


async def fetch_workloads(client: KubeClient, namespace: str, trainjob_uids: Collection[str]) -> tuple[Raw, ...]:
    """Kueue's objects of these TrainJobs; none on a cluster without Kueue."""
    selectors = [f"{words.JOB_UID_LABEL}={uid}" for uid in sorted(trainjob_uids)]
    try:
        answers = await asyncio.gather(*(client.list(WORKLOADS, namespace, labels=labels) for labels in selectors))
    except CapabilityError:
        return ()
    return tuple(raw for answer in answers for raw in answer.items)


async def fetch_ledger(client: KubeClient, namespace: str, job: JobID) -> Raw | None:
    """What is remembered of a job."""
    return await client.get(CONFIG_MAPS, build_ledger_name(job), namespace)


async def fetch_events(client: KubeClient, objects: ObjectSet) -> tuple[Raw, ...]:
    """Kubernetes events about a submission and what is made for it, pods aside. One request for each name."""
    about = (objects.trainjob, objects.jobset, objects.workload, *objects.jobs)
    # TrainJob and JobSet share their name.
    names = sorted({fields.name(raw) for raw in about if raw is not None})
    selectors = [f"involvedObject.name={name}" for name in names]
    answers = await asyncio.gather(*(client.list(EVENTS, objects.namespace, fields=one) for one in selectors))
    uids = {fields.uid(raw) for raw in about if raw is not None}
    events = (event for answer in answers for event in answer.items)
    return tuple(event for event in events if fields.text(event, "involvedObject", "uid") in uids)


async def _list(client: KubeClient, resource: Resource, namespace: str, target: Target) -> tuple[Raw, ...]:
    labels = build_job_selector(job_of(target))
    if isinstance(target, JobRef):
        labels += f",{words.SUBMISSION_LABEL}={target.submission}"
    return (await client.list(resource, namespace, labels=labels)).items


async def _add_unlabelled(client: KubeClient, found: JobObjects, target: Target) -> JobObjects:
    """What belongs to a TrainJob that another implementation of the contract made, and may carry no label of ours."""
    chosen = select_objects(found, target)
    trainjob = chosen.trainjob
    if trainjob is None or chosen.jobset is not None or fields.annotation(trainjob, words.SPEC_ANNOTATION):
        return found
    name = fields.name(trainjob)
    jobset = await client.get(JOBSETS, name, found.namespace)
    if jobset is None or not fields.has_controller(jobset, fields.uid(trainjob)):
        return found
    labels = f"{words.JOBSET_NAME_LABEL}={name}"
    jobs, pods = await asyncio.gather(*(client.list(kind, found.namespace, labels=labels) for kind in (JOBS, PODS)))
    return JobObjects(
        found.namespace, {**found.objects, JOBSETS: (jobset,), JOBS: jobs.items, PODS: pods.items}, found.ledger
    )
