# SPDX-License-Identifier: Apache-2.0
"""What the contract suite needs from a backend besides its adapter: commands that behave, and a hand on the ranks.

A new adapter joins the suite by a stage of its own and a line in ``conftest.py``. Scenarios are coroutines that take a
stage; :meth:`Stage.play` runs one and ends everything it started.
"""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Self

import pytest

from airflow_provider_dispatch.adapters.protocol import DispatchAdapter
from airflow_provider_dispatch.core.holds import Actor, ActorKind, Hold, HoldRequest
from airflow_provider_dispatch.core.identity import JobID, build_job_id
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.core.owner import Owner
from airflow_provider_dispatch.core.records import StartRequest
from airflow_provider_dispatch.core.state import State

ANN = Actor(ActorKind.HUMAN, "ann")
PATIENCE = timedelta(seconds=20)
CALL = timedelta(seconds=60)
"""How long one call may take, on the slowest backend."""


def new_job() -> JobID:
    """A job nobody else has."""
    return build_job_id(0, os.urandom(10))


def soon() -> datetime:
    """A deadline that a healthy call meets."""
    return datetime.now(UTC) + CALL


class BrokenPromiseError(AssertionError):
    """Two executions at once, or an epoch that must not be: never late, so no test that saw it is played again."""


class Difference(StrEnum):
    """What a backend is declared not to do as the others do; scenarios ask before they look."""

    NO_POSITION = "the scheduler doesn't tell a job's place in its queue"
    NO_QUEUES = "jobs name no queue"
    KEEPS_ITS_NODES = "the machine is shared with other tests and isn't taken away here"
    A_PATH_PER_POD = "the result path is the same in every pod, and each pod has a file system of its own"
    OWN_EVENTS = "what is told of a job's life is mixed with what the cluster's own parts tell"
    OWN_WORDS = "reasons for waiting are the scheduler's own"
    ROOM_BEFORE_DEATH = "the scheduler may give a job's room away while its processes end"


