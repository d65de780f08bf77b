# SPDX-License-Identifier: Apache-2.0
"""How long a job has been gated, queued, starting, running and held, and which budget is used up.

Adapters move the clocks at each change of state; decisions compare them with budgets. A clock adds up over all
executions of a submission, so time held or queued never counts as run time. Stamps handed in must come from a clock
that never steps back within one process (wall-clock at its start plus monotonic time).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from airflow_provider_dispatch.core.state import State
from airflow_provider_dispatch.exceptions import SpecError

ZERO = timedelta(0)
LONGEST_BUDGET = timedelta(days=3650)


class Clock(StrEnum):
    """The five clocks of a job."""

    GATED = "gated"
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    HELD = "held"


CLOCK_OF_STATE = {
    State.GATED: Clock.GATED,
    State.QUEUED: Clock.QUEUED,
    State.STARTING: Clock.STARTING,
    State.RUNNING: Clock.RUNNING,
    State.HOLDING: Clock.HELD,
    State.HELD: Clock.HELD,
}
"""States without a clock stop all of them."""


@dataclass(frozen=True, slots=True)
class ClockReading:
    """One clock.

    :param since: when it began to run; None while it stands.
    :param accumulated: time of earlier runs.
    """

    since: datetime | None = None
    accumulated: timedelta = ZERO

    def elapsed(self, now: datetime) -> timedelta:
        """All its time up to *now*."""
        return self.accumulated + (max(now - self.since, ZERO) if self.since is not None else ZERO)

    def stop(self, now: datetime) -> ClockReading:
        """The reading once it stands."""
        return ClockReading(None, self.elapsed(now))

    def start(self, now: datetime) -> ClockReading:
        """The reading once it runs; a running clock is left alone."""
        return self if self.since is not None else replace(self, since=now)


@dataclass(frozen=True, slots=True)
class Clocks:
    """All five; at most one runs."""

    gated: ClockReading = field(default_factory=ClockReading)
    queued: ClockReading = field(default_factory=ClockReading)
    starting: ClockReading = field(default_factory=ClockReading)
    running: ClockReading = field(default_factory=ClockReading)
    held: ClockReading = field(default_factory=ClockReading)

    def reading(self, clock: Clock) -> ClockReading:
        """One clock by name."""
        reading: ClockReading = getattr(self, clock)
        return reading


@dataclass(frozen=True, slots=True)
class Budgets:
    """How long each clock may run; None means without limit.

    :raises SpecError: negative, or above ten years.
    """

    gated: timedelta | None = None
    queued: timedelta | None = None
    starting: timedelta | None = None
    running: timedelta | None = None
    held: timedelta | None = None

    def __post_init__(self) -> None:
        for clock in Clock:
            limit = self.limit(clock)
            if limit is not None and not ZERO <= limit <= LONGEST_BUDGET:
                raise SpecError(f"budgets.{clock}", "must lie between 0 and ten years; None means no limit", str(limit))

    def limit(self, clock: Clock) -> timedelta | None:
        """The budget of one clock."""
        limit: timedelta | None = getattr(self, clock)
        return limit


def advance_clocks(clocks: Clocks, state: State, now: datetime) -> Clocks:
    """Let the clock of *state* run and stop the others."""
    running = CLOCK_OF_STATE.get(state)
    moved = [
        clocks.reading(clock).start(now) if clock is running else clocks.reading(clock).stop(now) for clock in Clock
    ]
    return Clocks(*moved)


def expired_clock(clocks: Clocks, budgets: Budgets, now: datetime) -> Clock | None:
    """The running clock when its budget is used up. A standing clock can't expire: the job has moved on in time."""
    for clock in Clock:
        limit, reading = budgets.limit(clock), clocks.reading(clock)
        if limit is not None and reading.since is not None and reading.elapsed(now) >= limit:
            return clock
    return None


def next_clock_expiry(clocks: Clocks, budgets: Budgets) -> datetime | None:
    """When the running clock will use up its budget, if nothing changes."""
    for clock in Clock:
        limit, reading = budgets.limit(clock), clocks.reading(clock)
        if limit is not None and reading.since is not None:
            return reading.since + max(limit - reading.accumulated, ZERO)
    return None
