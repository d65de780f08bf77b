# SPDX-License-Identifier: Apache-2.0
"""Queries: what the store says of a job, of all jobs, and what has changed. Writes nothing.

The connection handed in is inside a transaction of :class:`.database.Database`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from airflow_provider_dispatch.adapters.local.lifecycle.derive import derive_observation, derive_submission_state
from airflow_provider_dispatch.adapters.local.lifecycle.intents import Pair, build_gone
from airflow_provider_dispatch.adapters.local.lifecycle.status import Ending, Status, Submission
from airflow_provider_dispatch.core import wire
from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.core.records import JobEvent
from airflow_provider_dispatch.core.state import ENDED, Cause, State
from airflow_provider_dispatch.exceptions import ProtocolError

BACKEND = "local"
INTENT, STATUS, REMOVED = "intent", "status", "removed"


@dataclass(frozen=True, slots=True)
class JobView:
    """All that the store says of one job at one moment.

    :param ledger: highest submission ever used; 0 when the job was never heard of.
    :param stop_reason: of the last stop that removed a submission.
    :param pairs: submissions with their status, oldest first.
    :param needs_agent: something is to be done about it, now or at a set time.
    :param position: of the newest submission in its queue, counted from 1; None when not waiting or not asked for.
    """

    job: JobID
    ledger: int = 0
    deployment: str | None = None
    stop_reason: str | None = None
    pairs: tuple[Pair, ...] = ()
    needs_agent: bool = False
    position: int | None = None

    def find(self, target: JobRef | JobID) -> Pair | None:
        """The submission meant: that of the ref, or the newest."""
        for pair in reversed(self.pairs):
            if not isinstance(target, JobRef) or pair[0].ref.submission == target.submission:
                return pair
        return None

    @property
    def is_hopeless(self) -> bool:
        """The newest submission can never fit the queues as the last agent knew them."""
        return bool(self.pairs) and self.pairs[-1][1].end is None and self.pairs[-1][1].cause is Cause.NO_CAPACITY

    def has_processes(self, target: JobRef | JobID) -> bool:
        """Whether anything of the submission meant may still run."""
        pair = self.find(target)
        return pair is not None and pair[1].execution is not None

    def observe(self, target: JobRef | JobID, place: str, now: datetime) -> Observation:
        """The state of the submission meant.

        :param place: of this store, for the ref of a job that is only known by its id.
        """
        pair = self.find(target)
        if pair is not None:
            is_newest = pair is self.pairs[-1]
            return derive_observation(*pair, now, position=self.position if is_newest else None)
        ref = target if isinstance(target, JobRef) else JobRef(target, self.ledger, BACKEND, place)
        was_known = 0 < ref.submission <= self.ledger
        return build_gone(ref, self.stop_reason if was_known else None, now)


@dataclass(frozen=True, slots=True)
class StoredSubmission:
    """A row as the agent reads it at its start.

    :param seen: what an earlier agent had acted on; None when no agent has seen it.
    """

    intent: Submission
    seen: Submission | None
    status: Status


@dataclass(frozen=True, slots=True)
class Wish:
    """An intent that no agent has acted on yet."""

    sequence: int
    submission: Submission


@dataclass(frozen=True, slots=True)
class Change:
    """One row of the changes."""

    sequence: int
    job: JobID
    submission: int
    kind: str


def encode(value: object) -> str:
    """JSON in ASCII: no text of a user can hurt the store, whatever is in it."""
    return json.dumps(wire.dump(value), separators=(",", ":"))


def decode_submission(text: str) -> Submission:
    """Read back an intent."""
    return wire.load(Submission, _parse(text))


def decode_status(text: str | None) -> Status:
    """Read back a status; a row that no agent has touched has none."""
    return Status() if text is None else wire.load(Status, _parse(text))


def _parse(text: str) -> object:
    try:
        parsed: object = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"a row of the store is damaged: {error}; restore a copy of the store") from None
    return parsed


def fetch_meta(connection: sqlite3.Connection) -> dict[str, str]:
    """Facts about the store: its id, host and the newest agent's generation."""
    return dict(connection.execute("SELECT key, value FROM meta"))


def fetch_view(connection: sqlite3.Connection, job: JobID) -> JobView:
    """One job; a view without anything when it was never heard of."""
    row = connection.execute("SELECT ledger, deployment, stop_reason FROM job WHERE job = ?", (job,)).fetchone()
    if row is None:
        return JobView(job)
    rows = connection.execute("SELECT intent, status FROM submission WHERE job = ? ORDER BY submission", (job,))
    pairs = tuple((decode_submission(intent), decode_status(status)) for intent, status in rows)
    ledger, (deployment, stop_reason) = row[0], (json.loads(text) if text is not None else None for text in row[1:])
    wishes = connection.execute("SELECT intent FROM wish WHERE job = ? ORDER BY sequence", (job,)).fetchall()
    wanted = [decode_submission(intent) for (intent,) in wishes]
    pairs = tuple((submission, _foresee(submission, status, wanted)) for submission, status in pairs)
    is_needed = bool(wanted) or any(needs_agent(*pair) for pair in pairs)
    return JobView(job, ledger, deployment, stop_reason, pairs, is_needed)


