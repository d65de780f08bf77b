# SPDX-License-Identifier: Apache-2.0
"""The protocol with one rule taken out at a time, and bounds within which that must be seen.

No rule is copied and none is switched off inside the code: the decision is asked about a world that hides what the rule
looks at, or its answer is changed, or the shell breaks a habit. A rule that two others cover is taken out with them.
:mod:`.rules` says what each rule is and where one is shown that nothing here can show.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from airflow_provider_dispatch.adapters.kubeflow.model.controller_view import TrainJobView, WorkloadView
from airflow_provider_dispatch.adapters.kubeflow.model.fence import FencePlan, decide_fence
from airflow_provider_dispatch.adapters.kubeflow.model.readmission import (
    CheckAction,
    RaiseAdmissions,
    SetCheckReady,
    SetCheckRetry,
    decide_check,
)
from airflow_provider_dispatch.core.identity import build_epoch
from tests.adapters.kubeflow.model.fence_explorer.blindness import (
    blind_all,
    blind_check,
    blind_fence,
    blind_refusal,
    fearless,
    sees_admission,
    sees_all_dead,
    sees_gated_as_dead,
    sees_no_end,
    sees_no_foreign,
    sees_no_hold,
    sees_no_new_admission,
    sees_no_other_submission,
    sees_no_pods,
    sees_no_record,
    sees_no_replacement,
    sees_one_generation,
    sees_raised,
    sees_reservation,
    sees_success_as_failure,
    sees_vanished_as_dead,
    trusts_garbage_collection,
    trusts_ready_nodes,
    waits_for_unknown_node,
)
from tests.adapters.kubeflow.model.fence_explorer.protocol import Protocol
from tests.adapters.kubeflow.model.fence_explorer.world import Bounds

# -- changed answers ---------------------------------------------------------------------------------------------------


def never_raise(workload: WorkloadView, **rest) -> tuple[CheckAction, ...]:
    actions = decide_check(workload, **rest)
    return tuple(action for action in actions if not isinstance(action, RaiseAdmissions | SetCheckRetry))


def never_retry(workload: WorkloadView, **rest) -> tuple[CheckAction, ...]:
    return tuple(action for action in decide_check(workload, **rest) if not isinstance(action, SetCheckRetry))


def raise_with_every_ready(workload: WorkloadView, **rest) -> tuple[CheckAction, ...]:
    """A is raised again though it was raised for this reservation."""
    actions = decide_check(workload, **rest)
    if any(isinstance(action, SetCheckReady) for action in actions):
        return decide_check(workload, **rest | {"trainjob": replace(rest["trainjob"], admission_key=None)})
    return actions


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
    :param overlooks: an invariant that breaks earlier and is the lesser harm.
    """

    protocol: Protocol
    bounds: Bounds
    violates: tuple[str, ...]
    is_slow: bool = False
    overlooks: str = ""


def _spoil(
    protocol: Protocol, kinds: str, violates: str, *, is_slow: bool = False, overlooks: str = "", **bounds: int
) -> Spoilt:
    named = tuple(kinds.split())
    sized = Bounds(kinds=named, **{"actions": len(named), "most_states": 200_000} | bounds)
    return Spoilt(protocol, sized, tuple(violates.split()), is_slow, overlooks)


SAFETY = "one-execution none-beside epochs-grow"

