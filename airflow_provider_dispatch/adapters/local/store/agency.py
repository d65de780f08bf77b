# SPDX-License-Identifier: Apache-2.0
"""What the agent alone writes: statuses, history, removals. Every write is checked against the store's own tenure, so
that neither an agent that was given up for dead can write any more, nor one whose store was removed and made anew.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from airflow_provider_dispatch.adapters.local.lifecycle.derive import derive_submission_state
from airflow_provider_dispatch.adapters.local.lifecycle.messages import LiftHold, Note, RemoveSubmission
from airflow_provider_dispatch.adapters.local.lifecycle.status import Key, Status, Submission
from airflow_provider_dispatch.adapters.local.store.intents import note_change, write_intent
from airflow_provider_dispatch.adapters.local.store.reading import (
    REMOVED,
    STATUS,
    encode,
    fetch_last_change,
    fetch_meta,
    fetch_view,
)
from airflow_provider_dispatch.core.holds import release_hold
from airflow_provider_dispatch.core.job_ref import JobRef

CHANGES_KEPT = 20_000


class OustedError(RuntimeError):
    """Another agent has taken the store over."""


@dataclass(frozen=True, slots=True)
class Tenure:
    """An agent's time at a store.

    :param store: identity of the store, drawn when it was made.
    :param generation: counts the agents of that store from 1.
    """

    store: str
    generation: int

    @property
    def is_first(self) -> bool:
        """Nobody has served this store before."""
        return self.generation == 1


@dataclass(slots=True)
class Ledger:
    """What one turn of the agent has to make durable at once.

    :param submissions: intents that the statuses belong to.
    :param seen: intents that have been acted on.
    :param last_wish: number of the last of them.
    """

    now: datetime
    statuses: dict[Key, Status] = field(default_factory=dict)
    submissions: dict[Key, Submission] = field(default_factory=dict)
    seen: dict[Key, Submission] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    lifted: list[LiftHold] = field(default_factory=list)
    removed: list[RemoveSubmission] = field(default_factory=list)
    last_wish: int = 0

    @property
    def is_empty(self) -> bool:
        """Nothing to write."""
        return not (self.statuses or self.seen or self.notes or self.lifted or self.removed)


def begin_tenure(connection: sqlite3.Connection, host: str) -> Tenure:
    """Take the store over."""
    meta = fetch_meta(connection)
    tenure = Tenure(meta["store"], int(meta["generation"]) + 1)
    facts = [(str(tenure.generation), "generation"), (host, "host")]
    connection.executemany("UPDATE meta SET value = ? WHERE key = ?", facts)
    return tenure


def commit_ledger(connection: sqlite3.Connection, ledger: Ledger, tenure: Tenure) -> None:
    """Write a turn down.

    :raises OustedError: another agent has taken over, or another store stands in the place of this agent's.
    """
    meta = fetch_meta(connection)
    if meta["store"] != tenure.store:
        raise OustedError(f"the store was removed and made anew: {meta['store']} stands where {tenure.store} was")
    if meta["generation"] != str(tenure.generation):
        raise OustedError(f"this agent has generation {tenure.generation}, and the store is at {meta['generation']}")
    _write_seen(connection, ledger.seen)
    connection.execute("DELETE FROM wish WHERE sequence <= ?", (ledger.last_wish,))
    _write_statuses(connection, ledger.statuses, ledger.submissions)
    _write_notes(connection, ledger.notes, ledger.now)
    for lift in ledger.lifted:
        _lift_hold(connection, lift)
    for removal in ledger.removed:
        _remove(connection, removal.key)
    _prune_changes(connection)


def _write_seen(connection: sqlite3.Connection, seen: Mapping[Key, Submission]) -> None:
    connection.executemany(
        "UPDATE submission SET seen = ? WHERE job = ? AND submission = ?",
        [(encode(submission), *key) for key, submission in seen.items()],
    )


def _write_statuses(
    connection: sqlite3.Connection, statuses: Mapping[Key, Status], submissions: Mapping[Key, Submission]
) -> None:
    for key, status in statuses.items():
        submission = submissions[key]
        since = status.queued_since.timestamp() if status.queued_since is not None else None
        connection.execute(
            "UPDATE submission SET status = ?, state = ?, has_execution = ?, queued_since = ?"
            " WHERE job = ? AND submission = ?",
            (
                encode(status),
                derive_submission_state(submission, status).value,
                status.execution is not None,
                since,
                *key,
            ),
        )
        note_change(connection, submission, STATUS)


def _write_notes(connection: sqlite3.Connection, notes: Sequence[Note], now: datetime) -> None:
    # Messages hold text of users: as JSON they are ASCII, whatever is in them.
    connection.executemany(
        "INSERT INTO event (job, submission, at, kind, message, epoch) VALUES (?, ?, ?, ?, ?, ?)",
        [(*note.key, now.isoformat(), note.kind, json.dumps(note.message), note.epoch) for note in notes],
    )


def _lift_hold(connection: sqlite3.Connection, lift: LiftHold) -> None:
    job, number = lift.key
    pair = fetch_view(connection, job).find(JobRef(job, number, "", ""))
    if pair is not None:
        submission, status = pair
        lifted = replace(submission, holds=release_hold(submission.holds, lift.hold))
        write_intent(connection, submission, status, lifted)


def _remove(connection: sqlite3.Connection, key: Key) -> None:
    job, number = key
    pair = fetch_view(connection, job).find(JobRef(job, number, "", ""))
    if pair is None:
        return
    submission, _ = pair
    reason = submission.stop.reason if submission.stop is not None else ""
    connection.execute("DELETE FROM submission WHERE job = ? AND submission = ?", key)
    connection.execute("DELETE FROM wish WHERE job = ? AND submission = ?", key)
    connection.execute("UPDATE job SET stop_reason = ? WHERE job = ?", (json.dumps(reason), job))
    note_change(connection, submission, REMOVED)


def _prune_changes(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM change WHERE sequence <= ?", (fetch_last_change(connection) - CHANGES_KEPT,))
