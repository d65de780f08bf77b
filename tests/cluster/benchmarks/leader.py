# SPDX-License-Identifier: Apache-2.0
"""The admission controller that acts on the cluster, as a process of this machine whose costs can be read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow_provider_dispatch.testing.waiting import Waiter
from tests.benchmarks.machine import read_cpu_seconds, read_memory_bytes
from tests.cluster.controller_process import ControllerProcess
from tests.cluster.fixtures import CONTROLLER_FLAGS, is_looked_after
from tests.cluster.testbed.bed import Bed
from tests.cluster.testbed.objects import build_shared_objects


@contextmanager
def look_after(bed: Bed, folder: Path) -> Iterator[None]:
    """Have a controller that leads: ours, unless another one does already."""
    bed.api.apply(*build_shared_objects())
    with ControllerProcess(bed.kubeconfig, folder, CONTROLLER_FLAGS):
        await_leader(bed)
        yield


def await_leader(bed: Bed) -> None:
    """Until one leads; on a cluster that isn't ours alone, others come and go."""
    Waiter().wait_for(lambda: is_looked_after(bed), timeout_seconds=60, what="a leading controller")


def find_leader(bed: Bed) -> int:
    """Its process; waits for the next one when the last has just ended.

    :raises LookupError: it runs on another machine.
    """
    return Waiter().wait_for(lambda: _find_holder(bed), timeout_seconds=60, what="a controller that leads")


def _find_holder(bed: Bed) -> int | None:
    lease = bed.api.get("Lease", "dispatch-admission", namespace="dispatch-system", version="coordination.k8s.io/v1")
    host, pid, _ = str(lease["spec"].get("holderIdentity") or "-0-").rsplit("-", 2)
    if host and host != os.uname().nodename:
        raise LookupError(f"the controller that leads runs on {host}, whose costs can't be read here")
    return int(pid) if Path("/proc", pid).exists() else None


def read_costs(pid: int) -> tuple[float, int]:
    """CPU seconds so far, and bytes."""
    return read_cpu_seconds(pid), read_memory_bytes(pid)
