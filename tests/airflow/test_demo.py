# SPDX-License-Identifier: Apache-2.0
"""``make demo``: it shows all, and whenever it is interrupted, it leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.airflow

PATIENCE_SECONDS = 60.0
matrix = pytest.mark.matrix


class Demo:
    """A running demonstration, all of whose folders lie in one."""

    def __init__(self, repository: Path, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.printed = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.demo", *arguments],
            cwd=repository,
            env=os.environ | {"TMPDIR": str(folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def read_until(self, text: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.printed += line
            if text in line:
                return
        raise AssertionError(f"ended without saying {text!r}:\n{self.printed}")

    def end(self) -> int:
        rest, _ = self.process.communicate(timeout=PATIENCE_SECONDS)
        self.printed += rest
        return self.process.returncode

    def find_processes(self) -> list[str]:
        """All that carry a folder of ours in their command or environment."""
        rows = subprocess.run(["ps", "axeww", "-o", "pid=,command="], capture_output=True, text=True, check=True).stdout
        return [row for row in rows.splitlines() if str(self.folder) in row]


@pytest.fixture
def start_demo(repository: Path, tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    started: list[Demo] = []

    def start(*arguments: str) -> Demo:
        started.append(Demo(repository, tmp_path, *arguments))
        return started[-1]

    yield start
    for demo in started:
        demo.process.kill()
        demo.process.communicate()


@matrix
def test_it_shows_all_and_stays_open_on_demand(start_demo):
    demo = start_demo("--keep")
    demo.read_until("Ctrl-C ends it.")

    assert "  NO  " not in demo.printed
    assert demo.printed.count("  ok  ") == 6
    assert "password" in demo.printed
    assert demo.find_processes()
    os.killpg(demo.process.pid, signal.SIGINT)
    assert demo.end() == 130
    assert_nothing_is_left(demo)


@pytest.mark.parametrize(
    "line",
    [
        "starting a real Airflow",
        pytest.param("Airflow is up", marks=matrix),
        pytest.param("job train runs", marks=matrix),
        pytest.param("job train is held", marks=matrix),
    ],
)
def test_interrupted_it_leaves_nothing(start_demo, line):
    demo = start_demo()
    demo.read_until(line)
    os.killpg(demo.process.pid, signal.SIGINT)

    assert demo.end() == 130
    assert "interrupted; nothing is left running" in demo.printed
    assert_nothing_is_left(demo)


def assert_nothing_is_left(demo: Demo) -> None:
    assert demo.find_processes() == []
    assert list(demo.folder.iterdir()) == []
