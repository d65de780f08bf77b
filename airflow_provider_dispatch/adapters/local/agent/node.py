# SPDX-License-Identifier: Apache-2.0
"""What this machine has to give: processors and memory that this process may use, and places for ranks.

The agent asks once, at its start. What a user writes of it in ``queues.toml`` is not looked at here.
"""

from __future__ import annotations

import os
from pathlib import Path

from airflow_provider_dispatch.adapters.local.scheduling.model import RANKS, Node
from airflow_provider_dispatch.core.quantity import CPU, MEMORY

NODE_NAME = "local"
MOST_RANKS = 256
_CGROUPS = Path("/sys/fs/cgroup")


def fetch_node() -> Node:
    """This machine."""
    group = _find_cgroup()
    cpu = min(_count_processors() * 1000, _read_cpu_quota(group))
    memory = min(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), _read_limit(group / "memory.max"))
    return Node(NODE_NAME, {CPU: cpu, MEMORY: memory, RANKS: MOST_RANKS})


def _count_processors() -> int:
    # Where a process can be confined to some processors, the rest are not its own.
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def _find_cgroup() -> Path:
    """Folder of the control group (version 2) that this process is in; one that doesn't exist where there is none."""
    try:
        line = Path("/proc/self/cgroup").read_text(encoding="ascii", errors="replace")
    except OSError:
        return _CGROUPS / "none"
    own = next((entry[3:] for entry in line.splitlines() if entry.startswith("0::")), "/none")
    return _CGROUPS / own.lstrip("/")


def _read_cpu_quota(group: Path) -> int:
    """Millicores that the group may use."""
    try:
        quota, period = (group / "cpu.max").read_text(encoding="ascii").split()
        return max(1, int(quota) * 1000 // int(period))
    except (OSError, ValueError):  # no such group, or "max"
        return 2**63 - 1


def _read_limit(path: Path) -> int:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 2**63 - 1
