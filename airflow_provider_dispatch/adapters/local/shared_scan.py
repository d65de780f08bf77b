# SPDX-License-Identifier: Apache-2.0
"""One look at the processes of this machine for all who ask at the same time.

A look reads every process's environment. When a triggerer starts, a thousand triggers ask for their jobs at once; the
adapter lets them share it here. It never answers with a look that began before the question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from airflow_provider_dispatch.adapters.local.processes import ProcessScan, scan_processes


class SharedScan:
    """Looks of one adapter, never two at once. It may be used in one event loop after another."""

    def __init__(self, scan: Callable[[], ProcessScan] = scan_processes) -> None:
        self._scan = scan
        self._running: asyncio.Task[ProcessScan] | None = None
        self._next: asyncio.Task[ProcessScan] | None = None

    async def take(self) -> ProcessScan:
        """A look that begins after the call."""
        # Done and still here: the loop that it belonged to was closed.
        if self._next is None or self._next.done():
            self._next = asyncio.create_task(self._look_after(self._running))
        # Whoever no longer wants it leaves it to the others.
        return await asyncio.shield(self._next)

    async def _look_after(self, running: asyncio.Task[ProcessScan] | None) -> ProcessScan:
        if running is not None and not running.done():
            await asyncio.wait([running])
        self._running, self._next = self._next, None
        return await asyncio.to_thread(self._scan)
