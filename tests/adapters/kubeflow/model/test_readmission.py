# SPDX-License-Identifier: Apache-2.0
"""What the admission check says of a reservation."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_provider_dispatch.adapters.kubeflow.model.controller_view import LedgerView, NodeView, build_admission_key
from airflow_provider_dispatch.adapters.kubeflow.model.execution_record import RecordedPod, Slot
from airflow_provider_dispatch.adapters.kubeflow.model.readmission import (
    CheckAction,
    RaiseAdmissions,
    SetCheckPending,
    SetCheckReady,
    SetCheckRetry,
    Wait,
    decide_check,
)
from tests.adapters.kubeflow.model.controller_views import (
    GATED,
    HELD,
    LIFTED,
    NO_LEDGER,
    NODE,
    NOW,
    RUNNING,
    SECOND,
    SETTINGS,
    TRAINJOB,
    WAITING,
    record_of,
)

FRESH = replace(TRAINJOB, admissions=0, admission_key=None, is_suspended=True)
KEY = build_admission_key(WAITING)
DONE = replace(LIFTED, phase="Succeeded")
UNPROVEN = RecordedPod(Slot("node", 0, 0), "old", "old-pod", node="node-1", submission=1)
OLD_POD = "pod rank-0 on node node-1 (running)"


def check(*pods, workload=WAITING, trainjob=FRESH, nodes=(NODE,), ledger=NO_LEDGER) -> tuple[CheckAction, ...]:
    return decide_check(workload, trainjob=trainjob, pods=pods, nodes=nodes, ledger=ledger, now=NOW, settings=SETTINGS)


def test_the_first_reservation_raises_a_to_one_and_is_ready():
    assert check() == (
        RaiseAdmissions(1, f"{KEY}", "3"),
        SetCheckReady("no pod of an earlier execution is left", "7"),
    )


def test_a_retry_for_the_same_reservation_does_not_raise_again():
    assert check(trainjob=TRAINJOB) == (SetCheckReady("no pod of an earlier execution is left", "7"),)


@pytest.mark.parametrize(("admissions", "recorded", "raised"), [(1, 0, 2), (1, 4, 5), (6, 4, 7)])
def test_a_is_raised_above_all_that_were_used(admissions, recorded, raised):
    trainjob = replace(FRESH, admissions=admissions, record=replace(record_of(), a=recorded, r=recorded))
    assert check(trainjob=trainjob)[0] == RaiseAdmissions(raised, f"{KEY}", "3")


@pytest.mark.parametrize("changes", [{"reserved_at": NOW}, {"evictions": 1}, {"uid": "made again"}])
def test_another_reservation_has_another_key(changes):
    action = check(workload=replace(WAITING, **changes), trainjob=TRAINJOB)[0]
    assert isinstance(action, RaiseAdmissions)
    assert action.a == 2


@pytest.mark.parametrize(
    ("workload", "trainjob", "reason"),
    [
        (replace(WAITING, is_finished=True), FRESH, "ended"),
        (replace(WAITING, is_deleting=True), FRESH, "ended"),
        (WAITING, replace(FRESH, is_finished=True), "ended"),
        (WAITING, replace(FRESH, is_stopping=True), "stopped"),
        (replace(WAITING, is_evicted=True), FRESH, "evicted"),
        (replace(RUNNING, is_evicted=True), FRESH, "evicted"),
        (WAITING, replace(FRESH, holds=HELD), "held"),
        (replace(WAITING, is_active=False), FRESH, "held"),
        (replace(WAITING, check_state=None), FRESH, "carry"),
        (replace(WAITING, check_state="Retry"), FRESH, "Kueue acts"),
        (replace(WAITING, check_state="Rejected"), FRESH, "Kueue acts"),
        (replace(WAITING, has_quota=False), FRESH, "no quota"),
        (replace(WAITING, has_quota=False, check_state="Ready"), FRESH, "no quota"),
        (RUNNING, TRAINJOB, "is admitted"),
        (replace(WAITING, check_state="Ready"), TRAINJOB, "Kueue admits"),
    ],
)
def test_the_check_is_silent_where_nobody_asks_it(workload, trainjob, reason):
    (action,) = check(LIFTED, workload=workload, trainjob=trainjob)
    assert isinstance(action, Wait)
    assert reason in action.reason


@pytest.mark.parametrize(
    "workload", [RUNNING, replace(RUNNING, check_state="Pending"), replace(WAITING, check_state="Ready")]
)
def test_an_admission_that_was_not_judged_is_taken_back(workload):
    assert check(workload=workload) == (SetCheckRetry("was Ready before this reservation was judged", "7"),)


@pytest.mark.parametrize(
    ("pod", "told"),
    [
        (LIFTED, OLD_POD),
        (replace(LIFTED, is_deleting=True), "pod rank-0 on node node-1 (ending)"),
        (GATED, "pod rank-0 on an unknown node (waiting at the fence)"),
        (replace(GATED, submission=1), "pod rank-0 on an unknown node (waiting at the fence)"),
        (replace(LIFTED, phase="Failed", failed_by_gc=True), "pod rank-0 on node node-1 (failed)"),
    ],
)
def test_a_pod_that_is_left_is_waited_for_and_named(pod, told):
    assert check(pod) == (SetCheckPending(f"waiting for old pods: {told}", "7"),)


@pytest.mark.parametrize("pod", [DONE, replace(LIFTED, phase="Failed"), replace(LIFTED, is_gone=True)])
def test_a_pod_that_has_ended_or_is_gone_is_not_left(pod):
    assert isinstance(check(pod)[-1], SetCheckReady)


def test_a_recorded_pod_whose_end_nobody_saw_is_waited_for():
    trainjob = replace(FRESH, record=record_of(LIFTED))
    (action,) = check(trainjob=trainjob)
    assert action == SetCheckPending(
        "waiting for old pods: pod rank-0 on an unknown node (its object is gone, its end is not proven)", "7"
    )
    assert isinstance(check(DONE, trainjob=trainjob)[-1], SetCheckReady)


def test_a_recorded_pod_that_is_left_is_named_once():
    assert check(LIFTED, trainjob=replace(FRESH, record=record_of(LIFTED))) == (
        SetCheckPending(f"waiting for old pods: {OLD_POD}", "7"),
    )


def test_an_unproven_pod_of_an_earlier_submission_is_waited_for():
    ledger = LedgerView(1, (UNPROVEN,))
    assert isinstance(check(ledger=ledger)[0], SetCheckPending)
    assert isinstance(check(ledger=ledger, nodes=(NodeView("another", is_ready=True),))[-1], SetCheckReady)


def test_the_same_message_is_not_written_twice():
    workload = replace(WAITING, check_message=f"waiting for old pods: {OLD_POD}")
    assert check(LIFTED, workload=workload) == (Wait(f"waiting for old pods: {OLD_POD}"),)


@pytest.mark.parametrize(
    ("retries", "waited", "gives_back"),
    [
        (0, 59, False),
        (0, 60, True),
        (1, 119, False),
        (1, 120, True),
        (3, 480, True),
        (9, 1799, False),
        (9, 1800, True),
        (4000, 1800, True),
    ],
)
def test_quota_that_somebody_wants_is_given_back_ever_more_slowly(retries, waited, gives_back):
    reserved_at = NOW - waited * SECOND
    workload = replace(WAITING, retries=retries, reserved_at=reserved_at, is_quota_wanted=True)
    (action,) = check(LIFTED, workload=workload)
    assert isinstance(action, SetCheckRetry) is gives_back
    assert action.message == f"waiting for old pods: {OLD_POD}"  # type: ignore[union-attr]  # both kinds have one


def test_quota_that_nobody_wants_is_kept():
    workload = replace(WAITING, reserved_at=NOW - timedelta(days=1))
    assert isinstance(check(LIFTED, workload=workload)[0], SetCheckPending)
