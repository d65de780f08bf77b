# SPDX-License-Identifier: Apache-2.0
"""A shim on real processes, as the agent would run it, and ranks that tell the test where they are.

Every wait is for an event and bounded. Closing ends the shim and everything it started, also after a failed test.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from airflow_provider_dispatch.adapters.local.processes import JobLock, end_attempts, is_lock_free
from airflow_provider_dispatch.adapters.local.shim import build_command
from airflow_provider_dispatch.adapters.local.shim.wire import LineBuffer, decode, encode

PATIENCE_SECONDS = 30.0

# What a rank of a test begins with: it greets the test, and its connection ends when its process does.
HELLO = """
import os, signal, socket, sys, time
connections = []
def hello():
    connections.append(socket.socket(socket.AF_UNIX))
    connections[-1].connect(os.environ["HELLO"])
    connections[-1].sendall(b"%d\\n" % os.getpid())
"""
DETACH = """
def detach():
    for _ in range(2):
        if os.fork():
            os._exit(0)
        os.setsid()
"""


def python(code: str) -> list[str]:
    """A command that runs *code* after the greeting has been defined."""
    return [sys.executable, "-I", "-S", "-u", "-c", HELLO + DETACH + code]


def take_lock(path: Path) -> JobLock:
    lock = JobLock.take(path)
    assert lock is not None
    return lock


class Greeter:
    """Where the processes of a test say hello; who says it is known to run, and its end is seen."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        self._listener.settimeout(PATIENCE_SECONDS)
        self._connections: dict[int, socket.socket] = {}
        self._earlier: list[socket.socket] = []

    def meet(self) -> int:
        """Wait for the next process; its id."""
        connection, _ = self._listener.accept()
        connection.settimeout(PATIENCE_SECONDS)
        with connection.makefile() as greeting:
            pid = int(greeting.readline())
        if pid in self._connections:
            self._earlier.append(self._connections[pid])
        self._connections[pid] = connection
        return pid

    def is_gone(self, pid: int) -> bool:
        """Whether the process has ended by now."""
        connection = self._connections[pid]
        connection.setblocking(False)
        try:
            return connection.recv(1) == b""
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True

    def wait_until_gone(self, pid: int) -> None:
        connection = self._connections[pid]
        connection.settimeout(PATIENCE_SECONDS)
        assert connection.recv(1) == b""

    def close(self) -> None:
        for connection in (*self._connections.values(), *self._earlier):
            connection.close()
        self._listener.close()


class ShimProcess:
    """A shim, seen from the agent's side of the socket."""

    def __init__(self, folder: Path, *, job: str = "JOB") -> None:
        self.folder, self.job = folder, job
        self.log_dir = folder / "logs"
        self.lock_path = folder / "lock"
        self.greeter = Greeter(folder / "hello")
        self.events: list[dict[str, Any]] = []
        self._buffer = LineBuffer()
        self.control, theirs = socket.socketpair()
        self.control.settimeout(PATIENCE_SECONDS)
        with take_lock(self.lock_path) as lock, theirs:
            command = build_command(sys.executable, control_fd=theirs.fileno(), lock_fd=lock.fd)
            if "COVERAGE_PROCESS_CONFIG" in os.environ:
                command.remove("-S")  # what measures a process is loaded by `site`
            self.process = subprocess.Popen(
                command, pass_fds=(theirs.fileno(), lock.fd), start_new_session=True, stdin=subprocess.DEVNULL
            )

    def order(self, op: str, **fields: object) -> None:
        self.control.sendall(encode({"op": op, **fields}))

    def spawn(self, argv: list[str], *, role: str = "worker", rank: int = 0, **fields: object) -> None:
        """Order a rank; fields beyond the usual ones replace them, ``env`` adds to the usual one."""
        order = {
            "role": role,
            "rank": rank,
            "argv": argv,
            "cwd": str(self.folder),
            "log_dir": str(self.log_dir),
            "memory_bytes": None,
            "readiness": None,
            **fields,
            "env": self.build_environment(role, rank) | fields.get("env", {}),  # type: ignore[operator]  # a dict
        }
        self.order("spawn", **order)

    def build_environment(self, role: str, rank: int) -> dict[str, str]:
        return {
            "PATH": os.defpath,
            "HELLO": str(self.greeter.path),
            "DISPATCH_ATTEMPT": f"{self.job}.1.1.1.0",
            "DISPATCH_ROLE": role,
            "DISPATCH_RANK": str(rank),
            "DISPATCH_RESULT_PATH": str(self.folder / f"result-{role}-{rank}"),
        }

    def wait_for(self, event: str, **facts: object) -> dict[str, Any]:
        """The first event of that kind and with these facts, which may have come already."""
        seen = 0
        while True:
            for message in self.events[seen:]:
                if message["event"] == event and facts.items() <= message.items():
                    return message
            seen = len(self.events)
            chunk = self.control.recv(65536)
            assert chunk, f"the shim ended without saying {event!r}; it said {self.events}"
            self.events += [decode(line) for line in self._buffer.feed(chunk)]

    def end(self, grace_seconds: float = PATIENCE_SECONDS, *, reason: str = "hold", by: str = "ann") -> None:
        self.order("end", grace_seconds=grace_seconds, reason=reason, by=by)

    def end_and_wait(self, grace_seconds: float = PATIENCE_SECONDS) -> None:
        """End the execution and see the shim go."""
        self.end(grace_seconds)
        self.wait_for("gone")
        assert self.process.wait(PATIENCE_SECONDS) == 0

    def is_lock_free(self) -> bool:
        return is_lock_free(self.lock_path)

    def kill(self) -> None:
        """KILL the shim itself; its ranks stay."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE_SECONDS)

    def close(self) -> None:
        """End everything: first as the agent's death does, then by what the environment says."""
        self.control.close()
        try:
            self.process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        report = end_attempts(self.job, lock_path=self.lock_path, timeout_seconds=PATIENCE_SECONDS)
        self.greeter.close()
        assert report.is_complete

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
