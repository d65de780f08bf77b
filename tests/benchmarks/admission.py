# SPDX-License-Identifier: Apache-2.0
"""What a decision of the local adapter's admission costs while thousands of jobs wait.

One pass after one change: a job that ran has ended, another has come. It is compared with itself over the number of
waiting jobs; what the agent does around a pass is not part of it.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from dataclasses import replace

from airflow_provider_dispatch.adapters.local.scheduling.admission import decide_admission
from airflow_provider_dispatch.adapters.local.scheduling.model import (
    AdmissionState,
    Node,
    PlacedJob,
    Queue,
    Shape,
    WaitingJob,
)
from tests.adapters.local.scheduling.builders import apply
from tests.benchmarks.figure import Figure, percentile

QUEUES = 50
SIZES = (1_000, 10_000, 20_000)
CHANGES = 60
MIDDLE = 10_000
AIM = 3.0
HOST = Node("host", {"cpu": 400_000, "ranks": 4_000})
SHAPES = tuple((Shape(count, {"ranks": 1, "cpu": cpu}),) for count, cpu in ((1, 500), (2, 500), (4, 500), (2, 1500)))


def measure_admission() -> list[Figure]:
    """Milliseconds a change, for 10,000 waiting jobs beside fewer and more."""
    times = {size: time_changes(size) for size in SIZES}
    medians = {size: statistics.median(found) for size, found in times.items()}
    growth = medians[SIZES[-1]] / medians[SIZES[0]]
    return [
        Figure(
            name="admission.change",
            says=f"CPU time of a pass after one change, {MIDDLE} jobs waiting in {QUEUES} queues; median of {CHANGES}",
            value=medians[MIDDLE],
            unit="ms",
            peer=f"the same with {SIZES[0]} waiting jobs",
            peer_value=medians[SIZES[0]],
            aim=f"near-flat: with {SIZES[-1]} at most {AIM:g} x as dear as with {SIZES[0]}",
            is_met=growth <= AIM,
            context={
                f"ratio_of_{SIZES[-1]}_to_{SIZES[0]}": round(growth, 2),
                "p50_ms": {size: round(percentile(found, 50), 2) for size, found in times.items()},
                "p95_ms": {size: round(percentile(found, 95), 2) for size, found in times.items()},
            },
        )
    ]


def time_changes(size: int) -> list[float]:
    """Milliseconds of CPU for each of some changes."""
    lots = random.Random(1)
    state = _build_full_state(size, lots)
    found = []
    for number in range(CHANGES):
        state, now = _change(state, number, lots), float(number)
        gc.collect()
        start = time.process_time()
        plan = decide_admission(state, now)
        found.append((time.process_time() - start) * 1000)
        state = apply(state, plan, now)
    return found


def _build_full_state(size: int, lots: random.Random) -> AdmissionState:
    """So many waiting jobs after every queue has taken what its quota allows."""
    queues = tuple(Queue(f"team-{number}", nominal={"cpu": 8000}) for number in range(QUEUES))
    state = AdmissionState((HOST,), queues, tuple(_build_job(n, lots) for n in range(size + 8 * QUEUES)))
    state = apply(state, decide_admission(state, 0.0), 0.0)
    return replace(state, waiting=state.waiting[:size])


def _build_job(number: int, lots: random.Random) -> WaitingJob:
    queue, priority = f"team-{lots.randrange(QUEUES)}", lots.choice((0, 0, 0, 100))
    return WaitingJob(f"{number:09}", queue, lots.choice(SHAPES), priority, -1e6 + number)


def _change(state: AdmissionState, number: int, lots: random.Random) -> AdmissionState:
    """One that ran has ended, those that were preempted are gone, and another came."""
    running = [job for job in state.placed if not job.is_ending]
    ended: PlacedJob = lots.choice(running)
    placed = tuple(job for job in running if job is not ended)
    return replace(state, placed=placed, waiting=(*state.waiting, _build_job(10_000_000 + number, lots)))
