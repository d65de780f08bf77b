# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.cluster [PYTEST ARGUMENTS]``: start a testbed, run every test that needs a cluster, take it down.

The contract's scenarios wait most of the time and share the cluster; the rest pauses nodes and restarts parts, one
test after the other. ``$DISPATCH_TEST_KUBECONFIG`` names a cluster that is there already.
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
SUITES = {
    "test-cluster-contract": ("-n", "3", "tests/contract"),
    "test-cluster": ("tests/cluster",),
}


def main(arguments: Sequence[str]) -> int:
    """The exit status. A testbed that can't start is a failure where CI runs, and said elsewhere."""
    if os.environ.get(KUBECONFIG_VARIABLE):
        return run_suites(os.environ, arguments)
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
    return status


def run_beside(testbed: Testbed, arguments: Sequence[str]) -> int:
    """The test runs are processes of their own, and reach the testbed through its socket."""
    is_over = threading.Event()
    server = threading.Thread(target=serve, args=(testbed, is_over.is_set), name="testbed")
    server.start()
    try:
        return run_suites(os.environ | {KUBECONFIG_VARIABLE: str(testbed.kubeconfig)}, arguments)
    finally:
        is_over.set()
        server.join()


def run_suites(environment: Mapping[str, str], arguments: Sequence[str]) -> int:
    """All of them, whatever the first says; 1 if any failed."""
    results = [
        subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-m", "cluster"),
                *(f"--junitxml=build/junit/{name}.xml", *suite, *arguments),
            ],
            cwd=REPOSITORY,
            env=environment,
        ).returncode
        for name, suite in SUITES.items()
    ]
    return int(any(results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
