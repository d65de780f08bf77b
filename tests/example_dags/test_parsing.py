# SPDX-License-Identifier: Apache-2.0
"""All example DAG files as a DAG processor sees them: no connection, no warning, nothing heavy, a word to readers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from airflow_provider_dispatch.adapters.local.scheduling.queue_file import parse_queues

REPOSITORY = Path(__file__).resolve().parents[2]
FILES = sorted((REPOSITORY / "example_dags").glob("*.py"))
PARSE = """
import importlib.util, json, sys
from airflow.sdk import DAG
from airflow.sdk.definitions._internal.contextmanager import DagContext
before = set(sys.modules)
found = {}
DagContext.current_autoregister_module_name = "example"
for path in sys.argv[1:]:
    DagContext.autoregistered_dags.clear()
    spec = importlib.util.spec_from_file_location("example", path)
    sys.modules["example"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found[path] = [(dag.dag_id, bool(dag.doc_md)) for dag, _ in DagContext.autoregistered_dags]
print(json.dumps({"found": found, "modules": sorted(set(sys.modules) - before)}))
"""


def test_there_is_an_example_for_each_subject():
    assert {path.stem for path in FILES} == {
        "first_job",
        "gate_opened_by_another_task",
        "hold_and_release",
        "leader_and_workers",
        "recovery_policy",
        "two_teams",
    }


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """In a fresh interpreter, where every warning is an error."""
    environment = os.environ | {
        "AIRFLOW_HOME": str(tmp_path_factory.mktemp("home")),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")])),
    }
    done = subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", PARSE, *map(str, FILES)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]) | {"said": done.stderr}


def test_each_file_is_one_dag_of_its_name_that_says_what_to_look_at(parsed):
    for path in FILES:
        assert parsed["found"][str(path)] == [[path.stem, True]]
        assert "**Look at**" in path.read_text()


def test_parsing_says_nothing_and_warns_of_nothing(parsed):
    assert parsed["said"] == ""


@pytest.mark.parametrize("heavy", ["numpy", "sklearn", "kubernetes", "sqlite3", "airflow_provider_dispatch.adapters"])
def test_parsing_loads_nothing_that_only_running_needs(parsed, heavy):
    assert heavy not in parsed["modules"]


def test_the_queues_of_the_examples_are_what_the_local_backend_reads():
    content = tomllib.loads((REPOSITORY / "example_dags/queues.toml").read_text())
    queues = parse_queues(content, default_capacity={"cpu": 2000}).queues

    assert {queue.name: queue.nominal for queue in queues} == {"default": None, "research": {"cpu": 1000}}
