# SPDX-License-Identifier: Apache-2.0
"""The one loop with which tests wait for a real Airflow. Knows nothing of Airflow; clock and sleeper are arguments."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Waiter:
    """How to wait: how often to look, by which clock, and what ends the waiting early.

    :param is_hopeless: called before each look; raises where waiting on is pointless.
    """

    interval_seconds: float = 0.1
    clock: Callable[[], float] = time.monotonic
    sleeper: Callable[[float], None] = time.sleep
    is_hopeless: Callable[[], object] = lambda: None

    def wait_for(self, look: Callable[[], T | None], *, timeout_seconds: float, what: str) -> T:
        """Call *look* until it returns something true, and return that.

        :param what: what is waited for, for the message.
        :raises TimeoutError: it never did; says what it returned last.
        """
        deadline = self.clock() + timeout_seconds
        while True:
            self.is_hopeless()
            seen = look()
            if seen:
                return seen
            if self.clock() >= deadline:
                raise TimeoutError(f"waited {timeout_seconds:g} s for {what}; the last look gave {seen!r}")
            self.sleeper(self.interval_seconds)
