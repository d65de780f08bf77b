# SPDX-License-Identifier: Apache-2.0
"""What is known of a submission at one moment. Adapters make it, everything above them reads it.

It travels as JSON (:mod:`.wire`) in trigger events and XComs, so fields are only ever added, with a default.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from airflow_provider_dispatch.core.clocks import Clocks
from airflow_provider_dispatch.core.holds import Hold
from airflow_provider_dispatch.core.identity import Identity
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.state import ENDED, OVER, Cause, State


@dataclass(frozen=True, slots=True)
class Evidence:
    """One fact that proves a cause: which field of which object said what, and when."""

    object: str
    field: str
    value: str
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class FailedRank:
    """The first rank that failed. Exactly one of exit code and signal is set, or neither when nothing is known."""

    role: str
    rank: int
    exit_code: int | None = None
    signal: int | None = None


@dataclass(frozen=True, slots=True)
class RoleRanks:
    """How the ranks of one role are doing in the present execution. ``running`` counts ready ones too."""

    role: str
    nodes: int
    ready: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Pending:
    """Why a job is not admitted.

    :param code: the scheduler's own reason, for programs.
    :param message: the same for people.
    :param position: counted from 1; None where the scheduler doesn't tell.
    :param evictions: how often it was admitted and put back.
    """

    code: str
    message: str
    queue: str = ""
    position: int | None = None
    evictions: int = 0
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Gates:
    """Locks in front of admission: ours, and those of others by name."""

    is_open: bool = False
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the training says it has come, where the runtime reports it."""

    percent: float | None = None
    remaining_seconds: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Observation:
    """State and everything that explains it.

    :param cause: why the job ended, or why it can't go on; None when nothing is wrong.
    :param detail: one sentence for people; empty when the state says all.
    :param execution: the newest execution; None before the first.
    :param result: what rank 0 reported, when the job has succeeded.
    """

    state: State
    ref: JobRef
    cause: Cause | None = None
    detail: str = ""
    evidence: tuple[Evidence, ...] = ()
    execution: Identity | None = None
    executions: int = 0
    gates: Gates = field(default_factory=Gates)
    holds: tuple[Hold, ...] = ()
    pending: Pending | None = None
    ranks: tuple[RoleRanks, ...] = ()
    waiting_role: str | None = None
    failed_rank: FailedRank | None = None
    last_lines: tuple[str, ...] = ()
    progress: Progress | None = None
    clocks: Clocks = field(default_factory=Clocks)
    result: object = None
    observed_at: datetime | None = None

    @property
    def has_ended(self) -> bool:
        """It succeeded or failed; nothing later changes that."""
        return self.state in ENDED

    @property
    def is_over(self) -> bool:
        """It has ended, or nothing is left of it."""
        return self.state in OVER and not self.is_unheard_of

    @property
    def is_unheard_of(self) -> bool:
        """No submission of the job was ever seen here."""
        return self.state is State.GONE and self.cause is None
