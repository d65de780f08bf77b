# SPDX-License-Identifier: Apache-2.0
"""Ways to keep a rule from seeing what it looks at: the decision is the code's own, the world it is asked about isn't.

:mod:`.spoilt` names the rule that each blindness takes out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from airflow_provider_dispatch.adapters.kubeflow.model.controller_view import (
    LedgerView,
    NodeView,
    PodPhase,
    PodView,
    TrainJobView,
    WorkloadView,
    build_admission_key,
)
from airflow_provider_dispatch.adapters.kubeflow.model.execution_record import RecordedPod
from airflow_provider_dispatch.adapters.kubeflow.model.fence import FencePlan, decide_fence, derive_refusal, has_left
from airflow_provider_dispatch.adapters.kubeflow.model.readmission import CheckAction, decide_check
from airflow_provider_dispatch.core.holds import HoldBook
from tests.adapters.kubeflow.model.fence_explorer.protocol import Protocol
from tests.adapters.kubeflow.model.fence_explorer.views import EARLIER, LONG_AGO


@dataclass(frozen=True)
class Sight:
    """What a decision is asked about."""

    trainjob: TrainJobView
    workload: WorkloadView
    pods: tuple[PodView, ...]
    nodes: tuple[NodeView, ...]
    ledger: LedgerView

    def hide(self, is_hidden: Callable[[PodView], bool]) -> Sight:
        return replace(self, pods=tuple(pod for pod in self.pods if not is_hidden(pod)))

    def believe_dead(self, is_dead: Callable[[RecordedPod], bool]) -> Sight:
        def believe(pods: tuple[RecordedPod, ...]) -> tuple[RecordedPod, ...]:
            return tuple(replace(pod, is_dead=pod.is_dead or is_dead(pod)) for pod in pods)

        record = self.trainjob.record
        believed = replace(record, pods=believe(record.pods), undead=believe(record.undead))
        ledger = LedgerView(self.ledger.submission, believe(self.ledger.undead))
        return replace(self, trainjob=replace(self.trainjob, record=believed), ledger=ledger)


Blindness = Callable[[Sight], Sight]


def blind_check(blindness: Blindness) -> Callable[..., tuple[CheckAction, ...]]:
    """The check, asked about what is left to see."""

    def ask(workload, *, trainjob, pods, nodes, ledger, now, settings) -> tuple[CheckAction, ...]:
        seen = blindness(Sight(trainjob, workload, pods, nodes, ledger))
        return decide_check(
            seen.workload,
            trainjob=seen.trainjob,
            pods=seen.pods,
            nodes=seen.nodes,
            ledger=seen.ledger,
            now=now,
            settings=settings,
        )

    return ask


def blind_fence(blindness: Blindness, *, only_when_stuck: bool = False) -> Callable[..., FencePlan]:
    """The fence, asked about what is left to see.

    :param only_when_stuck: asked honestly first, and blindly where it lifts nothing: spoils one rule and no other.
    """

    def ask(trainjob, *, workload, pods, nodes, ledger, now, settings) -> FencePlan:
        sights = [blindness(Sight(trainjob, workload, pods, nodes, ledger))]
        if only_when_stuck:
            sights.insert(0, Sight(trainjob, workload, pods, nodes, ledger))
        plan = FencePlan()
        for seen in sights:
            plan = decide_fence(
                seen.trainjob,
                workload=seen.workload,
                pods=seen.pods,
                nodes=seen.nodes,
                ledger=seen.ledger,
                now=now,
                settings=settings,
            )
            if plan.lifts or trainjob.is_stopping:
                break
        return plan

    return ask


def blind_refusal(blindness: Blindness) -> Callable[[TrainJobView, WorkloadView | None], str]:
    def ask(trainjob: TrainJobView, workload: WorkloadView | None) -> str:
        assert workload is not None
        seen = blindness(Sight(trainjob, workload, (), (), LedgerView()))
        return derive_refusal(seen.trainjob, seen.workload)

    return ask


def blind_all(blindness: Blindness) -> Protocol:
    """Check and fence share the same blindness."""
    return Protocol(blind_check(blindness), blind_fence(blindness), blind_refusal(blindness))


def fearless(blindness: Blindness) -> Protocol:
    """The fence alone, where it would wait."""
    return Protocol(decide_fence=blind_fence(blindness, only_when_stuck=True))


# -- blindnesses -------------------------------------------------------------------------------------------------------


def sees_no_pods(sight: Sight) -> Sight:
    return replace(sight, pods=())


def sees_no_record(sight: Sight) -> Sight:
    record = replace(sight.trainjob.record, pods=(), undead=())
    return replace(sight, trainjob=replace(sight.trainjob, record=record), ledger=LedgerView())


def sees_no_hold(sight: Sight) -> Sight:
    return replace(sight, trainjob=replace(sight.trainjob, holds=HoldBook()))


def sees_reservation(sight: Sight) -> Sight:
    workload = replace(sight.workload, is_active=True, is_evicted=False, has_quota=True, reserved_at=EARLIER)
    return replace(sight, workload=workload)


def sees_admission(sight: Sight) -> Sight:
    seen = sees_raised(sees_reservation(sight))
    return replace(seen, workload=replace(seen.workload, is_admitted=True))


def sees_raised(sight: Sight) -> Sight:
    key = build_admission_key(sight.workload)
    return replace(sight, trainjob=replace(sight.trainjob, admission_key=key))


def sees_all_dead(sight: Sight) -> Sight:
    return sight.believe_dead(lambda pod: True).hide(lambda pod: not pod.has_fence)


def sees_gated_as_dead(sight: Sight) -> Sight:
    gated = {pod.uid for pod in sight.pods if pod.has_fence}
    return sight.believe_dead(lambda pod: pod.uid in gated)


def sees_vanished_as_dead(sight: Sight) -> Sight:
    there = {pod.uid for pod in sight.pods if not pod.is_gone}
    return sight.believe_dead(lambda pod: pod.uid not in there)


def sees_no_foreign(sight: Sight) -> Sight:
    ours = {pod.uid for pod in sight.trainjob.record.pods}
    return sight.hide(
        lambda pod: pod.submission == sight.trainjob.submission and not pod.has_fence and pod.uid not in ours
    )


def sees_no_other_submission(sight: Sight) -> Sight:
    return sight.hide(lambda pod: pod.submission != sight.trainjob.submission)


def trusts_garbage_collection(sight: Sight) -> Sight:
    return replace(sight, pods=tuple(replace(pod, failed_by_gc=False) for pod in sight.pods))


def trusts_ready_nodes(sight: Sight) -> Sight:
    nodes = tuple(replace(node, ready_since=LONG_AGO if node.is_ready else None) for node in sight.nodes)
    return replace(sight, nodes=nodes)


def waits_for_unknown_node(sight: Sight) -> Sight:
    """A vanished pod whose node nobody knows is sought on a node that never answers."""
    return replace(sight, nodes=(*sight.nodes, NodeView("nowhere", is_ready=False))) if _lost(sight) else sight


def _lost(sight: Sight) -> bool:
    there = {pod.uid for pod in sight.pods}
    record = sight.trainjob.record
    return any(pod.uid not in there and pod.node is None for pod in (*record.pods, *record.undead))


def sees_no_replacement(sight: Sight) -> Sight:
    """Recorded pods that have been replaced leave the record, and their successors join as if the slot were free."""
    there = {pod.uid for pod in sight.pods if not pod.is_gone and not pod.is_deleting and pod.phase != "Failed"}
    record = sight.trainjob.record
    kept = tuple(pod for pod in record.pods if pod.uid in there)
    if not kept and record.pods:
        # An empty record is never open: a pod that ended well keeps it so.
        kept = (replace(record.pods[0], slot=replace(record.pods[0].slot, role="nobody"), is_dead=True),)
        stand_in = _build_stand_in(kept[0], "Succeeded")
        sight = replace(sight, pods=(*(pod for pod in sight.pods if pod.uid != stand_in.uid), stand_in))
    return replace(sight, trainjob=replace(sight.trainjob, record=replace(record, pods=kept)))


def sees_no_end(sight: Sight) -> Sight:
    """Recorded pods that are ending, have failed or are gone seem to run."""
    seen = {pod.uid: pod for pod in sight.pods}
    left = {pod.uid: pod for pod in sight.trainjob.record.pods if has_left(seen.get(pod.uid))}
    stand_ins = (_build_stand_in(pod, "Running") for pod in left.values())
    return replace(sight, pods=(*sight.hide(lambda pod: pod.uid in left).pods, *stand_ins))


def sees_success_as_failure(sight: Sight) -> Sight:
    """As dead as before, but not as it should be."""
    pods = (replace(pod, phase="Failed") if pod.phase == "Succeeded" else pod for pod in sight.pods)
    return replace(sight, pods=tuple(pods))


def _build_stand_in(pod: RecordedPod, phase: PodPhase) -> PodView:
    place = (pod.slot.role, pod.slot.job_index, pod.slot.completion_index)
    return PodView(pod.uid, pod.name, "team", *place, pod.submission, "", 0, phase=phase, node=pod.node)


def sees_one_generation(sight: Sight) -> Sight:
    """The recorded execution seems to be of the JobSet and restart there are now."""
    record, trainjob = sight.trainjob.record, sight.trainjob
    seen = replace(record, jobset_uid=trainjob.jobset_uid or "", restart=trainjob.restart)
    return replace(sight, trainjob=replace(trainjob, record=seen))


def sees_no_new_admission(sight: Sight) -> Sight:
    trainjob = sight.trainjob
    return replace(sight, trainjob=replace(trainjob, admissions=min(trainjob.admissions, trainjob.record.a or 1)))
