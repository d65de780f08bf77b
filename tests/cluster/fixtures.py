# SPDX-License-Identifier: Apache-2.0
"""The cluster as fixtures of the whole test run: the contract suite wants it as well as the tests in this folder.

What a cluster needs is imported when a test asks for one: most test runs have none.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
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
def controlled_bed(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """The cluster with a replica of the admission controller; of several at once, one leads."""
    from tests.cluster.controller_process import ControllerProcess

    with ControllerProcess(bed.kubeconfig, tmp_path_factory.mktemp("controller"), CONTROLLER_FLAGS):
        yield bed


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
