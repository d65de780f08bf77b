# SPDX-License-Identifier: Apache-2.0
"""From the objects of a submission to what is told of it: the pure derivation, with what it needs from elsewhere.

`inspect` and `watch` call it. It reads the ClusterQueue of a job that waits, because Kueue 0.19 doesn't say "never",
and in plain mode it resumes a job that nothing keeps any more: whoever looks brings it on.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.fetching import fetch_objects
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.derive import derive_observation
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.object_set import ObjectSet
from airflow_provider_dispatch.adapters.kubeflow.model.resources import CLUSTER_QUEUES, LOCAL_QUEUES
from airflow_provider_dispatch.adapters.kubeflow.model.resuming import is_resume_due
from airflow_provider_dispatch.adapters.kubeflow.plain_mode import advance
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings
from airflow_provider_dispatch.adapters.kubeflow.targets import Target, job_of
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.core.state import State
from airflow_provider_dispatch.exceptions import DispatchError

FRESH = timedelta(seconds=60)
_log = logging.getLogger(__name__)


@dataclass
class Observer:
    """Eyes of one adapter. ClusterQueues are remembered for a minute: they change seldom, and jobs wait together."""

    client: KubeClient
    settings: KubeflowSettings
    _queues: dict[str, tuple[datetime, Raw | None]] = field(default_factory=dict)

    async def inspect(self, target: Target, now: datetime) -> Observation:
        """The state now."""
        objects = await fetch_objects(self.client, self.settings.namespace, target, with_events=True)
        if await self._bring_on(objects, target, now):
            objects = await fetch_objects(self.client, self.settings.namespace, target, with_events=True)
        return await self._derive(objects, target, now)

    async def observe(self, objects: ObjectSet, target: Target, now: datetime) -> Observation:
        """The state that these objects tell."""
        await self._bring_on(objects, target, now)
        return await self._derive(objects, target, now)

    async def _bring_on(self, objects: ObjectSet, target: Target, now: datetime) -> bool:
        if objects.trainjob is None or not is_resume_due(objects.trainjob, now):
            return False
        return await advance(self.client, self.settings, target, now=now)

    async def _derive(self, objects: ObjectSet, target: Target, now: datetime) -> Observation:
        ref = target if isinstance(target, JobRef) else None
        seen = derive_observation(objects, now, ref=ref)
        if seen.state is State.QUEUED and objects.cluster_queue is None and objects.workload is not None:
            queue = await self._fetch_cluster_queue(fields.text(objects.workload, "spec", "queueName"), now)
            if queue is not None:
                seen = derive_observation(replace(objects, cluster_queue=queue), now, ref=ref)
        if not seen.ref.job:
            # Nothing is left that could say whose it was.
            seen = replace(seen, ref=JobRef(job_of(target), 0, words.BACKEND, self.settings.namespace))
        return seen

    async def _fetch_cluster_queue(self, local_queue: str, now: datetime) -> Raw | None:
        """None when it can't be had: the state is then told without it."""
        asked, queue = self._queues.get(local_queue, (None, None))
        if asked is not None and now - asked < FRESH:
            return queue
        try:
            found = await self.client.get(LOCAL_QUEUES, local_queue, self.settings.namespace) if local_queue else None
            name = fields.text(found, "spec", "clusterQueue")
            queue = await self.client.get(CLUSTER_QUEUES, name) if name else None
        except DispatchError as error:
            _log.debug("the queue %s can't be looked at: %s", local_queue, error)
            return None
        self._queues[local_queue] = (now, queue)
        return queue
