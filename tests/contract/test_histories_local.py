# SPDX-License-Identifier: Apache-2.0
"""Random histories of real processes: ranks that ignore TERM, fork twice, die slowly; agents that are killed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest

from airflow_provider_dispatch.adapters.local.launching import LISTENING
from tests.contract import hasty_agent
from tests.contract.histories import QUEUES, History, check_records, slices
from tests.contract.stage import soon
from tests.contract.stage_local import LocalStage
from tests.contract.stage_processes import wait_until

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


class HastyStage(LocalStage):
    """Served by an agent that doesn't wait until the old execution is gone."""

    async def set_up(self) -> None:
        """Its agent has the store before any other can start."""
        await super().set_up()
        await asyncio.to_thread(self._start_agent)

    def _start_agent(self) -> None:
        told_fd, tell_fd = os.pipe()
        command = [sys.executable, "-m", hasty_agent.__name__, str(self.store), str(tell_fd)]
        self._agent = subprocess.Popen(command, pass_fds=(tell_fd,), start_new_session=True)
        os.close(tell_fd)
        with os.fdopen(told_fd, "rb") as told:
            assert told.read(len(LISTENING)) == LISTENING

    async def tear_down(self) -> None:
        """Its ranks die with it, as with any agent."""
        self._agent.kill()
        self._agent.wait()
        await super().tear_down()


@pytest.mark.parametrize("is_hasty", [False, True])
def test_ranks_see_it_when_the_old_execution_is_not_waited_for(is_hasty: bool, tmp_path: Path) -> None:
    """A held job that is released while its ranks still save: the honest agent waits, and the broken one is caught."""

    async def scenario() -> list[str]:
        stage = (HastyStage if is_hasty else LocalStage)(tmp_path, QUEUES)
        await stage.set_up()
        try:
            spec = stage.spec("slow", "1.5", nodes=2, queue="q", grace_period=timedelta(seconds=10))
            ref = await stage.run(spec)
            # A process exists before its script has said how it takes TERM.
            for rank in range(2):
                await stage.tell(ref, "say here", rank=rank)
            hold = await stage.hold(ref)
            await stage.adapter.release(ref, hold, deadline=soon())
            await wait_until(lambda: len(stage.epochs(ref.job)) == 2, "the second execution")
            return stage.overlaps()
        finally:
            await stage.tear_down()

    overlaps = asyncio.run(scenario())
    assert bool(overlaps) is is_hasty, overlaps
