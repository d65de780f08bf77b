# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.cluster [PYTEST ARGUMENTS]``: start testbeds, run every test that needs a cluster, take them down.

The contract's scenarios wait most of the time and share one testbed, with no rights but those that ``dispatch setup``
gives unless ``$DISPATCH_TEST_RIGHTS`` says otherwise. The rest pauses nodes and restarts parts, one test after the
other, so each of its test processes starts a testbed of its own. Both run at once, and the second one's words come
after the first one's. ``$DISPATCH_TEST_KUBECONFIG`` names a cluster that is there already, and all of them share it.

Whole clusters on two processors are late at times, so a test that fails is played a second time; what passes only then
is named at the end (``-rR``), and what fails twice has failed. Two executions at once, or an epoch that must not be,
are never late, and fail at once.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from tests.cluster.fixtures import KUBECONFIG_VARIABLE
from tests.cluster.granted import GRANTED, RIGHTS_VARIABLE
from tests.cluster.testbed.errors import TestbedError
from tests.cluster.testbed.instance import Testbed
from tests.cluster.testbed.remote import serve
from tests.contract.stage import BrokenPromiseError

REPOSITORY = Path(__file__).resolve().parents[2]
CONTRACT = ("test-cluster-contract", ("-n", "3", "tests/contract"))
ON_ONE = ("test-cluster", ("tests/cluster",))
SIDE_BY_SIDE = ("test-cluster", ("-n", "2", "--dist", "loadfile", "tests/cluster"))
RERUNS = ("--reruns", "1", "--rerun-except", BrokenPromiseError.__name__, "-rRfE")

Suite = tuple[str, Sequence[str]]


def main(arguments: Sequence[str]) -> int:
    """The exit status. A testbed that can't start is a failure where CI runs, and said elsewhere."""
    if os.environ.get(KUBECONFIG_VARIABLE):
        statuses = [start_suite(suite, os.environ, arguments).wait() for suite in (CONTRACT, ON_ONE)]
        return int(any(statuses))
    testbed = Testbed(keep_logs_in=REPOSITORY / "build" / "testbed")
    try:
        testbed.start()
    except TestbedError as error:
        print(f"no testbed: {error}", file=sys.stderr)
        return 1 if os.environ.get("CI") else 0
    with TemporaryFile() as log:
        other = start_suite(SIDE_BY_SIDE, os.environ, arguments, output=log)
        try:
            status = run_beside(testbed, arguments)
        finally:
            has_failed = other.wait() != 0
            log.seek(0)
            sys.stdout.buffer.write(log.read())
            sys.stdout.flush()
    return int(status != 0 or has_failed)


def run_beside(testbed: Testbed, arguments: Sequence[str]) -> int:
    """The contract's test run is a process of its own, and reaches the testbed through its socket."""
    is_over, status = threading.Event(), 1
    server = threading.Thread(target=serve, args=(testbed, is_over.is_set), name="testbed")
    server.start()
    try:
        environment = {RIGHTS_VARIABLE: GRANTED} | os.environ | {KUBECONFIG_VARIABLE: str(testbed.kubeconfig)}
        status = start_suite(CONTRACT, environment, arguments).wait()
    finally:
        is_over.set()
        server.join()
        testbed.close(has_failed=status != 0)
    return status


def start_suite(
    suite: Suite, environment: Mapping[str, str], arguments: Sequence[str], *, output: IO[bytes] | None = None
) -> subprocess.Popen[bytes]:
    """Its test run.

    :param output: where its words go; None for the terminal.
    """
    name, options = suite
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "pytest", "-m", "cluster and not matrix", *RERUNS),
            *("-o", f"cache_dir=build/cache/{name}", f"--junitxml=build/junit/{name}.xml", *options, *arguments),
        ],
        cwd=REPOSITORY,
        env=environment,
        stdout=output,
        stderr=subprocess.STDOUT if output is not None else None,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
