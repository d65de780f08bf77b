# SPDX-License-Identifier: Apache-2.0
"""Every clock of a job runs out while its task is deferred, and a worker is asked to go away while it waits for one."""

from __future__ import annotations

import signal

import pytest

from airflow_provider_dispatch.core.state import State
from airflow_provider_dispatch.testing.airflow_rest import Run
from tests.airflow.scene import FIRST, TRIGGER_STARTS, Scene

pytestmark = [pytest.mark.airflow, pytest.mark.matrix]

RAN_OUT = "the {} clock ran out after 0:00:08"


@pytest.fixture(scope="module")
def run(queues) -> Run:
    return queues.begin("time_outs")


def wait_until_failed(scene: Scene, run: Run, task_id: str) -> str:
    """The log of the task."""
    row = scene.wait_for_task(run, "failed", task_id)
    assert row.try_number == 1
    log = scene.read_log(run, task_id)
    assert TRIGGER_STARTS in log
    return log


@pytest.mark.parametrize("clock", ["gated", "queued", "starting", "running", "held"])
def test_a_clock_that_runs_out_stops_the_job_and_is_named(queues, run, clock):
    log = wait_until_failed(queues, run, clock)
    assert f"Stopping the job: {RAN_OUT.format(clock)}" in log
    assert queues.wait_for_job(run, None, clock).events[-1].kind == "stopped"
    assert queues.find_ranks(run, clock) == {}


def test_a_job_can_be_held_when_its_time_is_over(queues, run):
    wait_until_failed(queues, run, "running_then_held")
    seen = queues.wait_for_job(run, State.HELD, "running_then_held")
    assert [
        event.message for event in seen.events if event.kind == "hold" and RAN_OUT.format("running") in event.message
    ]


def test_a_job_can_be_left_when_the_tasks_time_is_over(queues, run):
    wait_until_failed(queues, run, "running_then_left")
    assert queues.see(run, "running_then_left").state is State.RUNNING
    queues.tell(run, "exit 0", "running_then_left")


def test_a_worker_that_goes_away_leaves_the_job_to_the_retry(real_airflow):
    scene = Scene(real_airflow)
    run = scene.begin("worker_goes_away")
    scene.wait_for_job(run, State.RUNNING)
    worker, task = scene.find_processes(run, "train")

    scene.kill(worker, signal.SIGTERM)
    scene.wait_for_line(run, "Leaving the job alone: a retry goes on with it. Without one, stop it: dispatch stop ")
    assert scene.see(run).state is State.RUNNING
    scene.kill(task)

    scene.wait_for_line(run, "Going on with submission 1: try 1 left it running", try_number=2)
    scene.tell(run, "exit 0")
    assert real_airflow.wait_for_run(run).state == "success"
    assert scene.see(run).epochs == [FIRST]
    assert scene.find_overlaps() == []
