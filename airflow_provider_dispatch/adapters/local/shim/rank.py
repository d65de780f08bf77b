# SPDX-License-Identifier: Apache-2.0
"""One rank as the shim knows it: its main process, its output, its readiness, and the file that announces its end.

Used by the supervisor, which owns the loop, the clock and the socket to the agent.
"""
# ruff: noqa: PTH105, PTH123 - pathlib would be the dearest import of the shim

from __future__ import annotations

import json
import os
import signal

from airflow_provider_dispatch.adapters.local.shim.capture import OutputCapture
from airflow_provider_dispatch.adapters.local.shim.descent import send_group_signal
from airflow_provider_dispatch.adapters.local.shim.rank_log import RankLog
from airflow_provider_dispatch.adapters.local.shim.readiness import ReadinessCheck
from airflow_provider_dispatch.adapters.local.shim.spawning import encode_text, start_process

TYPE_CHECKING = False  # the module `typing` would cost a rank's start more than all that is here
if TYPE_CHECKING:
    import selectors

    from airflow_provider_dispatch.adapters.local.shim.wire import Message, SpawnOrder

_MARKS = ("DISPATCH_ATTEMPT", "DISPATCH_ROLE", "DISPATCH_RANK")


class Rank:
    """A rank that has been started.

    :param pid: of its main process, also after its end.
    :param marks: what the environment of all its processes says.
    :param is_running: its main process has not been reaped.
    :raises OSError: from the constructor, with a text for the user, if it could not be started.
    """

    def __init__(self, order: SpawnOrder, *, lock_fd: int, selector: selectors.BaseSelector, now: float) -> None:
        self.order = order
        self.identity = (order.role, order.rank)
        self.marks = {name.encode(): encode_text(order.env.get(name, "")) for name in _MARKS}
        self.is_running = True
        self.was_killed_for_memory = False
        self.capture = OutputCapture(RankLog(order.log_dir, order.role, order.rank), selector)
        stdout_fd, stderr_fd = self.capture.write_fds
        try:
            self.pid = start_process(
                order.argv, env=order.env, cwd=order.cwd, stdout_fd=stdout_fd, stderr_fd=stderr_fd, kept_fd=lock_fd
            )
        except OSError:
            self.capture.close()
            raise
        self.capture.close_write_ends()
        has_check = order.readiness_command is not None or order.readiness_tcp_port is not None
        self.check = ReadinessCheck(order, lock_fd, selector, now) if has_check else None

    def note_exit(self, status: int) -> Message:
        """The main process has ended; what to tell about it."""
        self.is_running = False
        self.close_check()
        self.capture.drain()
        code = os.waitstatus_to_exitcode(status)
        how: Message = {"exit_code": code} if code >= 0 else {"signal": -code}
        return how | {"out_of_memory": self.was_killed_for_memory and code == -signal.SIGKILL}

    def close_check(self) -> None:
        """Ask no more whether it is ready."""
        if self.check is not None:
            self.check.close()
            self.check = None

    def terminate(self) -> None:
        """TERM to the main process's group; a stopped process is woken to receive it."""
        if self.is_running:
            send_group_signal(self.pid, signal.SIGTERM)
            send_group_signal(self.pid, signal.SIGCONT)

    def kill_for_memory(self) -> None:
        """KILL the main process's group; the supervisor ends the rest once that is gone."""
        self.was_killed_for_memory = True
        send_group_signal(self.pid, signal.SIGKILL)

    def announce_end(self, announcement: Message) -> None:
        """Put *announcement* beside the result, whole or not at all. Best effort: a full disk delays no end."""
        result_path = self.order.env.get("DISPATCH_RESULT_PATH")
        if not result_path:
            return
        path = encode_text(f"{result_path}.stop")
        # A rank may have put a FIFO there, which would keep the shim waiting.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            fd = os.open(path + b".new", flags, 0o600)
            with open(fd, "wb") as file:
                file.write(json.dumps(announcement).encode())
            os.replace(path + b".new", path)
        except (OSError, ValueError):  # no room, no folder, or no possible path
            return
