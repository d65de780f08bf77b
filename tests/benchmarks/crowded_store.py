# SPDX-License-Identifier: Apache-2.0
"""A store of the local adapter with an agent, a job that runs, one that is held and a thousand that wait for room.

The queued ones are written in one transaction: how fast callers write is not what is measured here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from airflow_provider_dispatch.adapters.local.doorbell import ring
from airflow_provider_dispatch.adapters.local.lifecycle import intents as rules
from airflow_provider_dispatch.adapters.local.processes import find_attempts
from airflow_provider_dispatch.adapters.local.store import intents
from airflow_provider_dispatch.adapters.local.store.database import Database
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.records import JobSelector, StartRequest
from airflow_provider_dispatch.core.state import State
from tests.adapters.local.world import WAIT, World, new_job, python_job, soon
from tests.benchmarks.machine import read_cpu_seconds, read_memory_bytes

QUEUED = 1_000
QUEUE = "crowded"
PATIENCE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class CrowdedStore:
    """The store.

    :param memory_before: of the agent, before the queued jobs came.
    """

    world: World
    queued: list[JobRef]
    memory_before: int
    memory_after: int


@contextlib.contextmanager
def crowded_store(root: Path) -> Iterator[CrowdedStore]:
    """Make it below a folder; whatever runs for it is ended in the end, by its id."""
    world = World(root, retire_after_seconds=600)
    world.layout.folder.mkdir(parents=True, mode=0o700)
    world.layout.queues.write_text(f'[queues.{QUEUE}]\nquota = {{cpu = "1"}}\n')
    jobs: list[JobRef] = []
    try:
        jobs += world.play(_fill)
        before = _settle(world.agent)
        queued = _add_queued(world, jobs[0].place)
        after = _settle(world.agent)
        yield CrowdedStore(world, queued, before, after)
    finally:
        world.end_agent(signal.SIGKILL)
        for ref in jobs:
            end_leftovers(ref)


async def _fill(world: World) -> list[JobRef]:
    """One is held, and gave its room to another."""
    spec = python_job(WAIT, queue=QUEUE, resources={"cpu": "1"})
    held = await world.run(spec)
    await world.adapter.hold(held, world.hold_request(), deadline=soon())
    return [held, await world.run(spec)]


def _add_queued(world: World, place: str) -> list[JobRef]:
    spec, now = python_job(WAIT, queue=QUEUE, resources={"cpu": "1"}), datetime.now(UTC)
    database, refs = Database(world.layout), []
    with contextlib.closing(database), database.write(PATIENCE_SECONDS) as connection:
        for _ in range(QUEUED):
            request = StartRequest(new_job(), 1, 1, spec)
            ref = intents.add_submission(connection, request, intents.Acceptance(QUEUE, 0, place), now)
            intents.change_intent(connection, ref, lambda submission, _: rules.open_gate(submission, now))
            refs.append(ref)
    ring(world.layout)
    return refs


def _settle(agent: int) -> int:
    """Wait until the agent has nothing more to do; its memory then."""
    end, last = time.monotonic() + PATIENCE_SECONDS, -1.0
    while time.monotonic() < end:
        time.sleep(2)
        now = read_cpu_seconds(agent)
        if now - last < 0.02:
            return read_memory_bytes(agent)
        last = now
    raise TimeoutError("the agent finds no rest")


def count_queued(world: World) -> int:
    """Jobs that wait, as the store says."""

    async def count(world: World) -> int:
        return len(await world.adapter.list(JobSelector(queue=QUEUE, states=frozenset({State.QUEUED}))))

    return world.play(count)


def end_leftovers(ref: JobRef) -> None:
    """End what is left of a job. Its shim ends it when the agent dies; this is for a shim that has died as well."""
    end = time.monotonic() + 5
    while find_attempts(ref.job) and time.monotonic() < end:
        time.sleep(0.05)
    for process in find_attempts(ref.job):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
