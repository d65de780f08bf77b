# SPDX-License-Identifier: Apache-2.0
"""The agent's time: wall-clock at its start and what has passed since. It never steps back, whoever sets the clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta


def read_elapsed() -> float:
    """Seconds since some moment; where the system can tell, those that the machine slept through too."""
    boot_time = getattr(time, "CLOCK_BOOTTIME", None)
    return time.clock_gettime(boot_time) if boot_time is not None else time.monotonic()


class SteadyClock:
    """Stamps for the machine.

    :param elapsed: seconds that only grow; durations are measured by it.
    """

    def __init__(self, elapsed: Callable[[], float] = read_elapsed) -> None:
        self._elapsed = elapsed
        self._began_at = datetime.now(UTC)
        self._began = elapsed()

    def now(self) -> datetime:
        """The present stamp."""
        return self._began_at + timedelta(seconds=self._elapsed() - self._began)
