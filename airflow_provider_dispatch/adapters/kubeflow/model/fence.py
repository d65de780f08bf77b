# SPDX-License-Identifier: Apache-2.0
"""Which pods of a job may start now, and under which epoch.

The controller calls :func:`decide_fence` after every change of a job: first it writes the plan's record with the
resourceVersion of the TrainJob it judged, then it reads TrainJob and Workload again and asks :func:`derive_refusal`,
then it lifts. Killed in between, it finds the recorded pods still gated and lifts them. Nothing here writes or lifts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
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
from airflow_provider_dispatch.adapters.kubeflow.model.execution_record import ExecutionRecord, Slot
from airflow_provider_dispatch.adapters.kubeflow.model.pod_deaths import (
    build_recorded,
    derive_deaths,
    derive_record,
    describe_obstacles,
    describe_pod,
    describe_recorded,
    is_proven_dead,
)
from airflow_provider_dispatch.core.identity import HIGHEST_R, build_epoch

__all__ = ["FencePlan", "Lift", "decide_fence", "derive_deaths", "derive_refusal", "is_proven_dead"]


@dataclass(frozen=True, slots=True)
class Lift:
    """One pod to lift: a patch that tests UID and gate, removes the gate and writes A, J and epoch."""

    uid: str
    name: str
    namespace: str
    a: int
    j: int
    epoch: int


@dataclass(frozen=True, slots=True)
class FencePlan:
    """What to do, in this order.

    :param record: to be written before anything else, on the TrainJob with its resourceVersion and then in the ledger;
        None when what is written there is right.
    :param lifts: only after the record is written and nothing speaks against it any more.
    :param reason: why nothing is lifted, for people; empty when something is.
    :param should_suspend: plain mode only. Pods of a broken execution live on and keep their own replacements out:
        nobody but us would ever end them.
    """

    record: ExecutionRecord | None = None
    lifts: tuple[Lift, ...] = ()
    reason: str = ""
    should_suspend: bool = False


def decide_fence(
    trainjob: TrainJobView,
    *,
    workload: WorkloadView | None,
    pods: Sequence[PodView],
    nodes: Sequence[NodeView],
    ledger: LedgerView,
    now: datetime,
    settings: ControllerSettings,
) -> FencePlan:
    """Join pods to the open execution, or begin a new one once every pod of the old one is proven dead.

    :param workload: None in plain mode, where "admitted" means not suspended.
    :param pods: of all submissions, uncached, and the last states of deleted ones that the watch delivered; read after
        the TrainJob.
    :param nodes: all nodes of the cluster; one that is missing counts as destroyed.
    """
    record = derive_record(trainjob, pods=pods, nodes=nodes, ledger=ledger, now=now, settings=settings)
    noted = record if record != trainjob.record else None
    refusal = derive_refusal(trainjob, workload)
    if refusal:
        return FencePlan(noted, reason=refusal)
    candidates = find_candidates(trainjob, pods)
    if is_open(record, trainjob, pods, candidates):
        return _plan_joining(record, trainjob, candidates, now)
    if not candidates:
        return FencePlan(noted, reason="no pod waits at the fence")
    obstacles = find_obstacles(record, pods, trainjob.submission)
    if obstacles:
        return FencePlan(noted, reason=describe_obstacles(obstacles), should_suspend=_is_stuck(trainjob, record, pods))
    # While it is seen or carried, a dead pod stays noted as that: it would be taken for a stranger again.
    kept = {pod.uid for pod in ledger.undead} | {pod.uid for pod in pods}
    return _plan_execution(record, trainjob, candidates, kept, now)


def derive_refusal(trainjob: TrainJobView, workload: WorkloadView | None) -> str:
    """Why no pod may be lifted whatever the pods are; empty when none speaks against it.

    Also asked between the record's write and the first lift, of objects that were read anew.
    """
    if trainjob.is_finished:
        return "the job has ended"
    if trainjob.is_stopping:
        return "the job is being stopped"
    if trainjob.holds.is_held:
        return "the job is held"
    if trainjob.jobset_uid is None:
        return "there is no JobSet"
    if trainjob.is_plain:
        return "the TrainJob is suspended" if trainjob.is_suspended else ""
    if workload is None or workload.is_deleting or workload.is_finished:
        return "there is no Workload, or it has ended"
    if not workload.is_active:
        return "the Workload is inactive"
    if not workload.is_admitted or workload.is_evicted:
        return "the Workload is not admitted"
    if trainjob.admission_key != build_admission_key(workload):
        return "A was not raised for this admission"
    return ""


def find_candidates(trainjob: TrainJobView, pods: Sequence[PodView]) -> dict[Slot, PodView]:
    """The pods that the present JobSet made and that wait at the fence, one a slot, recorded ones before others."""
    recorded = {pod.uid for pod in trainjob.record.pods}
    found: dict[Slot, PodView] = {}
    for pod in sorted(pods, key=lambda pod: (pod.uid not in recorded, pod.uid)):
        if _is_candidate(pod, trainjob):
            found.setdefault(pod.slot, pod)
    return found


def is_open(
    record: ExecutionRecord, trainjob: TrainJobView, pods: Sequence[PodView], candidates: Mapping[Slot, PodView]
) -> bool:
    """The recorded execution still runs as it began, so that pods of unused slots may join it.

    A recorded pod that succeeded closes nothing: a startup order waits for just that.
    """
    if not record.pods or trainjob.admissions > record.a:
        return False
    if (record.jobset_uid, record.restart) != (trainjob.jobset_uid, trainjob.restart):
        return False
    seen = {pod.uid: pod for pod in pods}
    return not any(
        has_left(seen.get(pod.uid)) or candidates.get(pod.slot, seen[pod.uid]).uid != pod.uid for pod in record.pods
    )


def has_left(pod: PodView | None) -> bool:
    """A recorded pod that is ending, has failed or is gone: its execution can't become whole again."""
    return pod is None or pod.is_gone or pod.is_deleting or pod.phase == "Failed"


