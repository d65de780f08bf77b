# SPDX-License-Identifier: Apache-2.0
"""What the watches have seen: every object of ours as it was last, found by the job it belongs to.

The watches fill it, the loop looks into it to tell whether there is anything to do. What is done is decided on fresh
reads: a cache may be old. It also keeps the last states of deleted pods for a while, which can prove their deaths.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from airflow_provider_dispatch.adapters.kubeflow.client import ObjectList
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.resources import (
    JOBSETS,
    PODS,
    TRAINING_RUNTIMES,
    TRAINJOBS,
    WORKLOADS,
    Resource,
)
from airflow_provider_dispatch.adapters.kubeflow.object_table import ObjectTable

K = TypeVar("K")

TOMBSTONE_SECONDS = 900.0
"""How long a deleted pod's last state is kept. After that its death is proven by its node alone."""

KINDS = (TRAINJOBS, WORKLOADS, JOBSETS, PODS, TRAINING_RUNTIMES)
JobKey = tuple[str, str]
"""Namespace, and job id as labels carry it."""


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A pod that is gone.

    :param is_final: *pod* is the state in which it was deleted; otherwise merely the last one we saw.
    :param at: monotonic seconds.
    """

    pod: Raw
    is_final: bool
    at: float


class ObjectCache:
    """Objects by kind and UID, with the way from each to the TrainJobs that care.

    :param wake: called with the UID of each TrainJob that a change may concern, and with that of a probe's runtime.
    """

    def __init__(self, wake: Callable[[str], None], monotonic: Callable[[], float]) -> None:
        self._wake, self._monotonic = wake, monotonic
        self._table = ObjectTable(KINDS)
        self._owned: dict[Resource, defaultdict[str, set[str]]] = {
            kind: defaultdict(set) for kind in (WORKLOADS, JOBSETS)
        }
        self._by_job: dict[Resource, defaultdict[JobKey, set[str]]] = {
            kind: defaultdict(set) for kind in (TRAINJOBS, PODS, TRAINING_RUNTIMES)
        }
        self._tombstones: defaultdict[JobKey, dict[str, Tombstone]] = defaultdict(dict)

    # -- what the watches tell ---------------------------------------------------------------------------------------

    def put(self, kind: Resource, raw: Raw) -> None:
        """An object is there, or has changed."""
        if (kept := self._table.put(kind, raw)) is not None:
            self._learn(kind, kept)

    def note(self, kind: Resource, raw: Raw) -> None:
        """An object as we have just written or read it.

        One that the watch doesn't know is passed over: it may be deleted already, and nothing would take it out again.
        """
        if (kind, fields.uid(raw)) in self._table:
            self.put(kind, raw)

    def remove(self, kind: Resource, raw: Raw) -> None:
        """An object is gone; *raw* is the state in which it was deleted."""
        self._table.remove(kind, raw)
        self._forget(kind, raw, is_final=True)

    def replace(self, kind: Resource, namespace: str | None, listed: ObjectList) -> None:
        """Everything that is there now, of one namespace or of all."""
        changes = self._table.replace(kind, listed, namespace)
        for raw in changes.gone:
            self._forget(kind, raw, is_final=False)
        for raw in changes.news:
            self._learn(kind, raw)

    # -- what the loop asks ------------------------------------------------------------------------------------------

    def trainjob(self, uid: str) -> Raw | None:
        """The TrainJob with this UID."""
        return self._table.get(TRAINJOBS, uid)

    def trainjobs(self) -> list[Raw]:
        """All of them."""
        return self._table.list(TRAINJOBS)

    def workload(self, trainjob_uid: str) -> Raw | None:
        """Of that TrainJob; the newest, should there be an old one still."""
        return self._newest(WORKLOADS, trainjob_uid)

    def workloads(self) -> list[Raw]:
        """All, also of jobs that are none of ours."""
        return self._table.list(WORKLOADS)

    def jobset(self, trainjob_uid: str) -> Raw | None:
        """Of that TrainJob."""
        return self._newest(JOBSETS, trainjob_uid)

    def pods(self, job: JobKey) -> list[Raw]:
        """Of all submissions of that job."""
        return self._table.pick(PODS, self._by_job[PODS].get(job, ()))

    def runtime(self, trainjob: Raw) -> Raw | None:
        """The private runtime of that TrainJob: same job, same name."""
        found = self._table.pick(TRAINING_RUNTIMES, self._by_job[TRAINING_RUNTIMES].get(job_key(trainjob), ()))
        return next((runtime for runtime in found if fields.name(runtime) == fields.name(trainjob)), None)

    def probe(self, uid: str) -> Raw | None:
        """The runtime with this UID, if preflight has made it for a probe. No watch shows the probe itself."""
        runtime = self._table.get(TRAINING_RUNTIMES, uid)
        return runtime if runtime is not None and _is_of_probe(runtime) else None

    def tombstones(self, job: JobKey) -> dict[str, Tombstone]:
        """Pods of that job that are gone, by UID."""
        return dict(self._tombstones.get(job, {}))

    def sweep(self) -> None:
        """Forget what was kept long enough."""
        limit = self._monotonic() - TOMBSTONE_SECONDS
        for job, stones in list(self._tombstones.items()):
            kept = {uid: stone for uid, stone in stones.items() if stone.at > limit}
            if kept:
                self._tombstones[job] = kept
            else:
                del self._tombstones[job]

    # -- inside ------------------------------------------------------------------------------------------------------

    def _newest(self, kind: Resource, owner: str) -> Raw | None:
        found = self._table.pick(kind, self._owned[kind].get(owner, ()))
        # A Workload that is being deleted may stand beside the one that follows it.
        return max(
            found,
            key=lambda raw: (not fields.is_deleting(raw), fields.text(raw, "metadata", "creationTimestamp")),
            default=None,
        )

    def _learn(self, kind: Resource, raw: Raw) -> None:
        self._index(kind, raw)
        self._tell(kind, raw)

    def _forget(self, kind: Resource, raw: Raw, *, is_final: bool) -> None:
        if kind is PODS:
            self._bury(raw, is_final=is_final)
        self._tell(kind, raw)
        self._unindex(kind, raw)

    def _index(self, kind: Resource, raw: Raw) -> None:
        if kind in self._by_job:
            self._by_job[kind][job_key(raw)].add(fields.uid(raw))
        elif owner := owner_uid(raw):
            self._owned[kind][owner].add(fields.uid(raw))

    def _unindex(self, kind: Resource, raw: Raw) -> None:
        if kind in self._by_job:
            _discard(self._by_job[kind], job_key(raw), fields.uid(raw))
        elif owner := owner_uid(raw):
            _discard(self._owned[kind], owner, fields.uid(raw))

    def _tell(self, kind: Resource, raw: Raw) -> None:
        if kind is TRAINJOBS:
            self._wake(fields.uid(raw))
        elif kind in self._by_job:
            # A pod of an old submission stands in the way of the newest one.
            for uid in tuple(self._by_job[TRAINJOBS].get(job_key(raw), ())):
                self._wake(uid)
            if kind is TRAINING_RUNTIMES and _is_of_probe(raw):
                self._wake(fields.uid(raw))
        elif owner := owner_uid(raw):
            self._wake(owner)

    def _bury(self, pod: Raw, *, is_final: bool) -> None:
        self._tombstones[job_key(pod)][fields.uid(pod)] = Tombstone(pod, is_final, self._monotonic())


def job_key(raw: Raw) -> JobKey:
    """The job an object belongs to."""
    return place(raw), fields.label(raw, words.JOB_LABEL)


def place(raw: Raw) -> str:
    """Its namespace."""
    return fields.text(raw, "metadata", "namespace")


def owner_uid(raw: Raw) -> str:
    """UID of the TrainJob that controls an object; empty when none does."""
    for owner in fields.items(raw, "metadata", "ownerReferences"):
        if fields.text(owner, "kind") == TRAINJOBS.kind and fields.flag(owner, "controller"):
            return fields.text(owner, "uid")
    return ""


def _is_of_probe(runtime: Raw) -> bool:
    return fields.label(runtime, words.KIND_LABEL) == words.PROBE_KIND


def _discard(index: defaultdict[K, set[str]], key: K, uid: str) -> None:
    index[key].discard(uid)
    if not index[key]:
        del index[key]
