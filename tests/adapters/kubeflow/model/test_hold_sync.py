# SPDX-License-Identifier: Apache-2.0
"""Which write is missing between the holds that are recorded and the Workload that shows them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_dispatch.adapters.kubeflow.model.hold_sync import (
    ActivateWorkload,
    DeactivateWorkload,
    EndWorkload,
    SuspendTrainJob,
    WriteHolds,
    decide_hold_sync,
)
from airflow_provider_dispatch.adapters.kubeflow.model.readmission import SetCheckPending
from airflow_provider_dispatch.core.holds import Actor, ActorKind, Hold, HoldBook
from tests.adapters.kubeflow.model.controller_views import (
    HELD,
    HOLD,
    NOW,
    RELEASED,
    RUNNING,
    SECOND,
    TRAINJOB,
    WAITING,
)

HELD_JOB, RELEASED_JOB = replace(TRAINJOB, holds=HELD), replace(TRAINJOB, holds=RELEASED)
INACTIVE = replace(WAITING, is_active=False, has_quota=False, reserved_at=None, hold_instance=1)
SECOND_HOLD = replace(HOLD, instance=2, key="second")
TWICE_HELD = replace(TRAINJOB, holds=HoldBook((HOLD, SECOND_HOLD), 2))
RESET = SetCheckPending("to be judged again", "7")


def sync(trainjob, workload=WAITING):
    return decide_hold_sync(trainjob, workload=workload, now=NOW)


@pytest.mark.parametrize(
    ("trainjob", "workload"),
    [
        (TRAINJOB, WAITING),
        (TRAINJOB, RUNNING),
        (HELD_JOB, INACTIVE),
        (RELEASED_JOB, WAITING),
        (TRAINJOB, None),
        (HELD_JOB, None),
    ],
)
def test_what_agrees_is_left_alone(trainjob, workload):
    assert sync(trainjob, workload) is None


@pytest.mark.parametrize(
    ("trainjob", "workload"),
    [
        (replace(HELD_JOB, is_finished=True), WAITING),
        (replace(HELD_JOB, is_stopping=True), WAITING),
        (HELD_JOB, replace(WAITING, is_finished=True)),
        (HELD_JOB, replace(WAITING, is_deleting=True)),
    ],
)
def test_a_job_that_has_ended_is_left_alone(trainjob, workload):
    assert sync(trainjob, workload) is None


@pytest.mark.parametrize("workload", [WAITING, RUNNING, replace(WAITING, hold_instance=1)])
def test_a_recorded_hold_deactivates_a_workload_that_is_active(workload):
    """Also one that was deleted while held, and made again active."""
    assert sync(HELD_JOB, workload) == DeactivateWorkload(HOLD, "7")


@pytest.mark.parametrize(
    ("holds", "shown", "action"),
    [
        (HoldBook((HOLD, SECOND_HOLD), 2), 1, DeactivateWorkload(SECOND_HOLD, "7")),
        (HoldBook((HOLD, SECOND_HOLD), 2), 2, None),
        (HoldBook((HOLD,), 2), 2, DeactivateWorkload(HOLD, "7")),
    ],
)
def test_the_workload_shows_the_newest_hold(holds, shown, action):
    assert sync(replace(TRAINJOB, holds=holds), replace(INACTIVE, hold_instance=shown)) == action


def test_a_release_is_completed():
    assert sync(RELEASED_JOB, INACTIVE) == ActivateWorkload("7")


@pytest.mark.parametrize(
    "workload",
    [
        replace(INACTIVE, hold_instance=None),
        replace(INACTIVE, is_deactivated_by_kueue=True),
        replace(INACTIVE, is_deactivated_by_kueue=True, hold_instance=9),
    ],
)
def test_what_somebody_else_deactivated_stays_inactive(workload):
    assert sync(RELEASED_JOB, workload) is None


def test_our_name_is_not_put_on_what_somebody_else_deactivated():
    assert sync(HELD_JOB, replace(INACTIVE, hold_instance=None)) is None


def test_a_hold_that_stands_only_on_the_workload_is_copied_up():
    theirs = Hold(3, "theirs", Actor(ActorKind.HUMAN, "bob"), "look", NOW, NOW + 60 * SECOND)
    workload = replace(INACTIVE, hold_instance=3, hold=theirs)
    assert sync(HELD_JOB, workload) == WriteHolds(HoldBook((HOLD, theirs), 3), "3")


def test_a_hold_that_says_nothing_but_its_instance_is_copied_up_all_the_same():
    action = sync(TRAINJOB, INACTIVE)
    assert isinstance(action, WriteHolds)
    assert [(hold.instance, hold.key, hold.since) for hold in action.book.active] == [(1, "workload/1", NOW)]
    assert action.book.last_instance == 1


def test_a_hold_whose_time_is_over_is_lifted():
    over = replace(HOLD, until=NOW)
    lasting = replace(TRAINJOB, holds=HoldBook((over, SECOND_HOLD), 2))
    assert sync(lasting, INACTIVE) == WriteHolds(HoldBook((SECOND_HOLD,), 2), "3")


@pytest.mark.parametrize(
    ("changes", "resumes"),
    [({}, False), ({"is_plain": True}, True), ({"is_plain": True, "is_gated": True}, False)],
)
def test_in_plain_mode_the_end_of_the_last_hold_resumes_what_is_not_gated(changes, resumes):
    trainjob = replace(TRAINJOB, holds=HoldBook((replace(HOLD, until=NOW),), 1), is_suspended=True, **changes)
    assert sync(trainjob, None) == WriteHolds(RELEASED, "3", resume=resumes)


def test_in_plain_mode_the_end_of_one_of_two_holds_resumes_nothing():
    holds = HoldBook((replace(HOLD, until=NOW), SECOND_HOLD), 2)
    action = sync(replace(TRAINJOB, holds=holds, is_plain=True), None)
    assert action == WriteHolds(HoldBook((SECOND_HOLD,), 2), "3", resume=False)


def test_in_plain_mode_a_held_job_that_runs_is_suspended():
    assert sync(replace(HELD_JOB, is_plain=True), None) == SuspendTrainJob("3")


@pytest.mark.parametrize("changes", [{"holds": HELD, "is_suspended": True}, {"is_suspended": False}])
def test_in_plain_mode_what_agrees_is_left_alone(changes):
    assert sync(replace(TRAINJOB, is_plain=True, **changes), None) is None


@pytest.mark.parametrize(
    ("trainjob", "workload", "action"),
    [
        (HELD_JOB, replace(INACTIVE, check_state="Ready"), RESET),
        (HELD_JOB, replace(INACTIVE, check_state="Ready", is_evicted=True), RESET),
        (TRAINJOB, replace(WAITING, check_state="Ready", has_quota=False), RESET),
        (TRAINJOB, replace(INACTIVE, check_state="Ready", has_quota=True, hold_instance=None), RESET),
        (TRAINJOB, replace(WAITING, check_state="Ready"), None),
        (HELD_JOB, replace(INACTIVE, check_state="Ready", is_admitted=True), None),
        (HELD_JOB, replace(INACTIVE, check_state="Retry"), None),
    ],
)
def test_a_ready_that_waits_for_a_release_or_a_reservation_is_put_back(trainjob, workload, action):
    assert sync(trainjob, workload) == action


def test_two_holds_are_completed_one_write_after_the_other():
    assert sync(TWICE_HELD, WAITING) == DeactivateWorkload(SECOND_HOLD, "7")


GIVEN_UP = replace(TRAINJOB, is_finished=True, given_up_at=NOW - 10 * SECOND)


@pytest.mark.parametrize(
    "workload", [WAITING, RUNNING, replace(WAITING, has_quota=False), replace(RUNNING, hold_instance=1)]
)
def test_what_is_left_of_a_job_that_failed_by_our_word_alone_is_ended(workload):
    """Its quota too, which nobody could use else."""
    assert sync(GIVEN_UP, workload) == EndWorkload("7")


@pytest.mark.parametrize(
    ("trainjob", "workload"),
    [
        (replace(GIVEN_UP, given_up_at=NOW - 9 * SECOND), RUNNING),
        (replace(GIVEN_UP, given_up_at=None), RUNNING),
        (replace(GIVEN_UP, is_stopping=True), RUNNING),
        (GIVEN_UP, None),
        (GIVEN_UP, replace(RUNNING, is_active=False)),
        (GIVEN_UP, replace(RUNNING, is_finished=True)),
        (GIVEN_UP, replace(RUNNING, is_deleting=True)),
        (replace(GIVEN_UP, is_plain=True, is_suspended=True), None),
        (replace(GIVEN_UP, is_plain=True, given_up_at=NOW), None),
    ],
)
def test_a_failed_job_is_left_to_kubernetes_where_that_ends_it(trainjob, workload):
    assert sync(trainjob, workload) is None


def test_in_plain_mode_a_job_that_failed_by_our_word_alone_is_suspended():
    assert sync(replace(GIVEN_UP, is_plain=True), None) == SuspendTrainJob("3", "the job has failed")
