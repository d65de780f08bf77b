# SPDX-License-Identifier: Apache-2.0
"""Finds the TrainJob that a verb means, uncached and by label and UID, and what belongs to it. Never writes."""

from __future__ import annotations

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.resources import TRAINJOBS, WORKLOADS
from airflow_provider_dispatch.adapters.kubeflow.model.submission import read_job_id, read_submission_number
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings
from airflow_provider_dispatch.core.identity import JobID, parse_job_id
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.exceptions import ConflictError, JobNotFoundError

Target = JobRef | JobID


def job_of(target: Target) -> JobID:
    """The job a target belongs to."""
    return parse_job_id(target.job if isinstance(target, JobRef) else target)


def build_job_selector(job: JobID) -> str:
    """Label selector of everything of a job."""
    return f"{words.JOB_LABEL}={job.lower()}"


def check_place(target: Target, settings: KubeflowSettings) -> None:
    """Refuse a reference to a job of another backend or namespace; a bare id says nothing of that.

    :raises ConflictError: names both places. A caller that takes "not found" for "gone" must not be told so.
    """
    if isinstance(target, JobRef) and (target.backend, target.place) != (words.BACKEND, settings.namespace):
        here = f"{words.BACKEND} {settings.namespace}"
        raise ConflictError(f"{target.id} lives in {target.backend} {target.place}, and this is {here}")


async def fetch_trainjobs(client: KubeClient, settings: KubeflowSettings, job: JobID) -> tuple[Raw, ...]:
    """Every TrainJob of a job, the oldest submission first."""
    found = await client.list(TRAINJOBS, settings.namespace, labels=build_job_selector(job))
    return tuple(sorted((raw for raw in found.items if read_job_id(raw) == job), key=read_submission_number))


async def fetch_trainjob(client: KubeClient, settings: KubeflowSettings, target: Target) -> Raw:
    """The TrainJob of a submission; of the newest one for a bare id.

    :raises ConflictError: the target lives elsewhere.
    :raises JobNotFoundError: there is none, or another object of that name.
    """
    check_place(target, settings)
    trainjobs = await fetch_trainjobs(client, settings, job_of(target))
    if isinstance(target, JobRef):
        trainjobs = tuple(raw for raw in trainjobs if _is_meant(raw, target))
    if not trainjobs:
        raise JobNotFoundError(f"no such job: {target.id if isinstance(target, JobRef) else target}")
    return trainjobs[-1]


async def fetch_workload(client: KubeClient, trainjob: Raw) -> Raw | None:
    """Kueue's object for this very TrainJob; None when there is none, as in plain mode."""
    namespace, uid = fields.text(trainjob, "metadata", "namespace"), fields.uid(trainjob)
    found = await client.list(WORKLOADS, namespace, labels=f"{words.JOB_UID_LABEL}={uid}")
    # One that is being deleted is about to be replaced.
    return next(iter(sorted(found.items, key=fields.is_deleting)), None)


def _is_meant(trainjob: Raw, ref: JobRef) -> bool:
    return read_submission_number(trainjob) == ref.submission and ref.uid in ("", fields.uid(trainjob))
