# SPDX-License-Identifier: Apache-2.0
"""A job's output in the task log while the task waits: which rank of which execution said what, as which line.

The wait loop tells the printer what it sees. Lines are packed, because a log call costs the event loop far more than a
line; what is more than a tick may carry is counted instead of printed. Each line is printed once, also over a graceful
restart of the triggerer. It judges nothing, and a backend without logs only costs a line that says so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from airflow_provider_dispatch.adapters.protocol import DispatchAdapter, OutputRequest
from airflow_provider_dispatch.core.identity import build_epoch
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.core.output import Cursor, OutputLine
from airflow_provider_dispatch.exceptions import DispatchError, ProtocolError, UnavailableError
from airflow_provider_dispatch.triggers.cursors import CursorSaver, CursorStore
from airflow_provider_dispatch.triggers.starter import NO_ANSWER

SUBMISSION_KEY = "submission"
RETRY_SECONDS = 5.0

StreamedRank = tuple[str | None, int]
"""Role and rank; a role of None means the leading one."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one trigger may print and how long it may keep the event loop for it.

    :param slice_seconds: reading without a break; other triggers get a turn after it.
    :param busy_seconds: reading within one tick.
    :param finish_seconds: for what is left when the job is over.
    """

    tick_seconds: float = 1.0
    bytes_per_tick: int = 64 * 1024
    slice_seconds: float = 0.005
    busy_seconds: float = 0.05
    finish_seconds: float = 10.0


@dataclass(slots=True)
class _Tick:
    """What was read since the last print."""

    lines: list[str] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)
    size: int = 0
    busy_seconds: float = 0.0


class OutputPrinter:
    """Prints ranks of one job.

    :param ranks: whose output.
    :param write: is given one text of one or many lines.
    :param cursors: where to go on after a restart.
    """

    def __init__(
        self,
        adapter: DispatchAdapter,
        ranks: Sequence[StreamedRank],
        *,
        write: Callable[[str], object],
        cursors: CursorStore,
        sleeper: Callable[[float], Awaitable[None]] = asyncio.sleep,
        limits: Limits | None = None,
    ) -> None:
        self._adapter, self._ranks, self._write = adapter, tuple(ranks), write
        self._store, self._saver = cursors, CursorSaver(cursors, sleeper=sleeper)
        self._sleeper, self._limits = sleeper, limits or Limits()
        self._ref: JobRef | None = None
        self._task: asyncio.Task[None] | None = None
        self._read: dict[str, Cursor] = {}
        self._tick, self._arrived, self._ticked = _Tick(), asyncio.Event(), asyncio.Event()

    def follow(self, observation: Observation) -> None:
        """Begin with the first execution of a submission: before it there is nothing to print, and nothing to ask."""
        if observation.execution is None or (self._ref and self._ref.submission == observation.ref.submission):
            return
        if self._task is not None:
            self._task.cancel()
        self._ref, self._read = observation.ref, {}
        self._task = asyncio.create_task(self._print(observation.ref))

    async def finish(self, *, is_over: bool) -> None:
        """Print what is left, remember how far it went, and stop."""
        if self._task is not None:
            if is_over:
                await asyncio.wait([self._task], timeout=self._limits.finish_seconds)
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        self._flush()
        if not is_over:
            await self._saver.settle()

    async def _print(self, ref: JobRef) -> None:
        saved = await self._load(ref)
        reading = asyncio.create_task(self._read_all(ref, saved))
        try:
            while not reading.done():
                await self._wait_for_lines(reading)
                self._flush()
                if not reading.done():
                    await self._sleeper(self._limits.tick_seconds)
                self._begin_tick()
            await reading
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading

    async def _read_all(self, ref: JobRef, saved: Mapping[str, Cursor]) -> None:
        await asyncio.gather(*(self._read_rank(ref, rank, saved.get(_name(rank))) for rank in self._ranks))

    async def _wait_for_lines(self, reading: asyncio.Task[None]) -> None:
        arrival = asyncio.create_task(self._arrive())
        try:
            await asyncio.wait([reading, arrival], return_when=asyncio.FIRST_COMPLETED)
        finally:
            arrival.cancel()

    async def _arrive(self) -> None:
        await self._arrived.wait()

    async def _load(self, ref: JobRef) -> dict[str, Cursor]:
        try:
            saved = await self._store.load()
        except NO_ANSWER as error:
            self._write(f"how far the job's output was printed is not known, lines may repeat: {error}")
            return {}
        if saved.get(SUBMISSION_KEY) != str(ref.submission):
            return {}
        with suppress(ProtocolError):  # written by another version: lines repeat
            self._read = {name: Cursor.from_text(text) for name, text in saved.items() if name != SUBMISSION_KEY}
        return dict(self._read)

    async def _read_rank(self, ref: JobRef, rank: StreamedRank, cursor: Cursor | None) -> None:
        role, number = rank
        while True:
            request = OutputRequest(role=role, rank=number, cursor=cursor, follow=True)
            try:
                await self._read_lines(ref, rank, request)
                return
            except UnavailableError:
                await self._sleeper(RETRY_SECONDS)
                cursor = self._read.get(_name(rank), cursor)
            except DispatchError as error:
                self._write(f"the output of rank {number} can't be shown: {error}")
                return

    async def _read_lines(self, ref: JobRef, rank: StreamedRank, request: OutputRequest) -> None:
        resumed = time.perf_counter()
        async for line in self._adapter.output(ref, request):
            self._add(ref, rank, line)
            busy = time.perf_counter() - resumed
            if busy >= self._limits.slice_seconds:
                self._tick.busy_seconds += busy
                await self._let_others_run()
                resumed = time.perf_counter()

    async def _let_others_run(self) -> None:
        if self._tick.busy_seconds < self._limits.busy_seconds:
            await asyncio.sleep(0)
        else:
            await self._ticked.wait()

    def _add(self, ref: JobRef, rank: StreamedRank, line: OutputLine) -> None:
        """Put a line into the tick, or count it where the tick is full."""
        self._read[_name(rank)] = line.cursor or Cursor(
            line.execution, line.role, line.rank, sequence=line.sequence + 1
        )
        whose = _describe_rank(ref, rank, line)
        text = f"[{whose} #{line.sequence}] {line.text}"
        tick = self._tick
        if tick.lines and tick.size + len(text) > self._limits.bytes_per_tick:
            tick.left_out[whose] = tick.left_out.get(whose, 0) + 1
        else:
            tick.lines.append(text)
            tick.size += len(text)
        self._arrived.set()

    def _flush(self) -> None:
        """Print what was read, in one call, and only then remember it as printed."""
        tick, self._tick = self._tick, _Tick(busy_seconds=self._tick.busy_seconds)
        self._arrived.clear()
        notices = [f"[{whose}] … {count:,} lines left out: too many at once" for whose, count in tick.left_out.items()]
        if (tick.lines or notices) and self._ref is not None:
            self._write("\n".join([*tick.lines, *notices]))
            texts = {name: cursor.to_text() for name, cursor in self._read.items()}
            self._saver.remember({SUBMISSION_KEY: str(self._ref.submission)} | texts)

    def _begin_tick(self) -> None:
        self._tick.busy_seconds = 0.0
        self._ticked.set()
        self._ticked = asyncio.Event()


def _name(rank: StreamedRank) -> str:
    role, number = rank
    return f"{role or ''}/{number}"


def _describe_rank(ref: JobRef, rank: StreamedRank, line: OutputLine) -> str:
    """``rank 0 · 1000001``; with its role where one was asked for by name."""
    role, number = rank
    return f"{f'{role} ' if role else ''}rank {number} · {build_epoch(ref.submission, line.execution)}"
