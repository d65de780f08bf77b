# SPDX-License-Identifier: Apache-2.0
"""The cluster as fixtures of the whole test run: the contract suite wants it as well as the tests in this folder.

What a cluster needs is imported when a test asks for one: most test runs have none.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider_dispatch.testing.waiting import Waiter

if TYPE_CHECKING:
    from tests.cluster.granted import Grants
    from tests.cluster.testbed.bed import Bed
    from tests.cluster.testbed.instance import Testbed

KUBECONFIG_VARIABLE = "DISPATCH_TEST_KUBECONFIG"
CONTROLLER_FLAGS = (
    # The testbed's own node-monitor grace is 20 s, and its clocks are one clock.
    *("--node-monitor-grace-seconds", "20", "--margin-seconds", "5"),
)


@pytest.fixture(scope="session")
def bed(request: pytest.FixtureRequest, repository: Path) -> Iterator[Bed]:
    """The testbed, or the cluster of ``$DISPATCH_TEST_KUBECONFIG``.

    Shared: a test leaves both nodes ready and all components running, and touches nothing outside its namespace.
    """
    from tests.cluster.testbed.instance import Testbed

    if chosen := os.environ.get(KUBECONFIG_VARIABLE):
        yield open_chosen(Path(chosen).resolve())
        return
    testbed = Testbed(keep_logs_in=repository / "build" / "testbed")
    start_or_skip(testbed)
    try:
        yield testbed
    finally:
        testbed.close(has_failed=request.session.testsfailed > 0)


@pytest.fixture(scope="session")
def granted(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Grants | None:
    """The rights to act with; None for those of an administrator."""
    from tests.cluster.granted import are_wanted, grant

    return grant(bed, tmp_path_factory.mktemp("granted")) if are_wanted() else None


@pytest.fixture(scope="session")
def controlled_bed(bed: Bed, granted: Grants | None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """The cluster with a replica of the admission controller; of several at once, one leads."""
    from tests.cluster.controller_process import ControllerProcess
    from tests.cluster.testbed.objects import build_shared_objects

    bed.api.apply(*build_shared_objects())
    give_slots(bed)
    kubeconfig = granted.controller if granted is not None else bed.kubeconfig
    with ControllerProcess(kubeconfig, tmp_path_factory.mktemp("controller"), CONTROLLER_FLAGS):
        Waiter().wait_for(lambda: is_looked_after(bed), timeout_seconds=60, what="a leading controller")
        yield bed


def give_slots(bed: Bed) -> None:
    """Plenty of the resource that is only counted, on every node."""
    from tests.cluster.testbed.objects import SLOT

    for node in bed.api.get("Node")["items"]:
        named = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node["metadata"]["name"]}}
        bed.api.patch(named, {"status": {"capacity": {SLOT: "1000"}}}, subresource="/status")


def is_looked_after(bed: Bed) -> bool:
    """Somebody holds the Lease, and says that the check is active."""
    lease = bed.api.find("Lease", "dispatch-admission", namespace="dispatch-system", version="coordination.k8s.io/v1")
    check = bed.api.find("AdmissionCheck", "dispatch-admission", version="kueue.x-k8s.io/v1beta2")
    if not lease or not check or not lease["spec"].get("holderIdentity"):
        return False
    age = datetime.now(UTC) - datetime.fromisoformat(lease["spec"]["renewTime"])
    is_active = any(one["status"] == "True" for one in check.get("status", {}).get("conditions", ()))
    return is_active and age < timedelta(seconds=lease["spec"]["leaseDurationSeconds"])


def open_chosen(kubeconfig: Path) -> Bed:
    """Pointed at a testbed that runs in the background, tests have all of it; any other cluster is a stranger."""
    from tests.cluster.testbed.foreign import ForeignBed
    from tests.cluster.testbed.objects import build_shared_objects
    from tests.cluster.testbed.remote import AttachedBed, is_served

    if is_served(kubeconfig.parent):
        return AttachedBed(kubeconfig.parent)
    foreign = ForeignBed(kubeconfig)
    foreign.api.apply(*build_shared_objects())
    return foreign


def start_or_skip(testbed: Testbed) -> None:
    """A testbed that can't start fails where CI runs, and skips with the reason elsewhere."""
    from tests.cluster.testbed.errors import TestbedError

    try:
        testbed.start()
    except TestbedError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no testbed: {error}")
