# SPDX-License-Identifier: Apache-2.0
"""Winning a job's lock from what is left of an earlier execution, and a new store's folder from an earlier store.

Blocks; but for :func:`clear_folder`, which comes before the agent's loop, done as an errand beside it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from pathlib import Path

from airflow_provider_dispatch.adapters.local.processes import JobLock, end_attempts, is_shortage
from airflow_provider_dispatch.exceptions import UnavailableError

# A shim that has lost its agent ends its ranks by itself and reaps them, which no sweep can do as well.
_SHIM_SECONDS = 1.0
_HOLDERS_SECONDS = 5.0
_SWEEP_SECONDS = 1.0
_FOLDER_SECONDS = 15.0
_log = logging.getLogger(__name__)
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.005, 0.25


def win_lock(path: Path, prefix: str, *, patience_seconds: float | None, cancelled: threading.Event) -> JobLock | None:
    """Wait for the lock, ending more and more of what keeps it; None when cancelled or the time is over.

    :param path: in the job's folder; nothing is ended that belongs to another.
    :param prefix: of the ``DISPATCH_ATTEMPT`` of processes that may be ended.
    :param patience_seconds: None means for ever.
    """
    began, pause = time.monotonic(), _FIRST_PAUSE_SECONDS
    while True:
        lock = _try_lock(path)
        if lock is not None:
            return lock
        waited = time.monotonic() - began
        if cancelled.is_set() or (patience_seconds is not None and waited > patience_seconds):
            return None
        if waited > _SHIM_SECONDS:
            holders_of = path if waited > _HOLDERS_SECONDS else None
            end_attempts(prefix, folder=path.parent, lock_path=holders_of, timeout_seconds=_SWEEP_SECONDS)
        cancelled.wait(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _try_lock(path: Path) -> JobLock | None:
    try:
        return JobLock.take(path)
    except OSError as error:
        if is_shortage(error):  # says nothing about the lock
            return None
        raise


def clear_folder(folder: Path) -> None:
    """End what still runs of a store that was removed: its locks are gone with it, and its epochs begin anew."""
    if not end_attempts("", folder=folder, timeout_seconds=_FOLDER_SECONDS).is_complete:
        raise UnavailableError(f"processes of an earlier store in {folder} can't be ended; end them and try again")


def clear_execution(path: Path, attempt: str) -> None:
    """See that no process of an execution is left, however long that takes.

    A free lock proves it alone as long as the ranks have left their descriptors and the lock's file as they were.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = win_lock(path, attempt, patience_seconds=None, cancelled=threading.Event())
    except OSError as error:
        # They may have put something else in its place. Then only what they show of themselves tells.
        _log.warning("the lock of %s says nothing: %s", attempt, error)
        lock = None
    with lock or contextlib.nullcontext():
        while not end_attempts(attempt, folder=path.parent, timeout_seconds=_SWEEP_SECONDS).is_complete:
            pass
