# SPDX-License-Identifier: Apache-2.0
"""What the DAGs of these tests run: programs of the contract suite, which do what a test writes into a file for them.

The DAG files import it, so it is loaded in Airflow's own processes; a test finds the folder beneath the Airflow home.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TypedDict

RANK = Path(__file__).parents[1] / "contract" / "rank.py"
CONTROL = Path(os.environ["AIRFLOW_HOME"]) / "control"
ACTIONS = ("mark_failed", "mark_success", "clear", "delete")
"""Of people, each with a DAG and a narrow queue of its own."""


class Program(TypedDict):
    """Arguments of an operator that starts jobs."""

    command: list[str]
    env: dict[str, str]


def rank(*behaviour: str) -> Program:
    """Runs until it is told otherwise."""
    return {"command": [sys.executable, "-I", "-S", str(RANK), *behaviour], "env": {"CONTROL": str(CONTROL)}}


def told_ready() -> dict[str, object]:
    """A check that a test lets pass."""
    path = '"$CONTROL/$DISPATCH_JOB_ID-$DISPATCH_ROLE-$DISPATCH_RANK.$DISPATCH_EPOCH.ready"'
    return {"command": ["/bin/sh", "-c", f"test -e {path}"]}
