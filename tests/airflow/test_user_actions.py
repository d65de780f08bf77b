# SPDX-License-Identifier: Apache-2.0
"""What becomes of a task's job when a person, or the task's own time, ends the task."""

from __future__ import annotations

import pytest

from airflow_provider_dispatch.core.state import State
from airflow_provider_dispatch.testing.airflow_rest import Run
from tests.airflow.scene import FIRST, RESUBMITTED, TRIGGER_STARTS, Scene

pytestmark = pytest.mark.airflow

WITH_ONE_JOB = ("mark_failed", "mark_success", "clear", "fail_run")
IN_WORKER = ("worker_failed", "worker_success", "worker_clear")


@pytest.fixture(scope="module")
def scene(real_airflow) -> Scene:
    return Scene(real_airflow)


@pytest.fixture(scope="module")
def runs(scene) -> dict[str, Run]:
    """One for each test, all on their way at once: most of the time goes into waiting for Airflow."""
    one_job = {name: scene.begin("one_job") for name in WITH_ONE_JOB}
    in_worker = {name: scene.begin("worker_job") for name in IN_WORKER}
    return {"limited_job": scene.begin("limited_job"), "short_job": scene.begin("short_job"), **one_job, **in_worker}


def assert_stopped_by_its_trigger(scene: Scene, run: Run) -> None:
    seen = scene.wait_for_job(run, None)
    assert seen.epochs == [FIRST]
    assert seen.events[-1].kind == "stopped"
    assert (seen.record.orphans, scene.find_ranks(run)) == ((), {})
    scene.wait_for_line(run, "the task was killed: its job was stopped")


@pytest.mark.parametrize("state", ["failed", "success"])
def test_marking_a_deferred_task_stops_its_job(scene, runs, state):
    run = runs[f"mark_{state}"]
    scene.wait_until_deferred(run)
    scene.wait_for_job(run, State.RUNNING)
    assert len(scene.find_ranks(run)) == 1

    scene.rest.mark_task(run, "train", state)

    assert_stopped_by_its_trigger(scene, run)
    assert scene.airflow.wait_for_run(run).state == state
    assert scene.rest.fetch_task(run, "train").try_number == 1


def test_failing_the_run_of_a_deferred_task_stops_its_job(scene, runs):
    run = runs["fail_run"]
    scene.wait_until_deferred(run)
    scene.wait_for_job(run, State.RUNNING)

    scene.rest.mark_run(run, "failed")

    assert_stopped_by_its_trigger(scene, run)
    assert scene.rest.fetch_task(run, "train").state == "failed"


def test_a_cleared_task_makes_a_new_submission_which_its_old_trigger_leaves_alone(scene, runs):
    run = runs["clear"]
    first = scene.wait_until_deferred(run)
    scene.wait_for_job(run, State.RUNNING)

    scene.rest.clear_tasks(run, ["train"])

    second = scene.wait_until_deferred(run, try_number=2)
    # The old trigger's last word comes after the new try has begun: by then the job isn't its own any more.
    scene.wait_for(lambda: is_old_trigger_done(scene, run), "the end of the old trigger")
    seen = scene.wait_for_job(run, State.RUNNING, submission=2)
    assert [record.ref.submission for record in seen.record.submissions] == [2]
    assert seen.newest.owner.instance_id == second.id != first.id
    assert seen.epochs == [FIRST, RESUBMITTED]
    assert seen.sequence("stopped", 1) < seen.sequence("submitted", 2)
    assert scene.find_overlaps() == []

    scene.tell(run, "exit 0")
    assert scene.airflow.wait_for_run(run).state == "success"
    result = scene.read_result(run)
    assert (result["submission"], result["epoch"], result["executions"]) == (2, RESUBMITTED, 1)


@pytest.mark.parametrize("state", ["failed", "success"])
def test_marking_a_task_that_runs_in_its_worker_stops_its_job(scene, runs, state):
    run = runs[f"worker_{state}"]
    scene.wait_for_job(run, State.RUNNING)
    assert scene.rest.fetch_task(run, "train").state == "running"

    scene.rest.mark_task(run, "train", state)

    assert_stopped_in_worker(scene, run, state)
    assert scene.airflow.wait_for_run(run).state == state
    assert scene.rest.fetch_task(run, "train").try_number == 1


def test_a_task_cleared_in_its_worker_makes_a_new_submission(scene, runs):
    run = runs["worker_clear"]
    scene.wait_for_job(run, State.RUNNING)

    scene.rest.clear_tasks(run, ["train"])

    seen = scene.wait_for_job(run, State.RUNNING, submission=2)
    assert seen.epochs == [FIRST, RESUBMITTED]
    assert seen.sequence("stopped", 1) < seen.sequence("submitted", 2)
    assert scene.find_overlaps() == []
    scene.tell(run, "exit 0")
    assert scene.airflow.wait_for_run(run).state == "success"
    assert scene.read_result(run)["submission"] == 2


def assert_stopped_in_worker(scene: Scene, run: Run, state: str) -> None:
    seen = scene.wait_for_job(run, None)
    assert seen.epochs == [FIRST]
    assert seen.events[-1].kind == "stopped"
    assert (seen.record.orphans, scene.find_ranks(run)) == ((), {})
    scene.wait_for_line(run, f"Ending the job (stop): its task was ended: {state}")


def is_old_trigger_done(scene: Scene, run: Run) -> bool:
    """It was first, or came too late, or saw the end of its submission before Airflow told it of the clear."""
    log = scene.read_log(run)
    return any(end in log for end in ("its job was stopped", "the job is left alone", "Trigger fired event"))


def test_the_execution_timeout_stops_the_job_of_a_deferred_task(scene, runs):
    run = runs["limited_job"]
    assert scene.airflow.wait_for_run(run).state == "failed"

    seen = scene.see(run)
    assert (seen.state, seen.epochs, scene.find_ranks(run)) == (None, [FIRST], {})
    assert seen.events[-1].kind == "stopped"
    log = scene.rest.fetch_log(run, "train")
    assert TRIGGER_STARTS in log
    assert "Stopping the job: the task's execution_timeout is over" in log


def test_a_short_job_is_waited_for_in_the_worker(scene, runs):
    run = runs["short_job"]
    assert scene.airflow.wait_for_run(run).state == "success"

    assert scene.read_result(run)["epoch"] == FIRST
    assert TRIGGER_STARTS not in scene.rest.fetch_log(run, "train")
