# SPDX-License-Identifier: Apache-2.0
"""Ranks that end because they were told to: no success is made of it, and no hold is over before it's noted."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_dispatch.adapters.kubeflow.model.execution_record import ExecutionRecord, RecordedPod, Slot
from airflow_provider_dispatch.adapters.kubeflow.model.submission import dump
from airflow_provider_dispatch.core.holds import Actor, ActorKind, Hold, HoldBook
from airflow_provider_dispatch.core.state import Cause, State
from tests.adapters.kubeflow.model.derive.builders import (
    JOB,
    NOW,
    Manifest,
    condition,
    derive,
    jobset,
    pod,
    trainjob,
    workload,
)

HELD = dump(HoldBook((Hold(1, "k", Actor(ActorKind.HUMAN, "ann"), "why", NOW - timedelta(seconds=30)),), 1))
COMPLETE = condition("Complete", reason="AllJobsCompleted", at=20)


@pytest.mark.parametrize("ranks", [(), (pod(0, phase="Succeeded", exit=0, finished=22, deleted=25),)])
def test_what_kubernetes_took_for_success_stays_held_and_fails_after_the_release(ranks) -> None:
    held = derive(trainjob(COMPLETE, suspend=True, holds=HELD), workload(active=False), *(ranks or (None,)))
    assert (held.state, held.cause) == (State.HELD, None)
    seen = derive(trainjob(COMPLETE, suspend=True), workload(), *(ranks or (None,)))
    assert (seen.state, seen.cause) == (State.FAILED, Cause.EVICTED)
    assert "submit it again" in seen.detail
    assert [(proof.field, proof.value) for proof in seen.evidence] == [("Complete", "AllJobsCompleted")]


def test_ranks_that_were_done_before_the_hold_have_succeeded() -> None:
    done = [pod(rank, phase="Succeeded", exit=0, finished=40) for rank in (0, 1)]
    seen = derive(trainjob(COMPLETE, suspend=True, holds=HELD), workload(active=False), *done)
    assert seen.state is State.SUCCEEDED


def test_a_job_whose_pods_somebody_cleared_away_after_its_success_has_succeeded() -> None:
    assert derive(trainjob(COMPLETE), workload(), None).state is State.SUCCEEDED


@pytest.mark.parametrize(("is_noted", "state"), [(False, State.HOLDING), (True, State.HELD)])
def test_a_job_is_held_when_the_end_of_its_pods_is_noted_so_that_it_stays_held_without_them(is_noted, state) -> None:
    recorded = RecordedPod(Slot("node", 0, 0), "node-0", "node-0", "node-1", is_dead=is_noted)
    record = ExecutionRecord(1, 1, "js", 0, (recorded,), ())
    job = trainjob(suspend=True, holds=HELD, execution=record.to_json())
    for left in (pod(0, phase="Failed", exit=143, finished=22, deleted=25), None):
        assert derive(job, workload(active=False), left).state is state


def kill(**more: Any) -> Manifest:
    """A rank that took its whole grace. The kubelet's last delete has put its own moment over the first one."""
    return pod(0, phase="Failed", exit=137, finished=21, deleted=20, grace=0, **more)


@pytest.mark.parametrize("queue", ["lq", ""])
def test_a_rank_that_was_killed_while_its_job_is_suspended_is_no_failure(queue) -> None:
    suspended = trainjob(condition("Suspended", reason="Suspended", at=30), suspend=True, queue=queue)
    waiting = workload(condition("QuotaReserved", is_true=False, reason="Pending", at=25)) if queue else None
    seen = derive(suspended, waiting, kill())
    assert not seen.has_ended
    assert seen.state is (State.QUEUED if queue else State.STARTING)


def resume(at: float, *, queue: str = "lq", **notes: Any) -> tuple[Manifest, Manifest | None]:
    """A TrainJob that runs since then, with its Workload in Kueue mode."""
    job = trainjob(condition("Suspended", is_true=False, reason="Resumed", at=at), queue=queue, **notes)
    reserved = condition("QuotaReserved", at=at + 2)
    return job, workload(reserved, condition("Admitted", at=at)) if queue else None


@pytest.mark.parametrize("queue", ["lq", ""])
def test_what_an_execution_left_behind_is_no_failure_of_the_next(queue) -> None:
    assert derive(*resume(20, queue=queue), kill()).state is State.STARTING


def test_a_rank_of_an_earlier_admission_is_no_failure_however_short_its_life_was() -> None:
    resumed = resume(20, admissions="2")
    assert derive(*resumed, kill(created=23, attempt=f"{JOB}.1.1.1.0")).state is State.STARTING
    assert derive(*resumed, kill(created=23, attempt=f"{JOB}.1.1.2.0")).state is State.FAILED


@pytest.mark.parametrize("created", [39, 44])
def test_a_rank_that_failed_since_the_job_was_resumed_has_failed_also_while_its_object_goes(created) -> None:
    """Trainer may note late that it has resumed the job."""
    seen = derive(*resume(40), jobset(), kill(created=created))
    assert (seen.state, seen.cause) == (State.FAILED, Cause.EXITED)
