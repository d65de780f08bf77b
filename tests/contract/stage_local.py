# SPDX-License-Identifier: Apache-2.0
"""The local adapter on the contract's stage: a store of its own, a real agent, real processes."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path

from airflow_provider_dispatch.adapters.protocol import DispatchAdapter
from airflow_provider_dispatch.adapters.registry import build_adapter
from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.observation import Observation
from tests.contract.stage import PATIENCE, Stage

RANK = Path(__file__).with_name("rank.py")
LOOK = 0.01


def find_agents(folder: Path) -> list[int]:
    """Agents that serve the store in *folder*, by what the kernel says of their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdecimal() else []
        except OSError:
            continue
        if os.fsencode(folder) in words and any(b"adapters.local.agent" in word for word in words):
            found.append(int(entry.name))
    return found


async def wait_until(is_so: Callable[[], bool], what: str, patience: timedelta = PATIENCE) -> None:
    """Look again and again, bounded."""
    for _ in range(int(patience.total_seconds() / LOOK)):
        if is_so():
            return
        await asyncio.sleep(LOOK)
    raise AssertionError(f"never seen: {what}")


class LocalStage(Stage):
    """Processes on this machine.

    :param folder: of this stage alone.
    """

    name = "local"

    def __init__(self, folder: Path, queues: Mapping[str, Mapping[str, str | int]] | None = None) -> None:
        super().__init__(queues)
        self.folder = folder
        self.control = folder / "control"
        self.store = folder / "dispatch" / "t"

    async def set_up(self) -> None:
        """An empty store, with a queue file if there are queues."""
        self.control.mkdir(parents=True, exist_ok=True)
        self.store.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.queues is not None:
            node = f"[node]\ncapacity = {_write_table({'cpu': 16, **self.counted})}\n"
            (self.store / "queues.toml").write_text(node + "".join(map(_write_queue, self.queues.items())))
        self.adapter = self._build()

    def _build(self) -> DispatchAdapter:
        # So that the coverage of agents is counted, where it is measured.
        passed = tuple(name for name in os.environ if name.startswith("COVERAGE_"))
        return build_adapter("local", {"root": str(self.folder / "dispatch"), "store": "t", "pass_env": passed})

    async def tear_down(self) -> None:
        """End the agent; its ranks die with it."""
        await self.adapter.close()
        while find_agents(self.store):
            await self._kill_agents()
        await wait_until(lambda: all(map(_is_free, self.control.glob("*.lock"))), "the end of the ranks")

    async def _kill_agents(self) -> None:
        # A watch may start the next agent at once: only the end of those that were found is waited for.
        found = set(find_agents(self.store))
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        await wait_until(lambda: found.isdisjoint(find_agents(self.store)), "the agent's end")

    async def another_adapter(self) -> DispatchAdapter:
        """Over the same store."""
        return self._build()

    def role(self, *behaviour: str, **fields: object) -> dict[str, object]:
        """Ranks run ``rank.py``."""
        command = [sys.executable, "-I", "-S", str(RANK), *behaviour]
        if behaviour == ("missing",):
            command = ["missing-command-of-the-contract"]
        return {"command": command, "env": {"CONTROL": str(self.control)}, **fields}

    def ready_command(self) -> list[str]:
        """Looks for the file that the rank makes when told so."""
        path = '"$CONTROL/$DISPATCH_JOB_ID-$DISPATCH_ROLE-$DISPATCH_RANK.$DISPATCH_EPOCH.ready"'
        return ["/bin/sh", "-c", f"test -e {path}"]

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
            return await asyncio.wait_for(look(), PATIENCE.total_seconds())
        except TimeoutError:
            raise AssertionError(f"never seen; the last was {seen}") from None

    async def tell(self, ref: JobRef, command: str, *, role: str = "node", rank: int = 0) -> None:
        """Hand the rank a line, and wait until it has taken it."""
        await self.tell_if_alive(ref, command, role=role, rank=rank)
        path = self._path(ref, role, rank, "do")
        await wait_until(lambda: not path.exists(), f"{role} {rank} doing {command!r}")

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

    async def lose_node(self) -> None:
        """The agent is the node."""
        await self._kill_agents()

    async def pass_time(self, duration: timedelta) -> None:
        """There is only one way."""
        await asyncio.sleep(duration.total_seconds())

    def overlaps(self) -> list[str]:
        """As the ranks reported them."""
        return [line for path in self.control.glob("*.overlap") for line in path.read_text().splitlines()]

    def epochs(self, job: JobID) -> list[int]:
        """As rank 0 of the first role wrote them down."""
        paths = sorted(self.control.glob(f"{job}-*-0.epochs"))
        return [int(line) for line in paths[0].read_text().splitlines()] if paths else []

    async def begun(self, ref: JobRef, epoch: int) -> None:
        """Look into its file."""
        await wait_until(lambda: epoch in self.epochs(ref.job), f"epoch {epoch}")

    async def environment(self, ref: JobRef, role: str = "node", rank: int = 0) -> dict[str, str]:
        """As the newest process saw it."""
        path = self._path(ref, role, rank, "env")
        await wait_until(path.exists, f"{role} {rank}")
        lines = path.read_text().splitlines()
        environment: dict[str, str] = json.loads(lines[-1])
        return environment

    def _path(self, ref: JobRef, role: str, rank: int, ending: str) -> Path:
        return self.control / f"{ref.job}-{role}-{rank}.{ending}"


def _write_queue(item: tuple[str, Mapping[str, str | int]]) -> str:
    name, quota = item
    return f"[queues.{json.dumps(name)}]\nquota = {_write_table(quota)}\n"


def _write_table(amounts: Mapping[str, str | int]) -> str:
    inside = ", ".join(f"{resource} = {json.dumps(amount)}" for resource, amount in amounts.items())
    return f"{{ {inside} }}"


def _is_free(path: Path) -> bool:
    with path.open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
