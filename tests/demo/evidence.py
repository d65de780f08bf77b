# SPDX-License-Identifier: Apache-2.0
"""Reads what a run has left: the events and output in the local store, and what Airflow's REST API answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from airflow_provider_dispatch.adapters.local.adapter import LocalAdapter, build_adapter
from airflow_provider_dispatch.adapters.protocol import OutputRequest
from airflow_provider_dispatch.core import wire
from airflow_provider_dispatch.core.identity import HIGHEST_R, build_task_job_id
from airflow_provider_dispatch.core.records import JobEvent, StopReport
from airflow_provider_dispatch.testing.airflow_rest import AirflowRest, Run
from tests.demo.story import DEFERRED, MAINTENANCE, TRAIN, JobStory, Said, Story, TaskChange

T = TypeVar("T")
DEPLOYMENT, STORE, ROLE, RANKS = "airflow", "default", "node", (0, 1)
TOLD = ("begins", "ends", "interrupted", "done:")
"""Words of lines worth a line in the timeline; each step of the training is not."""


class Watcher:
    """Notes how the states of the tasks change, each time it looks."""

    def __init__(self, rest: AirflowRest, run: Run) -> None:
        self._rest, self._run = rest, run
        self._states: dict[str, str | None] = {}
        self.deferrals: list[TaskChange] = []

    def look(self) -> dict[str, str]:
        """Tasks whose state has changed since the last look, with the new one."""
        now = datetime.now(UTC)
        found = {row.task_id: row.state for row in self._rest.fetch_tasks(self._run)}
        changed = {task: state for task, state in found.items() if state and state != self._states.get(task)}
        self._states = dict(found)
        self.deferrals += (TaskChange(now, task, state) for task, state in changed.items() if state == DEFERRED)
        return changed


def read_events(home: Path, run: Run, task_id: str) -> tuple[JobEvent, ...]:
    """Events of the job that a task owns; none while there is no such job or store."""
    if not (home / "dispatch" / STORE / "store.db").exists():
        return ()

    async def read(adapter: LocalAdapter) -> tuple[JobEvent, ...]:
        return await adapter.events(build_task_job_id(DEPLOYMENT, *run, task_id))

    return _ask(home, read)


def read_story(home: Path, rest: AirflowRest, run: Run, watcher: Watcher, uninterrupted: float) -> Story:
    """The whole run, after its end."""
    row, tasks = rest.fetch_run(run), rest.fetch_tasks(run)
    assert row.start_date is not None
    assert row.end_date is not None
    dated = [TaskChange(task.start_date, task.task_id, "running") for task in tasks if task.start_date is not None]
    dated += [
        TaskChange(task.end_date, task.task_id, task.state)
        for task in tasks
        if task.end_date is not None and task.state
    ]
    return Story(
        began=row.start_date,
        ended=row.end_date,
        state=row.state,
        changes=tuple(sorted([*dated, *watcher.deferrals], key=lambda change: change.at)),
        tries={task.task_id: task.try_number for task in tasks},
        train=read_job(home, rest, run, TRAIN),
        maintenance=read_job(home, rest, run, MAINTENANCE),
        stop_report=wire.load(StopReport, rest.fetch_xcom(run, "stop")),
        uninterrupted_accuracy=uninterrupted,
    )


def read_job(home: Path, rest: AirflowRest, run: Run, task_id: str) -> JobStory:
    """Of the job's output only the lines worth telling."""
    events = read_events(home, run, task_id)
    epochs = [event.epoch for event in events if event.kind == "admitted" and event.epoch is not None]
    returned = rest.fetch_xcom(run, task_id)
    assert isinstance(returned, dict)
    result = returned.get("result")
    return JobStory(
        name=task_id,
        events=events,
        said=tuple(line for line in read_output(home, run, task_id, epochs) if is_worth_telling(line.text)),
        result=result if isinstance(result, Mapping) else {},
    )


def read_output(home: Path, run: Run, task_id: str, epochs: Sequence[int]) -> list[Said]:
    """What the ranks printed in these executions."""
    job = build_task_job_id(DEPLOYMENT, *run, task_id)

    async def read(adapter: LocalAdapter) -> list[Said]:
        said: list[Said] = []
        here = (await adapter.inspect(job)).ref
        for epoch in epochs:
            ref = replace(here, submission=epoch // (HIGHEST_R + 1))
            for rank in RANKS:
                lines = adapter.output(ref, OutputRequest(role=ROLE, rank=rank, epoch=epoch))
                said += [Said(line.at, epoch, rank, line.text) async for line in lines]
        return said

    return _ask(home, read)


def is_worth_telling(line: str) -> bool:
    return any(word in line.split() for word in TOLD)


def _ask(home: Path, ask: Callable[[LocalAdapter], Awaitable[T]]) -> T:
    async def work() -> T:
        adapter = build_adapter({"root": str(home / "dispatch"), "store": STORE})
        try:
            return await ask(adapter)
        finally:
            await adapter.close()

    return asyncio.run(work())
