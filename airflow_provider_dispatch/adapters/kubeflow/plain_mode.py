# SPDX-License-Identifier: Apache-2.0
"""Plain mode without a controller: gate and hold are ``spec.suspend``, and the adapter itself resumes the TrainJob.

With the controller, resuming is the controller's alone: nobody else needs the right to let a job run. Without it, A is
raised by our own item of ``spec.runtimePatches`` in the very patch that resumes, and only after every old pod was seen
gone. `open` and `release` return when the request is durable, so they don't wait for that: they try
:func:`advance` once, and whoever looks at the job later (`inspect`, `watch`) tries it again, until it has happened.
A job that nobody looks at stays suspended. Two that try at once can't both: the patch is bound to what was judged.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import datetime

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.json_patch import Patch
from airflow_provider_dispatch.adapters.kubeflow.model.resources import JOBS, JOBSETS, PODS, TRAINING_RUNTIMES
from airflow_provider_dispatch.adapters.kubeflow.model.resuming import (
    build_raise_patch,
    find_obstacles,
    is_resume_due,
    list_roles,
)
from airflow_provider_dispatch.adapters.kubeflow.model.submission import read_ref
from airflow_provider_dispatch.adapters.kubeflow.runtimes import patch_trainjob
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings
from airflow_provider_dispatch.adapters.kubeflow.targets import Target, build_job_selector, fetch_trainjob
from airflow_provider_dispatch.exceptions import ConflictError, DispatchError

_MOST_TRIES = 5
_log = logging.getLogger(__name__)


async def advance(client: KubeClient, settings: KubeflowSettings, target: Target, *, now: datetime) -> bool:
    """Resume a TrainJob that nothing holds back any more; whether it was resumed here. Left to the controller, if any.

    Cheap where nothing is due. What goes wrong is logged and tried again at the next look.
    """
    if settings.has_controller:
        return False
    try:
        for _ in range(_MOST_TRIES):
            trainjob = await fetch_trainjob(client, settings, target)
            if not is_resume_due(trainjob, now):
                return False
            patch = await _build_resume_patch(client, settings, trainjob)
            if not patch:
                return False
            try:
                await patch_trainjob(client, trainjob, patch)
            except ConflictError:
                continue
            return True
    except DispatchError as error:
        _log.warning("a suspended job can't be resumed yet: %s", error)
    return False


async def _build_resume_patch(client: KubeClient, settings: KubeflowSettings, trainjob: Raw) -> Patch:
    """Empty while something is in the way."""
    jobset = await _fetch_jobset(client, trainjob)
    selector = build_job_selector(read_ref(trainjob).job)
    jobs = await client.list(JOBS, settings.namespace, labels=selector)
    # The pods last: what made them was suspended before they were counted.
    pods = await client.list(PODS, settings.namespace, labels=selector)
    if obstacles := find_obstacles(jobset, jobs.items, pods.items):
        _log.debug("%s waits for %s", fields.name(trainjob), ", ".join(obstacles))
        return []
    return build_raise_patch(trainjob, await _fetch_roles(client, trainjob, jobset))


async def _fetch_jobset(client: KubeClient, trainjob: Raw) -> Raw | None:
    jobset = await client.get(JOBSETS, fields.name(trainjob), fields.text(trainjob, "metadata", "namespace"))
    return jobset if jobset is not None and fields.has_controller(jobset, fields.uid(trainjob)) else None


async def _fetch_roles(client: KubeClient, trainjob: Raw, jobset: Raw | None) -> Iterable[str]:
    if jobset is not None:
        return list_roles(jobset, "spec")
    name = fields.text(trainjob, "spec", "runtimeRef", "name")
    runtime = await client.get(TRAINING_RUNTIMES, name, fields.text(trainjob, "metadata", "namespace"))
    return list_roles(runtime, "spec", "template", "spec")
