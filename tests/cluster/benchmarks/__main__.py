# SPDX-License-Identifier: Apache-2.0
"""The command: ``python -m tests.cluster.benchmarks [--only requests start readmission crowd fence]``.

Prints one JSON document on standard output and what it is doing on standard error. It measures on a testbed of its
own, or on the cluster of ``$DISPATCH_TEST_KUBECONFIG``, and leaves nothing behind. A figure that misses its aim is no
failure of the command; one that can't be measured is.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.figure import Figure
from tests.benchmarks.machine import read_load, read_machine
from tests.cluster.benchmarks.crowd import measure_crowd
from tests.cluster.benchmarks.fence import measure_fence
from tests.cluster.benchmarks.leader import await_leader, look_after
from tests.cluster.benchmarks.readmission import measure_readmission
from tests.cluster.benchmarks.requests import measure_requests
from tests.cluster.benchmarks.starting import measure_starting
from tests.cluster.fixtures import KUBECONFIG_VARIABLE, open_chosen
from tests.cluster.testbed.bed import Bed
from tests.cluster.testbed.instance import Testbed


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    :param rounds: of what is told as a median.
    :param waiting: numbers of jobs that are waited for.
    :param window_seconds: how long requests are counted.
    :param pods: numbers of pods behind the fence.
    """

    rounds: int = 9
    waiting: Sequence[int] = (1, 100, 1_000)
    window_seconds: float = 120.0
    pods: Sequence[int] = (2, 200)


Measure = Callable[[Bed, Sizes], Awaitable[list[Figure]]]
SUBJECTS: dict[str, Measure] = {
    "requests": lambda bed, _: measure_requests(bed),
    "start": lambda bed, sizes: measure_starting(bed, sizes.rounds),
    "readmission": lambda bed, sizes: measure_readmission(bed, sizes.rounds),
    "fence": lambda bed, sizes: measure_fence(bed, sizes.pods),
    "crowd": lambda bed, sizes: measure_crowd(bed, sizes.waiting, sizes.window_seconds),
}


@contextlib.contextmanager
def open_bed() -> Iterator[Bed]:
    """The cluster that was chosen, or one for us alone."""
    if chosen := os.environ.get(KUBECONFIG_VARIABLE):
        yield open_chosen(Path(chosen).resolve())
        return
    testbed = Testbed()
    testbed.start()
    try:
        yield testbed
    finally:
        testbed.close(has_failed=False)


def measure_all(bed: Bed, subjects: Sequence[str], sizes: Sizes) -> dict[str, Any]:
    """The document. A controller leads already."""
    machine, begun = read_machine(), time.monotonic()
    figures: list[dict[str, object]] = []
    failures: dict[str, str] = {}
    for subject in subjects:
        print(f"{subject} …", file=sys.stderr, flush=True)
        before = read_load()
        try:
            await_leader(bed)
            found = asyncio.run(_measure(subject, bed, sizes))
        except Exception as error:  # noqa: BLE001 - the others are measured all the same
            traceback.print_exc()
            failures[subject] = f"{type(error).__name__}: {error}"
        else:
            load = {"load_before": before, "load_after": read_load()}
            figures += [{**figure.to_plain(), **load} for figure in found]
    machine |= {"load_at_the_end": read_load(), "seconds": round(time.monotonic() - begun, 1)}
    cluster = {
        "kubernetes": bed.api.request("GET", "/version")["gitVersion"],
        "is_ours_alone": isinstance(bed, Testbed),
    }
    return {"machine": machine, "cluster": cluster, "figures": figures, "not_measured": failures}


async def _measure(subject: str, bed: Bed, sizes: Sizes) -> list[Figure]:
    return await SUBJECTS[subject](bed, sizes)


def parse_arguments(arguments: Sequence[str] | None = None) -> tuple[list[str], Sizes]:
    """What is measured, and how much of it."""
    usual = Sizes()
    parser = argparse.ArgumentParser(
        prog="python -m tests.cluster.benchmarks", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--only", nargs="+", choices=SUBJECTS, default=list(SUBJECTS), metavar="SUBJECT")
    parser.add_argument("--rounds", type=int, default=usual.rounds)
    parser.add_argument("--waiting", type=int, nargs="+", default=list(usual.waiting), metavar="JOBS")
    parser.add_argument("--window-seconds", type=float, default=usual.window_seconds, metavar="SECONDS")
    parser.add_argument("--pods", type=int, nargs="+", default=list(usual.pods))
    given = parser.parse_args(arguments)
    return given.only, Sizes(given.rounds, given.waiting, given.window_seconds, given.pods)


def main() -> int:
    """Measure and print; 1 when something could not be measured."""
    subjects, sizes = parse_arguments()
    # So that what was started is ended as well when the command is asked to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with (
        contextlib.redirect_stdout(sys.stderr),
        tempfile.TemporaryDirectory(prefix="dispatch-bench-") as folder,
        open_bed() as bed,
        look_after(bed, Path(folder)),
    ):
        document = measure_all(bed, subjects, sizes)
    print(json.dumps(document, indent=2))
    return 1 if document["not_measured"] else 0


if __name__ == "__main__":
    sys.exit(main())
