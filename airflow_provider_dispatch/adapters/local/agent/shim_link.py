# SPDX-License-Identifier: Apache-2.0
"""The agent's end of one shim: its process and the socket to it. Never waits for it to read.

The socket is also the shim's life line: when the agent dies, it breaks, and the shim ends everything beneath it. A rank
can stop the shim, or be stopped where it still keeps the other end of the socket, so the agent comes by from time to
time: :meth:`ShimLink.look_after`.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from airflow_provider_dispatch.adapters.local.agent.orphans import Children
from airflow_provider_dispatch.adapters.local.processes import JobLock
from airflow_provider_dispatch.adapters.local.shim import build_command
from airflow_provider_dispatch.adapters.local.shim.wire import LineBuffer, Message, decode, encode

_CHUNK = 64 * 1024
_LEAVING_SECONDS = 5.0


class ShimLink:
    """One shim, from its start to its end.

    :param lock: of the job; given over to the shim.
    :param children: of the agent, of which it becomes one.
    :param take: called with each of its messages.
    :param when_closed: called once, when it has ended.
    :raises OSError: from the constructor, when it could not be started; the lock is given up then too.
    """

    def __init__(
        self,
        lock: JobLock,
        selector: selectors.BaseSelector,
        *,
        children: Children,
        folder: Path,
        take: Callable[[Message], None],
        when_closed: Callable[[], None],
    ) -> None:
        self._selector, self._take, self._when_closed = selector, take, when_closed
        self._children = children
        self._has_ended = False
        self._incoming = LineBuffer()
        self._unsent = bytearray()
        with lock:
            self._socket, theirs = socket.socketpair()
            with theirs:
                self._process = children.start(lambda: _start(theirs.fileno(), lock.fd, folder, self._socket))
        self._socket.setblocking(False)  # noqa: FBT003 - the standard library's signature
        self._events = selectors.EVENT_READ
        selector.register(self._socket, self._events, self._exchange)

    def send(self, message: Message) -> None:
        """Send *message* now or as soon as the shim takes it; to one that has ended, nothing is sent."""
        if self._socket.fileno() >= 0:
            self._process.send_signal(signal.SIGCONT)  # a rank may have stopped it
            self._unsent += encode(message)
            self._flush()

    def look_after(self) -> None:
        """Wake it, in case that a rank has stopped it, and see whether it is still there."""
        if self._socket.fileno() < 0:  # closed already
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
        elif self._has_ended:  # at the last look too: what it had said has been read since
            self._close()
        else:
            self._has_ended = True

    def kill(self) -> None:
        """KILL it; what it leaves becomes the agent's."""
        self._process.kill()

    def _exchange(self) -> None:
        self._flush()
        try:
            chunk = self._socket.recv(_CHUNK)
        except BlockingIOError:
            return
        except ConnectionError:
            chunk = b""
        for line in self._incoming.feed(chunk):
            self._take(decode(line))
        if not chunk:
            self._close()

    def _flush(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
            wanted = selectors.EVENT_READ
        except BlockingIOError:
            wanted = selectors.EVENT_READ | selectors.EVENT_WRITE
        except ConnectionError:  # it has ended; what it had said before is still to be read
            self._unsent.clear()
            wanted = selectors.EVENT_READ
        if wanted != self._events:
            self._events = wanted
            self._selector.modify(self._socket, wanted, self._exchange)

    def _close(self) -> None:
        self._selector.unregister(self._socket)
        self._socket.close()
        try:
            # It ends right after its last word, and with it its hold on the lock.
            self._process.wait(_LEAVING_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._children.forget(self._process)
        self._when_closed()


def _start(control_fd: int, lock_fd: int, folder: Path, own_end: socket.socket) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            build_command(sys.executable, control_fd=control_fd, lock_fd=lock_fd),
            stdin=subprocess.DEVNULL,
            cwd=folder,
            # What the dynamic linker needs to load Python, and nothing else: ranks get theirs by message.
            env={name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ},
            pass_fds=(control_fd, lock_fd),
            start_new_session=True,
        )
    except OSError:
        own_end.close()
        raise
