# SPDX-License-Identifier: Apache-2.0
"""States that aren't ends: what a job waits for, who holds it, which node is silent, and what time has gone by."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.execution_record import ExecutionRecord, RecordedPod, Slot
from airflow_provider_dispatch.adapters.kubeflow.model.ledger import LedgerEnd
from airflow_provider_dispatch.adapters.kubeflow.model.submission import StopRequest, dump
from airflow_provider_dispatch.core.clocks import Clock, ClockReading, Clocks
from airflow_provider_dispatch.core.holds import Actor, ActorKind, Hold, HoldBook
from airflow_provider_dispatch.core.state import Cause, State
from tests.adapters.kubeflow.model.derive.builders import (
    JOB,
    NOW,
    Manifest,
    condition,
    derive,
    jobset,
    ledger,
    pod,
    spec_note,
    trainjob,
    workload,
)

ANN = Actor(ActorKind.HUMAN, "ann")
BOOK = HoldBook((Hold(1, "k", ANN, "why", NOW - timedelta(seconds=50)),), 1)
RECORD = ExecutionRecord(1, 1, "js", 0, (RecordedPod(Slot("node", 0, 0), "old", "old-pod", node="node-2"),))
LEADER: dict[str, Any] = {"name": "leader", "command": ["x"], "readiness": {"command": ["x"]}}
WORKER: dict[str, Any] = {"name": "worker", "command": ["x"], "nodes": 2, "after": [{"role": "leader"}]}


def waiting(reason: str, message: str = "", **more: Any) -> Manifest:
    """A Workload without quota."""
    return workload(condition("QuotaReserved", is_true=False, reason=reason, message=message, at=100), **more)


def gated(*gates: str) -> Manifest:
    job = trainjob(suspend=True)
    job["metadata"]["annotations"][words.ADMISSION_GATED_BY] = ",".join(gates)
    return job


@pytest.mark.parametrize(
    ("gates", "state", "is_open", "others", "detail"),
    [
        ((words.GATE,), State.GATED, False, (), ""),
        ((words.GATE, "a.b/c"), State.GATED, False, ("a.b/c",), "gated by a.b/c"),
        (("x.y/z", "a.b/c"), State.GATED, True, ("a.b/c", "x.y/z"), "gated by a.b/c, x.y/z"),
        ((words.NOT_BEFORE_GATE,), State.QUEUED, True, (), ""),
    ],
)
def test_gates_are_told_apart(gates, state: State, is_open: bool, others, detail: str) -> None:
    seen = derive(gated(*gates), waiting("AdmissionGated"))
    assert (seen.state, seen.cause, seen.detail) == (state, None, detail)
    assert (seen.gates.is_open, seen.gates.others) == (is_open, others)


TWENTY = "couldn't assign flavors to pod set node: insufficient unused quota for cpu in flavor f, 1 more needed"
NEVER = (
    "insufficient quota for cpu in flavor f, previously considered podsets requests (0) + current podset request (9)"
)
NEVER += " > maximum capacity (1)"


@pytest.mark.parametrize(
    ("reason", "message", "code", "cause"),
    [
        ("WaitingForQuota", TWENTY, "WaitingForQuota", None),
        ("Pending", TWENTY, "WaitingForQuota", None),
        ("ExceedsMaxQuota", NEVER, "ExceedsMaxQuota", Cause.NO_CAPACITY),
        ("Pending", NEVER, "ExceedsMaxQuota", Cause.NO_CAPACITY),
        ("Pending", f"{NEVER}, {TWENTY}", "WaitingForQuota", None),
        ("Pending", "resource gpu unavailable in ClusterQueue", "NoMatchingFlavor", Cause.NO_CAPACITY),
        ("Inadmissible", "LocalQueue lq is terminating or missing", "Misconfigured", Cause.NO_CAPACITY),
        ("Inadmissible", "ClusterQueue q is stopped", "Suspended", None),
        ("Pending", f"{TWENTY}. Pending the preemption of 1 workload(s)", "WaitingForPreemptedWorkloads", None),
        ("Pending", "a sentence of tomorrow", "Pending", None),
    ],
)
def test_both_vocabularies_of_kueue_say_the_same(reason: str, message: str, code: str, cause: Cause | None) -> None:
    seen = derive(trainjob(suspend=True), waiting(reason, message))
    assert seen.pending is not None
    assert (seen.state, seen.cause, seen.pending.code) == (State.QUEUED, cause, code)
    assert (seen.pending.message, seen.pending.queue) == (message, "lq")
    assert seen.detail == (message if cause else "")


def test_the_arithmetic_of_the_queue_tells_what_kueue_does_not() -> None:
    asking = waiting("Pending", "something new")
    container = {"resources": {"requests": {"cpu": "9"}}}
    asking["spec"]["podSets"] = [{"name": "node", "count": 2, "template": {"spec": {"containers": [container]}}}]
    group = {
        "coveredResources": ["cpu"],
        "flavors": [{"name": "f", "resources": [{"name": "cpu", "nominalQuota": "1"}]}],
    }
    queue = {"metadata": {"name": "q"}, "spec": {"resourceGroups": [group]}}
    seen = derive(trainjob(suspend=True), asking, cluster_queue=queue)
    assert (seen.state, seen.cause) == (State.QUEUED, Cause.NO_CAPACITY)
    assert "at most 1" in seen.detail


@pytest.mark.parametrize(
    ("objects", "code", "part"),
    [
        ([None], "PendingEvaluation", "has not made a Workload"),
        ([waiting("AdmissionGated", f"Admission is gated by: {words.GATE}")], "PendingEvaluation", "its gate is open"),
        ([workload(condition("QuotaReserved"))], "UnsatisfiedAdmissionChecks", "about to admit"),
        (
            [
                workload(condition("Evicted", reason="Preempted"), condition("QuotaReserved"), condition("Admitted")),
                pod(0),
            ],
            "ending",
            "processes of an earlier execution are still ending",
        ),
    ],
)
def test_what_a_queued_job_waits_for(objects: list[Manifest | None], code: str, part: str) -> None:
    more = {"workload": None} if objects == [None] else {}
    seen = derive(trainjob(suspend=True), *objects, **more)
    assert seen.pending is not None
    assert (seen.state, seen.pending.code) == (State.QUEUED, code)
    assert part in seen.pending.message


@pytest.mark.parametrize(
    "conditions", [[], [condition("QuotaReserved"), condition("Evicted", reason="Preempted")]], ids=["new", "evicted"]
)
def test_kueue_says_nothing_of_a_workload_that_it_has_not_looked_at(conditions: list[Manifest]) -> None:
    fresh = workload()
    fresh["status"]["conditions"] = conditions
    seen = derive(trainjob(suspend=True), fresh)
    assert seen.pending is not None
    assert (seen.state, seen.pending.code) == (State.QUEUED, "PendingEvaluation")
    assert seen.pending.message == "Kueue has not looked at it yet"


def test_a_check_says_which_pods_it_waits_for() -> None:
    reserved = workload(condition("QuotaReserved"))
    message = "waiting for old pods: pod p on node node-2 (ending)"
    reserved["status"]["admissionChecks"] = [{"name": "dispatch-admission", "state": "Pending", "message": message}]
    seen = derive(trainjob(suspend=True), reserved)
    assert seen.pending is not None
    assert message in seen.pending.message


def test_a_pause_is_told_with_its_end() -> None:
    not_before = (NOW + timedelta(minutes=5)).isoformat()
    seen = derive(trainjob(suspend=True, not_before=not_before), waiting("AdmissionGated"))
    assert seen.pending is not None
    assert (seen.pending.code, "12:05:00" in seen.pending.message) == ("NotBefore", True)


@pytest.mark.parametrize(
    ("age", "cause"), [(5, None), (31, Cause.MISCONFIGURED)], ids=["a moment ago", "half a minute ago"]
)
def test_admitted_and_still_suspended(age: float, cause: Cause | None) -> None:
    admitted = workload(condition("QuotaReserved", at=age), condition("Admitted", at=age))
    seen = derive(trainjob(suspend=True), admitted)
    assert (seen.state, seen.cause) == (State.STARTING, cause)
    assert "TrainJob" in seen.detail


@pytest.mark.parametrize(
    ("pods", "cause", "detail"),
    [
        ([pod(0, waiting="ContainerCreating")], None, ""),
        (
            [pod(0, waiting="ImagePullBackOff", message="no such image")],
            Cause.IMAGE,
            "can't get its image: no such image",
        ),
        ([pod(0, waiting="CreateContainerConfigError", message="no secret")], Cause.MISCONFIGURED, "no secret"),
        (
            [pod(0, condition("PodScheduled", is_true=False, reason="Unschedulable", message="0/2 nodes"), waiting="")],
            Cause.NO_CAPACITY,
            "rank 0 of node finds no node: 0/2 nodes",
        ),
        ([pod(0, waiting="", gates=[words.FENCE])], None, "1 pods wait for the admission controller to lift the fence"),
        ([pod(0, waiting="", gates=["a.b/c", words.FENCE])], None, "its pods wait for a.b/c"),
    ],
)
def test_what_keeps_an_admitted_job_from_running(pods, cause: Cause | None, detail: str) -> None:
    seen = derive(*pods)
    assert (seen.state, seen.cause) == (State.STARTING, cause)
    assert (detail in seen.detail) if detail else (seen.detail == "")


def test_new_pods_that_wait_for_old_ones_say_so() -> None:
    old = pod(0, uid="old", jobset="gone", deleted=5, node="node-2")
    seen = derive(old, pod(0, uid="new", waiting="", gates=[words.FENCE], phase="Pending"))
    assert (seen.state, seen.ranks[0].running) == (State.STARTING, 0)
    assert "until older ones are proven gone: pod old on node node-2" in seen.detail


def test_refused_pods_are_told_from_the_events() -> None:
    event = {
        "kind": "Event",
        "reason": "FailedCreate",
        "message": "pods is forbidden: exceeded quota: none",
        "involvedObject": {"kind": "Job", "name": "j"},
    }
    seen = derive(event)
    assert (seen.state, seen.cause) == (State.STARTING, Cause.NO_CAPACITY)
    assert "exceeded quota" in seen.detail
    assert seen.evidence[0].object == "job j"


def test_a_role_that_waits_names_the_one_it_waits_for() -> None:
    unready = pod(0, condition("Ready", is_true=False), condition("ContainersReady", is_true=False), role="leader")
    seen = derive(trainjob(spec=spec_note(LEADER, WORKER)), unready)
    assert (seen.state, seen.waiting_role) == (State.STARTING, "leader")
    assert [(role.running, role.ready) for role in seen.ranks] == [(1, 0), (0, 0)]
    up = derive(
        trainjob(spec=spec_note(LEADER, WORKER)), pod(0, role="leader"), *(pod(n, role="worker") for n in (0, 1))
    )
    assert (up.state, up.waiting_role) == (State.RUNNING, None)


@pytest.mark.parametrize("uids", [("a", "b"), ("b", "a")])
def test_of_two_pods_of_one_place_the_one_that_stays_counts(uids: tuple[str, str]) -> None:
    going, coming = pod(0, uid=uids[0], deleted=5), pod(0, uid=uids[1], waiting="", phase="Pending")
    seen = derive(going, coming, pod(1))
    assert (seen.state, seen.ranks[0].running) == (State.STARTING, 1)


def test_readiness_once_reached_is_kept() -> None:
    unready = pod(0, condition("Ready", is_true=False), condition("ContainersReady", is_true=False))
    assert derive(unready, pod(1)).state is State.STARTING
    clocks = dump(Clocks(running=ClockReading(NOW - timedelta(seconds=200))))
    assert derive(trainjob(clocks=clocks), unready, pod(1)).state is State.RUNNING


def test_a_silent_node_is_told_while_its_rank_may_run_on() -> None:
    silent = pod(0, condition("Ready", is_true=False), condition("ContainersReady"))
    seen = derive(silent, pod(1))
    assert (seen.state, seen.cause) == (State.RUNNING, Cause.NODE_LOST)
    assert "node node-1 does not answer" in seen.detail


@pytest.mark.parametrize(
    ("objects", "state"),
    [
        ([workload(active=False), pod(0, deleted=5)], State.HOLDING),
        ([workload(active=False), pod(0, phase="Failed", exit=143, deleted=5, finished=4)], State.HELD),
        ([workload(active=False)], State.HELD),
        ([waiting("Deactivated", active=False)], State.HELD),
        ([workload(active=False), pod(0, waiting="", phase="Pending", gates=[words.FENCE])], State.HOLDING),
    ],
)
def test_held_means_that_no_process_is_left(objects: list[Manifest], state: State) -> None:
    seen = derive(trainjob(holds=dump(BOOK)), *objects)
    assert (seen.state, seen.cause, seen.holds) == (state, None, BOOK.active)


def test_a_pod_that_vanished_without_proof_counts_as_alive() -> None:
    record = RECORD.to_json()
    seen = derive(trainjob(holds=dump(BOOK), execution=record), workload(active=False))
    assert (seen.state, "pod old-pod on node node-2" in seen.detail) == (State.HOLDING, True)
    assert seen.execution is not None
    assert seen.execution.epoch == 1_000_001


def test_a_hold_without_a_record_is_somebody_elses() -> None:
    seen = derive(workload(condition("Evicted", reason="Deactivated"), active=False))
    assert (seen.state, seen.holds) == (State.HELD, ())
    assert "held by somebody else" in seen.detail


def test_a_hold_that_was_just_released_is_no_hold() -> None:
    released = workload(condition("Evicted", reason="Deactivated"), active=False)
    released["metadata"]["annotations"] = {words.HOLD_INSTANCE_ANNOTATION: "1"}
    seen = derive(trainjob(suspend=True, holds=dump(HoldBook((), 1))), released)
    assert seen.pending is not None
    assert (seen.state, seen.pending.code) == (State.QUEUED, "Deactivated")


def test_the_newest_execution_is_that_of_the_highest_epoch() -> None:
    ranks = [pod(0, attempt=f"{JOB}.1.4.2.1"), pod(1, attempt=f"{JOB}.1.4.1.0"), pod(2, attempt=f"{'1' * 26}.1.4.9.9")]
    seen = derive(trainjob(execution=RECORD.to_json()), jobset(restarts=1), *ranks)
    assert seen.execution is not None
    assert (seen.execution.a, seen.execution.j, seen.execution.attempt) == (2, 1, 4)


def test_plain_mode_is_admitted_while_it_is_not_suspended() -> None:
    assert derive(trainjob(queue=""), pod(0), pod(1), workload=None).state is State.RUNNING
    ending = derive(trainjob(queue="", suspend=True), pod(0, deleted=5), workload=None)
    assert ending.pending is not None
    assert (ending.state, ending.pending.code) == (State.QUEUED, "ending")
    assert derive(trainjob(queue="", suspend=True, holds=dump(BOOK)), workload=None).state is State.HELD


@pytest.mark.parametrize(
    ("objects", "more", "state", "cause", "detail"),
    [
        ([trainjob(stop=dump(StopRequest("enough", NOW)))], {}, State.STOPPING, Cause.STOPPED, "enough"),
        ([pod(0, deleted=3)], {"trainjob": None}, State.STOPPING, Cause.DELETED, "1 of its pods are still ending"),
        (
            [ledger(ends=(LedgerEnd(1, Cause.STOPPED, "enough", NOW),)), pod(0, deleted=3)],
            {"trainjob": None},
            State.STOPPING,
            Cause.STOPPED,
            "enough",
        ),
        (
            [ledger(ends=(LedgerEnd(1, Cause.STOPPED, "enough", NOW),))],
            {"trainjob": None, "workload": None, "jobset": None},
            State.GONE,
            Cause.STOPPED,
            "enough",
        ),
        (
            [],
            {"trainjob": None, "workload": None, "jobset": None},
            State.GONE,
            Cause.DELETED,
            "nobody asked for a stop",
        ),
        ([ledger(submission=0)], {"trainjob": None, "workload": None, "jobset": None}, State.GONE, None, ""),
    ],
)
def test_removal(objects, more, state: State, cause: Cause | None, detail: str) -> None:
    seen = derive(*objects, **more)
    assert (seen.state, seen.cause) == (state, cause)
    assert detail in seen.detail


@pytest.mark.parametrize("key", ["spec", "holds", "execution", "clocks", "end", "stop"])
def test_what_can_not_be_read_is_evidence_and_hides_nothing_else(key: str) -> None:
    notes: dict[str, Any] = {key: "{rubbish"}
    seen = derive(trainjob(**notes), pod(0), pod(1))
    assert (seen.state, seen.cause) == (State.UNKNOWN, Cause.UNKNOWN)
    assert [proof.field for proof in seen.evidence] == [f"{words.DOMAIN}/{key}"]
    assert seen.ref.job == JOB


def test_a_stamp_without_a_time_zone_can_not_be_compared_and_so_not_be_read() -> None:
    naive = '{"running": {"since": "2030-01-01T11:00:00", "accumulated": 0}}'
    seen = derive(trainjob(clocks=naive), pod(0), pod(1))
    assert seen.state is State.UNKNOWN
    assert [(proof.field, proof.value) for proof in seen.evidence] == [
        (words.CLOCKS_ANNOTATION, "a stamp has no time zone")
    ]


def test_a_broken_ledger_is_evidence() -> None:
    broken = ledger()
    broken["data"] = {"ledger": "{rubbish"}
    seen = derive(broken, pod(0), pod(1))
    assert (seen.state, seen.cause) == (State.UNKNOWN, Cause.UNKNOWN)
    assert [(proof.object, proof.field) for proof in seen.evidence] == [(f"configmap dj-{JOB.lower()}", "data")]


@pytest.mark.parametrize(
    ("label", "stamp"), [(words.JOB_LABEL, "not-an-id"), (words.JOB_LABEL, ""), (words.SUBMISSION_LABEL, "0")]
)
def test_a_trainjob_whose_labels_do_not_say_whose_it_is_is_unknown(label: str, stamp: str) -> None:
    odd = trainjob()
    odd["metadata"]["labels"][label] = stamp
    seen = derive(odd, pod(0), pod(1))
    assert (seen.state, seen.execution) == (State.UNKNOWN, None)
    assert [proof.field for proof in seen.evidence] == [words.JOB_LABEL]
    assert (seen.ref.uid, seen.ref.place) == ("tj", "ns")


@pytest.mark.parametrize("trainer", [{"numNodes": -1}, {"command": ["a\0"]}, {"args": [""]}])
def test_without_a_spec_a_trainer_that_is_none_is_evidence_and_hides_no_hold(trainer: dict[str, object]) -> None:
    foreign = trainjob(holds=dump(BOOK))
    del foreign["metadata"]["annotations"][words.SPEC_ANNOTATION]
    foreign["spec"]["trainer"] = trainer
    seen = derive(foreign, workload(active=False))
    assert (seen.state, seen.holds) == (State.HELD, BOOK.active)
    running = derive(foreign | {"metadata": trainjob()["metadata"] | {"annotations": {}}}, pod(0))
    assert (running.state, [proof.field for proof in running.evidence]) == (State.UNKNOWN, ["spec.trainer"])


@pytest.mark.parametrize("stamp", [f"{JOB}.2.4.9.9", f"{JOB}.1.4.x.1", f"{JOB}.1.4.9", "rubbish", ""])
def test_a_stamp_that_is_not_of_this_submission_names_no_execution(stamp: str) -> None:
    assert derive(pod(0, attempt=stamp), pod(1)).execution is None


@pytest.mark.parametrize(
    ("objects", "clock", "seconds"),
    [
        ([gated(words.GATE), waiting("AdmissionGated")], "gated", 600),
        ([trainjob(suspend=True), waiting("WaitingForQuota")], "queued", 100),
        ([pod(0, waiting="")], "starting", 290),
        ([pod(0), pod(1)], "running", 270),
        ([trainjob(holds=dump(BOOK)), workload(active=False)], "held", 50),
    ],
)
def test_a_clock_without_a_record_begins_with_the_present_state(objects, clock: str, seconds: float) -> None:
    clocks = derive(*objects).clocks
    reading = clocks.reading(Clock(clock))
    assert reading.elapsed(NOW) == timedelta(seconds=seconds)
    assert reading.since is not None


def test_stored_time_is_kept_and_the_running_clock_stops_where_the_next_state_began() -> None:
    stored = Clocks(
        starting=ClockReading(NOW - timedelta(seconds=285)),
        running=ClockReading(None, timedelta(seconds=1000)),
    )
    clocks = derive(trainjob(clocks=dump(stored)), pod(0), pod(1)).clocks
    assert (clocks.starting.since, clocks.starting.accumulated) == (None, timedelta(seconds=15))
    assert clocks.running.elapsed(NOW) == timedelta(seconds=1270)


@pytest.mark.parametrize(("requeued", "queued_seconds"), [(20, 20), (None, 0)], ids=["Kueue says when", "nobody does"])
def test_time_held_is_no_time_queued(requeued: float | None, queued_seconds: float) -> None:
    evicted = condition(words.EVICTED, reason="Deactivated", at=61)
    back = [] if requeued is None else [condition(words.REQUEUED, reason="Reactivated", at=requeued)]
    waits = condition(words.QUOTA_RESERVED, is_true=False, reason="Pending", at=55)
    stored = Clocks(held=ClockReading(NOW - timedelta(seconds=60)))
    clocks = derive(trainjob(suspend=True, clocks=dump(stored)), workload(evicted, waits, *back)).clocks
    assert clocks.held.accumulated == timedelta(seconds=60 - queued_seconds)
    assert clocks.queued.elapsed(NOW) == timedelta(seconds=queued_seconds)
