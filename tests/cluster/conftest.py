# SPDX-License-Identifier: Apache-2.0
"""One cluster for all tests here, and for each module a namespace with a queue of its own."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.testbed.bed import Bed
from tests.cluster.testbed.errors import TestbedError
from tests.cluster.testbed.foreign import ForeignBed
from tests.cluster.testbed.instance import Testbed
from tests.cluster.testbed.objects import LOCAL_QUEUE, build_namespace, build_queue, build_shared_objects
from tests.cluster.testbed.remote import AttachedBed, is_served

KUBECONFIG_VARIABLE = "DISPATCH_TEST_KUBECONFIG"
GONE_TIMEOUT_SECONDS = 90.0
HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace with a LocalQueue, fed by a ClusterQueue of the same name that wants our admission check."""

    name: str
    queue: str = LOCAL_QUEUE


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def bed(request: pytest.FixtureRequest, repository: Path) -> Iterator[Bed]:
    """The testbed, or the cluster of ``$DISPATCH_TEST_KUBECONFIG``.

    Shared: a test leaves both nodes ready and all components running, and touches nothing outside its namespace.
    """
    if chosen := os.environ.get(KUBECONFIG_VARIABLE):
        yield open_chosen(Path(chosen).resolve())
        return
    testbed = Testbed(keep_logs_in=repository / "build" / "testbed")
    start_or_skip(testbed)
    try:
        yield testbed
    finally:
        testbed.close(has_failed=request.session.testsfailed > 0)


def open_chosen(kubeconfig: Path) -> Bed:
    """Pointed at a testbed that runs in the background, tests have all of it; any other cluster is a stranger."""
    if is_served(kubeconfig.parent):
        return AttachedBed(kubeconfig.parent)
    foreign = ForeignBed(kubeconfig)
    foreign.api.apply(*build_shared_objects())
    return foreign


def start_or_skip(testbed: Testbed) -> None:
    """A testbed that can't start fails where CI runs, and skips with the reason elsewhere."""
    try:
        testbed.start()
    except TestbedError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no testbed: {error}")


@pytest.fixture(scope="module")
def namespace(bed: Bed, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """Fresh for each module, with room for 2 CPUs and 1 GiB; gone before the next module begins."""
    module = re.sub("[^a-z0-9]+", "-", request.path.stem.lower()).removeprefix("test-")
    name = f"{module[:40]}-{secrets.token_hex(3)}"
    queue, local_queue = build_queue(name)
    bed.api.apply(build_namespace(name), queue, local_queue)
    yield Namespace(name)
    bed.api.delete(build_namespace(name))
    bed.api.delete(queue)
    deadline = time.monotonic() + GONE_TIMEOUT_SECONDS
    while bed.api.find("Namespace", name) is not None:
        assert time.monotonic() < deadline, f"namespace {name} does not go: {bed.api.get('Namespace', name)['status']}"
        time.sleep(0.2)
