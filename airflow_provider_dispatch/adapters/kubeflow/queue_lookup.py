# SPDX-License-Identifier: Apache-2.0
"""What the cluster offers a job: its queue with the way to our admission check, its priority class, its runtime.

`start` and preflight ask it. What has been found good is remembered for a minute in this process, so that starting many
jobs doesn't ask the same four questions for each; what was found bad is asked again. Never writes.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.queue_guard import QueueView
from airflow_provider_dispatch.adapters.kubeflow.model.resources import (
    ADMISSION_CHECKS,
    CLUSTER_QUEUES,
    CLUSTER_TRAINING_RUNTIMES,
    LEASES,
    LOCAL_QUEUES,
    PRIORITY_CLASSES,
    TRAINING_RUNTIMES,
    Resource,
)
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings, RuntimeSettings
from airflow_provider_dispatch.core.capabilities import Preflight
from airflow_provider_dispatch.exceptions import SpecError

FRESH = timedelta(seconds=60)


@dataclass
class QueueMemory:
    """What has been found good lately, by connection and name, and the last outcome of a preflight, by connection."""

    _found: dict[tuple[object, ...], datetime] = field(default_factory=dict)
    _outcomes: dict[KubeflowSettings, Preflight] = field(default_factory=dict)

    def knows(self, settings: KubeflowSettings, now: datetime, *key: str) -> bool:
        """Whether it was found good within the last minute."""
        found = self._found.get((settings, *key))
        return found is not None and now - found < FRESH

    def note(self, settings: KubeflowSettings, now: datetime, *key: str) -> None:
        """It has been found good just now."""
        self._found = {known: at for known, at in self._found.items() if now - at < FRESH}
        self._found[(settings, *key)] = now

    def keep(self, settings: KubeflowSettings, found: Preflight) -> None:
        """Remember the outcome of a preflight instead of an earlier one."""
        self._outcomes[settings] = found

    def recall(self, settings: KubeflowSettings, now: datetime) -> Preflight | None:
        """The outcome of a preflight within the last minute."""
        found = self._outcomes.get(settings)
        is_fresh = found is not None and found.checked_at is not None and now - found.checked_at < FRESH
        return found if is_fresh else None


async def fetch_lease(client: KubeClient, settings: KubeflowSettings) -> Raw | None:
    """The controller's heartbeat; None when it never ran."""
    return await client.get(LEASES, settings.lease_name, settings.lease_namespace)


async def fetch_queue_view(client: KubeClient, settings: KubeflowSettings, queue: str) -> QueueView:
    """Everything that decides whether jobs of a queue may be started."""
    local_queue, check, lease = await asyncio.gather(
        client.get(LOCAL_QUEUES, queue, settings.namespace),
        client.get(ADMISSION_CHECKS, settings.admission_check),
        fetch_lease(client, settings),
    )
    name = fields.text(local_queue, "spec", "clusterQueue")
    cluster_queue = await client.get(CLUSTER_QUEUES, name) if name else None
    return QueueView(queue, local_queue, cluster_queue, check, lease)


async def fetch_queue_names(client: KubeClient, settings: KubeflowSettings) -> str:
    """The LocalQueues of the connection's namespace, for people."""
    return await _fetch_names(client, LOCAL_QUEUES, settings.namespace)


async def check_priority_class(client: KubeClient, priority: str) -> None:
    """Refuse a priority that isn't there.

    :raises SpecError: no such WorkloadPriorityClass.
    """
    if await client.get(PRIORITY_CLASSES, priority) is None:
        known = await _fetch_names(client, PRIORITY_CLASSES, None)
        raise SpecError("priority", f"must be one of {known}, the cluster's WorkloadPriorityClasses", priority)


async def fetch_runtime(client: KubeClient, settings: KubeflowSettings, named: str | None) -> Raw:
    """The training runtime of a job: the cluster's of that name before the namespace's own.

    :raises SpecError: none is named, or there is none of that name.
    """
    chosen = RuntimeSettings(name=named) if named else settings.runtime
    if chosen is None:
        raise SpecError("runtime", "name a training runtime, in the job or in the connection")
    if settings.runtime is not None and chosen.name == settings.runtime.name:
        chosen = settings.runtime
    if chosen.kind == CLUSTER_TRAINING_RUNTIMES.kind:
        found = await client.get(CLUSTER_TRAINING_RUNTIMES, chosen.name)
        if found is not None:
            return found
    if chosen.kind == TRAINING_RUNTIMES.kind or named:
        found = await client.get(TRAINING_RUNTIMES, chosen.name, settings.namespace)
        if found is not None:
            return found
    known = await _fetch_names(client, CLUSTER_TRAINING_RUNTIMES, None)
    raise SpecError("runtime", f"there is none of that name; the cluster's are {known}", chosen.name)


async def _fetch_names(client: KubeClient, resource: Resource, namespace: str | None) -> str:
    found = await client.list(resource, namespace)
    return ", ".join(sorted(fields.name(raw) for raw in found.items)) or "none"
