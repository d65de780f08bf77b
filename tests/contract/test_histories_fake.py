# SPDX-License-Identifier: Apache-2.0
"""Thousands of random histories over processes on paper, and the proof that the check can fail."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from airflow_provider_dispatch.testing.fake_adapter import FakeAdapter
from tests.contract.histories import QUEUES, History, check_records, slices
from tests.contract.stage_fake import FakeStage

HISTORIES = 5_000
SLICES = 10


class QuickStage(FakeStage):
    """Without the ticking clock: a stop returns at once and the history goes on."""

    async def set_up(self) -> None:
        await super().set_up()
        self._ticker.cancel()
        self.adapter = FakeAdapter(self.world)


async def play(stage: FakeStage, seed: int) -> None:
    rng = Random(seed)
    await stage.set_up()
    try:
        history = History(stage, rng)
        await history.play(rng.randrange(5, 40))
        await check_records(history)
    finally:
        await stage.tear_down()


@pytest.mark.parametrize("part", slices(SLICES))
def test_no_history_breaks_a_promise(part: int) -> None:
    async def scenario() -> int:
        seeds = range(part, HISTORIES, SLICES)
        for seed in seeds:
            await play(QuickStage(QUEUES), seed)
        return len(seeds)

    assert asyncio.run(scenario()) == HISTORIES // SLICES


def test_not_waiting_until_the_old_execution_is_gone_is_seen() -> None:
    class HastyStage(QuickStage):
        async def set_up(self) -> None:
            await super().set_up()
            self.world.is_hasty = True

    async def scenario() -> None:
        for seed in range(300):
            await play(HastyStage(QUEUES), seed)

    with pytest.raises(AssertionError, match="beside"):
        asyncio.run(scenario())
