# SPDX-License-Identifier: Apache-2.0
"""What callers write: submissions, and changes of what is wanted of them. Never touches a status.

The connection handed in is inside a write transaction of :class:`.database.Database`, so reading and writing are one
step; the rules are those of the lifecycle's ``intents``.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from airflow_provider_dispatch.adapters.local.lifecycle import intents
from airflow_provider_dispatch.adapters.local.lifecycle.derive import derive_submission_state
from airflow_provider_dispatch.adapters.local.lifecycle.status import Status, Submission
from airflow_provider_dispatch.adapters.local.store.reading import (
    BACKEND,
    INTENT,
    JobView,
    decode_submission,
    encode,
    fetch_view,
)
from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.owner import Owner
from airflow_provider_dispatch.core.records import StartRequest
from airflow_provider_dispatch.exceptions import JobNotFoundError, ProtocolError, SpecError

IntentChange = Callable[[Submission, Status], Submission]


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What was found out about a request before it is written down.

    :param place: of this store, for the ref.
    """

    queue: str
    priority: int
    place: str


def add_submission(
    connection: sqlite3.Connection, request: StartRequest, acceptance: Acceptance, now: datetime
) -> JobRef:
    """Write a new submission and its number in the ledger; or find the same one.

    :raises ConflictError: see the verb ``start``.
    """
    view = fetch_view(connection, request.job)
    same = intents.check_start(request, view.ledger, view.deployment, view.pairs)
    if same is not None:
        return same.ref
    ref = JobRef(request.job, request.submission, BACKEND, acceptance.place)
    submission = Submission(ref, request, now, acceptance.queue, acceptance.priority)
    connection.execute(
        "INSERT INTO job (job, ledger, deployment) VALUES (?1, ?2, ?3) ON CONFLICT (job) DO UPDATE SET ledger = ?2",
        (ref.job, ref.submission, json.dumps(request.owner.deployment)),
    )
    state = derive_submission_state(submission, Status())
    connection.execute(
        "INSERT INTO submission (job, submission, intent, state, queue, priority, created_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            ref.job,
            ref.submission,
            _encode(submission),
            state.value,
            submission.queue,
            submission.priority,
            now.timestamp(),
        ),
    )
    _add_wish(connection, submission)
    return ref


def change_intent(connection: sqlite3.Connection, target: JobRef | JobID, change: IntentChange) -> Submission:
    """Read, change and write the intent of one submission.

    :param target: a bare id means the newest submission.
    :raises JobNotFoundError: there is none.
    """
    pair = fetch_view(connection, target.job if isinstance(target, JobRef) else target).find(target)
    if pair is None:
        raise JobNotFoundError(f"no such job: {target.id if isinstance(target, JobRef) else target}")
    changed = change(*pair)
    write_intent(connection, *pair, changed)
    return changed


def stop_all(
    connection: sqlite3.Connection, job: JobID, *, reason: str, if_owner: Owner | None, now: datetime
) -> JobView:
    """Ask every submission of a job to go; the job as it was before.

    :raises ConflictError: somebody else owns the newest.
    """
    view = fetch_view(connection, job)
    if if_owner is not None and view.pairs:
        intents.check_owner(view.pairs[-1][0], if_owner)
    for submission, status in view.pairs:
        write_intent(connection, submission, status, intents.stop(submission, reason, now))
    return view


def write_intent(connection: sqlite3.Connection, before: Submission, status: Status, changed: Submission) -> None:
    """Store a changed intent; nothing is written when it is the same."""
    if changed == before:
        return
    connection.execute(
        "UPDATE submission SET intent = ?, state = ? WHERE job = ? AND submission = ?",
        (_encode(changed), derive_submission_state(changed, status).value, *changed.key),
    )
    _add_wish(connection, changed)


def _add_wish(connection: sqlite3.Connection, submission: Submission) -> None:
    connection.execute(
        "INSERT INTO wish (job, submission, intent) VALUES (?, ?, ?)", (*submission.key, encode(submission))
    )
    note_change(connection, submission, INTENT)


def _encode(submission: Submission) -> str:
    """The intent as text that can be read back: one row that can't be read would end every agent of the store.

    :raises SpecError: the caller has put in what its type doesn't allow.
    """
    try:
        text = encode(submission)
        decode_submission(text)
    except (ProtocolError, ValueError) as error:
        raise SpecError("request", f"can't be carried: {error}") from None
    return text


def note_change(connection: sqlite3.Connection, submission: Submission, kind: str) -> None:
    """Tell those who watch the store."""
    connection.execute("INSERT INTO change (job, submission, kind) VALUES (?, ?, ?)", (*submission.key, kind))
