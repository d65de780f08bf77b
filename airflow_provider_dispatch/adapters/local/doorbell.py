# SPDX-License-Identifier: Apache-2.0
"""How callers wake the agent, and how both know whether one lives: a FIFO to ring on and a lock held for life.

The agent has the FIFO open for reading and writing, so it never sees its end; opening it for writing alone fails when
no agent listens. The lock makes sure that at most one does.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from pathlib import Path
from typing import Self

from airflow_provider_dispatch.adapters.local.layout import StoreLayout
from airflow_provider_dispatch.adapters.local.store.errors import translating
from airflow_provider_dispatch.exceptions import RefusedError

_NOBODY = frozenset({errno.ENXIO, errno.ENOENT})
_LONGEST_PAUSE_SECONDS = 0.1


def ring(layout: StoreLayout) -> bool:
    """Wake the agent; False when none listens."""
    return _reach(layout.wake, b"\n")


def is_agent_listening(layout: StoreLayout) -> bool:
    """Whether an agent would hear a ring; wakes nobody."""
    return _reach(layout.wake, b"")


class Doorbell:
    """The agent's side. Holds the lock until the process ends.

    :param fd: readable when somebody has rung; -1 while nobody can.
    """

    def __init__(self, layout: StoreLayout, lock_fd: int) -> None:
        self._layout = layout
        self._lock_fd = lock_fd
        self.fd = -1

    @classmethod
    def take(cls, layout: StoreLayout, *, patience_seconds: float) -> Self | None:
        """Become the agent of a store; None if there is one that listens, or that doesn't leave in time."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        lock_fd = os.open(layout.agent_lock, flags, 0o600)
        until, pause = time.monotonic() + patience_seconds, 0.005
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # For people: who it is.
                os.ftruncate(lock_fd, 0)
                os.write(lock_fd, b"%d\n" % os.getpid())
                return cls(layout, lock_fd)
            if is_agent_listening(layout) or time.monotonic() > until:
                os.close(lock_fd)
                return None
            # One that has the lock and doesn't listen is beginning or leaving; both are soon over.
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def listen(self) -> None:
        """Let others ring from now on."""
        with contextlib.suppress(FileExistsError):
            os.mkfifo(self._layout.wake, 0o600)
        fd = os.open(self._layout.wake, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        self.fd = fd
        _check_fifo(fd, self._layout.wake)

    def answer(self) -> None:
        """Take note of all rings up to now."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.fd, 4096):
                pass

    def stop_listening(self) -> None:
        """Who rings from now on is told that nobody listens."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _reach(path: Path, message: bytes) -> bool:
    with translating("ring at", path):
        try:
            fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno in _NOBODY:
                return False
            raise
        try:
            _check_fifo(fd, path)
            # A full FIFO has been rung often enough; one that broke just now had a listener who has left.
            with contextlib.suppress(BlockingIOError):
                os.write(fd, message)
            return True
        except BrokenPipeError:
            return False
        finally:
            os.close(fd)


def _check_fifo(fd: int, path: Path) -> None:
    if not stat.S_ISFIFO(os.fstat(fd).st_mode):
        raise RefusedError(f"{path} is not the FIFO that an agent listens on; remove it")
