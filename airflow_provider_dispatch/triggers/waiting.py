# SPDX-License-Identifier: Apache-2.0
"""The wait loop: look at a job until a judge says that the waiting is over, telling people meanwhile what it waits for.

Triggers run it in the triggerer, operators and sensors in the worker, so that both take the same decisions. It reads
and never writes to the backend. Time comes in from outside.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal, Protocol, TypeVar

from airflow_provider_dispatch.adapters.protocol import DispatchAdapter
from airflow_provider_dispatch.core.goals import Verdict
from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.core.narration import build_fingerprint, describe
from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.exceptions import UnavailableError
from airflow_provider_dispatch.triggers.base import wall_clock
from airflow_provider_dispatch.triggers.judging import Assessment, Judge

T = TypeVar("T")

Narrator = Callable[[str], None]
StarterProbe = Callable[[], Awaitable[str | None]]
"""Asks whether the task that should start the job has ended: its state if so, else None."""

REPEAT_AFTER = (timedelta(minutes=1), timedelta(minutes=5), timedelta(minutes=15))
REPEAT_EVERY = timedelta(minutes=30)
SHORTEST_PAUSE, LONGEST_PAUSE = timedelta(seconds=1), timedelta(minutes=1)
FIRST_PROBE, LONGEST_PROBE = timedelta(seconds=5), timedelta(minutes=1)
LONGEST_SLEEP = timedelta(hours=6)


@dataclass(frozen=True, slots=True)
class Timing:
    """When the waiting must end, and where time comes from.

    :param deadline: outcome ``timeout`` from then on.
    :param sleeper: takes seconds.
    """

    deadline: datetime | None = None
    clock: Callable[[], datetime] = wall_clock
    sleeper: Callable[[float], Awaitable[None]] = asyncio.sleep


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the waiting ended.

    :param reason: for people; empty when all is well.
    :param observation: the last one; None when there was none.
    """

    verdict: Literal["done", "failed", "timeout"]
    reason: str
    observation: Observation | None


class Output(Protocol):
    """Something that prints a job's output while it is waited for."""

    def follow(self, observation: Observation) -> None:
        """Be told of each new observation."""
        ...

    async def finish(self, *, is_over: bool) -> None:
        """Print what is left and stop; *is_over* says that the job prints no more."""
        ...


class Silence:
    """Prints nothing."""

    def follow(self, observation: Observation) -> None:
        """Ignore it."""

    async def finish(self, *, is_over: bool) -> None:
        """Nothing is left."""


async def wait_for_job(
    adapter: DispatchAdapter,
    job: JobID,
    judge: Judge,
    *,
    narrator: Narrator,
    timing: Timing | None = None,
    output: Output | None = None,
    starter: StarterProbe | None = None,
) -> Outcome:
    """Wait until *judge* says that it is over, or until the deadline.

    :param narrator: is given one line for people when something changed, and again when nothing does for long.
    :param timing: None means no limits and the real time.
    :param output: prints what the job prints; None means nobody does.
    :param starter: asked now and then while nobody has heard of the job, which fails once its starter has ended.

    Never raises because of a state, and never because the backend is away: then it waits. Finishes the output unless it
    is cancelled: that may have to wait for something more urgent, so it is left to the caller.
    """
    waiting = _Waiting(adapter, job, judge, timing or Timing(), _Narration(narrator), output or Silence(), starter)
    is_over = is_cancelled = False
    try:
        outcome = await try_again(waiting.watch_and_wait, narrator=narrator, timing=waiting.timing)
        is_over = outcome.observation is not None and outcome.observation.is_over
    except asyncio.CancelledError:
        is_cancelled = True
        raise
    finally:
        if not is_cancelled:
            await waiting.output.finish(is_over=is_over)
    return outcome


async def try_again(attempt: Callable[[], Awaitable[T]], *, narrator: Narrator, timing: Timing) -> T:
    """Call until the backend answers, with growing pauses."""
    pause = SHORTEST_PAUSE
    while True:
        try:
            return await attempt()
        except UnavailableError as error:
            narrator(f"no answer from the backend, trying again: {error}")
        await timing.sleeper(pause.total_seconds())
        pause = min(pause * 2, LONGEST_PAUSE)


async def sleep_until(moment: datetime, timing: Timing) -> None:
    """Sleep until then by *timing*'s clock, which may lag behind its sleeper."""
    while (rest := (moment - timing.clock()).total_seconds()) > 0:
        await timing.sleeper(rest)


def build_outcome(assessment: Assessment, observation: Observation | None) -> Outcome:
    """What an assessment means for the one who waits; WAIT means that the time is over."""
    match assessment.verdict:
        case Verdict.DONE:
            return Outcome("done", assessment.reason, observation)
        case Verdict.FAIL if not assessment.is_timeout:
            return Outcome("failed", assessment.reason, observation)
        case _:
            return Outcome("timeout", assessment.reason, observation)


