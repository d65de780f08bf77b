# SPDX-License-Identifier: Apache-2.0
"""The agent's children: the shims it has started, and whatever a dead shim has left to it.

The agent is a subreaper, as its shims are: when a shim dies, its orphans become the agent's children, whatever they
have closed, cleared or left. The agent starts nothing but shims, so every other child, with all beneath it, is to be
ended. Whose orphan it was can't be told and needn't be: its shim is dead in any case.

Used by the executions; :meth:`Children.end_orphans` blocks and is an errand.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Callable

from airflow_provider_dispatch.adapters.local.processes import QUIET_LOOKS, FoundProcess, kill_and_wait
from airflow_provider_dispatch.adapters.local.shim.descent import (
    ProcessEntry,
    derive_descendants,
    fetch_entry,
    fetch_table,
    kill_newest,
)

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.02, 1.0


class Children:
    """All processes whose parent is this one."""

    def __init__(self) -> None:
        self._shims: set[int] = set()
        # Between its fork and the moment we know its number, a shim looks like an orphan.
        self._starting = threading.Lock()
        # Who reaps takes away what another look would have seen, so one sweeps at a time.
        self._sweeping = threading.Lock()

    def start(self, start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        """Start a shim."""
        with self._starting:
            shim = start()
            self._shims.add(shim.pid)
        return shim

    def forget(self, shim: subprocess.Popen[bytes]) -> None:
        """It has been reaped."""
        self._shims.discard(shim.pid)

    def end_orphans(self) -> None:
        """End all that shims dead by now have left, and wait until it is gone, however long that takes.

        A look finds also who has ended and wasn't reaped, and nobody else reaps: so whoever one look misses, because it
        ends just then, is seen by the next.
        """
        quiet_looks, pause = 0, _FIRST_PAUSE_SECONDS
        with self._sweeping:
            while quiet_looks < QUIET_LOOKS:
                try:
                    orphans = self._take_orphans()
                except OSError:  # no descriptor or no memory is left to look with, which proves nothing
                    orphans = None
                quiet_looks = quiet_looks + 1 if orphans == [] else 0
                if not quiet_looks:
                    self._kill(orphans or [], pause)
                    pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _take_orphans(self) -> list[ProcessEntry]:
        """Orphans with all beneath them, and the ended, which are reaped."""
        own = os.getpid()
        with self._starting:
            table = fetch_table()
            children = [entry for entry in table.values() if entry.parent == own and entry.pid not in self._shims]
            for child in children:
                if not child.is_alive:
                    with contextlib.suppress(ChildProcessError):
                        os.waitpid(child.pid, os.WNOHANG)
        return [*children, *derive_descendants(table, [child.pid for child in children])]

    def _kill(self, orphans: list[ProcessEntry], pause_seconds: float) -> None:
        alive = [FoundProcess(entry.pid, entry.start_time, "") for entry in orphans if entry.is_alive]
        kill_and_wait(alive, pause_seconds)
        with self._starting, contextlib.suppress(OSError):
            kill_newest(self._is_orphan)

    def _is_orphan(self, pid: int) -> bool:
        while pid not in self._shims:
            entry: ProcessEntry | None = fetch_entry(pid)
            if entry is None or entry.parent == os.getpid():
                return entry is not None
            pid = entry.parent
        return False
