# SPDX-License-Identifier: Apache-2.0
"""What the watch has seen of the jobs of a namespace: every object as it was last, found by the job it belongs to.

Reflectors fill it, the shared watch takes the objects of a submission out of it. It asks no server.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

from airflow_provider_dispatch.adapters.kubeflow.client import ObjectList
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.job_objects import JobObjects, select_objects
from airflow_provider_dispatch.adapters.kubeflow.model.object_set import ObjectSet
from airflow_provider_dispatch.adapters.kubeflow.model.resources import (
    JOBS,
    JOBSETS,
    PODS,
    TRAINJOBS,
    WORKLOADS,
    Resource,
)
from airflow_provider_dispatch.adapters.kubeflow.model.submission import read_job_id
from airflow_provider_dispatch.adapters.kubeflow.object_table import ObjectTable
from airflow_provider_dispatch.adapters.kubeflow.targets import Target, job_of
from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.core.job_ref import JobRef

SELECTORS = {
    TRAINJOBS: words.JOB_LABEL,
    JOBSETS: words.JOB_LABEL,
    JOBS: words.JOB_LABEL,
    PODS: words.JOB_LABEL,
    # Kueue copies no label of ours.
    WORKLOADS: words.JOB_UID_LABEL,
}
"""The kinds that tell a state, and what the server looks for."""


class JobCache:
    """Objects of one namespace.

    :param wake: called with each job that a change concerns.
    """

    def __init__(self, namespace: str, wake: Callable[[JobID], None]) -> None:
        self._namespace, self._wake = namespace, wake
        self._table = ObjectTable(SELECTORS)
        self._by_job: dict[JobID, dict[Resource, set[str]]] = {}
        self._by_owner: defaultdict[str, set[str]] = defaultdict(set)
        self._job_of_owner: dict[str, JobID] = {}

    def replace(self, resource: Resource, listed: ObjectList) -> None:
        """These are all there are at that version."""
        changes = self._table.replace(resource, listed)
        for raw in changes.gone:
            self._forget(resource, raw)
        for raw in changes.news:
            self._learn(resource, raw)

    def put(self, resource: Resource, raw: Raw) -> None:
        """It is there, or has changed; an older state than one known is passed over."""
        if (kept := self._table.put(resource, raw)) is not None:
            self._learn(resource, kept)

    def remove(self, resource: Resource, raw: Raw) -> None:
        """It is gone."""
        if self._table.remove(resource, raw) is not None:
            self._forget(resource, raw)

    def select(self, target: Target) -> ObjectSet:
        """The objects of a submission, the ledger left out."""
        job = job_of(target)
        kinds = self._by_job.get(job, {})
        found = {resource: self._table.pick(resource, uids) for resource, uids in kinds.items()}
        owners = set(kinds.get(TRAINJOBS, ())) | ({target.uid} if isinstance(target, JobRef) else set())
        found[WORKLOADS] = list(self._find_workloads(owners))
        return select_objects(JobObjects(self._namespace, found), target)

    def _find_workloads(self, owners: set[str]) -> Iterator[Raw]:
        for owner in owners:
            yield from self._table.pick(WORKLOADS, self._by_owner.get(owner, ()))

    def _learn(self, resource: Resource, raw: Raw) -> None:
        uid = fields.uid(raw)
        if resource is WORKLOADS:
            self._by_owner[_read_owner(raw)].add(uid)
        elif (job := read_job_id(raw)) is not None:
            self._by_job.setdefault(job, {}).setdefault(resource, set()).add(uid)
            if resource is TRAINJOBS:
                self._job_of_owner[uid] = job
        self._tell(resource, raw)

    def _forget(self, resource: Resource, raw: Raw) -> None:
        uid = fields.uid(raw)
        self._tell(resource, raw)
        if resource is WORKLOADS:
            self._by_owner[_read_owner(raw)].discard(uid)
        elif (job := read_job_id(raw)) is not None:
            self._by_job.get(job, {}).get(resource, set()).discard(uid)
            if not any(self._by_job.get(job, {}).values()):
                self._by_job.pop(job, None)
        self._forget_owner(uid if resource is TRAINJOBS else _read_owner(raw))

    def _tell(self, resource: Resource, raw: Raw) -> None:
        job = self._job_of_owner.get(_read_owner(raw)) if resource is WORKLOADS else read_job_id(raw)
        if job is not None:
            self._wake(job)

    def _forget_owner(self, owner: str) -> None:
        """Once neither a TrainJob nor a Workload of it is left."""
        if not self._by_owner.get(owner):
            self._by_owner.pop(owner, None)
            if (TRAINJOBS, owner) not in self._table:
                self._job_of_owner.pop(owner, None)


def _read_owner(workload: Raw) -> str:
    return fields.label(workload, words.JOB_UID_LABEL)
