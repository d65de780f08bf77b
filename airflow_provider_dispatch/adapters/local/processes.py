# SPDX-License-Identifier: Apache-2.0
"""What the agent needs to know about processes it did not start itself: who still runs for a job, and who has its lock.

Called by the agent before it admits a job, and after a shim has died: a shim that is killed can't end its ranks, and
they keep the job's lock, which they inherited. Finds processes by the ``DISPATCH_ATTEMPT`` they were started with, by
the lock they hold, and beneath a shim that still lives. One that gave up all three can't be found this way; while its
agent lives it is found by descent (``agent.orphans``). Linux alone shows other processes' environment and files;
elsewhere nothing is found and only the lock tells.

A look that fails for want of descriptors or of memory is an error or "not yet", never "nobody".
Blocks: an agent with an event loop calls :func:`end_attempts` in a thread.
"""

from __future__ import annotations

import contextlib
import errno
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
    GONE_OR_SECRET,
    derive_descendants,
    fetch_entry,
    fetch_environment,
    fetch_table,
    kill_newest,
    read_file,
    send_group_signal,
    send_signal,
)
from airflow_provider_dispatch.exceptions import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from airflow_provider_dispatch.adapters.local.shim.descent import ProcessEntry

# One quiet look proves little: a process may have forked and ended while we looked elsewhere.
QUIET_LOOKS = 2
_LONGEST_PAUSE_SECONDS = 0.1
_MOST_WAITED_FOR = 64
_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_REMOVED = " (deleted)"


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
    :param is_complete: nothing is left: all could be looked at, nobody was found, twice in a row, and the lock is free.
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
        return self._build_found((*marked, *self._list_beneath(marked)))

    def find_beneath(self, roots: Iterable[FoundProcess]) -> list[FoundProcess]:
        """All that descends from *roots*, without them."""
        return self._build_found(self._list_beneath([process.pid for process in roots]))

    def find_shims(self, folder: Path) -> list[FoundProcess]:
        """Shims that have a file beneath *folder* open, also one that was removed: they have their job's lock."""
        home = Path(os.path.realpath(folder))
        shims = (pid for pid in self.table if _is_shim(pid))
        return self._build_found(
            pid for pid in shims if any(path.is_relative_to(home) for path in _list_open_files(pid))
        )

    def _list_beneath(self, roots: Iterable[int]) -> list[int]:
        return [entry.pid for entry in derive_descendants(self.table, roots)]

    def _build_found(self, pids: Iterable[int]) -> list[FoundProcess]:
        entries = [self.table[pid] for pid in dict.fromkeys(pids) if pid != os.getpid()]
        return [
            FoundProcess(entry.pid, entry.start_time, self.attempts.get(entry.pid, ""))
            for entry in entries
            if entry.is_alive
        ]


def scan_processes() -> ProcessScan:
    """Look at all of them, which takes tens of milliseconds on a busy machine.

    :raises UnavailableError: not all could be looked at.
    """
    attempts, state_dirs = dict[int, str](), dict[int, str]()
    try:
        table = fetch_table()
        for pid in table:
            attempt, state_dir = _derive_marks(fetch_environment(pid))
            if attempt:
                attempts[pid], state_dirs[pid] = attempt, state_dir
    except OSError as error:
        raise UnavailableError(f"the processes of this machine can't be looked at: {error}; try again") from error
    return ProcessScan(table, attempts, state_dirs)


def find_attempts(prefix: str, *, folder: Path | None = None) -> list[FoundProcess]:
    """Processes of an attempt, by a scan of their own; see :meth:`ProcessScan.find_attempts`."""
    return scan_processes().find_attempts(prefix, folder=folder)


def find_lock_holders(path: Path) -> list[FoundProcess]:
    """Processes that have the file at *path* open, this one left out.

    :raises OSError: not all could be looked at.
    """
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
        try:
            targets, shims, is_free = _look(prefix, folder, lock_path)
        except (OSError, UnavailableError):  # who could not look has seen nothing, and proved nothing
            targets, shims, is_free = [], [], False
        is_quiet = is_free and not targets
        quiet_looks = quiet_looks + 1 if is_quiet else 0
        if quiet_looks >= QUIET_LOOKS or clock() >= deadline:
            alive = (*targets, *shims)
            return SweepReport(tuple(killed.values()), alive, is_complete=quiet_looks >= QUIET_LOOKS)
        if not is_quiet:
            killed |= {(process.pid, process.start_time): process for process in targets}
            for shim in shims:
                send_signal(shim.pid, signal.SIGCONT)  # a stopped one would never end
            kill_and_wait(targets, min(_LONGEST_PAUSE_SECONDS, max(0.0, deadline - clock())), beside=shims)
            _kill_newest(prefix, folder)