@dataclass(slots=True)
class _Waiting:
    """One wait."""

    adapter: DispatchAdapter
    job: JobID
    judge: Judge
    timing: Timing
    narration: _Narration
    output: Output
    starter: StarterProbe | None
    probe_after: timedelta = FIRST_PROBE
    probe_at: datetime | None = None

    async def watch_and_wait(self) -> Outcome:
        """Wait for as long as the watch holds.

        :raises UnavailableError: it broke.
        """
        async with _watch_newest(self.adapter, self.job) as newest:
            return await self._wait(newest)

    async def _wait(self, newest: _Newest) -> Outcome:
        while True:
            now, observation = self.timing.clock(), newest.take()
            assessment = Assessment(Verdict.WAIT) if observation is None else self._look_at(observation, now)
            if assessment.verdict is not Verdict.WAIT:
                return build_outcome(assessment, observation)
            if self.timing.deadline is not None and now >= self.timing.deadline:
                last = describe(observation, now) if observation else "nothing was heard of it"
                return Outcome("timeout", f"the time to wait is over: {last}", observation)
            if observation is not None and observation.is_unheard_of and await self._has_lost_starter(now):
                return Outcome("failed", "the task that should have started it has ended without", observation)
            if observation is not None and not observation.is_unheard_of:
                # Nothing is left to ask: a moment that has passed would wake this at once, again and again.
                self.probe_at, self.probe_after = None, FIRST_PROBE
            wakes = (self.timing.deadline, assessment.wake_at, self.narration.repeat_at, self.probe_at)
            await newest.wait(now, min((wake for wake in wakes if wake is not None), default=None), self.timing.sleeper)

    def _look_at(self, observation: Observation, now: datetime) -> Assessment:
        self.narration.tell(observation, now)
        self.output.follow(observation)
        return self.judge(observation, now)

    async def _has_lost_starter(self, now: datetime) -> bool:
        if self.starter is None or (self.probe_at is not None and now < self.probe_at):
            return False
        is_first = self.probe_at is None
        self.probe_at, self.probe_after = now + self.probe_after, min(self.probe_after * 2, LONGEST_PROBE)
        if is_first or await self.starter() is None:
            return False
        # It may have started the job as its last deed, after the observation at hand.
        return (await self.adapter.inspect(self.job)).is_unheard_of


@dataclass(slots=True)
class _Newest:
    """The newest observation of a watch; those nobody looked at in time are skipped."""

    observation: Observation | None = None
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    pump: asyncio.Task[None] | None = None

    def take(self) -> Observation | None:
        self.arrived.clear()
        return self.observation

    async def wait(self, now: datetime, until: datetime | None, sleeper: Callable[[float], Awaitable[None]]) -> None:
        """Return when there is a newer one, or when it is time.

        :raises UnavailableError: the watch broke.
        """
        waking: list[asyncio.Task[object]] = [asyncio.create_task(self._arrive())]
        if until is not None:
            seconds = min(max(until - now, timedelta(0)), LONGEST_SLEEP).total_seconds()
            waking.append(asyncio.create_task(_sleep(sleeper, seconds)))
        try:
            await asyncio.wait([*waking, *([self.pump] if self.pump else [])], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for future in waking:
                future.cancel()
        if self.pump is not None and self.pump.done() and not self.arrived.is_set():
            self.pump.result()
            raise UnavailableError("its watch has ended")

    async def _arrive(self) -> object:
        return await self.arrived.wait()


async def _sleep(sleeper: Callable[[float], Awaitable[None]], seconds: float) -> object:
    await sleeper(seconds)
    return None


@asynccontextmanager
async def _watch_newest(adapter: DispatchAdapter, job: JobID) -> AsyncIterator[_Newest]:
    newest = _Newest()

    async def pump() -> None:
        async for observation in adapter.watch([job]):
            newest.observation = observation
            newest.arrived.set()

    newest.pump = asyncio.create_task(pump())
    try:
        yield newest
    finally:
        newest.pump.cancel()
        with suppress(asyncio.CancelledError):
            await newest.pump


@dataclass(slots=True)
class _Narration:
    """Which observations are worth a line."""

    narrator: Narrator
    fingerprint: object = None
    told: int = 0
    repeat_at: datetime | None = None

    def tell(self, observation: Observation, now: datetime) -> None:
        fingerprint = build_fingerprint(observation)
        if fingerprint != self.fingerprint:
            self.fingerprint, self.told = fingerprint, 0
        elif self.repeat_at is None or now < self.repeat_at:
            return
        self.narrator(describe(observation, now))
        after = REPEAT_AFTER[self.told] if self.told < len(REPEAT_AFTER) else REPEAT_EVERY
        self.repeat_at, self.told = now + after, self.told + 1
