# SPDX-License-Identifier: Apache-2.0
"""The machine a benchmark ran on, and how busy it was. Printed with every result; nothing is decided by it."""

from __future__ import annotations

import os
import platform
import sqlite3
from importlib.metadata import version

DISTRIBUTIONS = ("apache-airflow", "apache-airflow-providers-cncf-kubernetes", "apache-airflow-providers-standard")


def read_machine() -> dict[str, object]:
    """Its facts."""
    return {
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in (*DISTRIBUTIONS, "pydantic")} | {"sqlite": sqlite3.sqlite_version},
        "load": read_load(),
    }


def read_load() -> list[float]:
    """Processes that wanted a core, on the average of the last 1, 5 and 15 minutes."""
    return [round(load, 2) for load in os.getloadavg()]


def read_cpu_seconds(pid: int) -> float:
    """CPU time of a process so far, with all its threads."""
    seconds = 0.0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/schedstat") as file:
            seconds += int(file.read().split()[0]) / 1e9
    return seconds


def read_memory_bytes(pid: int) -> int:
    """Memory that a process shares with no other."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        lines = dict(line.split(":", 1) for line in file.read().splitlines()[1:])
    return sum(int(lines[name].split()[0]) * 1024 for name in ("Private_Clean", "Private_Dirty"))