def _foresee(submission: Submission, status: Status, wishes: Iterable[Submission]) -> Status:
    """The status with the end of an execution that a hold will bring, though the hold has been released since."""
    was_held = any(wish.key == submission.key and wish.holds.is_held for wish in wishes)
    if not was_held or status.end is not None or status.execution is None or status.execution.ending is not None:
        return status
    return replace(status, execution=replace(status.execution, ending=Ending.HOLD))


def fetch_placed_view(connection: sqlite3.Connection, job: JobID) -> JobView:
    """One job, with its position while it waits."""
    view = fetch_view(connection, job)
    is_waiting = bool(view.pairs) and derive_submission_state(*view.pairs[-1]) is State.QUEUED
    return replace(view, position=fetch_position(connection, job)) if is_waiting else view


def needs_agent(submission: Submission, status: Status) -> bool:
    """Whether there is work for an agent in this submission."""
    if status.execution is not None or submission.stop is not None:
        return True
    if status.end is not None:
        return False
    has_timer = any(hold.until is not None for hold in submission.holds.active)
    return has_timer or (submission.is_wanted and status.cause is not Cause.NO_CAPACITY)


def fetch_submissions(connection: sqlite3.Connection, keys: Iterable[tuple[JobID, int]]) -> list[StoredSubmission]:
    """The rows of *keys*; those that are gone are left out."""
    query = "SELECT intent, seen, status FROM submission WHERE job = ? AND submission = ?"
    rows = [row for key in keys for row in connection.execute(query, key)]
    return [_build_stored(*row) for row in rows]


def fetch_unfinished(connection: sqlite3.Connection) -> list[StoredSubmission]:
    """Every submission that an agent may have to do with; what has ended and is gone is left out."""
    rows = connection.execute(
        "SELECT intent, seen, status FROM submission WHERE state NOT IN (?, ?) OR has_execution"
        " ORDER BY created_at, job, submission",
        [state.value for state in sorted(ENDED)],
    )
    return [_build_stored(*row) for row in rows]


def fetch_wishes(connection: sqlite3.Connection, after: int) -> list[Wish]:
    """What callers have wanted since, one step after the other."""
    rows = connection.execute("SELECT sequence, intent FROM wish WHERE sequence > ? ORDER BY sequence", (after,))
    return [Wish(sequence, decode_submission(intent)) for sequence, intent in rows]


def fetch_newest(connection: sqlite3.Connection, states: Iterable[State]) -> list[tuple[Submission, Status, State]]:
    """The newest submission of each job, oldest first.

    :param states: none means any.
    """
    wanted = {state.value for state in states}
    rows = connection.execute(
        "SELECT state, intent, status FROM (SELECT *, max(submission) FROM submission GROUP BY job)"
        " ORDER BY created_at, job"
    )
    return [
        (decode_submission(intent), decode_status(status), State(state))
        for state, intent, status in rows
        if not wanted or state in wanted
    ]


def fetch_events(connection: sqlite3.Connection, job: JobID, submission: int | None) -> list[JobEvent]:
    """A job's history, oldest first; of all its submissions when *submission* is None."""
    rows = connection.execute(
        "SELECT sequence, at, submission, kind, message, epoch FROM event"
        " WHERE job = ?1 AND (?2 IS NULL OR submission = ?2) ORDER BY sequence",
        (job, submission),
    )
    return [
        JobEvent(sequence, datetime.fromisoformat(at), number, kind, json.loads(message), epoch)
        for sequence, at, number, kind, message, epoch in rows
    ]


def fetch_position(connection: sqlite3.Connection, job: JobID) -> int | None:
    """A job's place in its queue, counted from 1: by priority, then by the time it has waited. None: not waiting."""
    return fetch_positions(connection, (job,)).get(job)


def fetch_positions(connection: sqlite3.Connection, jobs: Collection[JobID]) -> dict[JobID, int]:
    """The same for many, at the cost of one."""
    rows = connection.execute(
        "SELECT job, row_number() OVER (PARTITION BY queue ORDER BY priority DESC, queued_since, job)"
        " FROM submission WHERE state = 'queued' AND queued_since IS NOT NULL"
    )
    return {job: position for job, position in rows if job in jobs}


def fetch_last_change(connection: sqlite3.Connection) -> int:
    """Number of the newest change; also when it has been pruned."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'change'").fetchone()
    return row[0] if row is not None else 0


def fetch_changes(connection: sqlite3.Connection, after: int) -> list[Change] | None:
    """What has changed since; None when it can't be told any more, because some of it was pruned."""
    rows = connection.execute(
        "SELECT sequence, job, submission, kind FROM change WHERE sequence > ? ORDER BY sequence", (after,)
    ).fetchall()
    newest = fetch_last_change(connection)
    if newest > after and (not rows or rows[0][0] != after + 1):
        return None
    return [Change(*row) for row in rows]


def _build_stored(intent: str, seen: str | None, status: str | None) -> StoredSubmission:
    wanted = decode_submission(intent)
    before = wanted if seen == intent else decode_submission(seen) if seen is not None else None
    return StoredSubmission(wanted, before, decode_status(status))
