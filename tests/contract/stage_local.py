# SPDX-License-Identifier: Apache-2.0
"""The local adapter on the contract's stage: a store of its own, a real agent, real processes."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from airflow_provider_dispatch.adapters.protocol import DispatchAdapter
from airflow_provider_dispatch.adapters.registry import build_adapter
from airflow_provider_dispatch.core.identity import JobID
from tests.contract.stage_processes import RANK, ProcessStage, is_free, wait_until


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


class LocalStage(ProcessStage):
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
        await wait_until(lambda: all(map(is_free, self.control.glob("*.lock"))), "the end of the ranks")

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

    async def keep_secret(self, name: str, key: str, value: str) -> None:
        """In a file that nobody else can read."""
        path = self.store / "secrets" / name / key
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(value)

    async def lose_node(self) -> None:
        """The agent is the node."""
        await self._kill_agents()

    def find_control(self, job: JobID) -> Path:
        """The same for all jobs of the stage."""
        return self.control

    def find_controls(self) -> list[Path]:
        """There is but one."""
        return [self.control]


def _write_queue(item: tuple[str, Mapping[str, str | int]]) -> str:
    name, quota = item
    return f"[queues.{json.dumps(name)}]\nquota = {_write_table(quota)}\n"


def _write_table(amounts: Mapping[str, str | int]) -> str:
    inside = ", ".join(f"{resource} = {json.dumps(amount)}" for resource, amount in amounts.items())
    return f"{{ {inside} }}"
