# SPDX-License-Identifier: Apache-2.0
"""Work that blocks, done beside the agent's loop; its result comes back into the loop.

Used where processes of an older execution are waited for. An error in such work is raised in the loop: the agent then
ends, rather than going on without what it waited for.
"""

from __future__ import annotations

import os
import queue
import selectors
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Errands:
    """Threads that carry their results back.

    :param selector: of the loop; calls back when a result is there.
    """

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._results: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._bell_fd, self._ring_fd = os.pipe()
        os.set_blocking(self._bell_fd, False)
        self.pending = 0
        selector.register(self._bell_fd, selectors.EVENT_READ, self._take_results)

    def run(self, work: Callable[[], T], then: Callable[[T], None]) -> None:
        """Do *work* in a thread, and *then* with its result in the loop."""
        self.pending += 1
        threading.Thread(target=self._work, args=(work, then), daemon=True).start()

    def _work(self, work: Callable[[], T], then: Callable[[T], None]) -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - not swallowed: it is raised again in the loop
            failure = error
            self._results.put(lambda: _raise(failure))
        else:
            self._results.put(lambda: then(result))
        os.write(self._ring_fd, b"\n")

    def _take_results(self) -> None:
        os.read(self._bell_fd, 4096)
        while not self._results.empty():
            self.pending -= 1
            self._results.get()()


def _raise(error: BaseException) -> None:
    raise error
