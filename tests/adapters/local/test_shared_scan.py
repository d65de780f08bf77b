# SPDX-License-Identifier: Apache-2.0
"""Looks at the processes of the machine that several callers share."""

from __future__ import annotations

import asyncio
import threading

from airflow_provider_dispatch.adapters.local.processes import ProcessScan
from airflow_provider_dispatch.adapters.local.shared_scan import SharedScan


class Looks:
    """Counts looks, each of which takes until it is let go on."""

    def __init__(self) -> None:
        self.made: list[ProcessScan] = []
        self.goes_on = threading.Semaphore(0)
        self.has_begun = threading.Semaphore(0)

    def __call__(self) -> ProcessScan:
        self.made.append(ProcessScan({}, {len(self.made): "attempt"}, {}))
        made = self.made[-1]
        self.has_begun.release()
        assert self.goes_on.acquire(timeout=30)
        return made


async def begin(looks: Looks, scan: SharedScan, callers: int) -> list[asyncio.Task[ProcessScan]]:
    asked = [asyncio.create_task(scan.take()) for _ in range(callers)]
    await asyncio.sleep(0)
    return asked


def test_all_who_ask_during_a_look_share_the_next_one() -> None:
    looks = Looks()

    async def play() -> list[list[ProcessScan]]:
        scan = SharedScan(looks)
        first = await begin(looks, scan, 3)
        await asyncio.to_thread(looks.has_begun.acquire, timeout=30)
        later = await begin(looks, scan, 5)
        looks.goes_on.release(2)
        return [await asyncio.gather(*first), await asyncio.gather(*later)]

    first, later = asyncio.run(play())

    assert [len(looks.made), *map(len, (first, later))] == [2, 3, 5]
    assert all(found is looks.made[0] for found in first)
    assert all(found is looks.made[1] for found in later), "a look that began before the question is no answer"


def test_whoever_gives_up_leaves_the_look_to_the_others() -> None:
    looks = Looks()

    async def play() -> list[ProcessScan]:
        impatient, *patient = await begin(looks, scan := SharedScan(looks), 3)
        await asyncio.to_thread(looks.has_begun.acquire, timeout=30)
        impatient.cancel()
        looks.goes_on.release(2)
        return [*await asyncio.gather(*patient), await scan.take()]

    assert asyncio.run(play()) == [looks.made[0], looks.made[0], looks.made[1]]


def test_it_outlives_its_event_loop() -> None:
    looks = Looks()
    looks.goes_on.release(3)
    scan = SharedScan(looks)

    async def leave() -> None:
        await begin(looks, scan, 1)

    assert asyncio.run(scan.take()) is looks.made[0]
    asyncio.run(leave())
    assert asyncio.run(scan.take()) is looks.made[-1]