def _look(
    prefix: str, folder: Path | None, lock_path: Path | None
) -> tuple[list[FoundProcess], list[FoundProcess], bool]:
    """Who is to be ended, shims, which end by themselves once they have nobody, and whether the lock is free."""
    scan = scan_processes()
    shims = scan.find_shims(folder) if folder is not None else []
    targets = dict.fromkeys((*scan.find_attempts(prefix, folder=folder), *scan.find_beneath(shims)))
    is_free = lock_path is None or is_lock_free(lock_path)
    if not targets and not is_free and lock_path is not None:
        holders = find_lock_holders(lock_path)
        shims = list(dict.fromkeys((*shims, *(process for process in holders if _is_shim(process.pid)))))
        targets = dict.fromkeys((*holders, *scan.find_beneath(shims)))
    return [process for process in targets if process not in shims], shims, is_free


def _kill_newest(prefix: str, folder: Path | None) -> None:
    with contextlib.suppress(OSError):  # nothing to look with now; the next look is soon
        kill_newest(lambda pid: _is_meant(_derive_marks(fetch_environment(pid)), prefix, folder))


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
            with contextlib.ExitStack() as unless_won:
                unless_won.callback(os.close, fd)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return None
                # Else somebody removed the file between the two calls: what is locked is not what others will see.
                if is_same_file(fd, path):
                    unless_won.pop_all()
                    return cls(fd)

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


def is_shortage(error: OSError) -> bool:
    """Whether it says only that descriptors or memory are short, and nothing about what was asked for."""
    return error.errno in _SHORTAGES


def is_same_file(fd: int, path: Path) -> bool:
    """Whether *path* still leads to the file that *fd* is open on."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _list_open_files(pid: int) -> set[Path]:
    # Names are read, never followed: a file on a network that is down would keep us waiting.
    found = set()
    with contextlib.suppress(*GONE_OR_SECRET):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(*GONE_OR_SECRET):
                found.add(_read_link(link))
    return found


def _read_link(link: Path) -> Path:
    """What a descriptor is open on, also if that has been removed."""
    try:
        return Path(str(link.readlink()).removesuffix(_REMOVED))
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # none of ours
            return link
        raise


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


def kill_and_wait(
    processes: Sequence[FoundProcess], pause_seconds: float, *, beside: Sequence[FoundProcess] = ()
) -> None:
    """KILL *processes* with their groups, and wait a moment for the first end.

    :param beside: waited for as well, but not killed.
    """
    for process in processes:
        _kill(process)
    poll = select.poll()
    with contextlib.ExitStack() as opened:
        for process in (*processes, *beside)[:_MOST_WAITED_FOR]:
            try:
                fd = os.pidfd_open(process.pid)
            except ProcessLookupError:
                return
            except OSError:  # an old kernel, or no descriptor is left
                break
            opened.callback(os.close, fd)
            poll.register(fd, select.POLLIN)
        poll.poll(pause_seconds * 1000)


def _kill(process: FoundProcess) -> None:
    try:
        fd = os.pidfd_open(process.pid)
    except OSError:  # gone; else an old kernel, where its number must do
        fd = -1
    # What can't be looked at now is found again by the next look.
    with contextlib.suppress(OSError):
        # With the descriptor open it can't be taken for another any more; before, its number may have changed hands.
        entry = fetch_entry(process.pid)
        if entry is not None and entry.start_time == process.start_time:
            _send_kill(process.pid, fd)
            # The group too: a fork of a member can't slip through. The rank's shim has made its session, and so all
            # of its groups, for it alone.
            if entry.group != os.getpgrp():
                send_group_signal(entry.group, signal.SIGKILL)
    if fd >= 0:
        os.close(fd)


def _send_kill(pid: int, fd: int) -> None:
    if fd < 0:
        send_signal(pid, signal.SIGKILL)
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        signal.pidfd_send_signal(fd, signal.SIGKILL)
