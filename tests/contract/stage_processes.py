# SPDX-License-Identifier: Apache-2.0
"""What all stages with real processes share: ranks that run ``rank.py`` and are told what to do by files."""

from __future__ import annotations

import asyncio
import fcntl
import json
from abc import abstractmethod
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.observation import Observation
from tests.contract.stage import PATIENCE, Stage

RANK = Path(__file__).with_name("rank.py")
LOOK = 0.01


async def wait_until(
    is_so: Callable[[], bool], what: str, patience: timedelta = PATIENCE, *, look_seconds: float = LOOK
) -> None:
    """Look again and again, bounded.

    :param look_seconds: between two looks; longer where each is a request.
    """
    loop = asyncio.get_running_loop()
    over = loop.time() + patience.total_seconds()
    while not is_so():
        if loop.time() > over:
            raise AssertionError(f"never seen: {what}")
        await asyncio.sleep(look_seconds)


def is_free(path: Path) -> bool:
    """Whether no rank has this lock."""
    with path.open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


class ProcessStage(Stage):
    """Ranks that exist."""

    @abstractmethod
    def find_control(self, job: JobID) -> Path:
        """The folder in which a job's ranks look for commands and leave what they saw."""

    @abstractmethod
    def find_controls(self) -> list[Path]:
        """Those of all jobs."""

    async def until(self, ref: JobRef | JobID, is_there: Callable[[Observation], bool]) -> Observation:
        """Watch."""
        seen: Observation | None = None

        async def look() -> Observation:
            nonlocal seen
            async for seen in self.adapter.watch([ref]):
                if is_there(seen):
                    return seen
            raise AssertionError(f"the watch ended with {seen}")

        try:
            return await asyncio.wait_for(look(), self.patience.total_seconds())
        except TimeoutError:
            raise AssertionError(f"never seen; the last was {seen}") from None

    async def tell(self, ref: JobRef, command: str, *, role: str = "node", rank: int = 0) -> None:
        """Hand the rank a line, and wait until it has taken it."""
        await self.tell_if_alive(ref, command, role=role, rank=rank)
        path = self._path(ref, role, rank, "do")
        await wait_until(lambda: not path.exists(), f"{role} {rank} doing {command!r}", self.patience)

    async def tell_if_alive(self, ref: JobRef, command: str, *, role: str = "node", rank: int = 0) -> None:
        """The same without looking whether it is taken."""
        path = self._path(ref, role, rank, "do")
        draft = path.with_suffix(".draft")
        draft.write_text(command)
        draft.rename(path)

    async def give_result(self, ref: JobRef, text: str) -> None:
        """Through the file that the contract names."""
        await self.tell(ref, f"result {text}")
        await self.tell(ref, "exit 0")

    async def pass_time(self, duration: timedelta) -> None:
        """There is only one way."""
        await asyncio.sleep(duration.total_seconds())

    def overlaps(self) -> list[str]:
        """As the ranks reported them."""
        paths = [path for folder in self.find_controls() for path in folder.glob("*.overlap")]
        return [line for path in paths for line in path.read_text().splitlines()]

    def epochs(self, job: JobID) -> list[int]:
        """As rank 0 of the first role wrote them down."""
        paths = sorted(self.find_control(job).glob(f"{job}-*-0.epochs"))
        lines = paths[0].read_text().splitlines() if paths else []
        # A pod that was let through by hand has none.
        return [int(line) for line in lines if line]

    async def begun(self, ref: JobRef, epoch: int) -> None:
        """Look into its file."""
        await wait_until(lambda: epoch in self.epochs(ref.job), f"epoch {epoch}", self.patience)

    async def environment(self, ref: JobRef, role: str = "node", rank: int = 0) -> dict[str, str]:
        """As the newest process saw it."""
        path = self._path(ref, role, rank, "env")
        await wait_until(path.exists, f"{role} {rank}", self.patience)
        lines = path.read_text().splitlines()
        environment: dict[str, str] = json.loads(lines[-1])
        return environment

    def _path(self, ref: JobRef, role: str, rank: int, ending: str) -> Path:
        return self.find_control(ref.job) / f"{ref.job}-{role}-{rank}.{ending}"
