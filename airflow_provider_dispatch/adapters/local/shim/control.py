# SPDX-License-Identifier: Apache-2.0
"""The shim's end of the socket to the agent. Its end of file is how the shim learns that the agent has died.

Used by the supervisor. Never waits: what the agent doesn't take at once is kept until it does.
"""

from __future__ import annotations

import os
import selectors

from airflow_provider_dispatch.adapters.local.shim.wire import LineBuffer, encode

TYPE_CHECKING = False  # the module `typing` would cost a rank's start more than all that is here
if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_dispatch.adapters.local.shim.wire import Message

_CHUNK = 64 * 1024


class AgentLine:
    """Messages from and to the agent.

    :param take: called with each line that arrives.
    :param is_dead: the agent is gone; nothing is sent any more.
    """

    def __init__(self, fd: int, selector: selectors.BaseSelector, take: Callable[[bytes], None]) -> None:
        self._fd, self._selector, self._take = fd, selector, take
        self._incoming = LineBuffer()
        self._unsent = b""
        self.is_dead = False
        os.set_inheritable(fd, False)  # noqa: FBT003 - the standard library's signature
        os.set_blocking(fd, False)
        self._events = selectors.EVENT_READ
        selector.register(fd, self._events, self._exchange)

    def send(self, message: Message) -> None:
        """Send *message* now or as soon as the agent takes it."""
        if not self.is_dead:
            self._unsent += encode(message)
            self._flush()

    def has_unsent(self) -> bool:
        """Something still waits for the agent."""
        return bool(self._unsent)

    def _exchange(self, _now: float) -> None:
        self._flush()
        if self.is_dead:
            return
        try:
            chunk = os.read(self._fd, _CHUNK)
        except BlockingIOError:
            return
        except OSError:  # reset
            chunk = b""
        if not chunk:
            self._die()
        for line in self._incoming.feed(chunk):
            self._take(line)

    def _flush(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self._fd, self._unsent) :]
        except BlockingIOError:
            self._wait_for(selectors.EVENT_READ | selectors.EVENT_WRITE)
        except OSError:
            self._die()
        else:
            self._wait_for(selectors.EVENT_READ)

    def _wait_for(self, events: int) -> None:
        if events != self._events:
            self._events = events
            self._selector.modify(self._fd, events, self._exchange)

    def _die(self) -> None:
        self.is_dead = True
        self._unsent = b""
        self._selector.unregister(self._fd)
        os.close(self._fd)