def find_obstacles(record: ExecutionRecord, pods: Sequence[PodView], submission: int) -> tuple[str, ...]:
    """Everything that may still be alive of other executions, each by name and node.

    :param record: with deaths noted, and with strangers and pods of earlier submissions in it.
    """
    seen = {pod.uid: pod for pod in pods}
    unproven = {pod.uid: describe_recorded(pod, seen.get(pod.uid)) for pod in record.unproven}
    # A gated pod of ours can wait; one of another submission may be lifted by a controller that is late.
    older = (pod for pod in pods if pod.is_left and pod.submission != submission)
    return tuple((unproven | {pod.uid: describe_pod(pod) for pod in older}).values())


def _is_candidate(pod: PodView, trainjob: TrainJobView) -> bool:
    made_by = (pod.submission, pod.jobset_uid, pod.restart)
    # One that garbage collection has failed at the fence is left, and can't become a part of anything any more.
    is_waiting = pod.has_fence and pod.is_left and not has_left(pod)
    return is_waiting and made_by == (trainjob.submission, trainjob.jobset_uid, trainjob.restart)


def _is_stuck(trainjob: TrainJobView, record: ExecutionRecord, pods: Sequence[PodView]) -> bool:
    if not trainjob.is_plain:
        return False
    recorded = {pod.uid for pod in record.pods}
    present = (trainjob.jobset_uid, trainjob.restart)
    return any(
        pod.uid in recorded and pod.is_left and not pod.is_deleting and (pod.jobset_uid, pod.restart) == present
        for pod in pods
    )


def _plan_joining(
    record: ExecutionRecord, trainjob: TrainJobView, candidates: Mapping[Slot, PodView], now: datetime
) -> FencePlan:
    used = {pod.slot for pod in record.pods}
    new = (build_recorded(pod, now) for slot, pod in sorted(candidates.items()) if slot not in used)
    joined = replace(record, pods=(*record.pods, *new))
    lifts = _build_lifts(joined, trainjob.submission, candidates)
    reason = "" if lifts else "no pod waits at the fence"
    return FencePlan(joined if joined != trainjob.record else None, lifts, reason)


def _plan_execution(
    record: ExecutionRecord,
    trainjob: TrainJobView,
    candidates: Mapping[Slot, PodView],
    kept: Collection[str],
    now: datetime,
) -> FencePlan:
    """R grows by at least one, and reaches A + J.

    :param kept: UIDs of dead pods of other executions that stay in the record.
    """
    r = max(trainjob.admissions + trainjob.restart, record.r + 1)
    if r > HIGHEST_R:
        noted = record if record != trainjob.record else None
        return FencePlan(noted, reason=f"R would be {r}, above {HIGHEST_R}: stop the job and start a new submission")
    new = replace(
        record,
        r=r,
        a=r - trainjob.restart,
        jobset_uid=trainjob.jobset_uid or "",
        restart=trainjob.restart,
        pods=tuple(build_recorded(pod, now) for _, pod in sorted(candidates.items())),
        undead=tuple(replace(pod, is_dead=True) for pod in record.undead if pod.uid in kept),
    )
    return FencePlan(new, _build_lifts(new, trainjob.submission, candidates))


def _build_lifts(record: ExecutionRecord, submission: int, candidates: Mapping[Slot, PodView]) -> tuple[Lift, ...]:
    """Every candidate: by now all are recorded."""
    epoch = build_epoch(submission, record.r)
    return tuple(
        Lift(pod.uid, pod.name, pod.namespace, record.a, record.restart, epoch) for _, pod in sorted(candidates.items())
    )
