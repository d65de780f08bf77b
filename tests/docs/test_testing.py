# SPDX-License-Identifier: Apache-2.0
"""The page on testing shows a DAG and its test: that test is run, as a user would run it, and passes."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from airflow_provider_dispatch.testing.guarded_processes import GuardedProcesses
from airflow_provider_dispatch.testing.waiting import Waiter
from tests.docs.pages import read_blocks

PATIENCE_SECONDS = 300.0  # thirty are enough on a quiet machine


def write_files(page: str, folder: Path) -> list[str]:
    """The blocks that begin with a comment that names a file, as these files."""
    named = [(re.match(r"# (\w+\.py)\n", block), block) for block in read_blocks(page, "python")]
    found = [(match[1], block) for match, block in named if match]
    for name, block in found:
        (folder / name).write_text(block)
    return [name for name, _ in found]


def test_the_test_of_the_page_passes(repository: Path, tmp_path: Path) -> None:
    names = write_files((repository / "docs/testing.md").read_text(), tmp_path)
    home, log = tmp_path / "home", tmp_path / "printed.log"
    environment = os.environ | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path),
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
        "PYTHONPATH": os.pathsep.join([str(repository), str(tmp_path)]),
    }
    home.mkdir()
    in_folder = f"import os, runpy, sys; os.chdir({str(tmp_path)!r}); sys.argv[:1] = []; "

    with GuardedProcesses(tmp_path) as processes:

        def run_module(name: str, *arguments: str) -> None:
            command = [sys.executable, "-c", in_folder + f"runpy.run_module({name!r}, run_name='__main__')"]
            pid = processes.start([*command, name, *arguments], env=environment, log=log)
            has_ended = Waiter(interval_seconds=0.5).wait_for(
                lambda: [code] if (code := processes.exit_code(pid)) is not None else None,
                timeout_seconds=PATIENCE_SECONDS,
                what=name,
            )
            assert has_ended == [0], log.read_text()[-5000:]

        run_module("airflow", "db", "migrate")
        run_module("pytest", "-q", "-p", "no:cacheprovider", "test_train_dag.py")

    assert names == ["train_dag.py", "test_train_dag.py"]
    assert re.search(r"^2 passed", log.read_text(), re.MULTILINE)
