# SPDX-License-Identifier: Apache-2.0
"""Asks a rank whether it is ready, again and again until it is, without ever waiting for the answer.

Used by the shim's loop, which says when time has passed, when a process has ended and when a socket can be written.
A check never ends a rank.
"""

from __future__ import annotations

import os
import selectors
import signal

from airflow_provider_dispatch.adapters.local.shim.descent import send_group_signal
from airflow_provider_dispatch.adapters.local.shim.spawning import start_process

TYPE_CHECKING = False  # the module `typing` would cost a rank's start more than all that is here
if TYPE_CHECKING:
    import socket

    from airflow_provider_dispatch.adapters.local.shim.wire import SpawnOrder


class ReadinessCheck:
    """The check of one rank.

    :param due: next moment at which :meth:`advance` has something to do, on the monotonic clock.
    :param pid: of the command that runs now, or 0.
    """

    __slots__ = ("_is_trying", "_lock_fd", "_order", "_selector", "_socket", "due", "is_ready", "pid")

    def __init__(self, order: SpawnOrder, lock_fd: int, selector: selectors.BaseSelector, now: float) -> None:
        self._order, self._lock_fd, self._selector = order, lock_fd, selector
        self._is_trying = False
        self._socket: socket.socket | None = None
        self.due = now
        self.is_ready = False
        self.pid = 0

    def advance(self, now: float) -> None:
        """Begin a try, or give up one that takes too long."""
        if self._is_trying:
            self._finish_try(now, is_ready=False)
            return
        self._is_trying = True
        self.due = now + self._order.readiness_timeout_seconds
        if self._order.readiness_command is not None:
            self._start_command(now)
        else:
            self._start_connecting(now)

    def note_exit(self, status: int, now: float) -> None:
        """The command of this check has ended with *status*."""
        self._finish_try(now, is_ready=status == 0)

    def close(self) -> None:
        """End the try that runs, if any."""
        if self.pid:
            send_group_signal(self.pid, signal.SIGKILL)
            self.pid = 0
        if self._socket is not None:
            self._selector.unregister(self._socket)
            self._socket.close()
            self._socket = None

    def _finish_try(self, now: float, *, is_ready: bool) -> None:
        self.close()
        self._is_trying = False
        self.is_ready = is_ready
        self.due = now + self._order.readiness_period_seconds

    def _start_command(self, now: float) -> None:
        order = self._order
        assert order.readiness_command is not None
        null = os.open(os.devnull, os.O_WRONLY)
        try:
            self.pid = start_process(
                order.readiness_command,
                env=order.env,
                cwd=order.cwd,
                stdout_fd=null,
                stderr_fd=null,
                kept_fd=self._lock_fd,
            )
        except OSError:
            self._finish_try(now, is_ready=False)
        finally:
            os.close(null)

    def _start_connecting(self, now: float) -> None:
        import socket  # noqa: PLC0415 - only ranks with a port need it

        assert self._order.readiness_tcp_port is not None
        try:
            connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        except OSError:  # no descriptor left
            self._finish_try(now, is_ready=False)
            return
        connection.setblocking(False)  # noqa: FBT003 - the standard library's signature
        self._socket = connection
        self._selector.register(connection, selectors.EVENT_WRITE, self._note_writable)
        try:
            connection.connect_ex(("127.0.0.1", self._order.readiness_tcp_port))
        except (OSError, OverflowError):  # no such port
            self._finish_try(now, is_ready=False)

    def _note_writable(self, now: float) -> None:
        assert self._socket is not None
        try:
            # A port out of the range for outgoing connections may have been connected to itself.
            is_ready = self._socket.getpeername() != self._socket.getsockname()
        except OSError:  # refused
            is_ready = False
        self._finish_try(now, is_ready=is_ready)
