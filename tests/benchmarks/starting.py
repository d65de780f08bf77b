# SPDX-License-Identifier: Apache-2.0
"""How long a local job takes from its start to its ranks running, beside the bare start of the same processes.

The agent runs already. Each rank writes a byte into a FIFO as its first act, so both ways are timed to the same moment;
when the agent has written the job down as running is told as well.
"""

from __future__ import annotations

import asyncio
import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.state import State
from tests.adapters.local.world import World, python_job, soon
from tests.benchmarks.crowded_store import end_leftovers
from tests.benchmarks.figure import Figure

RANKS = 2
ROUNDS = 9
ALLOWED_PASSES = 5
PATIENCE_SECONDS = 30.0
BARE = [sys.executable, "-I", "-S", "-u", "-c"]


@dataclass(frozen=True, slots=True)
class Round:
    """Milliseconds.

    :param job: until the last rank of a job has begun.
    :param written: until the agent had it written down as running: it has started the ranks by then.
    :param bare: until the last of the bare processes has begun.
    :param nothing: a bare interpreter from its start to its end.
    """

    job: float
    written: float
    bare: float
    nothing: float

    @property
    def passes(self) -> float:
        """How many bare interpreters the job took longer than its bare processes."""
        return (self.job - self.bare) / self.nothing


def measure_starting(folder: Path) -> list[Figure]:
    """Milliseconds from `start` to its ranks running."""
    world, fifo, refs = World(folder / "start", retire_after_seconds=600), folder / "ranks", list[JobRef]()
    os.mkfifo(fifo, 0o600)
    program = f"import os, signal; os.write(os.open({os.fspath(fifo)!r}, os.O_WRONLY), b'.'); signal.pause()"
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)

    def play_round() -> Round:
        job, written = world.play(lambda world: _time_job(world, python_job(program, nodes=RANKS), reader, refs))
        return Round(job, written, _time_bare([*BARE, program], reader), _time_nothing())

    try:
        world.start_agent()
        play_round()  # fills the caches of all
        return [_build_figure([play_round() for _ in range(ROUNDS)])]
    finally:
        os.close(reader)
        world.end_agent()
        for ref in refs:
            end_leftovers(ref)


def _build_figure(rounds: list[Round]) -> Figure:
    passes = statistics.median(one.passes for one in rounds)
    return Figure(
        name="start.warm",
        says=f"wall time from `start` until both of {RANKS} ranks of a job run their first line; median of {ROUNDS}",
        value=statistics.median(one.job for one in rounds),
        unit="ms",
        peer=f"subprocess.Popen of the same {RANKS} ranks, to the same moment",
        peer_value=statistics.median(one.bare for one in rounds),
        aim=f"at most the peer and {ALLOWED_PASSES} x `python -I -S -c pass`",
        is_met=passes <= ALLOWED_PASSES,
        context={
            "above_the_peer_in_bare_interpreters": round(passes, 2),
            "bare_interpreter_ms": round(statistics.median(one.nothing for one in rounds), 2),
            "until_written_down_as_running_ms": round(statistics.median(one.written for one in rounds), 2),
            "least_ms": {
                "job": round(min(one.job for one in rounds), 2),
                "peer": round(min(one.bare for one in rounds), 2),
            },
        },
    )


async def _time_job(world: World, spec: JobSpec, reader: int, refs: list[JobRef]) -> tuple[float, float]:
    stamp, start = datetime.now(UTC), time.perf_counter()
    ref = await world.start(spec)
    refs.append(ref)
    await world.adapter.open(ref, deadline=soon())
    await asyncio.to_thread(_await_ranks, reader)
    job = (time.perf_counter() - start) * 1000
    await world.reach(ref, State.RUNNING)
    (running,) = [event.at for event in await world.adapter.events(ref) if event.kind == State.RUNNING]
    await world.adapter.stop(ref.job, reason="measured", deadline=soon())
    return job, (running - stamp).total_seconds() * 1000


def _time_bare(command: list[str], reader: int) -> float:
    start = time.perf_counter()
    processes = [subprocess.Popen(command, stdin=subprocess.DEVNULL) for _ in range(RANKS)]
    try:
        _await_ranks(reader)
        return (time.perf_counter() - start) * 1000
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _time_nothing() -> float:
    return _time(lambda: subprocess.run([*BARE, "pass"], check=True, timeout=PATIENCE_SECONDS))


def _time(act: Callable[[], object]) -> float:
    start = time.perf_counter()
    act()
    return (time.perf_counter() - start) * 1000


def _await_ranks(reader: int) -> None:
    """Until every rank has written its byte."""
    end, begun = time.monotonic() + PATIENCE_SECONDS, 0
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    while begun < RANKS:
        if time.monotonic() > end:
            raise TimeoutError("the ranks did not begin")
        # Without a writer the FIFO is at its end: poll() says so at once, and there is nothing to read.
        if poll.poll(50):
            begun += len(os.read(reader, RANKS))
            time.sleep(0.0005)
