# SPDX-License-Identifier: Apache-2.0
"""Watches the pods of a job as they go: only who sees the last state of a pod can say that its process has ended.

Whoever removes pods does so within it. It writes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.inventory import Inventory
from airflow_provider_dispatch.adapters.kubeflow.model.resources import PODS
from airflow_provider_dispatch.adapters.kubeflow.model.stop_report import Witness
from airflow_provider_dispatch.adapters.kubeflow.targets import build_job_selector
from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.exceptions import RefusedError, UnavailableError


@asynccontextmanager
async def watch_pods(
    client: KubeClient, job: JobID, witness: Witness, inventory: Inventory
) -> AsyncIterator[asyncio.Event]:
    """Let the witness note how each pod goes, while the block runs.

    :param inventory: from which on.
    :return: set whenever a pod has gone.
    """
    has_changed = asyncio.Event()

    async def watch() -> None:
        # A watch that breaks is not made again: what it misses stays unproven, as it should.
        with contextlib.suppress(UnavailableError, RefusedError):
            changes = client.watch(
                PODS, inventory.namespace, labels=build_job_selector(job), resource_version=inventory.pods_version
            )
            async with aclosing(changes) as events:
                async for event in events:
                    if event.type == "DELETED":
                        witness.note_deleted(PODS, event.object)
                        has_changed.set()
                    elif event.type in ("ADDED", "MODIFIED"):
                        witness.note(PODS, event.object)

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    try:
        yield has_changed
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
