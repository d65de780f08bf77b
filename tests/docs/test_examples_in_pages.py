# SPDX-License-Identifier: Apache-2.0
"""The code that pages show: DAGs that parse, and lines that the task log really has."""

from __future__ import annotations

import ast
import importlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag

from airflow_provider_dispatch.core.clocks import ClockReading, Clocks
from airflow_provider_dispatch.core.holds import Actor, ActorKind, Hold
from airflow_provider_dispatch.core.identity import Identity, build_task_job_id
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.narration import describe
from airflow_provider_dispatch.core.observation import Observation, Pending, RoleRanks
from airflow_provider_dispatch.core.state import State
from airflow_provider_dispatch.operators.gate import DispatchOpenGateOperator
from airflow_provider_dispatch.operators.hold import DispatchHoldJobOperator, DispatchReleaseJobOperator
from airflow_provider_dispatch.operators.job import DispatchStartJobOperator, DispatchTrainJobOperator
from airflow_provider_dispatch.operators.stop import DispatchStopJobOperator
from airflow_provider_dispatch.sensors.gate import DispatchGateSensor
from airflow_provider_dispatch.sensors.hold import DispatchHoldSensor
from airflow_provider_dispatch.sensors.job import DispatchJobSensor
from tests.docs.pages import read_blocks, read_section

PUBLIC = (
    DispatchTrainJobOperator,
    DispatchStartJobOperator,
    DispatchOpenGateOperator,
    DispatchHoldJobOperator,
    DispatchReleaseJobOperator,
    DispatchStopJobOperator,
    DispatchGateSensor,
    DispatchHoldSensor,
    DispatchJobSensor,
)
NOW = datetime(2029, 12, 31, 20, tzinfo=UTC)
JOB = build_task_job_id("airflow", "maintenance", "run", "train")


@pytest.mark.parametrize(("name", "count"), [("README.md", 1), ("docs/dags.md", 7), ("docs/secrets.md", 1)])
def test_the_dags_of_a_page_parse(name: str, count: int, repository: Path, tmp_path: Path) -> None:
    """As Airflow reads a DAG file: the blocks of the page are one."""
    path = tmp_path / "page.py"
    path.write_text("\n".join(read_blocks((repository / name).read_text(), "python")))

    bag = DagBag(path)

    assert (bag.import_errors, bag.captured_warnings) == ({}, {})
    assert [len(dag.tasks) > 0 for dag in bag.dags.values()] == [True] * count


def test_every_operator_and_sensor_is_shown_at_work(repository: Path) -> None:
    shown = "\n".join(read_blocks((repository / "docs/dags.md").read_text(), "python"))

    assert [kind.__name__ for kind in PUBLIC if f"{kind.__name__}(" not in shown] == []


@pytest.mark.parametrize("name", ["README.md", *(f"docs/{page}.md" for page in ("quickstart", "testing", "tutorial"))])
def test_what_a_page_imports_is_there(name: str, repository: Path) -> None:
    for block in read_blocks((repository / name).read_text(), "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                module = importlib.import_module(node.module)
                assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


def test_the_log_has_the_lines_that_the_page_shows(repository: Path) -> None:
    ref = JobRef(JOB, 1, "local", "store@host")
    waited = Clocks(queued=ClockReading(since=NOW - timedelta(minutes=12)))
    actor, until = Actor(ActorKind.POLICY, "maintenance/hold"), datetime(2030, 1, 1, 12, tzinfo=UTC)
    hold = Hold(1, "key", actor, "maintenance until noon", NOW, until)
    pending = Pending("quota", "needs 2 x 500m cpu in team-a, 300m free", "team-a", 3)
    ranks, identity = (RoleRanks("node", 2, ready=1),), Identity(JOB, 1, 1, 1, 0)
    seen = (
        Observation(State.QUEUED, ref, pending=pending, clocks=waited),
        Observation(State.STARTING, ref, ranks=ranks, execution=identity),
        Observation(State.HOLDING, ref, holds=(hold,)),
    )

    (shown,) = read_blocks(read_section((repository / "docs/dags.md").read_text(), "What is in the log"), "text")

    assert shown.splitlines()[:3] == [describe(observation, NOW) for observation in seen]
