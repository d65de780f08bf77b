# SPDX-License-Identifier: Apache-2.0
"""The two halves of a submission: what callers want of it, and what has become of it.

Callers write :class:`Submission` (the intent); the agent alone writes :class:`Status`. Both are stored as JSON, so
fields are only added, with a default.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from airflow_provider_dispatch.core.clocks import Clocks
from airflow_provider_dispatch.core.holds import HoldBook
from airflow_provider_dispatch.core.identity import Identity, JobID
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.observation import Evidence, FailedRank, Pending
from airflow_provider_dispatch.core.records import StartRequest
from airflow_provider_dispatch.core.startup_order import RoleProgress
from airflow_provider_dispatch.core.state import Cause, State

Key = tuple[JobID, int]
"""A submission within one store: job and number."""


@dataclass(frozen=True, slots=True)
class StopIntent:
    """Somebody wants the submission gone."""

    reason: str
    since: datetime


@dataclass(frozen=True, slots=True)
class Submission:
    """What callers have asked for.

    :param queue: the queue it was accepted into; the spec may leave it to a default.
    :param priority: as a number; higher goes first.
    """

    ref: JobRef
    request: StartRequest
    created_at: datetime
    queue: str = ""
    priority: int = 0
    opened_at: datetime | None = None
    holds: HoldBook = field(default_factory=HoldBook)
    stop: StopIntent | None = None

    @property
    def key(self) -> Key:
        """Its name within the store."""
        return self.ref.job, self.ref.submission

    @property
    def is_wanted(self) -> bool:
        """Callers would have it run: its gate is open and nobody holds or stops it."""
        return self.opened_at is not None and not self.holds.is_held and self.stop is None


class Ending(StrEnum):
    """Why an execution is being ended. A later reason replaces an earlier one only if it stands further down."""

    RESTART = "restart"
    PREEMPTION = "preemption"
    HOLD = "hold"
    STOP = "stop"
    FAILURE = "failure"
    SUCCESS = "success"


@dataclass(frozen=True, slots=True)
class RankStatus:
    """One rank of an execution."""

    role: str
    rank: int
    is_started: bool = False
    is_ready: bool = False
    has_exited: bool = False
    exit_code: int | None = None
    signal: int | None = None
    was_signalled: bool = False
    pid: int | None = None

    @property
    def has_succeeded(self) -> bool:
        """It exited 0 of its own accord."""
        return self.has_exited and self.exit_code == 0 and not self.was_signalled

    @property
    def has_failed(self) -> bool:
        """It exited otherwise, and we had not asked it to."""
        return self.has_exited and self.exit_code != 0 and not self.was_signalled


@dataclass(frozen=True, slots=True)
class Execution:
    """The execution whose processes may exist.

    :param spawned: roles whose start has been asked for.
    :param ending: None while it is wanted.
    """

    identity: Identity
    ranks: tuple[RankStatus, ...]
    started_at: datetime
    spawned: tuple[str, ...] = ()
    ending: Ending | None = None

    def of_role(self, role: str) -> tuple[RankStatus, ...]:
        """The ranks of one role, in order."""
        return tuple(rank for rank in self.ranks if rank.role == role)

    def with_rank(self, changed: RankStatus) -> Execution:
        """The execution with one rank replaced."""
        same = (changed.role, changed.rank)
        return replace(self, ranks=tuple(changed if (r.role, r.rank) == same else r for r in self.ranks))

    def progress(self) -> dict[str, RoleProgress]:
        """Role → how far it has come, for the startup order."""
        roles = dict.fromkeys(rank.role for rank in self.ranks)
        return {role: _progress(self.of_role(role)) for role in roles}


@dataclass(frozen=True, slots=True)
class Status:
    """What has become of a submission.

    :param identity: of the newest execution, alive or not; None before the first.
    :param execution: while its processes may exist; an admitted job holds its room as long.
    :param end: SUCCEEDED or FAILED; never changes once set.
    :param last_ranks: of the execution that it ended with, once every process is gone.
    :param queued_since: when it first wanted room; kept over preemption and release.
    :param generation: of the agent that wrote this.
    """

    identity: Identity | None = None
    executions: int = 0
    execution: Execution | None = None
    end: State | None = None
    ended_at: datetime | None = None
    cause: Cause | None = None
    detail: str = ""
    evidence: tuple[Evidence, ...] = ()
    failed_rank: FailedRank | None = None
    last_lines: tuple[str, ...] = ()
    last_ranks: tuple[RankStatus, ...] = ()
    result: object = None
    restarts: int = 0
    preemptions: int = 0
    queued_since: datetime | None = None
    pending: Pending | None = None
    clocks: Clocks = field(default_factory=Clocks)
    generation: int = 0


def _progress(ranks: tuple[RankStatus, ...]) -> RoleProgress:
    return RoleProgress(
        nodes=len(ranks),
        started=sum(rank.is_started for rank in ranks),
        ready=sum(rank.is_ready for rank in ranks),
        succeeded=sum(rank.has_succeeded for rank in ranks),
    )
