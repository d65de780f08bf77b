# SPDX-License-Identifier: Apache-2.0
"""How far a job's output has been printed into the task log, kept where the next triggerer finds it.

A trigger can change nothing of its own row, so the cursors go into an XCom of its task. Writing one is a request to the
triggerer's supervisor, which answers those of all triggers one after another: so one is on its way at a time, at most
one a second for each task, with pauses in between. What is printed is remembered after it was printed: a triggerer that
dies at once repeats the last lines, and never loses one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from airflow.sdk.execution_time.xcom import XCom

from airflow_provider_dispatch.triggers.starter import NO_ANSWER, get_turn

XCOM_KEY = "dispatch_log_cursor"
SHORTEST_INTERVAL_SECONDS = 1.0
SHARE_OF_SUPERVISOR = 0.25
SETTLE_WITHIN_SECONDS = 3.0
"""A stopping triggerer answers nobody, but reads what was sent for as long as its runner lives: this is that time."""

Cursors = Mapping[str, str]
log = logging.getLogger(__name__)


class CursorStore(Protocol):
    """Where cursors outlive a triggerer."""

    async def load(self) -> Cursors:
        """What was saved last; empty when nothing was."""
        ...

    async def save(self, cursors: Cursors) -> None:
        """Replace what was saved."""
        ...


class NoCursors:
    """Remembers nothing: there is no task instance, as in ``dag.test()``."""

    async def load(self) -> Cursors:
        """Nothing."""
        return {}

    async def save(self, cursors: Cursors) -> None:
        """Forget them."""


class TaskInstanceKey(Protocol):
    """What names a task instance."""

    dag_id: str
    task_id: str
    run_id: str
    map_index: int | None


class XComCursors:
    """An XCom of the task that waits; Airflow clears it when the next try begins."""

    def __init__(self, ti: TaskInstanceKey) -> None:
        self._dag_id, self._task_id, self._run_id = ti.dag_id, ti.task_id, ti.run_id
        self._map_index = -1 if ti.map_index is None else ti.map_index

    async def load(self) -> Cursors:
        """What was saved last."""
        async with get_turn():
            found = await XCom.aget_one(
                key=XCOM_KEY,
                dag_id=self._dag_id,
                task_id=self._task_id,
                run_id=self._run_id,
                map_index=self._map_index,
            )
        return {str(name): str(text) for name, text in found.items()} if isinstance(found, Mapping) else {}

    async def save(self, cursors: Cursors) -> None:
        """Replace it. The request is on its way before this waits for the answer."""
        await XCom.aset(
            XCOM_KEY,
            dict(cursors),
            dag_id=self._dag_id,
            task_id=self._task_id,
            run_id=self._run_id,
            map_index=self._map_index,
        )


class CursorSaver:
    """Saves the newest cursors off the critical path, seldom enough to disturb nobody."""

    def __init__(self, store: CursorStore, *, sleeper: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._store, self._sleeper = store, sleeper
        self._wanted: Cursors | None = None
        self._task: asyncio.Task[None] | None = None

    def remember(self, cursors: Cursors) -> None:
        """Save these soon, unless newer ones come first."""
        self._wanted = dict(cursors)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._save_by_and_by())

    async def settle(self) -> None:
        """Save the rest at once. Waits for the answer a moment only: a triggerer that stops gives none."""
        if self._task is not None:
            self._task.cancel()
            # Until it has ended, what it had taken to save is in nobody's hands.
            await asyncio.wait([self._task])
        if self._wanted is not None:
            saving = asyncio.create_task(self._save_wanted())
            await asyncio.wait([saving], timeout=SETTLE_WITHIN_SECONDS)
            saving.cancel()

    async def _save_by_and_by(self) -> None:
        while self._wanted is not None:
            began = time.monotonic()
            async with get_turn():
                await self._save_wanted()
                took = time.monotonic() - began
                await self._sleeper(took * (1 / SHARE_OF_SUPERVISOR - 1))
            await self._sleeper(SHORTEST_INTERVAL_SECONDS)

    async def _save_wanted(self) -> None:
        wanted, self._wanted = self._wanted, None
        if wanted is None:
            return
        try:
            await self._store.save(wanted)
        except asyncio.CancelledError:
            self._want_again(wanted)
            raise
        except NO_ANSWER as error:
            log.warning("The place in the job's output could not be saved; lines may repeat: %s", error)

    def _want_again(self, cursors: Cursors) -> None:
        if self._wanted is None:
            self._wanted = cursors
