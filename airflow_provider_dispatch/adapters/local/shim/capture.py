# SPDX-License-Identifier: Apache-2.0
"""Carries what one rank prints from its two pipes into its log.

Used by the shim's loop. One chunk a turn and pipe: a rank that prints without end doesn't keep the others waiting.
"""

from __future__ import annotations

import os
import selectors
import time

from airflow_provider_dispatch.adapters.local.shim.records import STDERR, STDOUT, LineSplitter
from airflow_provider_dispatch.adapters.local.shim.wire import format_time

TYPE_CHECKING = False  # the module `typing` would cost a rank's start more than all that is here
if TYPE_CHECKING:
    from airflow_provider_dispatch.adapters.local.shim.rank_log import RankLog

_CHUNK = 64 * 1024
# What the main process has printed is in its pipe when it ends, and a pipe holds no more than this.
_PIPE_BYTES = 1024 * 1024


class OutputCapture:
    """The pipes of one rank.

    :param selector: calls back, with the time, when a pipe can be read.
    :raises OSError: if there are no descriptors left.
    """

    def __init__(self, log: RankLog, selector: selectors.BaseSelector) -> None:
        self._log, self._selector = log, selector
        self._splitters: dict[int, LineSplitter] = {}
        self.write_fds: list[int] = []
        try:
            for stream in (STDOUT, STDERR):
                self._open_pipe(stream)
        except OSError:
            self.close()
            raise

    def close_write_ends(self) -> None:
        """Leave the writing to the rank, so that its end is the end of file."""
        for fd in self.write_fds:
            os.close(fd)
        self.write_fds = []

    def drain(self) -> None:
        """Write down all that has been printed up to now, the beginning of a line too."""
        for fd in list(self._splitters):
            taken = 0
            while taken < _PIPE_BYTES and (count := self._take_chunk(fd)):
                taken += count
        for splitter in self._splitters.values():
            self._log.write(splitter.flush(_now()))

    def close(self) -> None:
        """Write down what is left and close everything."""
        self.drain()
        for fd in list(self._splitters):
            self._close_pipe(fd)
        self.close_write_ends()
        self._log.close()

    def _open_pipe(self, stream: bytes) -> None:
        read_fd, write_fd = os.pipe()
        self.write_fds.append(write_fd)
        self._splitters[read_fd] = LineSplitter(stream)
        os.set_blocking(read_fd, False)
        self._selector.register(read_fd, selectors.EVENT_READ, lambda _now: self._take_chunk(read_fd))

    def _take_chunk(self, fd: int) -> int:
        """Read once; the number of bytes, 0 if there are none now or will be none any more."""
        try:
            chunk = os.read(fd, _CHUNK)
        except BlockingIOError:
            return 0
        if chunk:
            self._log.write(self._splitters[fd].feed(chunk, _now()))
        else:
            self._log.write(self._splitters[fd].flush(_now()))
            self._close_pipe(fd)
        return len(chunk)

    def _close_pipe(self, fd: int) -> None:
        del self._splitters[fd]
        self._selector.unregister(fd)
        os.close(fd)


def _now() -> bytes:
    return format_time(time.time_ns()).encode()
