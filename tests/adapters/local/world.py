# SPDX-License-Identifier: Apache-2.0
"""A store in a folder of its own, with what tests need around it: calls with a deadline, waiting, and a sure end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from airflow_provider_dispatch.adapters.local.adapter import LocalAdapter
from airflow_provider_dispatch.adapters.local.launching import ensure_agent
from airflow_provider_dispatch.adapters.local.settings import LocalSettings
from airflow_provider_dispatch.core.holds import Actor, ActorKind, HoldRequest
from airflow_provider_dispatch.core.identity import JobID, build_job_id
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.core.records import StartRequest
from airflow_provider_dispatch.core.state import State

T = TypeVar("T")
PATIENCE_SECONDS = 30.0
ANN = Actor(ActorKind.HUMAN, "ann")

# Runs until it is told to end; prints who it is first.
WAIT = (
    "import os, signal, sys; signal.signal(15, lambda *_: sys.exit(0));"
    " print('epoch', os.environ['DISPATCH_EPOCH']); signal.pause()"
)


def new_job() -> JobID:
    """A job nobody else has."""
    return build_job_id(0, os.urandom(10))


def soon(seconds: float = PATIENCE_SECONDS) -> datetime:
    """A deadline that a healthy call meets."""
    return datetime.now(UTC) + timedelta(seconds=seconds)


def python_job(program: str, **fields: Any) -> JobSpec:
    """A job of one role whose ranks run *program*."""
    fields.setdefault("grace_period", timedelta(seconds=2))
    return JobSpec(command=(sys.executable, "-I", "-S", "-u", "-c", program), **fields)


class World:
    """One store."""

    def __init__(self, root: Path, **settings: Any) -> None:
        # So that the coverage of agents is counted.
        passed = tuple(name for name in os.environ if name.startswith("COVERAGE_"))
        defaults = {"root": root, "retire_after_seconds": 30, "pass_env": passed}
        self.settings = LocalSettings.model_validate(defaults | settings)
        self.layout = self.settings.layout
        self.adapter = LocalAdapter(self.settings)

    def play(self, scenario: Callable[[World], Awaitable[T]]) -> T:
        """Run a scenario, bounded."""

        async def bounded() -> T:
            try:
                return await asyncio.wait_for(scenario(self), 2 * PATIENCE_SECONDS)
            finally:
                await self.adapter.close()

        return asyncio.run(bounded())

    def start_agent(self) -> int:
        """Start an agent if there is none; its process id."""
        ensure_agent(self.settings, PATIENCE_SECONDS)
        return self.agent

    @property
    def agent(self) -> int:
        """The process id of the agent, which lives."""
        pid = self.find_agent()
        assert pid is not None
        return pid

    def find_agent(self) -> int | None:
        """The agent's process id, if one lives."""
        try:
            pid = int(self.layout.agent_lock.read_text() or 0)
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return None
        return pid if os.fsencode(self.layout.folder) in command else None

    def end_agent(self, number: int = signal.SIGTERM) -> None:
        """End the agent and wait until it is gone."""
        pid = self.find_agent()
        if pid is not None:
            end_process(pid, number)

    async def start(self, spec: JobSpec, *, job: JobID | None = None, submission: int = 1, **more: Any) -> JobRef:
        """Start behind the gate."""
        request = StartRequest(job or new_job(), submission, 1, spec, **more)
        return await self.adapter.start(request, deadline=soon())

    async def run(self, spec: JobSpec, **more: Any) -> JobRef:
        """Start and open, and wait until it runs."""
        ref = await self.start(spec, **more)
        await self.adapter.open(ref, deadline=soon())
        await self.reach(ref, State.RUNNING)
        return ref

    async def reach(self, ref: JobRef | JobID, *states: State) -> Observation:
        """Wait for a state."""
        return await self.until(ref, lambda seen: seen.state in states)

    async def until(self, ref: JobRef | JobID, is_there: Callable[[Observation], bool]) -> Observation:
        """Watch until something is so."""
        last: Observation | None = None

        async def look() -> Observation:
            nonlocal last
            async for last in self.adapter.watch([ref]):
                if is_there(last):
                    return last
            raise AssertionError(f"the watch ended with {last}")

        try:
            return await asyncio.wait_for(look(), PATIENCE_SECONDS)
        except TimeoutError:
            raise AssertionError(f"never seen; the last was {last}") from None

    def hold_request(self, key: str = "k", **more: Any) -> HoldRequest:
        """Ann holds."""
        return HoldRequest(key, ANN, "maintenance", **more)


def epoch_of(seen: Observation) -> int:
    """Of the newest execution, which there is."""
    assert seen.execution is not None
    return seen.execution.epoch


def end_process(pid: int, number: int = signal.SIGKILL) -> None:
    """Signal a process that is not a child, and wait until it is gone."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    with contextlib.suppress(ProcessLookupError):  # its parent may have seen its end between the two
        for one in (number, signal.SIGCONT):  # a stopped process hears only the second
            signal.pidfd_send_signal(fd, one)
    wait_for_end(fd)


def wait_for_end(fd: int, seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until the process behind a descriptor is gone, and close it."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    has_ended = bool(poll.poll(seconds * 1000))
    os.close(fd)
    assert has_ended
