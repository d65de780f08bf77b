# SPDX-License-Identifier: Apache-2.0
"""What goes into the machine and what comes out of it: closed sets, so that a match over them is complete.

Process inputs carry the identity of the execution they are about; the machine ignores those of an earlier one.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from airflow_provider_dispatch.adapters.local.lifecycle.status import Ending, Key, Status, Submission
from airflow_provider_dispatch.core.holds import Hold
from airflow_provider_dispatch.core.identity import Identity
from airflow_provider_dispatch.core.state import Cause


@dataclass(frozen=True, slots=True)
class IntentChanged:
    """A submission is new, or callers have changed what they want of it."""

    submission: Submission


@dataclass(frozen=True, slots=True)
class RankStarted:
    """A rank's process exists."""

    key: Key
    identity: Identity
    role: str
    rank: int
    pid: int


@dataclass(frozen=True, slots=True)
class RankReady:
    """A rank's readiness check passed; without a check it comes with the start."""

    key: Key
    identity: Identity
    role: str
    rank: int


@dataclass(frozen=True, slots=True)
class RankExited:
    """A rank's main process has ended.

    :param was_signalled: we had sent the first signal before; its code says nothing then.
    :param last_lines: its last output, when it failed.
    :param result: what the leading rank left for its caller, when it ended well.
    :param result_error: why there is no result though it left one.
    """

    key: Key
    identity: Identity
    role: str
    rank: int
    exit_code: int | None = None
    signal: int | None = None
    out_of_memory: bool = False
    was_signalled: bool = False
    last_lines: tuple[str, ...] = ()
    result: object = None
    result_error: str = ""


@dataclass(frozen=True, slots=True)
class RankNotStarted:
    """A rank's process could not be made, for instance because its command does not exist."""

    key: Key
    identity: Identity
    role: str
    rank: int
    message: str


@dataclass(frozen=True, slots=True)
class ExecutionGone:
    """Every process of an execution is gone, proved."""

    key: Key
    identity: Identity


@dataclass(frozen=True, slots=True)
class ExecutionLost:
    """Every process of an execution is gone, and nobody saw how: its supervisor died, or the agent above it.

    :param cause: NODE_LOST, also when this machine could not begin it now; MISCONFIGURED when it never can.
    """

    key: Key
    identity: Identity
    detail: str
    cause: Cause = Cause.NODE_LOST


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; some timer may be due."""


Input = IntentChanged | RankStarted | RankReady | RankExited | RankNotStarted | ExecutionGone | ExecutionLost | Tick


@dataclass(frozen=True, slots=True)
class StartExecution:
    """Make the place for an execution: take the job's lock and start its supervisor. Spawns no rank yet."""

    key: Key
    identity: Identity


@dataclass(frozen=True, slots=True)
class SpawnRole:
    """Start all ranks of a role within the execution."""

    key: Key
    identity: Identity
    role: str


@dataclass(frozen=True, slots=True)
class EndExecution:
    """Ask all processes of the execution to end, and kill them after the grace period. Idempotent."""

    key: Key
    identity: Identity
    reason: Ending
    grace: timedelta


@dataclass(frozen=True, slots=True)
class LiftHold:
    """A hold's ``until`` has passed; take it from the submission's book."""

    key: Key
    hold: Hold


@dataclass(frozen=True, slots=True)
class RemoveSubmission:
    """Delete the submission, all but the ledger. Nothing of it runs."""

    key: Key


Effect = StartExecution | SpawnRole | EndExecution | LiftHold | RemoveSubmission


@dataclass(frozen=True, slots=True)
class Note:
    """A decision or change for the job's history.

    :param kind: short name; see ``docs/glossary.md``.
    """

    key: Key
    kind: str
    message: str
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an input led to. Statuses must be durable before the first effect is carried out.

    :param statuses: those that changed.
    """

    statuses: dict[Key, Status]
    effects: tuple[Effect, ...] = ()
    notes: tuple[Note, ...] = ()
