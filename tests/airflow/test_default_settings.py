# SPDX-License-Identifier: Apache-2.0
"""At Airflow's default settings a leg that comes back at once can be failed by the scheduler; ours are not."""

from __future__ import annotations

from collections import Counter

import pytest

from airflow_provider_dispatch.testing.airflow_processes import ENDED_RUN_STATES, RealAirflow
from airflow_provider_dispatch.testing.airflow_rest import Run
from tests.airflow.conftest import DAGS_FOLDER, harness_environment
from tests.airflow.scene import AFTER_RELEASE, FIRST, Scene

pytestmark = [pytest.mark.airflow, pytest.mark.matrix]

RUNS = 20
# Waiting for Airflow's workers is most of it: each keeps its slot for some seconds after its task has deferred.
SLOTS = {"AIRFLOW__CORE__PARALLELISM": "8"}
FAILED = ("failed", "upstream_failed", "up_for_retry")
COMPLAINT = "reported that the task instance"


def test_waits_that_are_over_at_once_fail_no_task(repository):
    env = harness_environment(repository) | SLOTS
    with RealAirflow(None, DAGS_FOLDER, env=env, heartbeat_interval_seconds=None) as airflow:
        scene = Scene(airflow)
        runs = [scene.begin("instant") for _ in range(RUNS)]
        states = [wait_for_run(scene, run) for run in runs]

        rows = [row for run in runs for row in scene.rest.fetch_tasks(run)]
        assert Counter((row.task_id, row.state, row.try_number) for row in rows) == dict.fromkeys(
            ((task, "success", 1) for task in ("train", "gate", "admitted", "held", "released", "release")), RUNS
        )
        assert states == ["success"] * RUNS
        assert find_complaints(scene) == []
        for run in runs:
            assert scene.see(run).epochs == [FIRST, AFTER_RELEASE]
        assert_deferred(scene, runs)


def wait_for_run(scene: Scene, run: Run) -> str:
    """Its end; a task that failed ends the test, for others of its run would wait for ever."""

    def look() -> str | None:
        failed = [(row.task_id, row.state) for row in scene.rest.fetch_tasks(run) if row.state in FAILED]
        assert not failed, (failed, find_complaints(scene))
        state = scene.rest.fetch_run(run).state
        return state if state in ENDED_RUN_STATES else None

    return scene.airflow.wait_for(look, timeout_seconds=900, what=f"run {run[1]} to end")


def find_complaints(scene: Scene) -> list[str]:
    return [line for line in scene.airflow.read_log("scheduler").splitlines() if COMPLAINT in line]


def assert_deferred(scene: Scene, runs: list[Run]) -> None:
    """It was about deferrals: those that a task could not do without were there."""
    for run in runs:
        for task_id in ("train", "held"):
            assert "Pausing task as DEFERRED" in scene.read_log(run, task_id)
