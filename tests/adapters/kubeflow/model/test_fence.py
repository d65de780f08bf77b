# SPDX-License-Identifier: Apache-2.0
"""Which pods may start, under which epoch, and what proves that the old ones are dead."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_provider_dispatch.adapters.kubeflow.model.controller_view import LedgerView, NodeView, build_admission_key
from airflow_provider_dispatch.adapters.kubeflow.model.execution_record import RecordedPod, Slot
from airflow_provider_dispatch.adapters.kubeflow.model.fence import (
    FencePlan,
    decide_fence,
    derive_deaths,
    derive_refusal,
    is_proven_dead,
)
from tests.adapters.kubeflow.model.controller_views import (
    GATED,
    HELD,
    LIFTED,
    NO_LEDGER,
    NODE,
    NOW,
    PROOF,
    RUNNING,
    SECOND,
    SETTINGS,
    TRAINJOB,
    rank,
    record_of,
)

OLD = RecordedPod(Slot("node", 0, 0), "old", "old-pod", node="node-1", submission=1, vanished_at=NOW - PROOF - SECOND)


def fence(*pods, trainjob=TRAINJOB, workload=RUNNING, nodes=(NODE,), ledger=NO_LEDGER) -> FencePlan:
    return decide_fence(trainjob, workload=workload, pods=pods, nodes=nodes, ledger=ledger, now=NOW, settings=SETTINGS)


def with_record(*pods, **changes):
    return replace(TRAINJOB, record=record_of(*pods, **changes))


# -- a new execution ---------------------------------------------------------------------------------------------------


def test_the_first_execution_of_a_submission_is_number_one():
    plan = fence(rank(1), GATED)
    assert plan.record is not None
    assert (plan.record.r, plan.record.a, plan.record.jobset_uid, plan.record.restart) == (1, 1, "js", 0)
    assert [(pod.uid, pod.submission, pod.recorded_at) for pod in plan.record.pods] == [("u0", 2, NOW), ("u1", 2, NOW)]
    assert [(lift.uid, lift.a, lift.j, lift.epoch) for lift in plan.lifts] == [
        ("u0", 1, 0, 2000001),
        ("u1", 1, 0, 2000001),
    ]
    assert (plan.lifts[0].name, plan.lifts[0].namespace, plan.reason) == ("rank-0", "team", "")


@pytest.mark.parametrize(
    ("admissions", "restart", "last_r", "r"),
    [(1, 0, 1, 2), (2, 0, 1, 2), (2, 3, 1, 5), (1, 0, 9, 10), (4, 2, 6, 7)],
)
def test_r_reaches_a_plus_j_and_grows_by_at_least_one(admissions, restart, last_r, r):
    dead = replace(LIFTED, uid="old", phase="Failed", restart=restart)
    trainjob = replace(with_record(dead, r=last_r), admissions=admissions, restart=restart)
    plan = fence(replace(GATED, restart=restart), dead, trainjob=trainjob)
    assert plan.record is not None
    assert (plan.record.r, plan.record.a) == (r, r - restart)
    assert plan.lifts[0].epoch == 2_000_000 + r


def test_r_never_runs_into_the_digits_of_the_submission():
    dead = replace(LIFTED, phase="Failed")
    plan = fence(rank(1), dead, trainjob=with_record(dead, r=999_999))
    assert plan.lifts == ()
    assert "1000000" in plan.reason
    assert plan.record is not None
    assert plan.record.pods[0].is_dead


def test_only_pods_of_the_present_jobset_and_restart_are_lifted():
    others = (
        replace(rank(1), jobset_uid="older"),
        replace(rank(2), restart=1),
        replace(rank(3), is_deleting=True),
        replace(rank(4), is_gone=True),
    )
    plan = fence(*others)
    assert (plan.lifts, plan.record, plan.reason) == ((), None, "no pod waits at the fence")


def test_of_two_pods_in_one_slot_one_is_lifted():
    assert [lift.uid for lift in fence(replace(GATED, uid="v"), GATED).lifts] == ["u0"]


def test_of_two_pods_in_one_slot_the_recorded_one_is_lifted():
    recorded = replace(GATED, uid="v")
    plan = fence(GATED, recorded, trainjob=with_record(recorded))
    assert [lift.uid for lift in plan.lifts] == ["v"]


# -- an open execution -------------------------------------------------------------------------------------------------


def test_late_pods_join_the_open_execution():
    plan = fence(LIFTED, rank(1), trainjob=with_record(LIFTED))
    assert plan.record is not None
    assert (plan.record.r, [pod.uid for pod in plan.record.pods]) == (1, ["u0", "u1"])
    assert [(lift.uid, lift.epoch) for lift in plan.lifts] == [("u1", 2000001)]


def test_a_recorded_pod_that_was_not_lifted_is_lifted_again():
    plan = fence(GATED, trainjob=with_record(GATED))
    assert (plan.record, [lift.uid for lift in plan.lifts]) == (None, ["u0"])


def test_a_pod_that_succeeded_leaves_the_execution_open():
    done = replace(LIFTED, phase="Succeeded")
    plan = fence(done, rank(1), trainjob=with_record(done))
    assert [lift.epoch for lift in plan.lifts] == [2000001]


def test_nothing_is_written_while_all_runs():
    first = fence(LIFTED, trainjob=with_record(LIFTED)).record
    assert first is not None
    assert first.pods[0].node == "node-1"
    plan = fence(LIFTED, trainjob=replace(TRAINJOB, record=first))
    assert (plan.record, plan.lifts, plan.reason) == (None, (), "no pod waits at the fence")


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda job, old: (job, replace(old, is_deleting=True)), id="deleting"),
        pytest.param(lambda job, old: (job, replace(old, phase="Failed", failed_by_gc=True)), id="failed"),
        pytest.param(lambda job, old: (job, replace(old, is_gone=True)), id="gone"),
        pytest.param(lambda job, old: (job, None), id="vanished"),
        pytest.param(lambda job, old: (replace(job, jobset_uid="younger"), old), id="another jobset"),
        pytest.param(lambda job, old: (replace(job, restart=1), old), id="restarted"),
        pytest.param(lambda job, old: (replace(job, admissions=2), old), id="admitted again"),
    ],
)
def test_a_closed_execution_takes_nobody_in(spoil):
    trainjob, old = spoil(with_record(LIFTED), LIFTED)
    late = replace(rank(1), jobset_uid=trainjob.jobset_uid, restart=trainjob.restart)
    plan = fence(*((old,) if old else ()), late, trainjob=trainjob)
    assert plan.lifts == ()
    assert "rank-0" in plan.reason


def test_another_pod_for_a_used_slot_closes_the_execution():
    plan = fence(LIFTED, replace(GATED, uid="successor"), trainjob=with_record(LIFTED))
    assert plan.lifts == ()
    assert plan.reason == "waiting for old pods: pod rank-0 on node node-1 (running)"


# -- what stands in the way --------------------------------------------------------------------------------------------


def test_a_recorded_pod_counts_as_alive_though_it_is_gated():
    other = replace(rank(1), uid="v")
    plan = fence(replace(GATED, is_deleting=True), other, trainjob=with_record(GATED))
    assert plan.lifts == ()
    assert plan.reason == "waiting for old pods: pod rank-0 on an unknown node (ending)"


def test_a_pod_that_failed_at_the_fence_is_not_lifted():
    assert fence(replace(GATED, phase="Failed", failed_by_gc=True)).lifts == ()


def test_a_pod_that_somebody_else_let_through_counts_as_alive():
    by_hand = replace(rank(1), has_fence=False)
    assert fence(GATED, by_hand).reason == "waiting for old pods: pod rank-1 on an unknown node (pending)"


def test_a_pod_that_somebody_else_let_through_must_be_proven_dead_when_its_object_goes():
    by_hand = replace(rank(1), has_fence=False, node="node-1", phase="Running")
    first = fence(GATED, by_hand)
    assert first.record is not None
    assert [(pod.uid, pod.node) for pod in first.record.undead] == [("u1", "node-1")]
    second = fence(GATED, trainjob=replace(TRAINJOB, record=first.record))
    assert second.lifts == ()
    assert "its end is not proven" in second.reason


@pytest.mark.parametrize(
    ("changes", "is_doubted"),
    [
        ({}, True),
        ({"epoch": 2000001}, False),
        ({"node": None}, False),
        ({"phase": "Succeeded"}, False),
        ({"has_fence": True}, False),
    ],
)
def test_the_last_state_of_a_pod_that_no_record_knows_is_doubted_when_it_ran_without_us(changes, is_doubted):
    gone = replace(rank(1), has_fence=False, node="node-1", phase="Running", is_gone=True)
    plan = fence(GATED, replace(gone, **changes))
    assert bool(plan.lifts) is not is_doubted


def test_a_pod_of_another_submission_counts_as_alive_though_it_is_gated():
    older = replace(rank(1), submission=1)
    assert fence(GATED, older).reason == "waiting for old pods: pod rank-1 on an unknown node (waiting at the fence)"


def test_a_gated_pod_of_ours_that_nobody_recorded_is_in_nobodys_way():
    assert [lift.uid for lift in fence(GATED, replace(rank(1), jobset_uid="older")).lifts] == ["u0"]


def test_many_pods_are_counted():
    older = [replace(rank(n), submission=1) for n in range(1, 9)]
    assert fence(GATED, *older).reason.endswith("and 3 more")


def test_an_undead_pod_of_the_ledger_is_waited_for_and_noted():
    plan = fence(GATED, ledger=LedgerView(1, (replace(OLD, vanished_at=None),)))
    assert plan.lifts == ()
    assert plan.reason == "waiting for old pods: pod old-pod on node node-1 (its object is gone, its end is not proven)"
    assert plan.record is not None
    assert plan.record.undead[0].vanished_at == NOW


def test_a_pod_of_the_ledger_that_is_dead_is_not_doubted_again():
    ledger = LedgerView(1, (OLD,))
    first = fence(GATED, ledger=ledger)
    assert first.record is not None
    assert first.lifts
    assert first.record.undead == (replace(OLD, is_dead=True),)
    ended = replace(LIFTED, phase="Failed")
    away = (NodeView("node-1", is_ready=False),)
    second = fence(replace(GATED, uid="v"), ended, trainjob=replace(TRAINJOB, record=first.record), nodes=away)
    assert second.record is not None
    assert second.record.undead == ()
    assert second.lifts


# -- when nothing may be lifted at all ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trainjob", "workload", "reason"),
    [
        (replace(TRAINJOB, is_finished=True), RUNNING, "ended"),
        (replace(TRAINJOB, is_stopping=True), RUNNING, "stopped"),
        (replace(TRAINJOB, holds=HELD), RUNNING, "held"),
        (replace(TRAINJOB, jobset_uid=None), RUNNING, "JobSet"),
        (TRAINJOB, None, "no Workload"),
        (TRAINJOB, replace(RUNNING, is_deleting=True), "no Workload"),
        (TRAINJOB, replace(RUNNING, is_finished=True), "no Workload"),
        (TRAINJOB, replace(RUNNING, is_active=False), "inactive"),
        (TRAINJOB, replace(RUNNING, is_admitted=False), "not admitted"),
        (TRAINJOB, replace(RUNNING, is_evicted=True), "not admitted"),
        (replace(TRAINJOB, admission_key=None), RUNNING, "not raised"),
        (TRAINJOB, replace(RUNNING, reserved_at=NOW), "not raised"),
        (TRAINJOB, replace(RUNNING, evictions=1), "not raised"),
        (replace(TRAINJOB, is_plain=True, is_suspended=True), None, "suspended"),
        (replace(TRAINJOB, is_plain=True, holds=HELD), None, "held"),
    ],
)
def test_nothing_is_lifted_without_an_admission_of_its_own(trainjob, workload, reason):
    plan = fence(GATED, trainjob=trainjob, workload=workload)
    assert (plan.record, plan.lifts) == (None, ())
    assert reason in plan.reason
    assert derive_refusal(trainjob, workload) == plan.reason


def test_deaths_are_noted_though_nothing_may_be_lifted():
    trainjob = replace(with_record(LIFTED), holds=HELD)
    plan = fence(replace(LIFTED, phase="Succeeded"), trainjob=trainjob)
    assert plan.record is not None
    assert plan.record.pods[0].is_dead


def test_without_quota_there_is_no_key():
    assert build_admission_key(replace(RUNNING, has_quota=False)) is None
    assert build_admission_key(replace(RUNNING, reserved_at=None)) is None


# -- plain mode --------------------------------------------------------------------------------------------------------

PLAIN = replace(TRAINJOB, is_plain=True, admissions=0, admission_key=None)


def test_in_plain_mode_a_running_trainjob_is_admitted():
    plan = fence(GATED, trainjob=PLAIN, workload=None)
    assert [lift.epoch for lift in plan.lifts] == [2000001]


def test_in_plain_mode_a_gang_that_cannot_become_whole_is_suspended():
    trainjob = replace(PLAIN, record=record_of(LIFTED, rank(1)))
    plan = fence(LIFTED, replace(rank(1), uid="successor"), trainjob=trainjob, workload=None)
    assert plan.lifts == ()
    assert plan.should_suspend


@pytest.mark.parametrize("ending", [replace(LIFTED, is_deleting=True), replace(LIFTED, jobset_uid="older")])
def test_in_plain_mode_pods_that_are_ending_are_waited_for(ending):
    trainjob = replace(PLAIN, record=record_of(ending))
    plan = fence(ending, replace(GATED, uid="successor"), trainjob=trainjob, workload=None)
    assert plan.lifts == ()
    assert not plan.should_suspend


def test_with_a_queue_kueue_ends_a_gang_that_cannot_become_whole():
    plan = fence(LIFTED, replace(GATED, uid="successor"), trainjob=with_record(LIFTED))
    assert not plan.should_suspend


# -- proof of death ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "is_dead"),
    [
        (replace(LIFTED, phase="Running"), False),
        (replace(LIFTED, phase="Unknown"), False),
        (replace(LIFTED, is_deleting=True), False),
        (replace(LIFTED, phase="Succeeded"), True),
        (replace(LIFTED, phase="Failed"), True),
        (replace(LIFTED, phase="Failed", failed_by_gc=True), False),
        (replace(GATED), False),
        (replace(GATED, is_gone=True), True),
        (replace(LIFTED, is_gone=True), False),
        (replace(LIFTED, is_gone=True, phase="Succeeded"), True),
        (replace(LIFTED, is_gone=True, phase="Failed", failed_by_gc=True), False),
    ],
)
def test_what_is_seen_of_a_pod_proves_its_death_or_not(seen, is_dead):
    noted = derive_deaths(record_of(seen), (seen,), (NODE,), now=NOW, settings=SETTINGS)
    assert noted.pods[0].is_dead is is_dead
    assert noted.pods[0].vanished_at == (NOW if seen.is_gone else None)


@pytest.mark.parametrize(
    ("node", "vanished_ago", "is_dead"),
    [
        (NODE, PROOF + SECOND, True),
        (NODE, PROOF, False),
        (replace(NODE, ready_since=NOW - PROOF - SECOND), PROOF + SECOND, True),
        (replace(NODE, ready_since=NOW - PROOF), PROOF + SECOND, False),
        (replace(NODE, ready_since=None), PROOF + SECOND, False),
        (replace(NODE, is_ready=False, ready_since=None), timedelta(days=9), False),
        (replace(NODE, is_ready=False, ready_since=None, is_out_of_service=True), timedelta(), True),
        (replace(NODE, name="another", is_ready=False), timedelta(), True),
    ],
)
def test_its_node_proves_the_death_of_a_vanished_pod(node, vanished_ago, is_dead):
    pod = replace(OLD, vanished_at=NOW - vanished_ago)
    assert is_proven_dead(pod, None, (node,), now=NOW, settings=SETTINGS) is is_dead


def test_a_vanished_pod_that_nobody_has_missed_yet_is_not_dead():
    assert not is_proven_dead(replace(OLD, vanished_at=None), None, (NODE,), now=NOW, settings=SETTINGS)


def test_a_pod_with_a_long_grace_is_waited_for_longer():
    pod = replace(OLD, grace=31 * SECOND)
    assert not is_proven_dead(pod, None, (NODE,), now=NOW, settings=SETTINGS)
    assert is_proven_dead(replace(pod, grace=SECOND), None, (NODE,), now=NOW, settings=SETTINGS)


def test_a_pod_that_was_seen_dead_stays_dead():
    dead = replace(OLD, is_dead=True)
    assert is_proven_dead(dead, LIFTED, (), now=NOW, settings=SETTINGS)
    assert derive_deaths(record_of(), (), (), now=NOW, settings=SETTINGS) == record_of()
    record = replace(record_of(), pods=(dead,))
    assert derive_deaths(record, (), (), now=NOW, settings=SETTINGS) == record


AWAY = NodeView("node-2", is_ready=False, not_ready_since=NOW - timedelta(hours=1))


@pytest.mark.parametrize(
    ("second", "recorded_ago", "is_dead"),
    [
        (replace(NODE, name="node-2"), timedelta(minutes=9), True),
        (AWAY, timedelta(minutes=9), True),
        (AWAY, timedelta(hours=1), False),
        (AWAY, None, False),
        (replace(AWAY, not_ready_since=None), timedelta(minutes=9), False),
    ],
)
def test_a_pod_of_an_unknown_node_waits_for_every_node_that_could_have_taken_it(second, recorded_ago, is_dead):
    recorded_at = None if recorded_ago is None else NOW - recorded_ago
    pod = replace(OLD, node=None, recorded_at=recorded_at)
    assert is_proven_dead(pod, None, (NODE, second), now=NOW, settings=SETTINGS) is is_dead


def test_node_grace_and_disappearance_are_noted():
    seen = replace(LIFTED, grace=77 * SECOND)
    noted = derive_deaths(record_of(LIFTED), (seen,), (NODE,), now=NOW, settings=SETTINGS)
    assert (noted.pods[0].node, noted.pods[0].grace) == ("node-1", 77 * SECOND)
    forced = replace(GATED, is_gone=True, grace=timedelta())
    kept = derive_deaths(noted, (forced,), (NODE,), now=NOW, settings=SETTINGS)
    assert (kept.pods[0].node, kept.pods[0].grace, kept.pods[0].is_dead) == ("node-1", 77 * SECOND, False)
    later = derive_deaths(kept, (), (NODE,), now=NOW + SECOND, settings=SETTINGS)
    assert later.pods[0].vanished_at == NOW
