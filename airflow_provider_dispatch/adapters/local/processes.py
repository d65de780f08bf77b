# SPDX-License-Identifier: Apache-2.0
"""What the agent needs to know about processes it did not start itself: who still runs for a job, and who has its lock.

Called by the agent before it admits a job, and after a shim has died: a shim that is killed can't end its ranks, and
they keep the job's lock, which they inherited. Finds processes by the ``DISPATCH_ATTEMPT`` they were started with and
by the lock they hold. A process that gave up both can't be found this way; while its shim lives it is found by descent.
Linux alone shows other processes' environment and files; elsewhere nothing is found and only the lock tells.

Blocks: an agent with an event loop calls :func:`end_attempts` in a thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from airflow_provider_dispatch.adapters.local.shim.descent import (
    derive_descendants,
    fetch_entry,
    fetch_environment,
    fetch_table,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_LONGEST_PAUSE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class FoundProcess:
    """A process of this machine.

    :param start_time: clock ticks since boot; with ``pid``, never the name of another process.
    :param attempt: what its ``DISPATCH_ATTEMPT`` says; empty if it was found otherwise.
    """

    pid: int
    start_time: int
    attempt: str


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What a sweep did.

    :param killed: all that were signalled.
    :param alive: those that were still there when the time was over.
    """

    killed: tuple[FoundProcess, ...]
    alive: tuple[FoundProcess, ...]


def find_attempts(prefix: str) -> list[FoundProcess]:
    """Processes whose ``DISPATCH_ATTEMPT`` is *prefix* or begins with it and a dot, with all that descends from them.

    :param prefix: a job id, or as many further parts of an attempt as wanted.
    """
    table = fetch_table()
    marked = {}
    for pid in table:
        attempt = fetch_environment(pid).get(b"DISPATCH_ATTEMPT", b"").decode("utf-8", "replace")
        if attempt == prefix or attempt.startswith(f"{prefix}."):
            marked[pid] = attempt
    beneath = [entry.pid for entry in derive_descendants(table, marked)]
    found = {pid: marked.get(pid, "") for pid in (*marked, *beneath) if table[pid].is_alive and pid != os.getpid()}
    return [FoundProcess(pid, table[pid].start_time, attempt) for pid, attempt in found.items()]


def find_lock_holders(path: Path) -> list[FoundProcess]:
    """Processes that have the file at *path* open, this one left out."""
    wanted = path.resolve()
    holders = (pid for pid in fetch_table() if pid != os.getpid() and wanted in _list_open_files(pid))
    entries = (entry for pid in holders if (entry := fetch_entry(pid)) is not None)
    return [FoundProcess(entry.pid, entry.start_time, "") for entry in entries]


def end_attempts(
    prefix: str,
    *,
    lock_path: Path | None = None,
    timeout_seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> SweepReport:
    """KILL every process of an attempt until none is left, or the time is over.

    :param prefix: as for :func:`find_attempts`.
    :param lock_path: also end whoever has this file open. Not while a shim still lives: it would be ended too.
    """
    deadline = clock() + timeout_seconds
    killed: dict[tuple[int, int], FoundProcess] = {}
    while True:
        alive = find_attempts(prefix) + (find_lock_holders(lock_path) if lock_path is not None else [])
        if not alive or clock() >= deadline:
            return SweepReport(tuple(killed.values()), tuple(alive))
        for process in alive:
            killed.setdefault((process.pid, process.start_time), process)
        _kill_and_wait(alive, min(_LONGEST_PAUSE_SECONDS, max(0.0, deadline - clock())))


class JobLock:
    """The lock that at most one execution of a job can have.

    It is held by every process that has the file open by inheritance, and free once the last of them is gone.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def take(cls, path: Path) -> Self | None:
        """Take the lock of the file at *path*, which is made if missing; None if somebody has it."""
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                return None
            if _is_same_file(fd, path):
                return cls(fd)
            os.close(fd)  # somebody removed the file between the two calls: what is locked is not what others will see

    def close(self) -> None:
        """Give up this process's part of the lock; those who inherited it keep theirs."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def _is_same_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _list_open_files(pid: int) -> set[Path]:
    # Names are read, never followed: a file on a network that is down would keep us waiting.
    found = set()
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.add(link.readlink())
    return found


def _kill_and_wait(processes: list[FoundProcess], pause_seconds: float) -> None:
    """KILL *processes*, and only them: a number that was given away meanwhile is left alone. Wait for the first end."""
    poll = select.poll()
    fds = []
    for process in processes:
        try:
            fd = os.pidfd_open(process.pid)
        except OSError:
            continue
        fds.append(fd)
        entry = fetch_entry(process.pid)
        if entry is not None and entry.start_time == process.start_time:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
            poll.register(fd, select.POLLIN)
    poll.poll(pause_seconds * 1000)
    for fd in fds:
        os.close(fd)
