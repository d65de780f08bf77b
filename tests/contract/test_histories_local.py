# SPDX-License-Identifier: Apache-2.0
"""Random histories of real processes: ranks that ignore TERM, fork twice, die slowly; agents that are killed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from tests.contract.histories import QUEUES, History, check_records, slices
from tests.contract.stage_local import LocalStage

HISTORIES = 200
SLICES = 10
AT_ONCE = 5


async def play(folder: Path, seed: int) -> None:
    rng = Random(seed)
    stage = LocalStage(folder, QUEUES)
    await stage.set_up()
    try:
        history = History(stage, rng)
        await asyncio.wait_for(history.play(rng.randrange(4, 14)), 120)
        await check_records(history)
    finally:
        await stage.tear_down()


@pytest.mark.parametrize("part", slices(SLICES))
def test_no_history_breaks_a_promise(part: int, tmp_path: Path) -> None:
    async def scenario() -> int:
        seeds = list(range(part, HISTORIES, SLICES))
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(seed: int) -> None:
            async with gate:
                await play(tmp_path / str(seed), seed)

        async with asyncio.TaskGroup() as group:
            for seed in seeds:
                group.create_task(one(seed), name=f"seed {seed}")
        return len(seeds)

    assert asyncio.run(scenario()) == HISTORIES // SLICES
