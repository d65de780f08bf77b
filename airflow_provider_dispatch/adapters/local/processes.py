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

from airflow_provider_dispatch.adapters.local.shim import ENTRY
from airflow_provider_dispatch.adapters.local.shim.descent import (
    derive_descendants,
    fetch_entry,
    fetch_environment,
    fetch_table,
    kill_newest,
    read_file,
    send_group_signal,
    send_signal,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_provider_dispatch.adapters.local.shim.descent import ProcessEntry

_LONGEST_PAUSE_SECONDS = 0.1
_QUIET_LOOKS = 2


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
    :param is_complete: nothing is left: nobody was found, twice in a row, and the lock is free.
    """

    killed: tuple[FoundProcess, ...]
    alive: tuple[FoundProcess, ...]
    is_complete: bool


@dataclass(frozen=True, slots=True)
class ProcessScan:
    """All processes of this machine at one moment.

    :param attempts: process id → what its ``DISPATCH_ATTEMPT`` says, of those that have one.
    :param state_dirs: of the same processes, what their ``DISPATCH_STATE_DIR`` says.
    """

    table: Mapping[int, ProcessEntry]
    attempts: Mapping[int, str]
    state_dirs: Mapping[int, str]

    def find_attempts(self, prefix: str, *, folder: Path | None = None) -> list[FoundProcess]:
        """Those whose attempt is *prefix* or begins with it and a dot, with all that descends from them.

        :param prefix: a job id, or as many further parts of an attempt as wanted; empty means any attempt.
        :param folder: of the job in its store. Two stores of one machine can have jobs of the same id; None means any.
        """
        marked = {
            pid: attempt
            for pid, attempt in self.attempts.items()
            if _is_meant((attempt, self.state_dirs.get(pid, "")), prefix, folder)
        }
        if not marked:
            return []
        table = self.table
        beneath = [entry.pid for entry in derive_descendants(table, marked)]
        found = {pid: marked.get(pid, "") for pid in (*marked, *beneath) if table[pid].is_alive and pid != os.getpid()}
        return [FoundProcess(pid, table[pid].start_time, attempt) for pid, attempt in found.items()]


def scan_processes() -> ProcessScan:
    """Look at all of them, which takes tens of milliseconds on a busy machine."""
    table = fetch_table()
    attempts, state_dirs = dict[int, str](), dict[int, str]()
    for pid in table:
        attempt, state_dir = _derive_marks(fetch_environment(pid))
        if attempt:
            attempts[pid], state_dirs[pid] = attempt, state_dir
    return ProcessScan(table, attempts, state_dirs)


def find_attempts(prefix: str, *, folder: Path | None = None) -> list[FoundProcess]:
    """Processes of an attempt, by a scan of their own; see :meth:`ProcessScan.find_attempts`."""
    return scan_processes().find_attempts(prefix, folder=folder)


def find_lock_holders(path: Path) -> list[FoundProcess]:
    """Processes that have the file at *path* open, this one left out."""
    wanted = path.resolve()
    holders = (pid for pid in fetch_table() if pid != os.getpid() and wanted in _list_open_files(pid))
    entries = (entry for pid in holders if (entry := fetch_entry(pid)) is not None)
    return [FoundProcess(entry.pid, entry.start_time, "") for entry in entries]


def end_attempts(
    prefix: str,
    *,
    folder: Path | None = None,
    lock_path: Path | None = None,
    timeout_seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> SweepReport:
    """KILL every process of an attempt until none is left, or the time is over.

    :param prefix: as for :func:`find_attempts`, and *folder* as well.
    :param lock_path: the job's lock. It must be free in the end, and who has it open without showing an attempt is
        ended too, except for a shim: it ends by itself, after its ranks.
    """
    deadline = clock() + timeout_seconds
    killed: dict[tuple[int, int], FoundProcess] = {}
    quiet_looks = 0
    while True:
        alive = find_attempts(prefix, folder=folder)
        is_free = lock_path is None or is_lock_free(lock_path)
        if not alive and not is_free and lock_path is not None:
            alive = find_lock_holders(lock_path)
        # One quiet look proves little: a process may have forked and ended while we looked elsewhere.
        quiet_looks = quiet_looks + 1 if not alive and is_free else 0
        if quiet_looks >= _QUIET_LOOKS or clock() >= deadline:
            return SweepReport(tuple(killed.values()), tuple(alive), is_complete=quiet_looks >= _QUIET_LOOKS)
        if not quiet_looks:
            shims = [process for process in alive if not process.attempt and _is_shim(process.pid)]
            for shim in shims:
                send_signal(shim.pid, signal.SIGCONT)  # a stopped one would never end
            targets = [process for process in alive if process not in shims]
            killed |= {(process.pid, process.start_time): process for process in targets}
            _kill_and_wait(targets, min(_LONGEST_PAUSE_SECONDS, max(0.0, deadline - clock())))
            kill_newest(lambda environment: _is_meant(_derive_marks(environment), prefix, folder))


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
            if is_same_file(fd, path):
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


def is_lock_free(path: Path) -> bool:
    """Whether nobody has the lock at this moment."""
    lock = JobLock.take(path)
    if lock is not None:
        lock.close()
    return lock is not None


def is_same_file(fd: int, path: Path) -> bool:
    """Whether *path* still leads to the file that *fd* is open on."""
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


def _derive_marks(environment: dict[bytes, bytes]) -> tuple[str, str]:
    """Attempt and state folder that a process was started with."""
    attempt = environment.get(b"DISPATCH_ATTEMPT", b"").decode("utf-8", "replace")
    return attempt, os.fsdecode(environment.get(b"DISPATCH_STATE_DIR", b""))


def _is_meant(marks: tuple[str, str], prefix: str, folder: Path | None) -> bool:
    attempt, state_dir = marks
    if not attempt or (prefix and not f"{attempt}.".startswith(f"{prefix}.")):
        return False
    if folder is None:
        return True
    return bool(state_dir) and Path(os.path.realpath(state_dir)).is_relative_to(os.path.realpath(folder))


def _is_shim(pid: int) -> bool:
    return ENTRY.encode() in read_file(f"/proc/{pid}/cmdline").split(b"\0")


def _kill_and_wait(processes: list[FoundProcess], pause_seconds: float) -> None:
    """KILL *processes* with their groups, and wait a moment for the first end."""
    poll = select.poll()
    fds = []
    for process in processes:
        try:
            fds.append(os.pidfd_open(process.pid))
        except OSError:  # gone
            continue
        poll.register(fds[-1], select.POLLIN)
        # With the descriptor open the number can't change its owner any more; before, it may have.
        entry = fetch_entry(process.pid)
        if entry is not None and entry.start_time == process.start_time:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(fds[-1], signal.SIGKILL)
            # The group too: a fork of a member can't slip through. The rank's shim has made its session, and so all
            # of its groups, for it alone.
            if entry.group != os.getpgrp():
                send_group_signal(entry.group, signal.SIGKILL)
    poll.poll(pause_seconds * 1000)
    for fd in fds:
        os.close(fd)
