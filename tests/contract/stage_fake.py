# SPDX-License-Identifier: Apache-2.0
"""The shipped fake on the contract's stage: waiting moves the world's clock instead of real time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

from airflow_provider_dispatch.adapters.local.scheduling.model import Queue
from airflow_provider_dispatch.adapters.protocol import DispatchAdapter
from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.core.quantity import parse_quantity
from airflow_provider_dispatch.core.result import parse_result
from airflow_provider_dispatch.exceptions import ProtocolError
from airflow_provider_dispatch.testing.fake_adapter import FakeAdapter
from airflow_provider_dispatch.testing.fake_backend import FakeBackend
from tests.contract.stage import PATIENCE, Stage

STEP = timedelta(milliseconds=100)


class FakeStage(Stage):
    """Everything in memory."""

    name = "fake"

    async def set_up(self) -> None:
        """A fresh world."""
        queues = None
        if self.queues is not None:
            queues = [
                Queue(name, nominal={resource: parse_quantity(resource, value) for resource, value in quota.items()})
                for name, quota in self.queues.items()
            ]
        self.world = FakeBackend(queues=queues, capacity=self.counted)
        self.world.secrets = set()
        self.adapter = FakeAdapter(self.world, patience=timedelta(seconds=1))
        self._ticker = asyncio.create_task(self._tick())

    async def tear_down(self) -> None:
        """Stop the clock."""
        self._ticker.cancel()

    async def _tick(self) -> None:
        # A stop waits inside the adapter, so somebody has to move the clock meanwhile.
        while True:
            await asyncio.sleep(0.005)
            self.world.advance(STEP)

    async def another_adapter(self) -> DispatchAdapter:
        """Over the same world."""
        return FakeAdapter(self.world, patience=timedelta(seconds=1))

    def role(self, *behaviour: str, **fields: object) -> dict[str, object]:
        """The fake's own programs."""
        return {"command": list(behaviour), **fields}

    async def until(self, ref: JobRef | JobID, is_there: Callable[[Observation], bool]) -> Observation:
        """Look after each step of the clock."""
        seen = await self.adapter.inspect(ref)
        for _ in range(PATIENCE // STEP):
            if is_there(seen):
                return seen
            self.world.advance(STEP)
            await asyncio.sleep(0)
            seen = await self.adapter.inspect(ref)
        raise AssertionError(f"never seen; the last was {seen}")

    async def tell(self, ref: JobRef, command: str, *, role: str = "node", rank: int = 0) -> None:
        """Move the rank directly."""
        key, (verb, _, argument) = (ref.job, ref.submission), command.partition(" ")
        match verb:
            case "exit":
                self.world.exit_rank(key, role, rank, code=int(argument))
            case "kill":
                self.world.exit_rank(key, role, rank, signal=int(argument))
            case "say":
                self.world.print_line(key, argument, role=role, rank=rank)
            case "count":
                for number in range(int(argument)):
                    self.world.print_line(key, f"line {number}", role=role, rank=rank)
            case "ready":
                self.world.make_ready(key, role, rank)

    async def tell_if_alive(self, ref: JobRef, command: str, *, role: str = "node", rank: int = 0) -> None:
        """Look first."""
        execution = self.world.executions.get((ref.job, ref.submission))
        found = [r for r in execution.ranks if (r.role, r.rank) == (role, rank)] if execution is not None else []
        if any(r.is_alive for r in found):
            await self.tell(ref, command, role=role, rank=rank)

    async def give_result(self, ref: JobRef, text: str) -> None:
        """Read it as a backend would."""
        key = (ref.job, ref.submission)
        try:
            self.world.exit_rank(key, code=0, result=parse_result(text.encode()))
        except ProtocolError as error:
            self.world.exit_rank(key, code=0, result=error)

    async def keep_secret(self, name: str, key: str, value: str) -> None:
        """There is nobody who could be told its value."""
        assert self.world.secrets is not None
        self.world.secrets.add(f"{name}/{key}")

    async def lose_node(self) -> None:
        """The agent is the node."""
        self.world.kill_agent()

    async def pass_time(self, duration: timedelta) -> None:
        """At once; then whoever waits gets a turn."""
        self.world.advance(duration)
        for _ in range(5):
            await asyncio.sleep(0)

    def overlaps(self) -> list[str]:
        """As the world noticed them."""
        return self.world.overlaps

    def epochs(self, job: JobID) -> list[int]:
        """As the world saw them begin."""
        return self.world.epochs.get(job, [])

    async def begun(self, ref: JobRef, epoch: int) -> None:
        """They begin at once."""
        assert self.epochs(ref.job)[-1] == epoch

    async def environment(self, ref: JobRef, role: str = "node", rank: int = 0) -> dict[str, str]:
        """There are no processes."""
        return {}
