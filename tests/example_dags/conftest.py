# SPDX-License-Identifier: Apache-2.0
"""The example DAGs whose tasks run one after another, run by ``dag.test()`` in a process that is sure to end."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider_dispatch.testing.guarded_processes import GuardedProcesses
from airflow_provider_dispatch.testing.waiting import Waiter
from tests.example_dags import run_dags

EXAMPLES = ("first_job", "gate_opened_by_another_task", "leader_and_workers", "recovery_policy")
PATIENCE_SECONDS = 300.0  # forty are enough on a quiet machine


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("examples-airflow")


@pytest.fixture(scope="session")
def runs(repository: Path, home: Path) -> Iterator[dict[str, dict]]:
    """What became of each, by the name of its DAG. The agent lives until the last test has looked."""
    files = [str(repository / "example_dags" / f"{name}.py") for name in EXAMPLES]
    environment = os.environ | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(repository / "example_dags"),
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
        "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(repository), os.environ.get("PYTHONPATH")])),
    }
    with GuardedProcesses(home) as processes:

        def run_python(*arguments: str) -> None:
            pid = processes.start([sys.executable, "-P", *arguments], env=environment, log=home / "runs.log")
            assert wait_for_end(lambda: processes.exit_code(pid)) == 0, (home / "runs.log").read_text()[-5000:]

        run_python("-m", "airflow", "db", "migrate")
        run_python(run_dags.__file__, *files)
        yield read_runs((home / "runs.log").read_text(errors="replace"))


def wait_for_end(fetch_exit_code: Callable[[], int | None]) -> int:
    waiter, what = Waiter(interval_seconds=0.5), "the examples to end"

    def look() -> list[int] | None:
        code = fetch_exit_code()
        return None if code is None else [code]

    return waiter.wait_for(look, timeout_seconds=PATIENCE_SECONDS, what=what)[0]


def read_runs(printed: str) -> dict[str, dict]:
    parts = (line.partition(run_dags.MARK) for line in printed.splitlines())
    found = [json.loads(run) for _, mark, run in parts if mark]
    return {run["dag_id"]: run for run in found}
