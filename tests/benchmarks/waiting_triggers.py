# SPDX-License-Identifier: Apache-2.0
"""A thousand deferred tasks in one event loop: ours, and a thousand of Airflow's `TimeDeltaTrigger` with an hour to go.

Run as a program, it is one such loop and tells its own CPU time, with all threads, and how late its loop was. Both
programs run side by side, so they see the same machine. Neither writes a log: how dear a line is depends on the
triggerer. The minute that is measured holds one look of each peer at its clock, and of ours the watch of the store and
the line that says after a minute that a job still waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from tests.benchmarks.figure import Figure, percentile

if TYPE_CHECKING:
    from airflow.triggers.base import BaseTrigger

LONGEST_START_SECONDS = 60.0
QUIET_CPU_SECONDS = 0.02
WAITING_SECONDS = 60.0
PROBE_SECONDS = 0.02
AIM = 1.5
PATIENCE_SECONDS = LONGEST_START_SECONDS + WAITING_SECONDS + 60
CONNECTION = {"conn_type": "dispatch", "extra": {"backend": "local"}}
Measured = dict[str, float]


def measure_waiting_triggers(folder: Path) -> list[Figure]:
    """CPU and lag of both."""
    from tests.benchmarks.crowded_store import crowded_store

    # Where the connection looks for its store.
    home = folder / "home"
    with crowded_store(home / "dispatch") as store:
        jobs = json.dumps([ref.job for ref in store.queued])
        with _play(home, jobs) as ours, _play(home, str(len(store.queued))) as peers:
            our, peer = _read(ours), _read(peers)
    return [
        _build_figure("cpu", "CPU time", "ms a second", our, peer),
        _build_figure("lag", "the loop's lateness, 99th percentile,", "ms", our, peer),
    ]


def _build_figure(name: str, what: str, unit: str, our: Measured, peer: Measured) -> Figure:
    return Figure(
        name=f"triggers.{name}",
        says=f"{what} of an event loop in which {our['triggers']:g} DispatchJobFinishedTriggers wait for queued jobs "
        f"of the local adapter, its watch included, over {WAITING_SECONDS:g} s",
        value=our[name],
        unit=unit,
        peer=f"{peer['triggers']:g} TimeDeltaTriggers with an hour to go",
        peer_value=peer[name],
        aim=f"at most {AIM:g} x",
        is_met=our[name] <= AIM * peer[name],
        context={"ours": our, "peer": peer},
    )


@contextlib.contextmanager
def _play(home: Path, what: str) -> Iterator[subprocess.Popen[str]]:
    environment = os.environ | {"AIRFLOW_HOME": str(home), "AIRFLOW_CONN_DISPATCH_DEFAULT": json.dumps(CONNECTION)}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.waiting_triggers", what],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _read(process: subprocess.Popen[str]) -> Measured:
    # A loop writes nothing but this line, so one never waits for the other's to be read.
    told, _ = process.communicate(timeout=PATIENCE_SECONDS)
    measured: Measured = json.loads(told)
    return measured


# What follows runs in the programs ------------------------------------------------------------------------------------


def build_triggers(what: list[str] | int) -> Sequence[BaseTrigger]:
    """Ours for some jobs, or so many of Airflow's."""
    if isinstance(what, int):
        from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger

        return [TimeDeltaTrigger(timedelta(hours=1)) for _ in range(what)]
    from airflow_provider_dispatch.triggers.job import DispatchJobFinishedTrigger

    return [DispatchJobFinishedTrigger(dispatch_conn_id="dispatch_default", job=job, submission=1) for job in what]


async def wait_and_measure(triggers: Sequence[BaseTrigger]) -> Measured:
    """Let them wait, and measure the loop."""

    async def wait(trigger: BaseTrigger) -> None:
        async for event in trigger.run():
            raise RuntimeError(f"a trigger that should wait says {event}")

    started, begun = time.process_time(), time.perf_counter()
    tasks = [asyncio.create_task(wait(trigger)) for trigger in triggers]
    await _settle()
    waiting, quiet = time.process_time(), time.perf_counter()
    lags = await _probe(quiet + WAITING_SECONDS)
    end, ended = time.process_time(), time.perf_counter()
    done = [task for task in tasks if task.done()]
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    if done:
        raise RuntimeError(f"{len(done)} triggers did not wait: {results[0]!r}")
    return {
        "triggers": len(triggers),
        "cpu": 1000 * (end - waiting) / (ended - quiet),
        "lag": percentile(lags, 99),
        "lag_p50_ms": percentile(lags, 50),
        "lag_max_ms": max(lags),
        "cpu_of_starting_ms": 1000 * (waiting - started),
        "starting_seconds": quiet - begun,
    }


async def _settle() -> None:
    """Until all have begun to wait."""
    end, last = time.monotonic() + LONGEST_START_SECONDS, -1.0
    while time.process_time() - last > QUIET_CPU_SECONDS:
        if time.monotonic() > end:
            raise TimeoutError("the triggers find no rest")
        last = time.process_time()
        await asyncio.sleep(2)


async def _probe(end: float) -> list[float]:
    """Milliseconds by which a sleep took longer than asked."""
    lags = []
    while (start := time.perf_counter()) < end:
        await asyncio.sleep(PROBE_SECONDS)
        lags.append((time.perf_counter() - start - PROBE_SECONDS) * 1000)
    return lags


def main() -> None:
    """Be one loop; its argument is what it is to hold, as JSON."""
    import structlog

    triggers = build_triggers(json.loads(sys.argv[1]))
    # Now, since Airflow sets up its logs when it is imported.
    logging.disable(logging.CRITICAL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    measured = asyncio.run(asyncio.wait_for(wait_and_measure(triggers), PATIENCE_SECONDS))
    print(json.dumps({name: round(value, 3) for name, value in measured.items()}))


if __name__ == "__main__":
    main()
