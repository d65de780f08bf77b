# SPDX-License-Identifier: Apache-2.0
"""The protocol with one rule taken out at a time, and bounds within which that must be seen.

No rule is copied and none is switched off inside the code: the decision is asked about a world that hides what the rule
looks at, or its answer is changed, or the shell breaks a habit. A rule that two others cover is taken out with them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from airflow_provider_dispatch.adapters.kubeflow.model.controller_view import (
    LedgerView,
    NodeView,
    PodView,
    TrainJobView,
    WorkloadView,
    build_admission_key,
)
from airflow_provider_dispatch.adapters.kubeflow.model.execution_record import RecordedPod
from airflow_provider_dispatch.adapters.kubeflow.model.fence import FencePlan, decide_fence, derive_refusal
from airflow_provider_dispatch.adapters.kubeflow.model.readmission import (
    CheckAction,
    RaiseAdmissions,
    SetCheckRetry,
    decide_check,
)
from airflow_provider_dispatch.core.holds import HoldBook
from airflow_provider_dispatch.core.identity import build_epoch
from tests.adapters.kubeflow.model.fence_explorer.protocol import Protocol
from tests.adapters.kubeflow.model.fence_explorer.views import EARLIER, LONG_AGO
from tests.adapters.kubeflow.model.fence_explorer.world import Bounds


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
        stand_in = _build_stand_in(kept[0])
        sight = replace(sight, pods=(*(pod for pod in sight.pods if pod.uid != stand_in.uid), stand_in))
    return replace(sight, trainjob=replace(sight.trainjob, record=replace(record, pods=kept)))


def _build_stand_in(pod: RecordedPod) -> PodView:
    return PodView(pod.uid, pod.name, "team", "nobody", 0, 0, pod.submission, "", 0, phase="Succeeded")


def sees_one_generation(sight: Sight) -> Sight:
    """The recorded execution seems to be of the JobSet and restart there are now."""
    record, trainjob = sight.trainjob.record, sight.trainjob
    seen = replace(record, jobset_uid=trainjob.jobset_uid or "", restart=trainjob.restart)
    return replace(sight, trainjob=replace(trainjob, record=seen))


def sees_no_new_admission(sight: Sight) -> Sight:
    trainjob = sight.trainjob
    return replace(sight, trainjob=replace(trainjob, admissions=min(trainjob.admissions, trainjob.record.a or 1)))


# -- changed answers ---------------------------------------------------------------------------------------------------


def never_raise(workload: WorkloadView, **rest) -> tuple[CheckAction, ...]:
    actions = decide_check(workload, **rest)
    return tuple(action for action in actions if not isinstance(action, RaiseAdmissions | SetCheckRetry))


def never_retry(workload: WorkloadView, **rest) -> tuple[CheckAction, ...]:
    return tuple(action for action in decide_check(workload, **rest) if not isinstance(action, SetCheckRetry))


def raise_above_admissions_only(workload: WorkloadView, **rest) -> tuple[CheckAction, ...]:
    a = rest["trainjob"].admissions + 1
    actions = decide_check(workload, **rest)
    return tuple(replace(action, a=a) if isinstance(action, RaiseAdmissions) else action for action in actions)


def count_r_anew(trainjob: TrainJobView, **rest) -> FencePlan:
    """R is A + J, whatever R was before."""
    plan = decide_fence(trainjob, **rest)
    if plan.record is None or plan.record.r == trainjob.record.r:
        return plan
    r = trainjob.admissions + trainjob.restart
    lifts = tuple(replace(lift, epoch=build_epoch(trainjob.submission, r)) for lift in plan.lifts)
    return replace(plan, record=replace(plan.record, r=r, a=trainjob.admissions), lifts=lifts)


def sync_nothing(trainjob: TrainJobView, **rest) -> None:
    return None


# -- the rules ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spoilt:
    """A protocol without one rule.

    :param violates: invariants, one of which the search must find broken.
    :param is_slow: takes more than a second or two.
    """

    protocol: Protocol
    bounds: Bounds
    violates: tuple[str, ...]
    is_slow: bool = False


def _spoil(protocol: Protocol, kinds: str, violates: str, *, is_slow: bool = False, **bounds: int) -> Spoilt:
    named = tuple(kinds.split())
    sized = Bounds(kinds=named, **{"actions": len(named), "most_states": 200_000} | bounds)
    return Spoilt(protocol, sized, tuple(violates.split()), is_slow)


SAFETY = "one-execution none-beside epochs-grow"

RULES = {
    "the check waits for every pod object that is left": _spoil(
        Protocol(decide_check=blind_check(sees_no_pods)), "toggle preempt", "ready-is-true"
    ),
    "the check waits for the proof of every recorded pod's death": _spoil(
        Protocol(decide_check=blind_check(sees_no_record)), "force-delete preempt", "ready-is-true"
    ),
    "the check heeds the recorded hold": _spoil(
        Protocol(decide_check=blind_check(sees_no_hold)), "hold", "ready-is-asked"
    ),
    "the check judges only what is reserved, active and not evicted": _spoil(
        Protocol(decide_check=blind_check(sees_reservation)), "preempt", "ready-is-asked"
    ),
    "Ready is written for the judged Workload alone": _spoil(
        Protocol(heeds_workload_version=False), "preempt", "ready-is-fresh"
    ),
    "A is raised for each reservation": _spoil(
        Protocol(never_raise, blind_fence(sees_raised), blind_refusal(sees_raised)), "preempt", "a-grows a-of-its-own"
    ),
    "pods are lifted only under an A of their admission": _spoil(
        Protocol(never_retry, blind_fence(sees_raised), blind_refusal(sees_raised)), "unreserve", "a-of-its-own"
    ),
    "an admission that nobody judged is taken back": _spoil(Protocol(never_retry), "unreserve", "live"),
    "A is raised above that of the last execution": _spoil(
        Protocol(raise_above_admissions_only), "delete-jobset preempt restart", "a-grows", is_slow=True
    ),
    "the record is written for the judged TrainJob alone": _spoil(
        Protocol(heeds_trainjob_version=False), "preempt", f"{SAFETY} a-grows a-of-its-own", controllers=2
    ),
    "pods are recorded before they are lifted": _spoil(
        Protocol(records_first=False), "crash delete-pod", f"{SAFETY} a-grows"
    ),
    "TrainJob and Workload are read again before the first lift": _spoil(
        Protocol(reads_again=False), "delete-workload force-delete", "ready-is-true", controllers=2
    ),
    "a replaced pod closes the execution": _spoil(
        Protocol(decide_fence=blind_fence(sees_no_replacement)), "delete-pod", SAFETY
    ),
    "another JobSet or restart closes the execution": _spoil(
        Protocol(decide_fence=blind_fence(sees_one_generation)), "restart", SAFETY, is_slow=True, slots=2
    ),
    "a raised A closes the execution": _spoil(
        Protocol(decide_fence=blind_fence(sees_no_new_admission)), "preempt", "a-grows", slots=2
    ),
    "a new execution waits until all of the old one are dead": _spoil(fearless(sees_all_dead), "restart", SAFETY),
    "a recorded pod that is still gated counts as alive": _spoil(
        fearless(sees_gated_as_dead), "restart crash", f"{SAFETY} a-grows", controllers=2
    ),
    "a pod that somebody else let through counts as alive": _spoil(
        Protocol(decide_fence=blind_fence(sees_no_foreign)), "by-hand restart", SAFETY
    ),
    "a pod of another submission counts as alive": _spoil(
        blind_all(sees_no_other_submission), "by-hand new-submission", f"{SAFETY} ready-is-true"
    ),
    "R grows with every execution": _spoil(
        Protocol(decide_fence=count_r_anew), "delete-jobset restart", f"{SAFETY} a-grows"
    ),
    "an object that has vanished proves no death": _spoil(
        blind_all(sees_vanished_as_dead), "force-delete preempt", f"{SAFETY} ready-is-true"
    ),
    "Failed by garbage collection proves no death": _spoil(
        blind_all(trusts_garbage_collection), "gc pause", f"{SAFETY} ready-is-true"
    ),
    "a node is a proof only when it has been Ready for long": _spoil(
        blind_all(trusts_ready_nodes), "force-delete preempt", f"{SAFETY} ready-is-true"
    ),
    "a pod of an unknown node waits for the nodes there are": _spoil(
        blind_all(waits_for_unknown_node), "miss delete-pod", "live"
    ),
    "the ledger has a copy of the record before the first lift": _spoil(
        Protocol(copies_to_ledger=False), "force-delete delete-trainjob", f"{SAFETY} ready-is-true"
    ),
    "a stop leaves the unproven in the ledger": _spoil(
        Protocol(stop_writes_ledger=False), "force-delete new-submission", f"{SAFETY} ready-is-true"
    ),
    "pods enter the record only while admitted": _spoil(
        Protocol(decide_fence=blind_fence(sees_admission), derive_refusal=blind_refusal(sees_admission)),
        "preempt toggle",
        "only-admitted",
    ),
    "pods enter the record only while nobody holds": _spoil(
        Protocol(decide_fence=blind_fence(sees_no_hold), derive_refusal=blind_refusal(sees_no_hold)),
        "hold",
        "held-is-quiet",
    ),
    "half a hold and half a release are completed": _spoil(
        Protocol(decide_hold_sync=sync_nothing), "hold adapter-crash", "live hold-ends"
    ),
}
"""What each rule says, to the protocol without it."""
