# SPDX-License-Identifier: Apache-2.0
"""Ends and their causes, one fact at a time: what the cluster did outweighs how a process took it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_provider_dispatch.adapters.kubeflow.model.derive import derive_observation
from airflow_provider_dispatch.adapters.kubeflow.model.object_set import ObjectSet
from airflow_provider_dispatch.adapters.kubeflow.model.submission import dump
from airflow_provider_dispatch.core.holds import Actor, ActorKind, Hold, HoldBook
from airflow_provider_dispatch.core.state import Cause, State
from tests.adapters.kubeflow.model.derive.builders import (
    NAME,
    NOW,
    Manifest,
    condition,
    derive,
    jobset,
    pod,
    spec_note,
    trainjob,
    workload,
)

ANN = Actor(ActorKind.HUMAN, "ann")


def held_since(seconds: float) -> str:
    return dump(HoldBook((Hold(1, "k", ANN, "why", NOW - timedelta(seconds=seconds)),), 1))


PRINTED = "\n".join(f"line {n}" for n in range(12))
LONG = ("x" * 3000 + "\nlast")[-2048:]


@pytest.mark.parametrize(
    ("ended", "lines"),
    [
        (pod(0, phase="Failed", exit=3, message="lost\nthe thread\n"), ("lost", "the thread")),
        (pod(0, phase="Failed", exit=137, exit_reason="OOMKilled", message="at step 7"), ("at step 7",)),
        (pod(0, phase="Failed", exit=3, message=PRINTED), tuple(PRINTED.splitlines()[2:])),
        (pod(0, phase="Failed", exit=3, message=LONG), ("last",)),
        (pod(0, phase="Failed", exit=128, exit_reason="StartError", message="no such file"), ()),
        (pod(0, phase="Failed", exit=3), ()),
    ],
    ids=["some", "out of memory", "the last ten", "cut by the kubelet", "said by the runtime", "none"],
)
def test_the_status_of_a_failed_rank_tells_what_it_printed_last(ended, lines):
    seen = derive(trainjob(), workload(), jobset(), ended)
    assert seen.state is State.FAILED
    assert seen.last_lines == lines


@pytest.mark.parametrize(
    ("ended", "cause", "detail"),
    [
        (pod(0, phase="Failed", exit=3), Cause.EXITED, "rank 0 of node exited with code 3"),
        (pod(0, phase="Failed", exit=139), Cause.EXITED, "rank 0 of node was ended by signal 11 (SIGSEGV)"),
        (
            pod(0, phase="Failed", exit=137, exit_reason="OOMKilled"),
            Cause.OUT_OF_MEMORY,
            "rank 0 of node was ended by signal 9 (SIGKILL); it used more memory than it asked for",
        ),
        (
            pod(0, phase="Failed", exit=5, exit_reason="OOMKilled"),
            Cause.OUT_OF_MEMORY,
            "rank 0 of node exited with code 5; it used more memory than it asked for",
        ),
        (
            pod(0, phase="Failed", exit=128, exit_reason="StartError", message="no such file"),
            Cause.MISCONFIGURED,
            "rank 0 of node could not be run: no such file",
        ),
        (
            pod(0, phase="Failed", exit=137, exit_reason="ContainerStatusUnknown"),
            Cause.NODE_LOST,
            "rank 0 of node could not be run: ContainerStatusUnknown",
        ),
        (pod(0, phase="Failed", reason="Evicted", exit=137), Cause.EVICTED, "rank 0 of node was ended by node node-1"),
        (pod(0, phase="Failed", reason="OutOfcpu", waiting=""), Cause.NO_CAPACITY, "OutOfcpu"),
        (pod(0, phase="Failed", waiting=""), Cause.UNKNOWN, "rank 0 of node failed"),
    ],
)
def test_a_failed_rank_is_explained(ended, cause: Cause, detail: str) -> None:
    seen = derive(ended, pod(1))
    assert (seen.state, seen.cause) == (State.FAILED, cause)
    assert detail in seen.detail
    assert seen.failed_rank is not None
    assert all(proof.object == "pod node-0" for proof in seen.evidence)
    assert seen.evidence


@pytest.mark.parametrize(
    ("reason", "cause", "detail"),
    [
        ("DeletionByTaintManager", Cause.NODE_LOST, "rank 0 of node was lost with node node-1"),
        ("DeletionByPodGC", Cause.NODE_LOST, "rank 0 of node was lost with node node-1"),
        ("TerminationByKubelet", Cause.EVICTED, "rank 0 of node was taken from node node-1"),
        ("EvictionByEvictionAPI", Cause.EVICTED, "rank 0 of node was taken from node node-1"),
        ("PreemptionByScheduler", Cause.PREEMPTED, "rank 0 of node was taken from node node-1"),
    ],
)
def test_a_condemned_pod_has_failed_though_nobody_saw_it_end(reason: str, cause: Cause, detail: str) -> None:
    seen = derive(pod(0, condition("DisruptionTarget", reason=reason, at=20), deleted=20), pod(1))
    assert (seen.state, seen.cause) == (State.FAILED, cause)
    assert detail in seen.detail


def test_a_pod_that_a_hold_deleted_first_was_not_lost_with_its_node() -> None:
    gone = pod(0, condition("DisruptionTarget", reason="DeletionByTaintManager", at=20), deleted=50)
    seen = derive(trainjob(holds=held_since(55)), workload(active=False), gone)
    assert (seen.state, seen.cause) == (State.HOLDING, None)


def test_out_of_memory_never_outweighs_success() -> None:
    seen = derive(pod(0, phase="Succeeded", exit=0, exit_reason="OOMKilled"), pod(1, phase="Succeeded", exit=0))
    assert (seen.state, seen.cause) == (State.SUCCEEDED, None)


def test_the_first_rank_to_fail_is_the_earliest_then_by_role_and_number() -> None:
    early, late = pod(1, phase="Failed", exit=2, finished=20), pod(0, phase="Failed", exit=1, finished=10)
    found = derive(late, early).failed_rank
    assert found is not None
    assert (found.rank, found.exit_code) == (1, 2)
    tied = derive(pod(1, phase="Failed", exit=2), pod(0, phase="Failed", exit=1)).failed_rank
    assert tied is not None
    assert tied.rank == 0


def test_the_order_of_roles_is_that_of_the_spec() -> None:
    seen = derive(
        trainjob(spec=spec_note({"name": "worker", "command": ["x"]}, {"name": "leader", "command": ["x"]})),
        pod(0, role="leader", phase="Failed", exit=1),
        pod(0, role="worker", phase="Failed", exit=1),
    )
    assert seen.failed_rank is not None
    assert seen.failed_rank.role == "worker"


def test_ranks_that_end_because_another_failed_are_not_to_blame() -> None:
    seen = derive(
        pod(0, phase="Failed", exit=143, deleted=12, finished=11), pod(1, phase="Failed", exit=3, finished=13)
    )
    assert seen.failed_rank is not None
    assert (seen.failed_rank.rank, seen.ranks[0].failed) == (1, 1)


@pytest.mark.parametrize("code", [0, 1, 143])
def test_after_our_signal_no_exit_code_ends_a_job(code: int) -> None:
    phase = "Succeeded" if code == 0 else "Failed"
    ranks = [pod(rank, phase=phase, exit=code, deleted=20, finished=18) for rank in (0, 1)]
    seen = derive(trainjob(holds=held_since(20)), workload(active=False), *ranks)
    assert (seen.state, seen.cause, seen.failed_rank) == (State.HELD, None, None)


def test_an_exit_in_the_second_of_the_signal_was_caused_by_it() -> None:
    ranks = [pod(rank, phase="Failed", exit=143, deleted=20, finished=20) for rank in (0, 1)]
    seen = derive(trainjob(holds=held_since(20)), workload(active=False), *ranks)
    assert seen.state is State.HELD


def test_a_failure_that_the_cluster_states_outweighs_ranks_that_ended_well() -> None:
    failed = trainjob(condition("Failed", reason="DeadlineExceeded"))
    seen = derive(failed, *(pod(rank, phase="Succeeded", exit=0) for rank in (0, 1)))
    assert (seen.state, seen.cause) == (State.FAILED, Cause.TIMEOUT)


def test_a_job_that_was_done_before_the_signal_has_succeeded_and_its_hold_is_void() -> None:
    ranks = [pod(rank, phase="Succeeded", exit=0, finished=30) for rank in (0, 1)]
    seen = derive(trainjob(holds=held_since(20)), workload(active=False), *ranks)
    assert (seen.state, seen.holds) == (State.SUCCEEDED, ())


def test_a_rank_that_failed_before_the_signal_ends_a_held_job() -> None:
    seen = derive(trainjob(holds=held_since(20)), workload(active=False), pod(0, phase="Failed", exit=4, finished=30))
    assert (seen.state, seen.cause) == (State.FAILED, Cause.EXITED)


@pytest.mark.parametrize(
    ("set_of_jobs", "restart", "state"),
    [
        (jobset(), 0, State.FAILED),
        (jobset(restarts=2, max_restarts=2), 2, State.FAILED),
        (jobset(restarts=2, max_restarts=2), 1, State.STARTING),
        (jobset(restarts=1, max_restarts=2), 1, State.STARTING),
        (jobset(rules=[{"action": "RestartJobSetAndIgnoreMaxRestarts"}]), 0, State.STARTING),
    ],
)
def test_a_failed_rank_ends_the_job_unless_the_set_is_restarted(set_of_jobs, restart: int, state: State) -> None:
    ranks = [pod(0, phase="Failed", exit=1, restart=restart), pod(1, restart=restart)]
    assert derive(set_of_jobs, *ranks).state is state


def test_a_failure_that_the_set_has_answered_is_none() -> None:
    seen = derive(jobset(restarts=1, max_restarts=1), pod(0, phase="Failed", exit=1, restart=0), pod(1, restart=1))
    assert (seen.state, seen.failed_rank) == (State.STARTING, None)
    assert (seen.ranks[0].failed, seen.ranks[0].running) == (0, 1)


def test_only_the_required_roles_must_succeed() -> None:
    roles = ({"name": "driver", "command": ["x"]}, {"name": "worker", "command": ["x"]})
    spec = spec_note(*roles, success_roles=["driver"])
    seen = derive(trainjob(spec=spec), pod(0, role="driver", phase="Succeeded", exit=0), pod(0, role="worker"))
    assert seen.state is State.SUCCEEDED


@pytest.mark.parametrize(("unready_since", "state"), [(300, State.FAILED), (10, State.STARTING)])
def test_a_leader_that_ended_before_it_was_ready_fails_those_that_wait(unready_since: float, state: State) -> None:
    leader = {"name": "leader", "command": ["x"], "readiness": {"command": ["x"]}}
    worker = {"name": "worker", "command": ["x"], "after": [{"role": "leader"}]}
    unready = condition("Ready", is_true=False, reason="PodCompleted", at=unready_since)
    seen = derive(
        trainjob(spec=spec_note(leader, worker)), pod(0, unready, role="leader", phase="Succeeded", exit=0, began=270)
    )
    assert seen.state is state
    if state is State.FAILED:
        assert seen.cause is Cause.DEPENDENCY_FAILED
        assert seen.detail == "leader ended before it was ready, and other roles wait for it"


def test_a_failure_that_trainer_took_back_stays_one() -> None:
    finished = condition("Finished", reason="Failed", message="jobset failed")
    seen = derive(trainjob(), workload(finished), pod(0), pod(1))
    assert (seen.state, seen.cause, seen.detail) == (State.FAILED, Cause.UNKNOWN, "jobset failed")


@pytest.mark.parametrize(
    ("reason", "cause"), [("DeadlineExceeded", Cause.TIMEOUT), ("TrainingRuntimeNotSupported", Cause.MISCONFIGURED)]
)
def test_what_the_trainjob_says_of_its_own_failure(reason: str, cause: Cause) -> None:
    seen = derive(trainjob(condition("Failed", reason=reason, message="so")), jobset=None)
    assert (seen.state, seen.cause) == (State.FAILED, cause)
    assert seen.evidence[0].field == "Failed"


def failed_job(name: str, reason: str, at: float) -> Manifest:
    failed = condition("Failed", reason=reason, message=f"{name} failed", at=at)
    return {"kind": "Job", "metadata": {"name": name}, "status": {"conditions": [failed]}}


@pytest.mark.parametrize(
    ("reason", "cause"), [("DeadlineExceeded", Cause.TIMEOUT), ("BackoffLimitExceeded", Cause.UNKNOWN)]
)
def test_a_failure_without_its_pods_is_explained_by_the_job_that_failed_first(reason: str, cause: Cause) -> None:
    unfailed = {"kind": "Job", "metadata": {"name": "a"}}
    jobs = [unfailed, failed_job("b", "Other", 10), failed_job("d", "Other", 20), failed_job("c", reason, 20)]
    seen = derive(trainjob(condition("Failed", reason="FailedJobs", message="jobset failed")), None, *jobs)
    assert (seen.state, seen.cause, seen.detail) == (State.FAILED, cause, "c failed")
    assert [(proof.object, proof.field) for proof in seen.evidence][1:] == [("job c", "Failed")]


def test_the_set_tells_an_end_before_trainer_and_kueue_do() -> None:
    failed = derive(jobset(condition("Failed", reason="FailedJobs", message="jobset failed")), trainjob())
    assert (failed.state, failed.cause, failed.detail) == (State.FAILED, Cause.UNKNOWN, "jobset failed")
    assert failed.evidence[0].object == f"jobset {NAME}"
    assert derive(jobset(condition("Completed", reason="AllJobsCompleted"))).state is State.SUCCEEDED


def test_a_success_that_kueue_alone_remembers_is_one() -> None:
    done = derive(trainjob(), workload(condition("Finished", reason="Succeeded", at=40)), jobset=None)
    assert done.state is State.SUCCEEDED


@pytest.mark.parametrize("stamp", ["so soon", "0001-01-01T00:00:00Z"])
def test_a_pod_deleted_nobody_knows_when_was_told_to_end_before_it_did(stamp: str) -> None:
    gone = pod(0, phase="Failed", exit=143, deleted=20)
    gone["metadata"]["deletionTimestamp"] = stamp
    seen = derive(gone, pod(1))
    assert (seen.state, seen.failed_rank) == (State.STARTING, None)


def test_a_job_that_can_not_be_begun_is_misconfigured() -> None:
    finished = condition("Finished", reason="FailedToStart", message="two flavors disagree")
    seen = derive(workload(finished))
    assert (seen.state, seen.cause, seen.detail) == (State.FAILED, Cause.MISCONFIGURED, "two flavors disagree")


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("DeactivatedDueToAdmissionCheck", Cause.NO_CAPACITY),
        ("DeactivatedDueToRequeuingLimitExceeded", Cause.TIMEOUT),
        ("DeactivatedDueToMaximumExecutionTimeExceeded", Cause.TIMEOUT),
    ],
)
def test_what_kueue_gave_up_has_failed_and_is_not_held(reason: str, cause: Cause) -> None:
    seen = derive(workload(condition("Evicted", reason=reason, message="too much"), active=False))
    assert (seen.state, seen.cause) == (State.FAILED, cause)
    assert "Kueue gave it up: too much" in seen.detail


@pytest.mark.parametrize(("most", "state"), [(None, State.QUEUED), (2, State.QUEUED), (1, State.FAILED)])
def test_only_a_limit_of_the_spec_ends_a_preempted_job(most: int | None, state: State) -> None:
    evicted = condition("Evicted", reason="Preempted", message="for another")
    waiting = condition("QuotaReserved", is_true=False, reason="WaitingForQuota", message="insufficient unused quota")
    counts = {"Preempted": 2, "PodsReadyTimeout": 1, "Deactivated": 5}
    seen = derive(trainjob(spec=spec_note(max_preemptions=most)), workload(evicted, waiting, evictions=counts))
    assert seen.state is state
    if state is State.FAILED:
        assert (seen.cause, seen.detail) == (Cause.PREEMPTED, "preempted 2 times; its spec allows 1")
    else:
        assert seen.pending is not None
        assert (seen.pending.evictions, seen.cause) == (3, None)


@pytest.mark.parametrize(
    ("message", "state", "result"),
    [
        ('{"loss": 0.5}', State.SUCCEEDED, {"loss": 0.5}),
        ("", State.SUCCEEDED, None),
        ("so so", State.FAILED, None),
        ('"' + "x" * 4000 + '"', State.FAILED, None),
    ],
)
def test_the_result_of_rank_0_is_its_termination_message(message: str, state: State, result: object) -> None:
    ranks = [pod(rank, phase="Succeeded", exit=0, message=message) for rank in (0, 1)]
    seen = derive(*ranks)
    assert (seen.state, seen.result) == (state, result)
    if state is State.FAILED:
        assert seen.cause is Cause.MISCONFIGURED
        assert f"{len(message)} bytes" in seen.detail


def test_nothing_at_all_is_a_job_that_nobody_heard_of() -> None:
    seen = derive_observation(ObjectSet("ns"), NOW)
    assert (seen.state, seen.cause, seen.is_unheard_of) == (State.GONE, None, True)
