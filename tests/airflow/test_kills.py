# SPDX-License-Identifier: Apache-2.0
"""``kill -9`` in the middle of a run: of workers, of the triggerer, of the node that a job runs on, of a rank.

All happens to tasks of one run, one kill after the other, and each test looks at what became of one of them: Airflow
takes its time to notice that a worker or a triggerer is gone, and does so for all at once.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

import pytest
from pydantic import JsonValue

from airflow_provider_dispatch.core.state import Cause, State
from airflow_provider_dispatch.testing.airflow_rest import Run
from tests.airflow.scene import FIRST, RESUBMITTED, TRIGGER_STARTS, Scene

pytestmark = pytest.mark.airflow

TASKS = ("first_leg", "in_worker", "deferred", "on_lost_node", "with_killed_rank")
IN_WORKER = ("first_leg", "in_worker")


@dataclass
class BadDay:
    scene: Scene
    fragile: Scene
    run: Run
    #: task to its process, whose worker was killed
    bereft: dict[str, int] = field(default_factory=dict)

    def scene_of(self, task_id: str) -> Scene:
        return self.fragile if task_id == "on_lost_node" else self.scene


@pytest.fixture(scope="module")
def bad_day(real_airflow) -> BadDay:
    scene = Scene(real_airflow)
    day = BadDay(scene, Scene(real_airflow, "fragile"), scene.begin("bad_day"))
    for task_id in TASKS:
        day.scene_of(task_id).wait_for_job(day.run, State.RUNNING, task_id)
    for task_id in IN_WORKER:
        worker, day.bereft[task_id] = scene.find_processes(day.run, task_id)
        scene.kill(worker)
    for task_id in set(TASKS) - set(IN_WORKER):
        scene.wait_until_deferred(day.run, task_id)
    scene.kill(scene.find_ranks(day.run, "with_killed_rank")[1])
    scene.kill(day.fragile.find_agent())
    real_airflow.restart("triggerer", signal.SIGKILL)
    return day


def finish(day: BadDay, task_id: str) -> dict[str, JsonValue]:
    """Let a job end well, and return what its task hands on."""
    day.scene.tell(day.run, "exit 0", task_id)
    day.scene.wait_for_task(day.run, "success", task_id)
    return day.scene.read_result(day.run, task_id)


def test_a_killed_rank_fails_the_task_and_is_named(bad_day):
    scene, run = bad_day.scene, bad_day.run
    scene.wait_for_task(run, "failed", "with_killed_rank")
    seen = scene.see(run, "with_killed_rank")
    assert (seen.state, seen.newest.cause, seen.epochs) == (State.FAILED, Cause.EXITED, [FIRST])
    assert scene.find_ranks(run, "with_killed_rank") == {}
    log = scene.rest.fetch_log(run, "with_killed_rank")
    assert "exited: rank 1 of node was ended by signal 9" in log


def test_a_lost_node_is_made_good_by_a_new_submission_without_a_retry(bad_day):
    scene, run = bad_day.fragile, bad_day.run
    scene.wait_for_job(run, State.RUNNING, "on_lost_node", submission=2)
    result = finish(bad_day, "on_lost_node")

    seen = scene.see(run, "on_lost_node")
    first, second = seen.record.submissions
    assert (first.state, first.cause) == (State.FAILED, Cause.NODE_LOST)
    assert second.state is State.SUCCEEDED
    assert seen.epochs == [FIRST, RESUBMITTED]
    assert (result["submission"], result["epoch"]) == (2, RESUBMITTED)
    assert scene.rest.fetch_task(run, "on_lost_node").try_number == 1
    assert "The recovery policy makes submission 2" in scene.rest.fetch_log(run, "on_lost_node")
    assert scene.find_overlaps() == []


def test_a_killed_triggerer_changes_nothing_for_the_job(bad_day):
    scene, run = bad_day.scene, bad_day.run
    scene.wait_for_line(run, TRIGGER_STARTS, "deferred", times=2)
    assert scene.see(run, "deferred").state is State.RUNNING
    result = finish(bad_day, "deferred")

    assert scene.see(run, "deferred").epochs == [FIRST]
    assert (result["submission"], result["epoch"], result["executions"]) == (1, FIRST, 1)
    assert scene.rest.fetch_task(run, "deferred").try_number == 1


@pytest.mark.parametrize("task_id", IN_WORKER)
def test_the_retry_after_a_killed_worker_goes_on_with_the_same_submission(bad_day, task_id):
    scene, run = bad_day.scene, bad_day.run
    row = scene.wait_for_task(run, "running", task_id, try_number=2)
    scene.wait_for_line(run, "Going on with submission 1: try 1 left it running", task_id, try_number=2)
    assert row.pid != bad_day.bereft[task_id]
    assert scene.see(run, task_id).newest.owner.instance_id == row.id
    result = finish(bad_day, task_id)

    seen = scene.see(run, task_id)
    assert (seen.state, seen.epochs, seen.record.ledger) == (State.SUCCEEDED, [FIRST], 1)
    assert (result["submission"], result["epoch"], result["executions"]) == (1, FIRST, 1)
    assert scene.rest.fetch_task(run, task_id).try_number == 2
    assert scene.find_overlaps() == []
