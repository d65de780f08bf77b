# SPDX-License-Identifier: Apache-2.0
"""Many queued jobs: what it costs the API server that somebody waits for them, and the controller that they are there.

A job has all the room, and the others are queued behind it. They are made with few requests and all at once: how fast
they are started isn't measured here. Then the same stretch of time is measured again and again: while nobody waits,
which is what the idle cluster and the controller cost, and while an event loop waits for some or all of them, as a
triggerer does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.manifests import build_runtime, build_trainjob
from airflow_provider_dispatch.adapters.kubeflow.model.resources import TRAINING_RUNTIMES
from airflow_provider_dispatch.adapters.kubeflow.model.submission import read_ref
from airflow_provider_dispatch.adapters.kubeflow.queue_lookup import fetch_runtime
from airflow_provider_dispatch.adapters.kubeflow.start_terms import build_terms
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.state import State
from tests.benchmarks.figure import Figure
from tests.cluster.benchmarks.leader import find_leader, read_costs
from tests.cluster.benchmarks.place import Asked, Place, open_place, until
from tests.cluster.benchmarks.requests import count_kinds
from tests.cluster.testbed.bed import Bed

AIM_PER_SECOND = 0.2
CALLERS = 8
QUIET_SECONDS = 10.0
FILL_SECONDS = 1800.0
SETTLE_SECONDS = 300.0
MOST_STRETCHES = 5


@dataclass(frozen=True, slots=True)
class Stretch:
    """What happened in a stretch of time.

    :param cpu_seconds: of the controller.
    :param leader: its process.
    """

    seconds: float
    asked: Asked
    cpu_seconds: float
    memory_bytes: int
    leader: int

    @property
    def requests(self) -> int:
        return len(self.asked.ours) + len(self.asked.controllers)


async def measure_crowd(bed: Bed, waited_for: Sequence[int], window_seconds: float) -> list[Figure]:
    """Requests while some wait; memory and CPU of the controller with all of them.

    :param waited_for: how many jobs are waited for; as many are made as the largest.
    """
    async with open_place(bed, cpu="10m") as place:
        alone = await _measure_stretch(place, window_seconds)
        first = await place.run(place.build_request())
        await place.reach(first, State.RUNNING)
        refs = await _fill(place, max(waited_for))
        await _settle(place)
        idle = await _measure_stretch(place, window_seconds)
        figures = [_build_controller_figure("memory", len(refs), alone, idle)]
        figures.append(_build_controller_figure("cpu", len(refs), alone, idle))
        for count in waited_for:
            async with _waiting(place, refs[:count]):
                figures.append(_build_figure(count, idle, await _measure_stretch(place, window_seconds)))
    return figures


def _build_figure(count: int, idle: Stretch, busy: Stretch) -> Figure:
    rate = busy.requests / busy.seconds - idle.requests / idle.seconds
    return Figure(
        name=f"waiting.{count}",
        says=f"requests while an event loop waits for {count} queued jobs, over {busy.seconds:.0f} s, "
        "above those of the same cluster and controller while nobody waits",
        value=rate,
        unit="requests a second",
        aim=f"at most {AIM_PER_SECOND:g}",
        is_met=rate <= AIM_PER_SECOND,
        context={"which": count_kinds(busy.asked.ours), "controller": count_kinds(busy.asked.controllers)},
    )


def _build_controller_figure(what: str, count: int, alone: Stretch, idle: Stretch) -> Figure:
    is_memory = what == "memory"
    values = [
        stretch.memory_bytes / 1e6 if is_memory else 1000 * stretch.cpu_seconds / stretch.seconds
        for stretch in (idle, alone)
    ]
    return Figure(
        name=f"controller.{what}",
        says=f"{what} of the controller that leads, with {count} queued Workloads more",
        value=values[0],
        unit="MB" if is_memory else "ms a second",
        peer="the same controller before they came",
        peer_value=values[1],
        context={"is_the_same_process": idle.leader == alone.leader},
    )


async def _fill(place: Place, count: int) -> list[JobRef]:
    """So many jobs with their gates open, known to Kueue."""
    runtime = await fetch_runtime(place.client, place.settings, None)
    room = asyncio.Semaphore(CALLERS)

    async def add() -> JobRef:
        request = place.build_request()
        terms = build_terms(place.settings, request)
        trainjob = build_trainjob(request, runtime, terms)
        del trainjob["metadata"]["annotations"][words.ADMISSION_GATED_BY]
        async with room:
            made = build_runtime(request, runtime, terms)
            await place.client.create(TRAINING_RUNTIMES, made, place.namespace)
            return read_ref(await place.create(trainjob))

    refs = await asyncio.gather(*(add() for _ in range(count)))
    await until(lambda: _count_workloads(place) > count, f"{count} Workloads", FILL_SECONDS)
    return list(refs)


def _count_workloads(place: Place) -> int:
    found = place.bed.api.get("Workload", namespace=place.namespace, version="kueue.x-k8s.io/v1beta2", query="limit=1")
    metadata = found["metadata"]
    return len(found["items"]) + int(metadata.get("remainingItemCount", 0))


async def _settle(place: Place) -> None:
    """Until the controller has nothing more to do for them, or has had its time."""
    end = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < end:
        mark = place.bed.mark_requests()
        await asyncio.sleep(QUIET_SECONDS)
        if not place.fetch_asked(mark).controllers:
            return


@asynccontextmanager
async def _waiting(place: Place, refs: Sequence[JobRef]) -> AsyncIterator[None]:
    """Have them waited for; all are known to be queued before it begins."""
    known = asyncio.Semaphore(0)

    async def wait(ref: JobRef) -> None:
        is_known = False
        async for seen in place.adapter.watch([ref]):
            if seen.state is not State.QUEUED:
                raise RuntimeError(f"a job that should be queued is {seen.state}: {seen.detail}")
            if not is_known:
                is_known = True
                known.release()

    waiters = [asyncio.create_task(wait(ref)) for ref in refs]
    try:
        async with asyncio.timeout(SETTLE_SECONDS):
            for _ in refs:
                await known.acquire()
        yield
        ended = [waiter for waiter in waiters if waiter.done()]
        if ended:
            raise RuntimeError(f"{len(ended)} jobs were not waited for: {ended[0].exception()!r}")
    finally:
        for waiter in waiters:
            waiter.cancel()
        await asyncio.gather(*waiters, return_exceptions=True)


async def _measure_stretch(place: Place, seconds: float) -> Stretch:
    """Again when another controller has taken over, as it may on a cluster that isn't ours alone."""
    for _ in range(MOST_STRETCHES):
        leader = find_leader(place.bed)
        mark, begun, (cpu, _) = place.bed.mark_requests(), time.monotonic(), read_costs(leader)
        await asyncio.sleep(seconds)
        if find_leader(place.bed) == leader:
            asked, (cpu_then, memory) = place.fetch_asked(mark), read_costs(leader)
            return Stretch(time.monotonic() - begun, asked, cpu_then - cpu, memory, leader)
    raise RuntimeError("one controller after the other takes over")
