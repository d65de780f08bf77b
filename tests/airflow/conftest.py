# SPDX-License-Identifier: Apache-2.0
"""One real Airflow for all tests that don't need one of their own: it takes longer to start than most tests to run."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from airflow_provider_dispatch.testing.airflow_processes import RealAirflow
from tests.airflow.programs import ACTIONS
from tests.airflow.scene import Scene

DAGS_FOLDER = Path(__file__).parent / "dags"
CONNECTIONS = {
    # Stores of their own: for jobs whose agent is killed, and for jobs that have to queue.
    "AIRFLOW_CONN_FRAGILE": '{"conn_type": "dispatch", "extra": {"store": "fragile"}}',
    "AIRFLOW_CONN_QUEUES": '{"conn_type": "dispatch", "extra": {"store": "queues"}}',
}
QUICK_TO_NOTICE = {
    # How long Airflow takes to see that a worker is gone, five minutes by default, and a triggerer.
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "2",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "12",
}


@pytest.fixture(scope="session")
def real_airflow(repository: Path) -> Iterator[RealAirflow]:
    """Shared: a test triggers runs of its own, leaves the components running, and changes nothing of other tests."""
    with RealAirflow(None, DAGS_FOLDER, env=harness_environment(repository) | CONNECTIONS | QUICK_TO_NOTICE) as airflow:
        yield airflow
        last = airflow.alive()
    assert is_nothing_left(airflow.home, last)


@pytest.fixture(scope="session")
def queues(real_airflow: RealAirflow) -> Scene:
    """A store with room for one job in each narrow queue, for any number in the wide one, and for none in another."""
    scene = Scene(real_airflow, "queues")
    scene.layout.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    narrow = "".join(f"[queues.narrow-{action}]\nquota = {{seat = 1}}\n" for action in ACTIONS)
    rest = "[queues.wide]\n[queues.none]\nquota = {seat = 0}\n"
    scene.layout.queues.write_text(f"[node]\ncapacity = {{seat = {len(ACTIONS)}}}\n{narrow}{rest}")
    return scene


def harness_environment(repository: Path) -> dict[str, str]:
    """The components import the checkout, installed or not, and read the example DAGs beside those of the tests."""
    local = "airflow.dag_processing.bundles.local.LocalDagBundle"
    bundles = [
        {"name": "dags-folder", "classpath": local, "kwargs": {}},
        {"name": "examples", "classpath": local, "kwargs": {"path": str(repository / "example_dags")}},
    ]
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(repository), os.environ.get("PYTHONPATH")])),
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(bundles),
    }


def is_nothing_left(home: Path, pids: Sequence[int] = ()) -> bool:
    """Neither of *pids* nor of what carries the mark of that home, however far it has run from its parents.

    Some of Airflow's processes write their title over their environment, and with it over the mark: hence both.
    """
    rows = subprocess.run(["ps", "axeww", "-o", "pid=,command="], capture_output=True, text=True, check=True).stdout
    running = {int(row.split(maxsplit=1)[0]) for row in rows.splitlines()}
    return f"AIRFLOW_HOME={home} " not in rows and running.isdisjoint(pids)
