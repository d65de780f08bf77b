# SPDX-License-Identifier: Apache-2.0
"""Sends a TrainJob whose runtime was made a moment ago: the webhooks look for it in caches, which may be behind.

`start` and preflight call it, the latter also for a dry run.
"""

from __future__ import annotations

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.resources import TRAINJOBS
from airflow_provider_dispatch.adapters.kubeflow.transport import Sleep
from airflow_provider_dispatch.exceptions import RefusedError, UnavailableError

CACHE_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Between two tries while a webhook's cache is behind; caches follow within a fraction of a second."""


async def create_trainjob(
    client: KubeClient, trainjob: Raw, namespace: str, *, sleep: Sleep, dry_run: bool = False
) -> Raw:
    """The TrainJob as the server has stored it; sent again while a webhook hasn't seen its runtime.

    :raises AlreadyExistsError: there is one of that name.
    :raises UnavailableError: a webhook stays behind.
    """
    for pause in CACHE_PAUSES:
        try:
            return await client.create(TRAINJOBS, trainjob, namespace, dry_run=dry_run)
        except RefusedError as error:
            if not any(said in str(error) for said in words.RUNTIME_UNSEEN):
                raise
        await sleep(pause)
    try:
        return await client.create(TRAINJOBS, trainjob, namespace, dry_run=dry_run)
    except RefusedError as error:
        name = fields.text(trainjob, "spec", "runtimeRef", "name")
        # Kueue puts the name into single quotes, Trainer into double ones.
        signs = (words.RUNTIME_UNSEEN[0], f"'{name}' not found", f'"{name}" not found')
        if not any(sign in str(error) for sign in signs):
            raise
        # Just after the API server was away, a cache stays behind for many seconds.
        raise UnavailableError(f"the webhooks don't see TrainingRuntime {name} yet, try again: {error}") from error
