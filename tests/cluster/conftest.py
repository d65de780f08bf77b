# SPDX-License-Identifier: Apache-2.0
"""For each module of tests a namespace with a queue of its own, on the one cluster of :mod:`tests.cluster.fixtures`."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.testbed.bed import Bed
from tests.cluster.testbed.objects import LOCAL_QUEUE, build_namespace, build_queue

GONE_TIMEOUT_SECONDS = 90.0
HERE = Path(__file__).parent
KEPT_LOGS = HERE.parents[1] / "build" / "testbed"
KEPT_BEFORE = pytest.StashKey[frozenset[Path]]()


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace with a LocalQueue, fed by a ClusterQueue of the same name that wants our admission check."""

    name: str
    queue: str = LOCAL_QUEUE


def pytest_configure(config: pytest.Config) -> None:
    config.stash[KEPT_BEFORE] = frozenset(KEPT_LOGS.glob("*"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Where the logs of testbeds are that failed meanwhile: what their own processes say of it isn't shown."""
    before = config.stash[KEPT_BEFORE]
    kept = sorted(folder for folder in KEPT_LOGS.glob("*") if folder not in before)
    if kept:
        terminalreporter.section("logs of testbeds")
        for folder in kept:
            terminalreporter.line(str(folder))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.cluster)


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
