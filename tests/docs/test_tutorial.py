# SPDX-License-Identifier: Apache-2.0
"""The tutorial is a program: its blocks are run, and what they print is what the page says."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from airflow_provider_dispatch.testing.guarded_processes import GuardedProcesses
from airflow_provider_dispatch.testing.waiting import Waiter
from tests.docs.pages import read_blocks

PATIENCE_SECONDS = 120.0  # five are enough on a quiet machine


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs/tutorial.md").read_text()


def run_program(program: str, folder: Path, repository: Path) -> str:
    """What the program prints. Its agent, which would outlive it, is ended with it."""
    script, log = folder / "tutorial.py", folder / "printed.log"
    script.write_text(program)
    environment = os.environ | {"PYTHONPATH": str(repository)}
    with GuardedProcesses(folder) as processes:
        pid = processes.start([sys.executable, "-W", "error", str(script)], env=environment, log=log)
        codes: list[int] = []

        def has_ended() -> bool:
            code = processes.exit_code(pid)
            codes.extend([] if code is None else [code])
            return code is not None

        Waiter().wait_for(has_ended, timeout_seconds=PATIENCE_SECONDS, what="the tutorial to end")
        assert codes == [0], log.read_text()
    return log.read_text()


def mask(printed: str, folder: Path) -> str:
    """With everything that differs from run to run named as the page names it."""
    (job,) = set(re.findall(r"^DISPATCH_JOB_ID=(\w+)$", printed, re.MULTILINE))
    (place,) = re.findall(r"^(\S+)/dj-", printed, re.MULTILINE)
    named = printed.replace(str(folder), "<folder>").replace(place, "<store>")
    named = named.replace(job, "<job>").replace(job.lower(), "<job>")
    named = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", "<time>", named)
    return re.sub(r"(?<=^file system: yes \(probed\) )[^,]+", "<kind>", named, flags=re.MULTILINE)


def test_the_tutorial_prints_what_it_says(page: str, repository: Path, tmp_path: Path) -> None:
    folder = tmp_path.resolve()
    program, promised = "\n".join(read_blocks(page, "python")), "".join(read_blocks(page, "text"))
    where_that_is = f"import os\nos.chdir({str(folder)!r})\n"

    printed = run_program(where_that_is + program, folder, repository)

    assert [line.rstrip() for line in mask(printed, folder).splitlines()] == promised.splitlines()


def test_each_step_of_the_tutorial_stands_in_it(page: str) -> None:
    steps = ["preflight", "start", "inspect", "open", "watch", "output", "hold", "release", "stop", "find", "events"]
    program = "\n".join(read_blocks(page, "python"))

    assert [step for step in steps if f"adapter.{step}(" not in program] == []
