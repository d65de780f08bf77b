# SPDX-License-Identifier: Apache-2.0
"""The example DAGs whose tasks must run side by side, under a real Airflow: checked for what each of them did."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_dispatch.adapters.local.layout import StoreLayout
from airflow_provider_dispatch.core.state import Cause, State
from airflow_provider_dispatch.testing.airflow_processes import RealAirflow
from airflow_provider_dispatch.testing.airflow_rest import Run
from tests.example_dags.jobs import STORE, SeenJob, find_checkpoints, find_job, read_output, see_job

# Long, and `make demo` plays the first of them.
pytestmark = [pytest.mark.airflow, pytest.mark.matrix]

FIRST, SECOND = 1000001, 1000002
PATIENCE_SECONDS = 240.0


@pytest.fixture
def airflow(real_airflow: RealAirflow, repository: Path) -> Iterator[RealAirflow]:
    """With the queues of the examples while a test runs."""
    layout = StoreLayout(real_airflow.home / "dispatch" / STORE)
    layout.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    shutil.copyfile(repository / "example_dags/queues.toml", layout.queues)
    yield real_airflow
    layout.queues.unlink()


def run_example(airflow: RealAirflow, dag_id: str) -> Run:
    airflow.wait_for_dag(dag_id)
    run = airflow.rest.trigger_dag(dag_id)
    ended = airflow.wait_for_run(run, timeout_seconds=PATIENCE_SECONDS)
    tasks = {row.task_id: (row.state, row.try_number) for row in airflow.rest.fetch_tasks(run)}
    assert (ended.state, set(tasks.values())) == ("success", {("success", 1)}), tasks
    return run


def see(airflow: RealAirflow, run: Run, task_id: str) -> SeenJob:
    return see_job(airflow.home, find_job(*run, task_id))


def test_a_training_is_held_and_released_around_maintenance(airflow):
    run = run_example(airflow, "hold_and_release")
    train, maintenance = see(airflow, run, "train"), see(airflow, run, "maintenance")

    assert train.epochs == [FIRST, SECOND]
    assert train.find("held").at <= maintenance.find("admitted").at
    assert maintenance.find("succeeded").at <= train.find("release").at
    result = airflow.rest.fetch_xcom(run, "train")
    assert (result["epoch"], result["executions"], result["submission"]) == (SECOND, 2, 1)
    saved = result["result"]["resumed_from"]
    assert saved.startswith(f"checkpoint-e{FIRST}-")
    assert result["result"]["accuracy"] > 0.94
    assert saved in find_checkpoints(airflow.home, train.record.job)
    assert airflow.rest.fetch_xcom(run, "maintenance")["result"]["products"] > 0
    assert airflow.rest.fetch_xcom(run, "stop") == {
        "job": train.record.job,
        "stopped": [{"object": "submission 1", "detail": ""}],
        "alive": [],
        "unproven": [],
    }
    assert (train.observation.state, train.observation.cause) == (State.GONE, Cause.STOPPED)


def test_the_team_with_less_priority_gives_way_and_goes_on(airflow):
    run = run_example(airflow, "two_teams")
    low, high = see(airflow, run, "team_a"), see(airflow, run, "team_b")

    assert (low.epochs, high.epochs) == ([FIRST, SECOND], [FIRST])
    back = [event for event in low.events if event.kind == "admitted"][1]
    assert low.find("preempted").at <= high.find("admitted").at
    assert high.find("succeeded").at <= back.at
    assert [record.state for record in low.record.submissions] == [State.SUCCEEDED]
    assert low.result["resumed_from"].startswith(f"checkpoint-e{FIRST}-")
    assert (low.result["steps"], high.result["steps"], high.result["resumed_from"]) == (400, 200, None)
    (interrupted,) = [line for line in read_output(airflow.home, low.observation.ref, FIRST) if "interrupted" in line]
    assert interrupted.endswith(low.result["resumed_from"])
