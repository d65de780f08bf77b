# SPDX-License-Identifier: Apache-2.0
"""Ranks that end because they were told to: no success is made of it, and no hold is over before it's noted."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_provider_dispatch.adapters.kubeflow.model.execution_record import ExecutionRecord, RecordedPod, Slot
from airflow_provider_dispatch.adapters.kubeflow.model.submission import dump
from airflow_provider_dispatch.core.holds import Actor, ActorKind, Hold, HoldBook
from airflow_provider_dispatch.core.state import Cause, State
from tests.adapters.kubeflow.model.derive.builders import NOW, condition, derive, pod, trainjob, workload

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
