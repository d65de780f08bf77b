# SPDX-License-Identifier: Apache-2.0
"""A small program that starts processes for a test run and makes sure that none of them outlives it.

It is run by path as a process of its own (see :mod:`airflow_provider_dispatch.testing.guarded_processes`), takes
requests as lines of JSON from the socket whose number is its argument, and learns from the same socket whether its
caller lives: the kernel closes the other end however the caller ends, ``kill -9`` included. Then, or when asked,
everything goes.

"Everything" is what it started, and whatever that started in turn: on Linux it is a *subreaper*, so that orphans and
daemons become its children instead of escaping to process 1. Elsewhere it finds only what still has a living ancestor
or sits in the process group of something started. If the guard itself is killed with -9, its caller can still end the
process groups, but no longer the daemons.

Never imports the package (it must start in no time) and never decides what to start.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ON_LINUX = os.uname().sysname == "Linux"
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
ORPHANED_GRACE_SECONDS = 2.0
# A process in an uninterruptible wait can't be ended by anybody; past this it is reported instead.
KILL_PATIENCE_SECONDS = 10.0
TURN_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the system's table of processes."""

    pid: int
    parent: int
    group: int


def fetch_process_table() -> list[Row]:
    if ON_LINUX:
        return list(_linux_rows())
    listing = subprocess.run(["/bin/ps", "-axo", "pid=,ppid=,pgid="], capture_output=True, text=True, check=True)
    return [Row(*map(int, line.split())) for line in listing.stdout.splitlines()]


def _linux_rows() -> Iterator[Row]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                # The name of the program, in brackets, may hold anything; what follows the last bracket is numbers.
                _state, parent, group, *_ = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue  # ended while we looked
            yield Row(int(folder.name), int(parent), int(group))


def is_beneath(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    seen: set[int] = set()
    while pid in parents and pid not in seen:
        seen.add(pid)
        pid = parents[pid]
        if pid == ancestor:
            return True
    return False


class Guard:
    """What was started, and what became of it."""

    def __init__(self) -> None:
        self._living: set[int] = set()
        self._groups: set[int] = set()  # left empty on Linux, where a subreaper loses nobody
        self._exit_codes: dict[int, int] = {}

    def start(self, argv: list[str], env: dict[str, str], log: str) -> int:
        """Start a process in a session of its own, both its outputs appended to the file *log*."""
        pid = os.posix_spawn(
            argv[0],
            argv,
            env,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
            # A caller may ignore Ctrl-C (a background job of a shell does); what it starts shall not inherit that.
            setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGPIPE],
        )
        self._living.add(pid)
        if not ON_LINUX:
            self._groups.add(pid)
        return pid

    def exit_code(self, pid: int) -> int | None:
        """None while it runs; negative for a signal."""
        self.reap()
        return self._exit_codes.get(pid)

    def signal(self, pid: int, number: int) -> bool:
        """False when there is nothing left to signal. Never hits a stranger: a pid is free only after we reaped it."""
        self.reap()
        if pid not in self._living and pid not in self.alive():
            return False
        send_signals([pid], number)
        return True

    def alive(self) -> list[int]:
        """All that was started and all beneath it, in ascending order."""
        self.reap()
        table = fetch_process_table()
        parents = {row.pid: row.parent for row in table}
        return sorted(
            row.pid for row in table if row.group in self._groups or is_beneath(row.pid, os.getpid(), parents)
        )

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._living:  # else an orphan that we inherited
                self._living.discard(pid)
                self._exit_codes[pid] = os.waitstatus_to_exitcode(status)

    def end_all(self, grace_seconds: float) -> list[int]:
        """TERM to what was started, after half the grace to all beneath it, then KILL until nothing is left.

        :return: what couldn't be ended.
        """
        began = time.monotonic()
        send_signals(self._living, signal.SIGTERM)
        all_asked = False
        while alive := self.alive():
            elapsed = time.monotonic() - began
            if elapsed > grace_seconds + KILL_PATIENCE_SECONDS:
                break
            if elapsed > grace_seconds:
                # Again in every turn: a process may have forked between our look and our signal.
                send_signals(alive, signal.SIGKILL)
            elif elapsed > grace_seconds / 2 and not all_asked:
                send_signals(alive, signal.SIGTERM)
                all_asked = True
            time.sleep(0.03)
        return alive


def send_signals(pids: Iterable[int], number: int) -> None:
    for pid in list(pids):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


class Session:
    """The conversation with the caller, which lasts as long as both live."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._guard = Guard()
        self._caller = os.getppid()
        self._told_to_end = False
        self._answers: dict[str, Callable[..., object]] = {
            "start": self._guard.start,
            "exit_code": self._guard.exit_code,
            "signal": self._guard.signal,
            "alive": self._guard.alive,
            "end_all": self._guard.end_all,
        }
        signal.signal(signal.SIGTERM, self._end)

    def run(self) -> None:
        unread = b""
        while not self._told_to_end and os.getppid() == self._caller:
            readable, _, _ = select.select([self._channel], [], [], TURN_SECONDS)
            self._guard.reap()
            if not readable:
                continue
            received = self._read()
            if not received:
                break
            *lines, unread = (unread + received).split(b"\n")
            for line in lines:
                self._answer(line)
        self._guard.end_all(ORPHANED_GRACE_SECONDS)

    def _read(self) -> bytes:
        try:
            return self._channel.recv(1 << 16)
        except ConnectionError:
            return b""

    def _answer(self, line: bytes) -> None:
        request = json.loads(line)
        try:
            answer = {"number": request["number"], "answer": self._answers[request["verb"]](*request["arguments"])}
        except OSError as error:
            answer = {"number": request["number"], "error": str(error)}
        with suppress(ConnectionError):  # gone while we worked: the next read says so
            self._channel.sendall(json.dumps(answer).encode() + b"\n")

    def _end(self, *_: object) -> None:
        self._told_to_end = True


def become_subreaper() -> None:
    if ON_LINUX and ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "this process could not become a subreaper")


def main() -> None:
    become_subreaper()
    channel = socket.socket(fileno=int(sys.argv[1]))
    # What we start must not hold our end open: our death could not be seen from the other.
    channel.set_inheritable(False)
    Session(channel).run()


if __name__ == "__main__":
    main()
