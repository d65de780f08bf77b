# SPDX-License-Identifier: Apache-2.0
"""Processes that exist on paper: what a rank of the fake does, told by its command.

========================  ==================================================================
``("exit", "3")``         ends at once with that code
``("run", "60", "0")``    runs so many seconds, then ends with that code (default 0)
``("run",)``              runs until it is told otherwise
``("stubborn",)``         runs, and ignores TERM: only the end of the grace period ends it
``("slow", "5")``         runs, and needs so many seconds to end after TERM
``("missing",)``          can't be started: there is no such command
anything else             as the backend's *default_program* says
========================  ==================================================================
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from airflow_provider_dispatch.adapters.local.lifecycle.status import Key
from airflow_provider_dispatch.core.identity import Identity

FOREVER = timedelta.max
KILL = 9


@dataclass(frozen=True, slots=True)
class FakeProgram:
    """How a rank behaves.

    :param runs: until it ends by itself.
    :param dies: time it needs after TERM; more than the grace period means that KILL ends it.
    """

    runs: timedelta = FOREVER
    exit_code: int = 0
    dies: timedelta = timedelta(0)
    is_missing: bool = False


def parse_program(command: tuple[str, ...], default: FakeProgram) -> FakeProgram:
    """The program a command stands for."""
    match command:
        case ("exit", code):
            return FakeProgram(timedelta(0), int(code))
        case ("run",):
            return FakeProgram()
        case ("run", seconds, *rest):
            return FakeProgram(timedelta(seconds=float(seconds)), int(rest[0]) if rest else 0)
        case ("stubborn",):
            return FakeProgram(dies=FOREVER)
        case ("slow", seconds):
            return FakeProgram(dies=timedelta(seconds=float(seconds)))
        case ("missing",):
            return FakeProgram(is_missing=True)
        case _:
            return default


@dataclass(slots=True)
class FakeRank:
    """A process.

    :param ends_at: when it will end, as things stand; None means never.
    """

    role: str
    rank: int
    program: FakeProgram
    pid: int
    ends_at: datetime | None
    has_check: bool = False
    is_ready: bool = False
    is_alive: bool = True
    is_signalled: bool = False
    is_killed: bool = False
    out_of_memory: bool = False
    own_end: tuple[int | None, int | None] | None = None

    def end_in(self, now: datetime, code: int | None = None, signal: int | None = None) -> None:
        """Let it end now, of its own accord."""
        self.ends_at, self.own_end = now, (code, signal)

    def signal_at(self, now: datetime, grace: timedelta) -> None:
        """TERM now and KILL after *grace*. A rank that was about to end anyway does."""
        kill_at = now + grace
        dies_at = kill_at if self.program.dies >= grace else now + self.program.dies
        self.is_killed = self.program.dies >= grace and self.program.dies > timedelta(0)
        if self.is_signalled and self.ends_at is not None:
            dies_at = min(dies_at, self.ends_at)
        elif self.ends_at is not None and self.ends_at <= now:
            return
        self.is_signalled, self.ends_at = True, dies_at


@dataclass(slots=True)
class FakeExecution:
    """All processes of one execution."""

    key: Key
    identity: Identity
    ranks: list[FakeRank] = field(default_factory=list)
    is_asked_to_end: bool = False

    @property
    def is_alive(self) -> bool:
        """Some process is left."""
        return any(rank.is_alive for rank in self.ranks)

    def has_survivors(self, now: datetime) -> bool:
        """Some process will live on after *now*."""
        return any(rank.is_alive and (rank.ends_at is None or rank.ends_at > now) for rank in self.ranks)

    def next_end(self) -> datetime | None:
        """When the next process ends."""
        return min((rank.ends_at for rank in self.ranks if rank.is_alive and rank.ends_at is not None), default=None)
