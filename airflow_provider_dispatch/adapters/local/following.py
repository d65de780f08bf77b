# SPDX-License-Identifier: Apache-2.0
"""Reads and follows the output of one rank from its files, over executions, each line once.

While an execution lives the size of its file is asked for four times a second; while none does, only the watch wakes
this. Whether there is a later execution, or none can come, is found out before a file is read to its end, so no line
falls between the two.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_dispatch.adapters.local.layout import StoreLayout
from airflow_provider_dispatch.adapters.local.logs import read_lines
from airflow_provider_dispatch.adapters.local.shim.records import build_file_name
from airflow_provider_dispatch.adapters.local.store.errors import translating
from airflow_provider_dispatch.adapters.local.store.reading import JobView
from airflow_provider_dispatch.adapters.local.watch import Subscription
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.job_spec import MOST_NODES, ROLE_NAME
from airflow_provider_dispatch.core.output import Cursor, OutputLine
from airflow_provider_dispatch.exceptions import ProtocolError, SpecError

LOOK_SECONDS = 0.25
_LARGEST_NUMBER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class OutputSource:
    """Whose output.

    :param only: R of the one execution that is wanted; None means later ones too.
    """

    layout: StoreLayout
    ref: JobRef
    role: str
    rank: int
    only: int | None = None

    def __post_init__(self) -> None:
        # Both become part of a file's name.
        if not re.fullmatch(ROLE_NAME, self.role):
            raise SpecError("role", "is no name of a role", self.role)
        if not 0 <= self.rank < MOST_NODES:
            raise SpecError("rank", f"must lie between 0 and {MOST_NODES - 1}", self.rank)

    def log_dir(self, execution: int) -> Path:
        """Folder of an execution's logs."""
        return self.layout.executions_folder(self.ref.job, self.ref.submission) / f"r{execution}" / "logs"

    def find_executions(self) -> list[int]:
        """R of each execution that has left a folder, in order."""
        folder = self.layout.executions_folder(self.ref.job, self.ref.submission)
        with translating("read", folder):
            names = [path.name for path in folder.iterdir()] if folder.exists() else []
        return sorted(int(name[1:]) for name in names if name.startswith("r") and name[1:].isdecimal())

    def is_complete(self, view: JobView) -> bool:
        """Nothing can be added any more to what is wanted."""
        pair = view.find(self.ref)
        if pair is None:
            return view.ledger >= self.ref.submission
        status = pair[1]
        if status.execution is None and status.end is not None:
            return True
        if self.only is None or status.identity is None:
            return False
        return status.identity.r > self.only or (status.identity.r == self.only and status.execution is None)

    def may_grow(self, view: JobView | None) -> bool:
        """Whether processes may be writing."""
        return view is not None and view.has_processes(self.ref)


class OutputReader:
    """A place in the output.

    :param cursor: where to go on; None means with the first execution that there will be.
    """

    def __init__(self, source: OutputSource, cursor: Cursor | None) -> None:
        for number in (cursor.execution, cursor.generation, cursor.offset) if cursor is not None else ():
            if not 0 <= number <= _LARGEST_NUMBER:
                raise ProtocolError("no such place in the output; begin again without a cursor")
        self._source, self._cursor = source, cursor
        self._sizes: tuple[int, ...] = ()

    async def read(self) -> AsyncIterator[OutputLine]:
        """Everything that is there now."""
        while True:
            successor = await asyncio.to_thread(self._find_successor)
            if self._cursor is not None:
                while lines := await asyncio.to_thread(self._read_some, self._cursor):
                    for line in lines:
                        yield line
            if successor is None:
                return
            self._cursor = Cursor(successor, self._source.role, self._source.rank)

    async def follow(self, subscription: Subscription) -> AsyncIterator[OutputLine]:
        """Everything, as it comes, until no more can come."""
        view: JobView | None = None
        while view is None or not self._source.is_complete(view):
            view = await self._wait(subscription, view)
            async for line in self.read():
                yield line

    async def _wait(self, subscription: Subscription, view: JobView | None) -> JobView | None:
        """Wait until the job or the file has changed; the newest view."""
        while True:
            try:
                async with asyncio.timeout(LOOK_SECONDS if self._source.may_grow(view) else None):
                    return (await subscription.take()).get(self._source.ref.job, view)
            except TimeoutError:
                if self._has_grown():
                    return view

    def _read_some(self, cursor: Cursor) -> list[OutputLine]:
        source = self._source
        self._sizes = self._measure(cursor)
        with translating("read", source.log_dir(cursor.execution)):
            lines, self._cursor = read_lines(
                source.log_dir(cursor.execution),
                execution=cursor.execution,
                role=source.role,
                rank=source.rank,
                cursor=cursor,
            )
        return lines

    def _find_successor(self) -> int | None:
        """The execution after the present one, if it has begun: then nothing is added to the present one."""
        here = self._cursor.execution if self._cursor is not None else -1
        return next((r for r in self._source.find_executions() if r > here and self._source.only in (None, r)), None)

    def _has_grown(self) -> bool:
        return self._cursor is None or self._measure(self._cursor) != self._sizes

    def _measure(self, cursor: Cursor) -> tuple[int, ...]:
        """Sizes of the file that is read and of the next."""
        folder, sizes = self._source.log_dir(cursor.execution), []
        for generation in (cursor.generation, cursor.generation + 1):
            try:
                path = folder / build_file_name(self._source.role, self._source.rank, generation)
                sizes.append(path.stat().st_size)
            except OSError:
                sizes.append(-1)
        return tuple(sizes)
