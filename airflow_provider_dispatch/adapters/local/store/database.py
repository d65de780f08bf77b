# SPDX-License-Identifier: Apache-2.0
"""One guarded connection to a store: transactions that are bounded in time, whole, and speak the contract's errors.

Used by adapters (from their worker threads), by the watch and by the agent, each with a connection of its own. Knows
nothing of jobs.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from airflow_provider_dispatch.adapters.local.layout import StoreLayout
from airflow_provider_dispatch.adapters.local.store.errors import translating
from airflow_provider_dispatch.adapters.local.store.place import ensure_folder
from airflow_provider_dispatch.adapters.local.store.schema import VERSION, ensure_database
from airflow_provider_dispatch.exceptions import RefusedError, UnavailableError

READ_PATIENCE_SECONDS = 30.0
# Locks and SQLite count in 32 bits.
LONGEST_PATIENCE_SECONDS = 86_400.0


class Database:
    """A store's file. Opened on first use, made when missing; may be used from any thread, by one at a time.

    :param openings: how often it has been opened; another file under its name counts.
    """

    def __init__(self, layout: StoreLayout) -> None:
        self.layout = layout
        self._path = layout.database
        self._guard = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self.openings = 0

    @contextlib.contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """A view of one moment."""
        with self._borrow("read", READ_PATIENCE_SECONDS) as connection:
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                _roll_back(connection)

    @contextlib.contextmanager
    def write(self, patience_seconds: float) -> Iterator[sqlite3.Connection]:
        """A transaction; all of it is durable when the block has been left, or nothing has changed.

        :param patience_seconds: how long to wait for other writers.
        :raises UnavailableError: they took longer.
        """
        patience_seconds = min(patience_seconds, LONGEST_PATIENCE_SECONDS)
        until = time.monotonic() + patience_seconds
        with self._borrow("write", patience_seconds) as connection:
            _begin(connection, until, self._path)
            try:
                yield connection
                connection.execute("COMMIT")
            finally:
                _roll_back(connection)

    def fetch_data_version(self) -> int:
        """A number that changes when another connection has written."""
        with self._borrow("read", READ_PATIENCE_SECONDS) as connection:
            found: int = connection.execute("PRAGMA data_version").fetchone()[0]
            return found

    def has_own_schema(self) -> bool:
        """Whether the file is still of the version that this code knows."""
        with self._borrow("read", READ_PATIENCE_SECONDS) as connection:
            return _fetch_version(connection) == VERSION

    def close(self) -> None:
        """Close the connection; the next use opens another."""
        with self._guard:
            self._close()

    @contextlib.contextmanager
    def _borrow(self, what: str, patience_seconds: float) -> Iterator[sqlite3.Connection]:
        if not self._guard.acquire(timeout=max(0.0, patience_seconds)):
            raise UnavailableError(f"can't {what} {self._path}: other calls of this process are still at it")
        try:
            with translating(what, self._path):
                yield self._ensure_connection()
        finally:
            self._guard.release()

    def _ensure_connection(self) -> sqlite3.Connection:
        if self._connection is not None and self._file == _identify(self._path):
            return self._connection
        # The file was never open, or somebody took it away: what is written to it would be seen by nobody.
        self._close()
        ensure_folder(self.layout.folder)
        ensure_database(self._path)
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            _prepare(connection, self._path)
        except BaseException:
            connection.close()
            raise
        self._connection, self._file = connection, _identify(self._path)
        self.openings += 1
        return connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def derive_patience(deadline: datetime) -> float:
    """Seconds until *deadline*; negative when it is over.

    :raises ValueError: it has no time zone.
    """
    if deadline.tzinfo is None:
        raise ValueError("a deadline needs a time zone")
    return (deadline - datetime.now(UTC)).total_seconds()


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute(f"PRAGMA busy_timeout = {int(READ_PATIENCE_SECONDS * 1000)}")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA trusted_schema = OFF")
    if (version := _fetch_version(connection)) != VERSION:
        raise RefusedError(f"{path} has version {version} of the tables and this provider needs {VERSION}")


def _begin(connection: sqlite3.Connection, until: float, path: Path) -> None:
    patience = until - time.monotonic()
    if patience <= 0:
        raise UnavailableError(f"the call's deadline is over; nothing was written to {path}")
    connection.execute(f"PRAGMA busy_timeout = {max(1, int(patience * 1000))}")
    try:
        connection.execute("BEGIN IMMEDIATE")
    finally:
        connection.execute(f"PRAGMA busy_timeout = {int(READ_PATIENCE_SECONDS * 1000)}")
    if time.monotonic() > until:
        connection.execute("ROLLBACK")
        raise UnavailableError(f"the call's deadline is over; nothing was written to {path}")


def _roll_back(connection: sqlite3.Connection) -> None:
    # A failed COMMIT may leave the transaction open, and some errors end it by themselves.
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _fetch_version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def _identify(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - as Path.stat, at a third of the cost, before every call
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
