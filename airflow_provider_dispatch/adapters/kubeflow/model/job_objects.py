# SPDX-License-Identifier: Apache-2.0
"""All objects of a job, of every submission, and the choice of those that make up one.

Reads and the watch's cache fill it; what comes out goes into the derivation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.object_set import ObjectSet
from airflow_provider_dispatch.adapters.kubeflow.model.resources import (
    JOBS,
    JOBSETS,
    PODS,
    TRAINING_RUNTIMES,
    TRAINJOBS,
    WORKLOADS,
    Resource,
)
from airflow_provider_dispatch.adapters.kubeflow.model.submission import is_of_submission, read_submission_number
from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.core.job_ref import JobRef


@dataclass(frozen=True, slots=True)
class JobObjects:
    """Objects of one job by kind, in any order."""

    namespace: str
    objects: Mapping[Resource, Iterable[Raw]]
    ledger: Raw | None = field(default=None, compare=False)

    def of(self, resource: Resource) -> Iterable[Raw]:
        """Those of one kind."""
        return self.objects.get(resource, ())


def select_objects(found: JobObjects, target: JobRef | JobID) -> ObjectSet:
    """The objects of one submission: the one named, or the newest that has left anything.

    A TrainJob of another UID than the one named is somebody else's and left out.
    """
    if isinstance(target, JobRef):
        number, uid = target.submission, target.uid
    else:
        labelled = (raw for kind in (TRAINJOBS, JOBSETS, JOBS, PODS, TRAINING_RUNTIMES) for raw in found.of(kind))
        number, uid = max(map(read_submission_number, labelled), default=0), ""
    trainjob = _pick(raw for raw in _of_submission(found, TRAINJOBS, number) if uid in ("", fields.uid(raw)))
    owner = fields.uid(trainjob) or uid
    return ObjectSet(
        found.namespace,
        trainjob=trainjob,
        workload=_pick(raw for raw in found.of(WORKLOADS) if owner and fields.has_controller(raw, owner)),
        jobset=_pick(
            raw for raw in _of_submission(found, JOBSETS, number) if not owner or fields.has_controller(raw, owner)
        ),
        runtime=_pick(_of_submission(found, TRAINING_RUNTIMES, number)),
        ledger=found.ledger,
        jobs=tuple(_of_submission(found, JOBS, number)),
        pods=tuple(_of_submission(found, PODS, number)),
    )


def _of_submission(found: JobObjects, resource: Resource, number: int) -> Iterable[Raw]:
    return (raw for raw in found.of(resource) if is_of_submission(raw, number))


def _pick(candidates: Iterable[Raw]) -> Raw | None:
    """One that is being deleted may stand beside the one that follows it."""
    return max(
        candidates,
        key=lambda raw: (not fields.is_deleting(raw), fields.text(raw, "metadata", "creationTimestamp")),
        default=None,
    )
