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
        self._objects: dict[Resource, dict[str, Raw]] = {resource: {} for resource in SELECTORS}
        self._by_job: dict[JobID, dict[Resource, set[str]]] = {}
        self._by_owner: defaultdict[str, set[str]] = defaultdict(set)
        self._job_of_owner: dict[str, JobID] = {}
        self._deleted: set[str] = set()
        self._listed_at: dict[Resource, str] = {}

    def replace(self, resource: Resource, listed: ObjectList) -> None:
        """These are all there are at that version."""
        # It does so when it is restored from a backup; what is known is then of no use.
        has_gone_back = _is_newer(self._listed_at.get(resource, ""), listed)
        self._listed_at[resource] = listed.resource_version
        present = {fields.uid(raw) for raw in listed.items}
        for uid, raw in list(self._objects[resource].items()):
            # What was read by itself meanwhile may be newer than the whole list.
            is_newer = _is_newer(fields.text(raw, "metadata", "resourceVersion"), listed)
            if has_gone_back or (uid not in present and not is_newer):
                self.remove(resource, raw)
        self._deleted.clear()
        for raw in listed.items:
            self.put(resource, raw)

    def put(self, resource: Resource, raw: Raw) -> None:
        """It is there, or has changed; an older state than one known is passed over."""
        uid = fields.uid(raw)
        known = self._objects[resource].get(uid)
        if uid in self._deleted or (known is not None and not _is_later(raw, known)):
            return
        self._objects[resource][uid] = _trim(raw)
        if resource is WORKLOADS:
            self._by_owner[_read_owner(raw)].add(uid)
        elif (job := read_job_id(raw)) is not None:
            self._by_job.setdefault(job, {}).setdefault(resource, set()).add(uid)
            if resource is TRAINJOBS:
                self._job_of_owner[uid] = job
        self._tell(resource, raw)

    def remove(self, resource: Resource, raw: Raw) -> None:
        """It is gone."""
        uid = fields.uid(raw)
        self._deleted.add(uid)
        if self._objects[resource].pop(uid, None) is None:
            return
        self._tell(resource, raw)
        if resource is WORKLOADS:
            self._by_owner[_read_owner(raw)].discard(uid)
        elif (job := read_job_id(raw)) is not None:
            self._by_job.get(job, {}).get(resource, set()).discard(uid)
            if not any(self._by_job.get(job, {}).values()):
                self._by_job.pop(job, None)
        self._forget_owner(uid if resource is TRAINJOBS else _read_owner(raw))

    def select(self, target: Target) -> ObjectSet:
        """The objects of a submission, the ledger left out."""
        job = job_of(target)
        kinds = self._by_job.get(job, {})
        found = {resource: [self._objects[resource][uid] for uid in uids] for resource, uids in kinds.items()}
        owners = set(kinds.get(TRAINJOBS, ())) | ({target.uid} if isinstance(target, JobRef) else set())
        found[WORKLOADS] = list(self._find_workloads(owners))
        return select_objects(JobObjects(self._namespace, found), target)

    def _find_workloads(self, owners: set[str]) -> Iterator[Raw]:
        for owner in owners:
            for uid in self._by_owner.get(owner, ()):
                yield self._objects[WORKLOADS][uid]

    def _tell(self, resource: Resource, raw: Raw) -> None:
        job = self._job_of_owner.get(_read_owner(raw)) if resource is WORKLOADS else read_job_id(raw)
        if job is not None:
            self._wake(job)

    def _forget_owner(self, owner: str) -> None:
        """Once neither a TrainJob nor a Workload of it is left."""
        if not self._by_owner.get(owner):
            self._by_owner.pop(owner, None)
            if owner not in self._objects[TRAINJOBS]:
                self._job_of_owner.pop(owner, None)


def _read_owner(workload: Raw) -> str:
    return fields.label(workload, words.JOB_UID_LABEL)


def _is_later(raw: Raw, known: Raw) -> bool:
    version, before = (fields.text(one, "metadata", "resourceVersion") for one in (raw, known))
    if version.isdecimal() and before.isdecimal():
        return int(version) > int(before)
    return version != before


def _is_newer(version: str, listed: ObjectList) -> bool:
    both_count = version.isdecimal() and listed.resource_version.isdecimal()
    return both_count and int(version) > int(listed.resource_version)


def _trim(raw: Raw) -> Raw:
    """Without what only the server needs, which is often half of an object."""
    metadata = {key: value for key, value in fields.mapping(raw, "metadata").items() if key != "managedFields"}
    return {**raw, "metadata": metadata}
