# SPDX-License-Identifier: Apache-2.0
"""Changes TrainJobs, and restores a private runtime that somebody has deleted: without it every change is refused.

The verbs write TrainJobs through it. It never edits a runtime that is there.
"""

from __future__ import annotations

import contextlib

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.errors import AlreadyExistsError
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.json_patch import Patch
from airflow_provider_dispatch.adapters.kubeflow.model.resources import CONFIG_MAPS, TRAINING_RUNTIMES, TRAINJOBS
from airflow_provider_dispatch.adapters.kubeflow.model.runtime_snapshot import (
    build_restored_runtime,
    build_snapshot_name,
)
from airflow_provider_dispatch.exceptions import RefusedError


async def patch_trainjob(client: KubeClient, trainjob: Raw, patch: Patch) -> Raw:
    """The TrainJob after the patch; itself when there is nothing to change.

    :raises StaleObjectError: it has changed since it was read.
    """
    if not patch:
        return trainjob
    name, namespace = fields.name(trainjob), fields.text(trainjob, "metadata", "namespace")
    try:
        return await client.patch(TRAINJOBS, name, patch, namespace)
    except RefusedError:
        if not await restore_runtime(client, trainjob):
            raise
    return await client.patch(TRAINJOBS, name, patch, namespace)


async def restore_runtime(client: KubeClient, trainjob: Raw) -> bool:
    """Make a deleted private runtime again; whether it had been missing and is there now."""
    name, namespace = (
        fields.text(trainjob, "spec", "runtimeRef", "name"),
        fields.text(trainjob, "metadata", "namespace"),
    )
    if not name or await client.get(TRAINING_RUNTIMES, name, namespace) is not None:
        return False
    snapshot = await client.get(CONFIG_MAPS, build_snapshot_name(trainjob), namespace)
    runtime = build_restored_runtime(trainjob, snapshot)
    if runtime is None or fields.name(runtime) != name:
        return False
    with contextlib.suppress(AlreadyExistsError):
        await client.create(TRAINING_RUNTIMES, runtime, namespace)
    return True
