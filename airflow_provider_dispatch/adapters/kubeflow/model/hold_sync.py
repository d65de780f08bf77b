# SPDX-License-Identifier: Apache-2.0
"""Bring the Workload in line with the holds that the TrainJob records, end holds whose time is over, and end what is
left of a job that has failed by our word alone.

Adapters write the record first and the Workload second; the controller calls :func:`decide_hold_sync` after every
change and completes what a crash, a recreated Workload or another implementation left half done. Nothing here writes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from airflow_provider_dispatch.adapters.kubeflow.model.controller_view import TrainJobView, WorkloadView
from airflow_provider_dispatch.adapters.kubeflow.model.readmission import SetCheckPending
from airflow_provider_dispatch.core.holds import Actor, ActorKind, Hold, HoldBook, lift_expired


@dataclass(frozen=True, slots=True)
class WriteHolds:
    """Write the hold book on the TrainJob.

    :param resource_version: of the TrainJob.
    :param resume: plain mode: set ``suspend`` to false in the same patch.
    """

    book: HoldBook
    resource_version: str
    resume: bool = False


@dataclass(frozen=True, slots=True)
class DeactivateWorkload:
    """Make the Workload inactive and show this hold in its annotations.

    :param resource_version: of the Workload.
    """

    hold: Hold
    resource_version: str


@dataclass(frozen=True, slots=True)
class ActivateWorkload:
    """Make the Workload active and take our hold annotations away.

    :param resource_version: of the Workload.
    """

    resource_version: str


@dataclass(frozen=True, slots=True)
class SuspendTrainJob:
    """Plain mode: set ``suspend`` to true.

    :param resource_version: of the TrainJob.
    """

    resource_version: str
    reason: str = "the job is held"


@dataclass(frozen=True, slots=True)
class EndWorkload:
    """Make the Workload of a failed job inactive, with no hold shown on it: nobody is to release it.

    :param resource_version: of the Workload.
    """

    resource_version: str


HoldAction = WriteHolds | DeactivateWorkload | ActivateWorkload | SuspendTrainJob | EndWorkload | SetCheckPending
GIVEN_UP_PATIENCE = timedelta(seconds=10)
"""From a failure to our ending what is left. JobSet, which ends it in the usual case, is to see the failure first."""


def decide_hold_sync(trainjob: TrainJobView, *, workload: WorkloadView | None, now: datetime) -> HoldAction | None:
    """The next write that is missing; None when record and Workload agree.

    :param workload: None in plain mode, or while Kueue has not made it yet.
    """
    # A finished job first: an inactive Workload that has finished means nothing.
    if trainjob.is_finished or trainjob.is_stopping:
        return None if trainjob.is_stopping else _decide_end(trainjob, workload, now)
    book, over = lift_expired(trainjob.holds, now)
    if over:
        resume = trainjob.is_plain and not book.is_held and not trainjob.is_gated
        return WriteHolds(book, trainjob.resource_version, resume=resume)
    if trainjob.is_plain:
        is_running = book.is_held and not trainjob.is_suspended
        return SuspendTrainJob(trainjob.resource_version) if is_running else None
    if workload is None or workload.is_finished or workload.is_deleting:
        return None
    return _decide_workload(trainjob, workload, now) or _decide_reset(trainjob, workload)


def _decide_end(trainjob: TrainJobView, workload: WorkloadView | None, now: datetime) -> HoldAction | None:
    """What has failed keeps neither its pods nor its quota, also where Kubernetes sees no failure."""
    if trainjob.given_up_at is None or now < trainjob.given_up_at + GIVEN_UP_PATIENCE:
        return None
    if trainjob.is_plain:
        return None if trainjob.is_suspended else SuspendTrainJob(trainjob.resource_version, "the job has failed")
    if workload is None or workload.is_finished or workload.is_deleting or not workload.is_active:
        return None
    return EndWorkload(workload.resource_version)


def _decide_workload(trainjob: TrainJobView, workload: WorkloadView, now: datetime) -> HoldAction | None:
    """Record and Workload, compared by the instance that the Workload shows."""
    book, shown = trainjob.holds, workload.hold_instance
    if not workload.is_active and not workload.is_deactivated_by_kueue and (shown or 0) > book.last_instance:
        return WriteHolds(_build_copied(book, workload, now), trainjob.resource_version)
    if book.is_held:
        newest = max(book.active, key=lambda hold: hold.instance)
        # Inactive without an instance is somebody else's doing: put our name on it and a release would lift theirs.
        is_shown = shown == newest.instance or shown is None
        is_done = not workload.is_active and is_shown
        return None if is_done else DeactivateWorkload(newest, workload.resource_version)
    if workload.is_active or workload.is_deactivated_by_kueue or shown is None:
        return None
    return ActivateWorkload(workload.resource_version)


def _decide_reset(trainjob: TrainJobView, workload: WorkloadView) -> HoldAction | None:
    """A Ready that waits for a release or for a reservation would admit unjudged."""
    if workload.check_state != "Ready" or workload.is_admitted:
        return None
    if workload.has_quota and workload.is_active and not trainjob.holds.is_held:
        return None
    return SetCheckPending("to be judged again", workload.resource_version)


def _build_copied(book: HoldBook, workload: WorkloadView, now: datetime) -> HoldBook:
    """The book with a hold that stands only on the Workload; one that the record knows as released never comes back."""
    instance = workload.hold_instance or 0
    hold = workload.hold or Hold(instance, f"workload/{instance}", Actor(ActorKind.SYSTEM, "unknown"), "", now)
    return HoldBook((*book.active, replace(hold, instance=instance)), instance)
