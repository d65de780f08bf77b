# SPDX-License-Identifier: Apache-2.0
"""The example DAGs whose tasks run one after another: what each did, not only that it ended well."""

from __future__ import annotations

import pytest

from airflow_provider_dispatch.core.state import Cause, State
from tests.example_dags.jobs import find_checkpoints, find_job, read_output, see_job

pytestmark = pytest.mark.airflow

FIRST = 1000001


def assert_all_succeeded(run: dict) -> None:
    assert run["state"] == "success"
    assert {tuple(task) for task in run["tasks"].values()} == {("success", 1)}


def test_the_first_job_trains_on_two_ranks(runs, home):
    run = runs["first_job"]
    assert_all_succeeded(run)

    job = find_job("first_job", run["run_id"], "train")
    seen = see_job(home, job)
    assert seen.observation.state is State.SUCCEEDED
    assert seen.epochs == [FIRST]
    assert [(role.role, role.nodes) for role in seen.observation.ranks] == [("node", 2)]
    assert seen.result["accuracy"] > 0.94
    assert seen.result | {"accuracy": 0} == {"accuracy": 0, "steps": 400, "resumed_from": None, "epoch": FIRST}
    assert f"checkpoint-e{FIRST}-400.npz" in find_checkpoints(home, job)


def test_the_gate_is_opened_after_the_check_and_nothing_stays(runs, home):
    run = runs["gate_opened_by_another_task"]
    assert_all_succeeded(run)

    seen = see_job(home, find_job("gate_opened_by_another_task", run["run_id"], "start"))
    assert (seen.observation.state, seen.observation.cause) == (State.GONE, Cause.STOPPED)
    assert (seen.record.ledger, seen.record.submissions, seen.record.orphans) == (1, (), ())
    assert [kind for kind in seen.kinds if kind in {"gated", "opened", "admitted", "succeeded", "stopped"}] == [
        "gated",
        "opened",
        "admitted",
        "succeeded",
        "stopped",
    ]
    assert seen.epochs == [FIRST]


def test_each_role_starts_when_the_one_before_is_ready(runs, home):
    run = runs["leader_and_workers"]
    assert_all_succeeded(run)

    for task_id, first, leader in (("leader_first", "leader", "leader"), ("workers_first", "worker", "launcher")):
        seen = see_job(home, find_job("leader_and_workers", run["run_id"], task_id))
        starting = [event.message for event in seen.events if event.kind == "starting"]
        assert f"0 of 3 ranks ready, waiting for {first}" in starting[0]
        assert seen.result["accuracy"] > 0.94
        assert seen.epochs == [FIRST]
        printed = "\n".join(read_output(home, seen.observation.ref))
        assert "step 400/400" in printed, leader


def test_out_of_memory_is_mended_by_a_second_submission_with_more(runs, home):
    run = runs["recovery_policy"]
    assert_all_succeeded(run)

    job = find_job("recovery_policy", run["run_id"], "train")
    seen = see_job(home, job)
    first, second = seen.record.submissions
    assert (first.state, first.cause) == (State.FAILED, Cause.OUT_OF_MEMORY)
    assert second.state is State.SUCCEEDED
    mebibyte = 1024 * 1024
    assert [record.spec.roles[0].requests["memory"] / mebibyte for record in (first, second)] == [64, 256]
    assert seen.epochs == [FIRST, 2000001]
    assert (seen.result["epoch"], seen.result["steps"]) == (2000001, 30)
