# SPDX-License-Identifier: Apache-2.0
"""From the objects of a submission to what is told of it: the pure derivation, with what it needs from elsewhere.

`inspect` and `watch` call it. It reads the ClusterQueue of a job that waits, because Kueue 0.19 doesn't say "never",
and the last lines of the rank that failed first, while its pod is there. In plain mode it resumes a job that nothing
keeps any more: whoever looks brings it on.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.fetching import fetch_events, fetch_objects
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.derive import derive_observation
from airflow_provider_dispatch.adapters.kubeflow.model.derive.ending import LAST_LINES
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.object_set import ObjectSet
from airflow_provider_dispatch.adapters.kubeflow.model.rank_pods import find_rank_pods
from airflow_provider_dispatch.adapters.kubeflow.model.resources import CLUSTER_QUEUES, LOCAL_QUEUES
from airflow_provider_dispatch.adapters.kubeflow.model.resuming import is_resume_due
from airflow_provider_dispatch.adapters.kubeflow.plain_mode import advance
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings
from airflow_provider_dispatch.adapters.kubeflow.targets import Target, job_of
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.observation import FailedRank, Observation
from airflow_provider_dispatch.core.state import State
from airflow_provider_dispatch.exceptions import DispatchError

FRESH = timedelta(seconds=60)
STUCK = timedelta(seconds=10)
"""A job that starts and has no pod for so long may have been refused one: events alone tell."""
MOST_BYTES = 64 * 1024
_log = logging.getLogger(__name__)


@dataclass
class Observer:
    """Eyes of one adapter. ClusterQueues are remembered for a minute: they change seldom, and jobs wait together.

    :param _queues: LocalQueue to when its ClusterQueue was asked for, and the asking, which all who wait share.
    """

    client: KubeClient
    settings: KubeflowSettings
    _queues: dict[str, tuple[datetime, asyncio.Task[Raw | None]]] = field(default_factory=dict)
    _lines: dict[str, tuple[str, ...]] = field(default_factory=dict)

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
        if _lacks_pods(seen, objects, now):
            events = await self._fetch_events(objects)
            seen = derive_observation(replace(objects, events=events), now, ref=ref)
        if not seen.ref.job:
            # Nothing is left that could say whose it was.
            seen = replace(seen, ref=JobRef(job_of(target), 0, words.BACKEND, self.settings.namespace))
        if seen.failed_rank is not None and not seen.last_lines:
            seen = replace(seen, last_lines=await self._fetch_last_lines(objects, seen.failed_rank))
        return seen

    async def _fetch_events(self, objects: ObjectSet) -> tuple[Raw, ...]:
        """None when they can't be had: the state is then told without a cause."""
        try:
            return await fetch_events(self.client, objects)
        except DispatchError as error:
            _log.debug("the events of a job that gets no pods can't be read: %s", error)
            return ()

    async def _fetch_last_lines(self, objects: ObjectSet, failed: FailedRank) -> tuple[str, ...]:
        """Empty when they can't be had: its pod may be gone."""
        executions = find_rank_pods(objects.pods, failed.role, failed.rank)
        if not executions:
            return ()
        pod = executions[max(executions)]
        uid = fields.uid(pod)
        if uid not in self._lines:
            try:
                self._lines = {uid: await self._read_tail(fields.name(pod))}
            except DispatchError as error:
                _log.debug("the last lines of %s can't be read: %s", fields.name(pod), error)
                return ()
        return self._lines[uid]

    async def _read_tail(self, pod: str) -> tuple[str, ...]:
        pieces = self.client.read_log(pod, self.settings.namespace, tail_lines=LAST_LINES, limit_bytes=MOST_BYTES)
        async with aclosing(pieces) as reading:
            text = b"".join([piece async for piece in reading]).decode(errors="replace")
        # Each line begins with its stamp.
        return tuple(line.partition(" ")[2] for line in text.splitlines())

    async def _fetch_cluster_queue(self, local_queue: str, now: datetime) -> Raw | None:
        """None when it can't be had: the state is then told without it."""
        asked, asking = self._queues.get(local_queue, (now, None))
        if asking is None or now - asked >= FRESH:
            asking = asyncio.create_task(self._ask_for_cluster_queue(local_queue))
            self._queues[local_queue] = (now, asking)
        # One who stops waiting doesn't take the answer from the others.
        return await asyncio.shield(asking)

    async def _ask_for_cluster_queue(self, local_queue: str) -> Raw | None:
        try:
            found = await self.client.get(LOCAL_QUEUES, local_queue, self.settings.namespace) if local_queue else None
            name = fields.text(found, "spec", "clusterQueue")
            return await self.client.get(CLUSTER_QUEUES, name) if name else None
        except DispatchError as error:
            _log.debug("the queue %s can't be looked at: %s", local_queue, error)
            self._queues.pop(local_queue, None)
            return None


def _lacks_pods(seen: Observation, objects: ObjectSet, now: datetime) -> bool:
    since = seen.clocks.starting.since
    is_unexplained = seen.state is State.STARTING and seen.cause is None and not objects.events
    return is_unexplained and not objects.pods and since is not None and now - since >= STUCK
