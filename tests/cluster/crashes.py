# SPDX-License-Identifier: Apache-2.0
"""Ends what runs in a pod as a crash does, at once and told to nobody. For a cluster on this machine alone."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from tests.cluster.testbed.bed import Bed


def crash_processes(name: str, value: str) -> int:
    """Kill all processes that have this in their environment; how many there were."""
    mark, killed = f"{name}={value}".encode(), 0
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            if process.name.isdecimal() and mark in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)
                killed += 1
    return killed


def delete_by_force(bed: Bed, namespace: str, pod: str) -> None:
    """Take the object away without waiting for the node's word."""
    bed.api.request("DELETE", f"/api/v1/namespaces/{namespace}/pods/{pod}", {"gracePeriodSeconds": 0})
