# SPDX-License-Identifier: Apache-2.0
"""The tables of a store, their version, and how a store comes into being: whole, or not at all.

``submission.intent`` is what callers want (only they write it, and the agent when a hold runs out), ``seen`` the intent
that the agent has acted on, ``status`` what has become of it (only the agent writes it). The columns beside them repeat
what is asked for in queries. ``wish`` keeps every step from ``seen`` to ``intent`` until the agent has acted on it: a
hold that was released before the agent looked has ended the execution all the same. ``change`` is for those who watch.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sqlite3
from pathlib import Path

VERSION = 1

_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE job (
    job TEXT PRIMARY KEY,
    ledger INTEGER NOT NULL,
    deployment TEXT NOT NULL,
    stop_reason TEXT
) WITHOUT ROWID;
CREATE TABLE submission (
    job TEXT NOT NULL,
    submission INTEGER NOT NULL,
    intent TEXT NOT NULL,
    seen TEXT,
    status TEXT,
    state TEXT NOT NULL,
    has_execution INTEGER NOT NULL DEFAULT 0,
    queue TEXT NOT NULL,
    priority INTEGER NOT NULL,
    queued_since REAL,
    created_at REAL NOT NULL,
    PRIMARY KEY (job, submission)
);
CREATE TABLE wish (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    job TEXT NOT NULL,
    submission INTEGER NOT NULL,
    intent TEXT NOT NULL
);
CREATE INDEX submission_waiting ON submission (queue, priority, queued_since) WHERE state = 'queued';
CREATE TABLE event (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    job TEXT NOT NULL,
    submission INTEGER NOT NULL,
    at TEXT NOT NULL,
    kind TEXT NOT NULL,
    message TEXT NOT NULL,
    epoch INTEGER
);
CREATE INDEX event_job ON event (job, sequence);
CREATE TABLE change (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    job TEXT NOT NULL,
    submission INTEGER NOT NULL,
    kind TEXT NOT NULL
);
"""


def ensure_database(path: Path) -> None:
    """Make the database at *path* if there is none.

    It is built under another name and then given its own, so nobody ever sees half of it; of two that do so at the
    same time, one gives way.
    """
    if path.exists():
        return
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    os.close(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        _build(draft)
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(draft)
    finally:
        for suffix in ("", "-journal", "-wal", "-shm"):
            draft.with_name(draft.name + suffix).unlink(missing_ok=True)


def _build(path: Path) -> None:
    facts = {"store": secrets.token_hex(8), "host": socket.gethostname(), "generation": "0"}
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {VERSION};")
        connection.executemany("INSERT INTO meta VALUES (?, ?)", facts.items())
        connection.execute("COMMIT")