class Stage(ABC):
    """A backend under test.

    :ivar queues: quota of each queue as it was asked for; None: any queue, no limit.
    """

    name: str
    grace = timedelta(seconds=1)
    blink = timedelta(milliseconds=600)
    patience = PATIENCE
    hold_span = timedelta(seconds=2)
    """Of a hold that ends by itself: longer than it takes to get held."""
    limit = timedelta(seconds=60)
    """Of a whole scenario."""
    slot = "slot"
    """Name of a resource that is only counted."""
    differences: frozenset[Difference] = frozenset()

    def __init__(self, queues: Mapping[str, Mapping[str, str | int]] | None = None) -> None:
        self.queues = queues
        self.adapter: DispatchAdapter
        self.jobs: list[JobID] = []

    def play(self, scenario: Callable[[Self], Awaitable[None]]) -> None:
        """Run a scenario and end what it left, also when it failed."""
        asyncio.run(self._play(scenario))

    async def _play(self, scenario: Callable[[Self], Awaitable[None]]) -> None:
        await self.set_up()
        try:
            await asyncio.wait_for(scenario(self), self.limit.total_seconds())
        finally:
            try:
                self.check_overlaps()
            finally:
                await self.tear_down()

    def check_overlaps(self) -> None:
        """No rank saw another execution beside its own; looked at also when a scenario has failed otherwise.

        :raises BrokenPromiseError: one did.
        """
        if overlaps := self.overlaps():
            raise BrokenPromiseError(f"two executions at once: {overlaps}")

    def check_epochs(self, job: JobID, expected: Sequence[int]) -> None:
        """Rank 0 ran under these epochs and no others.

        :raises BrokenPromiseError: it ran under others.
        """
        if (seen := self.epochs(job)) != list(expected):
            raise BrokenPromiseError(f"ran under the epochs {seen} instead of {list(expected)}")

    @property
    def counted(self) -> dict[str, int]:
        """Resources that the machine must have because queues share them out, besides cpu and memory."""
        total: dict[str, int] = {}
        for quota in (self.queues or {}).values():
            for resource, amount in quota.items():
                if resource not in ("cpu", "memory"):
                    total[resource] = total.get(resource, 0) + int(amount)
        return total

    # -- the same for every backend ----------------------------------------------------------------------------------

    def spec(self, *behaviour: str, **fields: object) -> JobSpec:
        """A job of one role that behaves so."""
        grace = fields.pop("grace_period", self.grace)
        return JobSpec(grace_period=grace, **self.role(*behaviour), **fields)

    def roles(self, *roles: Mapping[str, object], **fields: object) -> JobSpec:
        """A job of several roles, each made by :meth:`role`."""
        return JobSpec(roles=roles, grace_period=self.grace, **fields)

    async def start(self, spec: JobSpec, *, job: JobID | None = None, submission: int = 1, **more: object) -> JobRef:
        """Start behind the gate."""
        job = job or new_job()
        self.jobs.append(job)
        request = StartRequest(job, submission, more.pop("attempt", 1), spec, **more)  # type: ignore[arg-type]  # tests
        return await self.adapter.start(request, deadline=soon())

    async def run(self, spec: JobSpec, **more: object) -> JobRef:
        """Start, open, and wait until it runs."""
        ref = await self.start(spec, **more)  # type: ignore[arg-type]  # tests
        await self.adapter.open(ref, deadline=soon())
        await self.reach(ref, State.RUNNING)
        return ref

    async def hold(self, ref: JobRef, key: str = "k", **more: object) -> Hold:
        """Hold as ann."""
        request = HoldRequest(key, ANN, "maintenance", **more)  # type: ignore[arg-type]  # tests
        return await self.adapter.hold(ref, request, deadline=soon())

    async def reach(self, ref: JobRef | JobID, *states: State) -> Observation:
        """Wait for a state; fails with the last observation."""
        return await self.until(ref, lambda seen: seen.state in states)

    async def settle(self, ref: JobRef, is_there: Callable[[Observation], bool]) -> Observation:
        """Look until something is so that may come after the end, when a watch says nothing more."""
        while not is_there(seen := await self.adapter.inspect(ref)):
            await self.pass_time(self.blink / 10)
        return seen

    def needs(self, *missing: Difference) -> None:
        """Leave a scenario that is about what this backend is declared not to do."""
        for difference in missing:
            if difference in self.differences:
                pytest.skip(f"{self.name}: {difference}")

    def owner(self, instance: str, deployment: str = "") -> Owner:
        """An owner that is a try of a task."""
        return Owner(deployment, "dag", "run", "train", -1, 1, instance)

    # -- what a backend brings ---------------------------------------------------------------------------------------

    @abstractmethod
    async def set_up(self) -> None:
        """Make :attr:`adapter`."""

    @abstractmethod
    async def tear_down(self) -> None:
        """End everything."""

    @abstractmethod
    async def another_adapter(self) -> DispatchAdapter:
        """A second one over the same backend, as another process would have."""

    @abstractmethod
    def role(self, *behaviour: str, **fields: object) -> dict[str, object]:
        """Fields of a role whose ranks behave so: ``run``, ``exit N``, ``stubborn``, ``slow S``, ``missing``."""

    def leader_address(self, ref: JobRef) -> str:
        """What ranks see as the leader's address."""
        return "127.0.0.1"

    def ready_command(self) -> list[str]:
        """A readiness check that passes once the rank was told ``ready``."""
        return ["ready"]

    @abstractmethod
    async def until(self, ref: JobRef | JobID, is_there: Callable[[Observation], bool]) -> Observation:
        """Watch until something is so, at most :data:`PATIENCE`."""

    @abstractmethod
    async def tell(self, ref: JobRef, command: str, *, role: str = "node", rank: int = 0) -> None:
        """Let a rank ``exit N``, be ended by a signal (``kill N``), ``say TEXT``, ``count N`` lines, get ``ready``."""

    @abstractmethod
    async def tell_if_alive(self, ref: JobRef, command: str, *, role: str = "node", rank: int = 0) -> None:
        """The same, and nothing if there is no such process any more."""

    @abstractmethod
    async def give_result(self, ref: JobRef, text: str) -> None:
        """Let rank 0 leave a result and end well."""

    @abstractmethod
    async def keep_secret(self, name: str, key: str, value: str) -> None:
        """Put a value where ranks get secrets from."""

    @abstractmethod
    async def lose_node(self) -> None:
        """Take the machine away under everything that runs."""

    @abstractmethod
    async def pass_time(self, duration: timedelta) -> None:
        """Let time go by on the backend."""

    @abstractmethod
    def overlaps(self) -> list[str]:
        """Executions that the ranks saw at once."""

    @abstractmethod
    def epochs(self, job: JobID) -> list[int]:
        """Epochs that rank 0 ran under, in the order of time."""

    @abstractmethod
    async def begun(self, ref: JobRef, epoch: int) -> None:
        """Wait until rank 0 has written down that it runs under this epoch: a process exists before its script runs."""

    @abstractmethod
    async def environment(self, ref: JobRef, role: str = "node", rank: int = 0) -> dict[str, str]:
        """What the newest process of a rank saw; empty where processes exist on paper only."""