RULES = {
    "check-pods": _spoil(Protocol(decide_check=blind_check(sees_no_pods)), "toggle preempt", "ready-is-true"),
    "check-proof": _spoil(Protocol(decide_check=blind_check(sees_no_record)), "force-delete preempt", "ready-is-true"),
    "check-hold": _spoil(Protocol(decide_check=blind_check(sees_no_hold)), "hold", "ready-is-asked"),
    "check-guard": _spoil(Protocol(decide_check=blind_check(sees_reservation)), "preempt", "ready-is-asked"),
    "check-rv": _spoil(Protocol(heeds_workload_version=False), "preempt", "ready-is-fresh"),
    "a-raise": _spoil(
        Protocol(never_raise, blind_fence(sees_raised), blind_refusal(sees_raised)), "preempt", "a-grows a-of-its-own"
    ),
    "a-once": _spoil(Protocol(raise_with_every_ready), "crash", "a-rises-once"),
    "a-fence": _spoil(
        Protocol(never_retry, blind_fence(sees_raised), blind_refusal(sees_raised)), "unreserve", "a-of-its-own"
    ),
    "a-retry": _spoil(Protocol(never_retry), "unreserve", "live"),
    "a-used": _spoil(Protocol(raise_above_admissions_only), "delete-jobset preempt restart", "a-grows", is_slow=True),
    "record-rv": _spoil(
        Protocol(heeds_trainjob_version=False),
        "preempt",
        f"{SAFETY} a-grows a-of-its-own",
        overlooks="a-rises-once",
        controllers=2,
    ),
    "record-first": _spoil(Protocol(records_first=False), "crash delete-pod", f"{SAFETY} a-grows"),
    "reread": _spoil(Protocol(reads_again=False), "delete-workload force-delete", "ready-is-true", controllers=2),
    "close-uid": _spoil(Protocol(decide_fence=blind_fence(sees_no_replacement)), "delete-pod", SAFETY),
    "close-end": _spoil(fearless(sees_no_end), "delete-pod", "joins-the-whole", slots=2),
    "close-gen": _spoil(
        Protocol(decide_fence=blind_fence(sees_one_generation)), "restart", SAFETY, is_slow=True, slots=2
    ),
    "close-adm": _spoil(Protocol(decide_fence=blind_fence(sees_no_new_admission)), "preempt", "a-grows", slots=2),
    "success-open": _spoil(Protocol(decide_fence=blind_fence(sees_success_as_failure)), "crash", "live", slots=2),
    "all-dead": _spoil(fearless(sees_all_dead), "restart", SAFETY),
    "gated-counts": _spoil(fearless(sees_gated_as_dead), "restart crash", f"{SAFETY} a-grows", controllers=2),
    "foreign": _spoil(Protocol(decide_fence=blind_fence(sees_no_foreign)), "by-hand restart", SAFETY),
    "other-sub": _spoil(blind_all(sees_no_other_submission), "by-hand new-submission", f"{SAFETY} ready-is-true"),
    "r-above": _spoil(Protocol(decide_fence=count_r_anew), "delete-jobset restart", f"{SAFETY} a-grows"),
    "vanish": _spoil(blind_all(sees_vanished_as_dead), "force-delete preempt", f"{SAFETY} ready-is-true"),
    "gc-no-proof": _spoil(blind_all(trusts_garbage_collection), "gc pause", f"{SAFETY} ready-is-true"),
    "settled": _spoil(blind_all(trusts_ready_nodes), "force-delete preempt", f"{SAFETY} ready-is-true"),
    "unknown-node": _spoil(blind_all(waits_for_unknown_node), "miss delete-pod", "live"),
    "ledger": _spoil(Protocol(copies_to_ledger=False), "force-delete delete-trainjob", f"{SAFETY} ready-is-true"),
    "ledger-stop": _spoil(Protocol(stop_writes_ledger=False), "force-delete new-submission", f"{SAFETY} ready-is-true"),
    "lift-guard": _spoil(
        Protocol(decide_fence=blind_fence(sees_admission), derive_refusal=blind_refusal(sees_admission)),
        "preempt toggle",
        "only-admitted",
    ),
    "lift-gate": _spoil(Protocol(tests_gate=False), "by-hand", "told-at-start"),
    "lift-hold": _spoil(
        Protocol(decide_fence=blind_fence(sees_no_hold), derive_refusal=blind_refusal(sees_no_hold)),
        "hold",
        "held-is-quiet",
    ),
    "hold-record-first": _spoil(Protocol(holds_in_record_first=False), "hold", "released-is-over"),
    "sync": _spoil(Protocol(decide_hold_sync=sync_nothing), "hold adapter-crash", "live hold-ends"),
}
"""Name of each rule, to the protocol without it; :mod:`.rules` tells what it says."""
