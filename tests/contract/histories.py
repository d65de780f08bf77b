# SPDX-License-Identifier: Apache-2.0
"""Random lives of a few jobs that share too little room, and what must be true of every one of them.

One driver for paper processes and real ones. Whatever is done to the jobs, in whatever order: the ranks never see two
executions at once, epochs strictly grow, nothing is lost, and in the end everything that can run has run.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from random import Random

import pytest

from airflow_provider_dispatch.core.holds import Hold
from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.core.state import OVER, State
from airflow_provider_dispatch.exceptions import ConflictError, JobNotFoundError, RefusedError
from tests.contract.stage import Stage, new_job, soon

QUEUES = {"q": {"cpu": "3"}}
BEHAVIOURS = (("run",), ("stubborn",), ("slow", "0.2"), ("forks",), ("run",))
PRIORITIES = ("low", "normal", "high")
SLICES_IN_MAKE_TEST = 3
REFUSALS = (RefusedError, ConflictError, JobNotFoundError)


def slices(count: int) -> list[object]:
    """Numbers of the parts that the histories are played in; the first few are enough for every change at the desk."""
    return [pytest.param(n, marks=[] if n < SLICES_IN_MAKE_TEST else pytest.mark.matrix) for n in range(count)]


@dataclass(slots=True)
class Life:
    """What the driver knows of a job."""

    job: JobID
    ref: JobRef
    nodes: int
    holds: list[Hold] = field(default_factory=list)
    keys: int = 0


class History:
    """Plays one random history on a stage.

    :param rng: decides everything; the seed of a failing history makes it again.
    """

    def __init__(self, stage: Stage, rng: Random) -> None:
        self.stage, self.rng = stage, rng
        self.lives: list[Life] = []
        self.log: list[str] = []

    async def play(self, steps: int) -> None:
        """So many random acts, then everything is let run to its end."""
        acts = (self.submit, self.open, self.open, self.hold, self.hold, self.release, self.release)
        more = (self.crash, self.finish, self.lose_node, self.stop, self.resubmit, self.wait, self.wait)
        await self.submit()
        for _ in range(steps):
            act = self.rng.choice(acts + more)
            try:
                await act()
            except REFUSALS as refusal:
                self.log.append(f"{act.__name__}: refused: {refusal}")
        await self.settle()
        self.check()

    # -- acts --------------------------------------------------------------------------------------------------------

    async def submit(self) -> None:
        """A new job; a later one of higher priority preempts earlier ones."""
        if len(self.lives) >= 4:
            return
        job, nodes = new_job(), self.rng.choice((1, 1, 2, 3))
        ref = await self._start(job, 1, nodes)
        self.lives.append(Life(job, ref, nodes))

    async def _start(self, job: JobID, submission: int, nodes: int) -> JobRef:
        spec = self.stage.spec(
            *self.rng.choice(BEHAVIOURS),
            nodes=nodes,
            queue="q",
            priority=self.rng.choice(PRIORITIES),
            resources={"cpu": 1},
            max_restarts=self.rng.choice((0, 0, 1)),
            grace_period=timedelta(milliseconds=self.rng.choice((0, 100, 400))),
        )
        self.log.append(f"submit {job} s{submission} {spec.roles[0].command[-2:]} x{nodes} {spec.priority}")
        return await self.stage.start(spec, job=job, submission=submission)

    async def open(self) -> None:
        """Open a gate."""
        life = self._any()
        self.log.append(f"open {life.job}")
        await self.stage.adapter.open(life.ref, deadline=soon())

    async def hold(self) -> None:
        """Hold under one of two keys."""
        life = self._any()
        self.log.append(f"hold {life.job}")
        hold = await self.stage.hold(life.ref, self.rng.choice("ab"))
        if hold not in life.holds:
            life.holds.append(hold)

    async def release(self) -> None:
        """Lift a hold, perhaps one that was lifted before."""
        life = self._any()
        if life.holds:
            hold = self.rng.choice(life.holds)
            self.log.append(f"release {life.job} {hold.instance}")
            await self.stage.adapter.release(life.ref, hold, deadline=soon())

    async def crash(self) -> None:
        """End a rank badly."""
        await self._tell(self.rng.choice(("exit 3", "kill 9")))

    async def finish(self) -> None:
        """End a rank well."""
        await self._tell("exit 0")

    async def _tell(self, command: str) -> None:
        life = self._any()
        seen = await self.stage.adapter.inspect(life.ref)
        running = [ranks for ranks in seen.ranks if ranks.running]
        if running and seen.state in (State.RUNNING, State.STARTING):
            rank = self.rng.randrange(life.nodes)
            self.log.append(f"tell {life.job} rank {rank} {command}")
            await self.stage.tell_if_alive(life.ref, command, rank=rank)

    async def lose_node(self) -> None:
        """Kill the agent, not too often."""
        if self.rng.random() < 0.4:
            self.log.append("lose node")
            await self.stage.lose_node()

    async def stop(self) -> None:
        """Stop a job, waiting for it or not."""
        if self.rng.random() < 0.4:
            life = self._any()
            self.log.append(f"stop {life.job}")
            await self.stage.adapter.stop(life.job, reason="random", deadline=soon())

    async def resubmit(self) -> None:
        """The next submission, if the last one is over."""
        life = self._any()
        found = await self.stage.adapter.find(life.job)
        life.ref = await self._start(life.job, found.ledger + 1, life.nodes)
        life.holds = []

    async def wait(self) -> None:
        """Let some time go by."""
        await self.stage.pass_time(timedelta(milliseconds=self.rng.choice((10, 60, 250))))

    # -- the end -----------------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Open and release everything, and finish each job as it comes to run, until all are over."""
        for life in self.lives:
            try:
                await self.stage.adapter.open(life.ref, deadline=soon())
                for hold in (await self.stage.adapter.inspect(life.ref)).holds:
                    await self.stage.adapter.release(life.ref, hold, deadline=soon())
            except REFUSALS:
                continue
        seen: list[Observation] = []
        for _ in range(2000):
            seen = [await self.stage.adapter.inspect(life.ref) for life in self.lives]
            if all(observation.state in OVER for observation in seen):
                return
            for life, observation in zip(self.lives, seen, strict=True):
                if observation.state is State.RUNNING:
                    await self._finish_all(life, observation)
            await self.stage.pass_time(timedelta(milliseconds=50))
        raise AssertionError(f"never ended: {seen}\n" + "\n".join(self.log))

    async def _finish_all(self, life: Life, seen: Observation) -> None:
        for rank in range(life.nodes):
            await self.stage.tell_if_alive(life.ref, "exit 0", rank=rank)
        await asyncio.sleep(0)

    def check(self) -> None:
        """What must be true of any history."""
        story = "\n".join(self.log)
        overlaps = self.stage.overlaps()
        assert overlaps == [], f"{overlaps}\n{story}"
        for life in self.lives:
            epochs = self.stage.epochs(life.job)
            assert all(earlier < later for earlier, later in pairwise(epochs)), f"{life.job}: {epochs}\n{story}"

    def _any(self) -> Life:
        return self.rng.choice(self.lives)


async def check_records(history: History) -> None:
    """Nothing is lost: every job is in the ledger, and its executions are as many as its epochs say."""
    for life in history.lives:
        found = await history.stage.adapter.find(life.job)
        assert found.ledger == life.ref.submission
        for record in found.submissions:
            seen = await history.stage.adapter.inspect(record.ref)
            assert seen.has_ended, history.log
            begun = [e for e in history.stage.epochs(life.job) if e // 10**6 == record.ref.submission]
            assert len(begun) <= seen.executions, history.log
