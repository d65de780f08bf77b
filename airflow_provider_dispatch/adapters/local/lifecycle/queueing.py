# SPDX-License-Identifier: Apache-2.0
"""Between submissions and admission: which of them wait for room, which have it, and what a plan means for a status.

Only :mod:`.machine` uses it.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from datetime import datetime

from airflow_provider_dispatch.adapters.local.lifecycle.status import Ending, Key, Status, Submission
from airflow_provider_dispatch.adapters.local.scheduling.demand import sum_shapes
from airflow_provider_dispatch.adapters.local.scheduling.model import (
    NEVER,
    RANKS,
    AdmissionState,
    Node,
    PlacedJob,
    Placement,
    Queue,
    Reservation,
    Shape,
    WaitingJob,
)
from airflow_provider_dispatch.core.observation import Pending
from airflow_provider_dispatch.core.state import Cause


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """The machine and its queues.

    :param has_open_queues: any queue name is fine and without limit; else only those of *queues*.
    :param starvation_after: seconds; see the admission state.
    """

    node: Node
    queues: tuple[Queue, ...] = ()
    has_open_queues: bool = True
    starvation_after: float = 60.0


@dataclass(frozen=True, slots=True)
class Job:
    """A submission and its status, with what admission needs computed once."""

    submission: Submission
    status: Status
    shapes: tuple[Shape, ...]
    placement: Placement = ()

    @property
    def admission_key(self) -> str:
        """Its name in the admission state."""
        job, submission = self.submission.key
        return f"{job}.{submission}"


def build_shapes(submission: Submission) -> tuple[Shape, ...]:
    """What the roles of a submission ask for; each rank also takes one of the machine's places."""
    return tuple(Shape(role.nodes, {RANKS: 1, **role.requests}) for role in submission.request.spec.roles)


def build_placement(shapes: tuple[Shape, ...], node: str) -> Placement:
    """The whole request on one node: where an execution of an earlier agent is."""
    return ((node, sum_shapes(shapes)),)


def build_waiting(job: Job) -> WaitingJob:
    """A job that wants room."""
    since = job.status.queued_since or job.submission.created_at
    submission = job.submission
    return WaitingJob(job.admission_key, submission.queue, job.shapes, submission.priority, since.timestamp())


def build_placed(job: Job) -> PlacedJob:
    """A job that has room, wanted or ending."""
    execution = job.status.execution
    is_ending = execution is not None and execution.ending not in (None, Ending.RESTART)
    return PlacedJob(
        key=job.admission_key,
        queue=job.submission.queue,
        placement=job.placement,
        priority=job.submission.priority,
        admitted_at=execution.started_at.timestamp() if execution is not None else 0.0,
        is_ending=is_ending,
    )


def wants_room(job: Job) -> bool:
    """It is to run, has not ended and has no processes."""
    return job.submission.is_wanted and job.status.end is None and job.status.execution is None


def derive_postponements(jobs: Mapping[Key, Job], now: datetime) -> dict[Key, Pending]:
    """The jobs that want room and aren't offered any yet, and why."""
    found = ((key, _derive_postponement(job, jobs, now)) for key, job in jobs.items() if wants_room(job))
    return {key: pending for key, pending in found if pending is not None}


def _derive_postponement(job: Job, jobs: Mapping[Key, Job], now: datetime) -> Pending | None:
    request = job.submission.request
    if request.not_before is not None and now < request.not_before:
        return Pending(
            "not_before", f"it is not to be admitted before {request.not_before.isoformat(timespec='seconds')}"
        )
    for number in range(1, request.submission):
        sibling = jobs.get((request.job, number))
        if sibling is not None and sibling.status.execution is not None:
            return Pending("ending", f"processes of submission {number} are still ending")
    return None


def build_state(
    jobs: Mapping[Key, Job], config: NodeConfig, reservations: tuple[Reservation, ...], postponed: Container[Key]
) -> AdmissionState:
    """All jobs as admission sees them.

    :param postponed: those that it isn't to see.
    """
    return AdmissionState(
        nodes=(config.node,),
        queues=config.queues,
        waiting=tuple(build_waiting(job) for key, job in jobs.items() if wants_room(job) and key not in postponed),
        placed=tuple(build_placed(job) for job in jobs.values() if job.status.execution is not None),
        reservations=reservations,
        starvation_after=config.starvation_after,
        has_open_queues=config.has_open_queues,
    )


def derive_waiting_changes(status: Status, pending: Pending) -> dict[str, object]:
    """The fields of the status that a reason changes; empty when it says nothing new."""
    cause = Cause.NO_CAPACITY if pending.code in NEVER else None
    detail = pending.message if cause is not None else ""
    if (status.pending, status.cause, status.detail) == (pending, cause, detail):
        return {}
    return {"pending": pending, "cause": cause, "detail": detail}
