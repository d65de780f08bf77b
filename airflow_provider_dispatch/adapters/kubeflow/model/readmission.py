# SPDX-License-Identifier: Apache-2.0
"""What our admission check says of a reservation: Ready once nothing of the job's past can still be alive.

The controller calls :func:`decide_check` for each Workload that carries the check and writes the answer in its order,
each write with the resourceVersion it names; a refused write means to read and judge again. Nothing here writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from airflow_provider_dispatch.adapters.kubeflow.model.controller_view import (
    ControllerSettings,
    LedgerView,
    NodeView,
    PodView,
    TrainJobView,
    WorkloadView,
    build_admission_key,
)
from airflow_provider_dispatch.adapters.kubeflow.model.pod_deaths import (
    derive_record,
    describe_obstacles,
    describe_pod,
    describe_recorded,
)

MOST_DOUBLINGS = 10


@dataclass(frozen=True, slots=True)
class RaiseAdmissions:
    """Write A and the reservation it was raised for on the TrainJob.

    :param resource_version: of the TrainJob.
    """

    a: int
    key: str
    resource_version: str


@dataclass(frozen=True, slots=True)
class SetCheckReady:
    """Let Kueue admit the Workload.

    :param resource_version: of the Workload that was judged; without it a reservation that has changed would be let in.
    """

    message: str
    resource_version: str


@dataclass(frozen=True, slots=True)
class SetCheckPending:
    """Say what is waited for, or take back a Ready.

    :param resource_version: of the Workload.
    """

    message: str
    resource_version: str


@dataclass(frozen=True, slots=True)
class SetCheckRetry:
    """Give the quota back at once: no ``requeueAfterSeconds``, with which Kueue would keep it reserved.

    :param resource_version: of the Workload.
    """

    message: str
    resource_version: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Write nothing."""

    reason: str


CheckAction = RaiseAdmissions | SetCheckReady | SetCheckPending | SetCheckRetry | Wait


def decide_check(
    workload: WorkloadView,
    *,
    trainjob: TrainJobView,
    pods: Sequence[PodView],
    nodes: Sequence[NodeView],
    ledger: LedgerView,
    now: datetime,
    settings: ControllerSettings,
) -> tuple[CheckAction, ...]:
    """Judge the present reservation.

    :param pods: of all submissions, uncached, read after the TrainJob and the Workload.
    :return: at least one action.
    """
    refusal = _derive_refusal(workload, trainjob)
    if refusal:
        return (Wait(refusal),)
    key = build_admission_key(workload)
    if key is None:
        return (Wait("no quota is reserved"),)
    is_raised = key == trainjob.admission_key
    if workload.is_admitted or workload.check_state == "Ready":
        return (_judge_given(workload, is_raised=is_raised),)
    obstacles = _find_obstacles(trainjob, pods, nodes, ledger, now=now, settings=settings)
    if obstacles:
        return (_wait_for(obstacles, workload, now, settings),)
    ready = SetCheckReady("no pod of an earlier execution is left", workload.resource_version)
    return (ready,) if is_raised else (_build_raise(trainjob, key), ready)


def _derive_refusal(workload: WorkloadView, trainjob: TrainJobView) -> str:
    """Why the check says nothing at all; empty when it must judge."""
    if workload.is_finished or workload.is_deleting or trainjob.is_finished:
        return "the job has ended"
    if trainjob.is_stopping:
        return "the job is being stopped"
    if workload.is_evicted:
        # Retry on an evicted Workload leaves it stuck, and Kueue resets the check itself.
        return "the Workload is evicted"
    if trainjob.holds.is_held or not workload.is_active:
        return "the job is held"
    if workload.check_state not in ("Pending", "Ready"):
        return "the Workload doesn't carry our check" if workload.check_state is None else "Kueue acts on our answer"
    return ""


def _judge_given(workload: WorkloadView, *, is_raised: bool) -> CheckAction:
    """Ready outlives a reservation that is lost without an eviction, and would admit the next one unjudged."""
    if not is_raised:
        return SetCheckRetry("was Ready before this reservation was judged", workload.resource_version)
    return Wait("the Workload is admitted" if workload.is_admitted else "Kueue admits the Workload")


def _find_obstacles(
    trainjob: TrainJobView,
    pods: Sequence[PodView],
    nodes: Sequence[NodeView],
    ledger: LedgerView,
    *,
    now: datetime,
    settings: ControllerSettings,
) -> tuple[str, ...]:
    """Every pod that is left, a gated one included, and every recorded one whose end nobody saw.

    A finished initializer stays as an object and blocks nothing.
    """
    record = derive_record(trainjob, pods=pods, nodes=nodes, ledger=ledger, now=now, settings=settings)
    left = {pod.uid: pod for pod in pods if pod.is_left}
    missing = (describe_recorded(pod, None) for pod in record.unproven if pod.uid not in left)
    return (*(describe_pod(pod) for pod in left.values()), *missing)


def _wait_for(
    obstacles: Sequence[str], workload: WorkloadView, now: datetime, settings: ControllerSettings
) -> CheckAction:
    """Keep the reservation, unless somebody else wants the quota and it was kept long enough."""
    message = describe_obstacles(obstacles)
    if workload.is_quota_wanted and workload.reserved_at is not None:
        patience = settings.retry_after * 2 ** min(workload.retries, MOST_DOUBLINGS)
        if now - workload.reserved_at >= min(patience, settings.longest_retry_after):
            return SetCheckRetry(message, workload.resource_version)
    if workload.check_message == message:
        return Wait(message)
    return SetCheckPending(message, workload.resource_version)


def _build_raise(trainjob: TrainJobView, key: str) -> RaiseAdmissions:
    """An execution's A can lie above the admissions counted so far, and the next one must lie above both."""
    return RaiseAdmissions(max(trainjob.admissions, trainjob.record.a) + 1, key, trainjob.resource_version)
