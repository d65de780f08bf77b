# SPDX-License-Identifier: Apache-2.0
"""A fake backend behind a connection, with a time that both the backend and the triggers live by."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta

from asgiref.sync import sync_to_async

from airflow_provider_dispatch.core.decision import Supervision
from airflow_provider_dispatch.core.identity import JobID, build_task_job_id
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.core.owner import Owner
from airflow_provider_dispatch.core.records import StartRequest
from airflow_provider_dispatch.exceptions import AdapterError
from airflow_provider_dispatch.testing.fake_adapter import FakeAdapter
from airflow_provider_dispatch.testing.fake_backend import FakeBackend

CONNECTION_ID = "fake"
OWNER = Owner("airflow", "dag", "run", "train", -1, 1, "ti-1")
JOB = build_task_job_id("airflow", "dag", "run", "train")


def soon() -> datetime:
    """A deadline that doesn't matter."""
    return datetime.now(UTC) + timedelta(minutes=5)


class CountingAdapter(FakeAdapter):
    """A fake that counts what was asked of it and can lose its watch.

    :param broken_watches: raised one after another, each by one watch.
    """

    def __init__(self, backend: FakeBackend, broken_watches: Sequence[AdapterError | None] = ()) -> None:
        super().__init__(backend)
        self.broken_watches = list(broken_watches)
        self.watches = 0
        self.is_closed = False

    async def watch(self, refs: Sequence[JobRef | JobID]) -> AsyncIterator[Observation]:
        self.watches += 1
        if self.broken_watches:
            error = self.broken_watches.pop(0)
            if error is not None:
                raise error
            return
        async for observation in super().watch(refs):
            yield observation

    async def close(self) -> None:
        self.is_closed = True


class World:
    """The backend, its time, and the adapters that the registry made of it.

    :ivar failures: raised one after another, each by one call of any adapter.
    """

    def __init__(self) -> None:
        self.failures: list[AdapterError] = []
        self.backend = FakeBackend()
        self.adapters: list[CountingAdapter] = []
        self._sleepers: list[tuple[datetime, int, asyncio.Future[None]]] = []
        self._order = itertools.count()
        self.wakes = 0

    def build_adapter(self, _settings: object = None) -> CountingAdapter:
        self.adapters.append(CountingAdapter(self.backend))
        self.adapters[-1].failures = self.failures
        return self.adapters[-1]

    def clock(self) -> datetime:
        return self.backend.now

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.get_running_loop().create_future()
        due = self.backend.now + timedelta(seconds=seconds)
        heapq.heappush(self._sleepers, (due, next(self._order), woken))
        await woken

    async def advance(self, duration: timedelta) -> None:
        """Move the time, waking at their moments those who sleep."""
        until = self.backend.now + duration
        await settle()
        while self._sleepers and self._sleepers[0][0] <= until:
            due, _, woken = heapq.heappop(self._sleepers)
            if woken.done():
                continue
            self.backend.advance(max(due - self.backend.now, timedelta(0)))
            self.wakes += 1
            woken.set_result(None)
            await settle()
        self.backend.advance(until - self.backend.now)
        await settle()

    async def start(
        self,
        *command: str,
        nodes: int = 1,
        submission: int = 1,
        owner: Owner = OWNER,
        supervision: Supervision | None = None,
        is_open: bool = True,
    ) -> JobRef:
        """A submission of the job, its gate open."""
        adapter = FakeAdapter(self.backend)
        spec = JobSpec(command=command or ("run",), nodes=nodes)
        request = StartRequest(JOB, submission, 1, spec, owner, supervision or Supervision())
        ref = await adapter.start(request, deadline=soon())
        if is_open:
            await adapter.open(ref, deadline=soon())
        self.backend.advance(timedelta(0))
        return ref

    def print_lines(self, ref: JobRef, *texts: str, rank: int = 0) -> None:
        for text in texts:
            self.backend.print_line((ref.job, ref.submission), text, rank=rank)

    def finish(self, ref: JobRef) -> None:
        self.backend.finish((ref.job, ref.submission))


async def settle() -> None:
    """Let everything run that can, and what Airflow does in its one thread for it, such as reading a connection."""
    for _ in range(8):
        await sync_to_async(_do_nothing)()
        for _ in range(12):
            await asyncio.sleep(0)


def _do_nothing() -> None:
    """Stand in the queue behind everything else."""
