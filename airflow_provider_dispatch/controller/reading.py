# SPDX-License-Identifier: Apache-2.0
"""What is known of one submission at one moment: as the watches have it, or read anew.

A glance at the cache tells whether there may be something to do, and costs no request; what is done is judged on a
fresh read. The order of reading is part of the protocol: TrainJob, Workload, JobSet and ledger first, pods after
them, nodes last. Writes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.controller_view import (
    ControllerSettings,
    LedgerView,
    NodeView,
    PodView,
    TrainJobView,
    WorkloadView,
)
from airflow_provider_dispatch.adapters.kubeflow.model.execution_record import RecordedPod
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.ledger import Ledger, build_ledger_name, read_ledger
from airflow_provider_dispatch.adapters.kubeflow.model.pod_deaths import derive_record
from airflow_provider_dispatch.adapters.kubeflow.model.resources import (
    CONFIG_MAPS,
    JOBSETS,
    NODES,
    PODS,
    TRAINJOBS,
    WORKLOADS,
)
from airflow_provider_dispatch.adapters.kubeflow.model.submission import read_ref
from airflow_provider_dispatch.controller.cache import JobKey, ObjectCache, job_key, owner_uid, place
from airflow_provider_dispatch.controller.queues import QueueMap
from airflow_provider_dispatch.controller.views import (
    build_ledger_view,
    build_node_view,
    build_pod_views,
    build_trainjob_view,
    build_workload_view,
)

_ANY_TIME = datetime(2000, 1, 1, tzinfo=UTC)
"""A silent node proves nothing at any time."""
MOST_NODES = 20
"""Read one by one; above it, all are listed."""


@dataclass(frozen=True, slots=True)
class Situation:
    """One submission: raw objects, and the views of them that decisions look at.

    :param is_fresh: read now, not from the cache.
    :param ledger_object: None where the job has none.
    """

    trainjob: Raw
    workload: Raw | None
    jobset: Raw | None
    ledger_object: Raw | None
    pods: tuple[Raw, ...]
    trainjob_view: TrainJobView
    workload_view: WorkloadView | None
    pod_views: tuple[PodView, ...]
    ledger: Ledger
    ledger_view: LedgerView
    nodes: tuple[NodeView, ...] = ()
    is_fresh: bool = False

    @property
    def namespace(self) -> str:
        """Where all of it lives."""
        return place(self.trainjob)


class SituationReader:
    """Reads submissions.

    :param check: name of our AdmissionCheck.
    """

    def __init__(self, client: KubeClient, cache: ObjectCache, queues: QueueMap, check: str) -> None:
        self._client, self._cache, self._queues, self._check = client, cache, queues, check
        self._ledgers: dict[JobKey, Raw | None] = {}

    def glance(self, uid: str) -> Situation | None:
        """As the cache has it, with no nodes: what vanished counts as dead, so that a fresh read is rather taken once
        too often. None when the cache doesn't have it or its ledger was never read.
        """
        trainjob = self._cache.trainjob(uid)
        if trainjob is None or job_key(trainjob) not in self._ledgers:
            return None
        job = job_key(trainjob)
        return self._build(
            trainjob,
            self._cache.workload(uid),
            self._cache.jobset(uid),
            self._ledgers[job],
            pods=self._cache.pods(job),
        )

    async def read(self, uid: str) -> Situation | None:
        """As the API server has it now; None when the TrainJob is gone."""
        known = self._cache.trainjob(uid)
        if known is None:
            return None
        job, where, name = job_key(known), place(known), fields.name(known)
        # Another replica may act: what it wrote on the TrainJob before the Workload must show when the latter does.
        # Else a check that is rightly Ready looks like one that nobody has judged.
        workload = await self.read_workload(uid, where)
        trainjob, jobset, ledger = await asyncio.gather(
            self._client.get(TRAINJOBS, name, where),
            self._client.get(JOBSETS, name, where),
            self._client.get(CONFIG_MAPS, build_ledger_name(read_ref(known).job), where),
        )
        self._ledgers[job] = ledger
        if trainjob is None or fields.uid(trainjob) != uid:
            return None
        for kind, raw in ((TRAINJOBS, trainjob), (WORKLOADS, workload), (JOBSETS, jobset)):
            if raw is not None:
                self._cache.note(kind, raw)
        if jobset is not None and owner_uid(jobset) != uid:
            jobset = None
        pods = await self._client.list(PODS, where, labels=f"{words.JOB_LABEL}={job[1]}")
        glance = self._build(trainjob, workload, jobset, ledger, pods=pods.items)
        nodes = await self._read_nodes(find_missing(glance))
        return self._build(trainjob, workload, jobset, ledger, pods=pods.items, nodes=nodes, is_fresh=True)

    async def read_workload(self, uid: str, namespace: str) -> Raw | None:
        """Kueue's object for a TrainJob, read anew; the living one, should there be two."""
        known = self._cache.workload(uid)
        if known is not None:
            found = await self._client.get(WORKLOADS, fields.name(known), namespace)
            if found is not None and owner_uid(found) == uid and not fields.is_deleting(found):
                return found
        listed = await self._client.list(WORKLOADS, namespace, labels=f"{words.JOB_UID_LABEL}={uid}")
        owned = [raw for raw in listed.items if owner_uid(raw) == uid]
        return min(owned, key=fields.is_deleting, default=None)

    async def reread(self, situation: Situation) -> Situation | None:
        """The same with TrainJob and Workload read anew; None when the TrainJob is gone."""
        uid, name = fields.uid(situation.trainjob), fields.name(situation.trainjob)
        trainjob, workload = await asyncio.gather(
            self._client.get(TRAINJOBS, name, situation.namespace), self._reread_workload(situation)
        )
        if trainjob is None or fields.uid(trainjob) != uid:
            return None
        return self._build(
            trainjob, workload, situation.jobset, situation.ledger_object, pods=situation.pods, is_fresh=True
        )

    async def _reread_workload(self, situation: Situation) -> Raw | None:
        if situation.workload is None:
            return None
        found = await self._client.get(WORKLOADS, fields.name(situation.workload), situation.namespace)
        return found if found is not None and fields.uid(found) == fields.uid(situation.workload) else None

    def remember_ledger(self, trainjob: Raw, ledger: Raw) -> None:
        """Keep what was written."""
        self._ledgers[job_key(trainjob)] = ledger

    def forget_others(self, jobs: Collection[JobKey]) -> None:
        """Only these jobs are looked after still."""
        for job in self._ledgers.keys() - set(jobs):
            del self._ledgers[job]

    async def _read_nodes(self, missing: Sequence[RecordedPod]) -> tuple[NodeView, ...]:
        """The nodes that decide about the deaths of pods without an object.

        A node that isn't in the answer counts as destroyed, so for a pod whose node nobody saw all of them are read.
        """
        if not missing:
            return ()
        names = {pod.node for pod in missing}
        if None in names or len(names) > MOST_NODES:
            listed = await self._client.list(NODES)
            return tuple(build_node_view(node) for node in listed.items)
        found = await asyncio.gather(*(self._client.get(NODES, name) for name in names if name is not None))
        return tuple(build_node_view(node) for node in found if node is not None)

    def _build(
        self,
        trainjob: Raw,
        workload: Raw | None,
        jobset: Raw | None,
        ledger_object: Raw | None,
        *,
        pods: Collection[Raw],
        nodes: tuple[NodeView, ...] = (),
        is_fresh: bool = False,
    ) -> Situation:
        job, ledger = job_key(trainjob), read_ledger(ledger_object)
        wanted = workload is not None and self._queues.is_wanted(workload)
        return Situation(
            trainjob,
            workload,
            jobset,
            ledger_object,
            tuple(pods),
            build_trainjob_view(trainjob, jobset),
            build_workload_view(workload, self._check, is_quota_wanted=wanted) if workload is not None else None,
            build_pod_views(pods, self._cache.tombstones(job), self._cache.pods(job)),
            ledger,
            build_ledger_view(ledger),
            nodes,
            is_fresh,
        )


def find_missing(situation: Situation) -> list[RecordedPod]:
    """Pods that may live and whose objects don't prove the contrary: only their nodes can.

    Those that no proof is found for although every node that could give one is taken for silent.
    """
    view, ledger = situation.trainjob_view, situation.ledger_view
    names = {pod.node for pod in (*view.record.pods, *view.record.undead, *ledger.undead)}
    names |= {pod.node for pod in situation.pod_views}
    silent = [NodeView(name or "", is_ready=False) for name in names]
    record = derive_record(
        view, pods=situation.pod_views, nodes=silent, ledger=ledger, now=_ANY_TIME, settings=ControllerSettings()
    )
    there = {pod.uid for pod in situation.pod_views if not pod.is_gone}
    return [pod for pod in record.unproven if pod.uid not in there]
