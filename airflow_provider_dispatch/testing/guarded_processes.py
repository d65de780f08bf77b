# SPDX-License-Identifier: Apache-2.0
"""The caller's side of the process guard: start processes that are sure to end with the caller, however it ends.

Used by :mod:`airflow_provider_dispatch.testing.airflow_processes`; good for any test that starts servers. Waits for
nothing but the guard's answer, and knows nothing of what it starts.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from pydantic import BaseModel

from airflow_provider_dispatch.testing import process_guard

ANSWER_TIMEOUT_SECONDS = 30.0


class GuardError(RuntimeError):
    """The guard refused, or is gone: what it had started is being ended or has been."""


class _Answer(BaseModel):
    number: int
    answer: int | bool | list[int] | None = None
    error: str | None = None


class GuardedProcesses:
    """Processes in sessions of their own, which end when this is closed or this process is no more.

    :param folder: where the guard itself runs and keeps its log; exists already.
    :param grace_seconds: from TERM to KILL when closed.
    """

    def __init__(self, folder: Path, *, grace_seconds: float = 4.0) -> None:
        self._grace_seconds = grace_seconds
        self._started: list[int] = []
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._channel, theirs = socket.socketpair()
        self._channel.settimeout(ANSWER_TIMEOUT_SECONDS)
        with theirs, (folder / "guard.log").open("ab") as log:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", process_guard.__file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                start_new_session=True,  # Ctrl-C in the terminal is for the caller, which then closes us
            )
        self._answers = self._channel.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def guard_pid(self) -> int:
        return self._guard.pid

    def start(self, argv: Sequence[str], *, env: Mapping[str, str], log: Path) -> int:
        """Start a program with exactly this environment; what it prints is appended to *log*. Returns its pid."""
        pid = self._ask("start", list(argv), dict(env), str(log))
        assert isinstance(pid, int)
        self._started.append(pid)
        return pid

    def exit_code(self, pid: int) -> int | None:
        """None while it runs; negative for the signal that ended it."""
        code = self._ask("exit_code", pid)
        return code if isinstance(code, int) else None

    def send_signal(self, pid: int, number: signal.Signals) -> bool:
        """Signal something started here, or something beneath it. False if it has ended before."""
        return bool(self._ask("signal", pid, int(number)))

    def alive(self) -> list[int]:
        """The pids of all that runs: what was started here and everything beneath it."""
        pids = self._ask("alive")
        return pids if isinstance(pids, list) else []

    def close(self) -> None:
        """End everything: TERM, after half the grace TERM also to all descendants, then KILL. May be called again.

        :raises GuardError: something could not be ended; names the pids.
        """
        if self._channel.fileno() < 0:
            return
        try:
            survivors = self._ask("end_all", self._grace_seconds)
        except (GuardError, OSError):
            self._end_without_guard()
            survivors = []
        finally:
            self._answers.close()
            self._channel.close()  # whatever happened here, Ctrl-C included: now the guard ends all and itself
        self._guard.wait(ANSWER_TIMEOUT_SECONDS)
        if survivors:
            raise GuardError(f"processes {survivors} could not be ended, not even by SIGKILL")

    def _ask(self, verb: str, *arguments: object) -> int | bool | list[int] | None:
        with self._lock:
            number = next(self._numbers)
            request = json.dumps({"number": number, "verb": verb, "arguments": arguments}).encode() + b"\n"
            try:
                self._channel.sendall(request)
                reply = self._read_answer()
                while reply.number < number:  # to a request whose caller was interrupted before it read this
                    reply = self._read_answer()
            except OSError as error:
                raise GuardError(f"the process guard {self._guard.pid} does not answer {verb}: {error}") from error
        if reply.error is not None:
            raise GuardError(f"the process guard could not {verb} {arguments[0] if arguments else ''}: {reply.error}")
        return reply.answer

    def _read_answer(self) -> _Answer:
        line = self._answers.readline()
        if not line:
            raise GuardError(f"the process guard {self._guard.pid} has ended")
        return _Answer.model_validate_json(line)

    def _end_without_guard(self) -> None:
        """Somebody killed the guard. The process groups are what is left to hold on to."""
        self._guard.kill()
        for group in self._started:
            try:
                os.killpg(group, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
