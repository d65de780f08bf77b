# SPDX-License-Identifier: Apache-2.0
"""Whose turn it is: keys that wait to be looked at, each at most once and never twice at the same time.

Watches and timers add keys, workers take them. A key added while a worker has it waits until that one is done with
it. Nothing here knows what a key stands for.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Callable


class WorkQueue:
    """Keys with the moment when each is due.

    :param monotonic: seconds of a clock that never steps.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._due: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        self._taken: set[str] = set()
        self._rests: dict[str, float] = {}
        self._changed = asyncio.Event()
        self._is_closed = False

    @property
    def depth(self) -> int:
        """Keys that are due and that nobody has taken."""
        now = self._monotonic()
        return sum(due <= now for key, due in self._due.items() if key not in self._taken)

    def add(self, key: str, delay_seconds: float = 0.0) -> None:
        """Let the key be taken after a while; of two wishes the earlier one counts."""
        due = max(self._monotonic() + delay_seconds, self._rests.get(key, 0.0))
        if due < self._due.get(key, float("inf")):
            self._due[key] = due
            heapq.heappush(self._heap, (due, key))
            self._changed.set()

    async def take(self) -> str | None:
        """Wait for the next key; the taker calls :meth:`finish` when it is done with it. None once closed."""
        while not self._is_closed:
            self._changed.clear()
            key, pause = self._pop()
            if key is not None:
                return key
            try:
                await asyncio.wait_for(self._changed.wait(), pause)
            except TimeoutError:
                continue
        self._changed.set()
        return None

    def close(self) -> None:
        """Let nobody take anything any more."""
        self._is_closed = True
        self._changed.set()

    def finish(self, key: str, rest_seconds: float = 0.0) -> None:
        """Give the key back; what was added meanwhile can be taken.

        :param rest_seconds: not before that, and nothing that is added later either.
        """
        self._taken.discard(key)
        self._rests.pop(key, None)
        if rest_seconds > 0:
            self._rests[key] = self._monotonic() + rest_seconds
        if key in self._due:
            self._due[key] = max(self._due[key], self._rests.get(key, 0.0))
            heapq.heappush(self._heap, (self._due[key], key))
            self._changed.set()

    def _pop(self) -> tuple[str | None, float | None]:
        """A key, or None and the seconds until one is due."""
        now = self._monotonic()
        while self._heap:
            due, key = self._heap[0]
            if self._due.get(key) != due or key in self._taken:
                # Outdated by an earlier wish, or put back by finish().
                heapq.heappop(self._heap)
                continue
            if due > now:
                return None, due - now
            heapq.heappop(self._heap)
            del self._due[key]
            self._taken.add(key)
            return key, None
        return None, None


class BackOff:
    """Growing pauses after failures, one row for each key, with jitter so that many don't come back at once.

    :param draw: a number in [0, 1).
    """

    def __init__(
        self, first_seconds: float = 0.2, longest_seconds: float = 60.0, draw: Callable[[], float] = random.random
    ) -> None:
        self._first, self._longest, self._draw = first_seconds, longest_seconds, draw
        self._failures: dict[str, int] = {}

    def next_pause(self, key: str) -> float:
        """Seconds to wait after one more failure."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        full = min(self._first * 2.0 ** min(failures, 30), self._longest)
        return full / 2 + full / 2 * self._draw()

    def reset(self, key: str) -> None:
        """It went well."""
        self._failures.pop(key, None)
