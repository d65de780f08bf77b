# SPDX-License-Identifier: Apache-2.0
"""The explored world as the controller's decisions see it, and their records as the world keeps them.

The world has no clock. Time appears only here: what has vanished vanished a while ago, and a node that is Ready counts
as Ready for long exactly when its kubelet has ended its orphans, which is what the waiting is for.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import cache

from airflow_provider_dispatch.adapters.kubeflow.model.controller_view import (
    ControllerSettings,
    LedgerView,
    NodeView,
    PodPhase,
    PodView,
    TrainJobView,
    WorkloadView,
    build_admission_key,
)
from airflow_provider_dispatch.adapters.kubeflow.model.execution_record import ExecutionRecord, RecordedPod, Slot
from airflow_provider_dispatch.core.holds import Actor, ActorKind, Hold, HoldBook
from tests.adapters.kubeflow.model.fence_explorer.world import (
    ADMITTED,
    BOUND,
    FAILED,
    GATED,
    GONE,
    LIFTED,
    QUEUED,
    SUCCEEDED,
    TERMINATING,
    Entry,
    JobSet,
    Pod,
    Record,
    TrainJob,
    Workload,
    World,
)

SETTINGS = ControllerSettings()
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
EARLIER = NOW - timedelta(hours=1)
LONG_AGO = NOW - timedelta(days=1)
HOLDER = Actor(ActorKind.POLICY, "adapter")
PHASES: dict[str, PodPhase] = {
    GATED: "Pending",
    LIFTED: "Pending",
    BOUND: "Running",
    TERMINATING: "Running",
    SUCCEEDED: "Succeeded",
    FAILED: "Failed",
}


@cache
def view_trainjob(trainjob: TrainJob, jobset: JobSet | None, submission: int, workload: Workload) -> TrainJobView:
    present = build_admission_key(view_workload(workload))
    return TrainJobView(
        uid=f"trainjob-{submission}",
        resource_version="judged",
        submission=submission,
        admissions=trainjob.a,
        admission_key=present if trainjob.raised else "another reservation",
        holds=_view_holds(trainjob),
        record=view_record(trainjob.record),
        is_suspended=trainjob.suspended,
        is_finished=trainjob.finished,
        jobset_uid=_name_jobset(jobset.uid) if jobset else None,
        restart=jobset.restart if jobset else 0,
    )


def _view_holds(trainjob: TrainJob) -> HoldBook:
    hold = Hold(trainjob.instance, "key", HOLDER, "", EARLIER)
    return HoldBook((hold,) if trainjob.held else (), trainjob.instance)


@cache
def view_workload(workload: Workload, is_quota_wanted: bool = False) -> WorkloadView:
    return WorkloadView(
        uid="workload",
        resource_version="judged",
        is_active=workload.active,
        has_quota=workload.status != QUEUED,
        reserved_at=None if workload.status == QUEUED else EARLIER,
        is_admitted=workload.status == ADMITTED,
        is_evicted=workload.evicted,
        check_state="Ready" if workload.ready else "Pending",
        hold_instance=workload.instance or None,
        is_quota_wanted=is_quota_wanted,
    )


@cache
def view_record(record: Record) -> ExecutionRecord:
    pods, undead = view_entries(record.pods), view_entries(record.undead)
    return ExecutionRecord(record.r, record.a, _name_jobset(record.jobset), record.restart, pods, undead)


@cache
def view_entries(entries: tuple[Entry, ...]) -> tuple[RecordedPod, ...]:
    return tuple(
        RecordedPod(
            slot=Slot("node", 0, entry.slot),
            uid=f"{entry.uid}",
            name=f"pod-{entry.uid}",
            node=f"node-{entry.node}" if entry.node else None,
            is_dead=entry.dead,
            vanished_at=EARLIER if entry.vanished else None,
            recorded_at=LONG_AGO,
            submission=entry.submission,
        )
        for entry in entries
    )


@cache
def view_pod(pod: Pod, is_gone: bool = False, failed_by_gc: bool = False) -> PodView:
    return PodView(
        uid=f"{pod.uid}",
        name=f"pod-{pod.uid}",
        namespace="team",
        role="node",
        job_index=0,
        completion_index=pod.slot,
        submission=pod.submission,
        jobset_uid=_name_jobset(pod.jobset),
        restart=pod.restart,
        phase="Failed" if failed_by_gc else PHASES[pod.object],
        is_deleting=pod.object == TERMINATING,
        has_fence=pod.object == GATED,
        node=f"node-{pod.node}" if pod.node else None,
        failed_by_gc=failed_by_gc,
        epoch=pod.epoch if pod.epoch > 0 else None,
        is_gone=is_gone,
    )


def view_pods(pods: Iterable[Pod]) -> tuple[PodView, ...]:
    """What an uncached list shows: objects, not processes."""
    return tuple(view_pod(pod._replace(process=0)) for pod in pods if pod.object != GONE)


def view_nodes(world: World) -> tuple[NodeView, ...]:
    settled = tuple(world.is_settled(number) for number in range(1, len(world.nodes) + 1))
    return _view_nodes(tuple(node.ready for node in world.nodes), settled)


@cache
def _view_nodes(ready: tuple[bool, ...], settled: tuple[bool, ...]) -> tuple[NodeView, ...]:
    return tuple(
        NodeView(f"node-{number}", is_ready, (LONG_AGO if is_settled else NOW) if is_ready else None)
        for number, (is_ready, is_settled) in enumerate(zip(ready, settled, strict=True), 1)
    )


def view_ledger(world: World) -> LedgerView:
    return LedgerView(world.submission, view_entries(world.ledger))


@cache
def keep_record(record: ExecutionRecord) -> Record:
    jobset = _number(record.jobset_uid) if record.jobset_uid else 0
    return Record(record.r, record.a, jobset, record.restart, keep_entries(record.pods), keep_entries(record.undead))


def keep_entries(pods: Iterable[RecordedPod]) -> tuple[Entry, ...]:
    return tuple(
        Entry(
            uid=int(pod.uid),
            slot=pod.slot.completion_index,
            submission=pod.submission,
            node=_number(pod.node) if pod.node else 0,
            dead=pod.is_dead,
            vanished=pod.vanished_at is not None,
        )
        for pod in pods
    )


def _name_jobset(uid: int) -> str:
    return f"jobset-{uid}" if uid else ""


def _number(name: str) -> int:
    return int(name.rpartition("-")[2])
