# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.cluster [PYTEST ARGUMENTS]``: start testbeds, run every test that needs a cluster, take them down.

The contract's scenarios wait most of the time and share one testbed. The rest pauses nodes and restarts parts, one test
after the other, so each of its test processes starts a testbed of its own. ``$DISPATCH_TEST_KUBECONFIG`` names a
cluster that is there already, and all of them share it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.cluster.fixtures import KUBECONFIG_VARIABLE
from tests.cluster.testbed.errors import TestbedError
from tests.cluster.testbed.instance import Testbed
from tests.cluster.testbed.remote import serve

REPOSITORY = Path(__file__).resolve().parents[2]
CONTRACT = ("test-cluster-contract", ("-n", "3", "tests/contract"))
ON_ONE = ("test-cluster", ("tests/cluster",))
SIDE_BY_SIDE = ("test-cluster", ("-n", "2", "--dist", "loadfile", "tests/cluster"))


def main(arguments: Sequence[str]) -> int:
    """The exit status. A testbed that can't start is a failure where CI runs, and said elsewhere."""
    if os.environ.get(KUBECONFIG_VARIABLE):
        return max([run_suite(suite, os.environ, arguments) for suite in (CONTRACT, ON_ONE)])
    testbed = Testbed(keep_logs_in=REPOSITORY / "build" / "testbed")
    try:
        testbed.start()
    except TestbedError as error:
        print(f"no testbed: {error}", file=sys.stderr)
        return 1 if os.environ.get("CI") else 0
    status = 1
    try:
        status = run_beside(testbed, arguments)
    finally:
        testbed.close(has_failed=status != 0)
    return run_suite(SIDE_BY_SIDE, os.environ, arguments) or status


def run_beside(testbed: Testbed, arguments: Sequence[str]) -> int:
    """The contract's test run is a process of its own, and reaches the testbed through its socket."""
    is_over = threading.Event()
    server = threading.Thread(target=serve, args=(testbed, is_over.is_set), name="testbed")
    server.start()
    try:
        return run_suite(CONTRACT, os.environ | {KUBECONFIG_VARIABLE: str(testbed.kubeconfig)}, arguments)
    finally:
        is_over.set()
        server.join()


def run_suite(suite: tuple[str, Sequence[str]], environment: Mapping[str, str], arguments: Sequence[str]) -> int:
    """1 if a test failed."""
    name, options = suite
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-m", "cluster and not matrix"),
            *(f"--junitxml=build/junit/{name}.xml", *options, *arguments),
        ],
        cwd=REPOSITORY,
        env=environment,
    )
    return int(done.returncode != 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
