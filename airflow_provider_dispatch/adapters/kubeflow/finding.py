# SPDX-License-Identifier: Apache-2.0
"""`find`, `list` and `events`: what the cluster knows of jobs, uncached. The adapter calls it; it never writes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from datetime import datetime

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.inventory import DELETION_ORDER, Inventory, fetch_inventory
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.derive import derive_observation
from airflow_provider_dispatch.adapters.kubeflow.model.event_log import list_events
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.ledger import read_ledger
from airflow_provider_dispatch.adapters.kubeflow.model.resources import EVENTS, TRAINJOBS, WORKLOADS, Resource
from airflow_provider_dispatch.adapters.kubeflow.model.submission import (
    read_end_time,
    read_job_id,
    read_submission,
    read_submission_number,
)
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings
from airflow_provider_dispatch.adapters.kubeflow.targets import Target, check_place, job_of
from airflow_provider_dispatch.core.identity import JobID, parse_job_id
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.records import JobEvent, JobRecord, JobSelector, SubmissionRecord
from airflow_provider_dispatch.exceptions import CapabilityError, ProtocolError

_log = logging.getLogger(__name__)


async def find(client: KubeClient, settings: KubeflowSettings, job: JobID, *, now: datetime) -> JobRecord:
    """All that is left of a job, the ledger and orphans included."""
    job = parse_job_id(job)
    inventory = await fetch_inventory(client, settings.namespace, job)
    ledger = read_ledger(inventory.ledger)
    trainjobs = inventory.of(TRAINJOBS)
    records = tuple(build_record(inventory, trainjob, now) for trainjob in trainjobs)
    found = (ledger.submission, *inventory.submissions)
    return JobRecord(job, max(found), records, tuple(_list_orphans(inventory, trainjobs)))


async def list_jobs(
    client: KubeClient, settings: KubeflowSettings, selector: JobSelector, *, now: datetime
) -> tuple[SubmissionRecord, ...]:
    """The newest submission of each job that matches, the oldest job first. Costs one list of each kind.

    One that somebody has spoilt is left out, so that it doesn't hide the others.
    """
    labels = words.JOB_LABEL
    if selector.deployment:
        labels += f",{words.DEPLOYMENT_LABEL}={selector.deployment}"
    # The deployment stands on the TrainJob; what belongs to it is found by its own labels and UIDs.
    kinds = tuple(resource for resource in DELETION_ORDER if resource != TRAINJOBS)
    trainjobs = await client.list(TRAINJOBS, settings.namespace, labels=labels)
    answers = await asyncio.gather(*(fetch_ours(client, settings, resource) for resource in kinds))
    objects = dict(zip(kinds, answers, strict=True))
    records = []
    for job, trainjob in _find_newest(trainjobs.items).items():
        try:
            records.append(build_record(_select_job(settings, objects, job, trainjob), trainjob, now))
        except ProtocolError as error:
            _log.warning("%s is left out: %s", fields.name(trainjob), error)
    matching = (record for record in records if selector.matches(record))
    return tuple(sorted(matching, key=lambda record: (record.created_at or now, record.ref.job)))


async def events(client: KubeClient, settings: KubeflowSettings, target: Target) -> tuple[JobEvent, ...]:
    """Kubernetes events about the objects of a job, the oldest first. The cluster forgets them after about an hour."""
    check_place(target, settings)
    found = await client.list(EVENTS, settings.namespace)
    submission = target.submission if isinstance(target, JobRef) else None
    return list_events(found.items, job_of(target), submission)


def build_record(inventory: Inventory, trainjob: Raw, now: datetime) -> SubmissionRecord:
    """A submission as `find` and `list` tell it."""
    submission = read_submission(trainjob)
    seen = derive_observation(inventory.select(trainjob), now)
    return SubmissionRecord(
        ref=submission.ref,
        state=seen.state,
        spec=submission.spec,
        owner=submission.owner,
        supervision=submission.supervision,
        attempt=submission.attempt,
        cause=seen.cause,
        queue=submission.queue,
        created_at=submission.created_at,
        ended_at=read_end_time(trainjob),
    )


def _list_orphans(inventory: Inventory, trainjobs: Iterable[Raw]) -> Iterable[str]:
    """Objects of submissions whose TrainJob is gone."""
    numbers = {read_submission_number(trainjob) for trainjob in trainjobs}
    uids = {fields.uid(trainjob) for trainjob in trainjobs}
    for resource, raw in inventory:
        is_owned = any(fields.has_controller(raw, uid) for uid in uids)
        if resource != TRAINJOBS and not is_owned and read_submission_number(raw) not in numbers:
            yield f"{resource.kind} {fields.name(raw)}"


async def fetch_ours(client: KubeClient, settings: KubeflowSettings, resource: Resource) -> tuple[Raw, ...]:
    """Every object of a kind that carries our label; every Workload, which never does."""
    try:
        labels = "" if resource == WORKLOADS else words.JOB_LABEL
        return (await client.list(resource, settings.namespace, labels=labels)).items
    except CapabilityError:
        return ()  # A cluster without Kueue.


def _find_newest(trainjobs: Iterable[Raw]) -> Mapping[JobID, Raw]:
    newest: dict[JobID, Raw] = {}
    for trainjob in trainjobs:
        job = read_job_id(trainjob)
        if job is not None and read_submission_number(trainjob) >= read_submission_number(newest.get(job)):
            newest[job] = trainjob
    return newest


def _select_job(
    settings: KubeflowSettings, objects: Mapping[Resource, tuple[Raw, ...]], job: JobID, trainjob: Raw
) -> Inventory:
    uid = fields.uid(trainjob)
    mine = {
        resource: tuple(raw for raw in found if read_job_id(raw) == job or fields.has_controller(raw, uid))
        for resource, found in objects.items()
    }
    return Inventory(settings.namespace, {**mine, TRAINJOBS: (trainjob,)})
