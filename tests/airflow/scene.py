# SPDX-License-Identifier: Apache-2.0
"""What tests of jobs under a real Airflow do and see: their tasks, the store they are in, their processes.

The store is read without waking or starting an agent: what a test finds was done by Airflow's own processes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import JsonValue

from airflow_provider_dispatch.adapters.local.adapter import build_adapter
from airflow_provider_dispatch.adapters.local.layout import StoreLayout
from airflow_provider_dispatch.core.identity import JobID, build_task_job_id
from airflow_provider_dispatch.core.records import JobEvent, JobRecord, SubmissionRecord
from airflow_provider_dispatch.core.state import State
from airflow_provider_dispatch.testing.airflow_processes import RealAirflow
from airflow_provider_dispatch.testing.airflow_rest import RestError, Run, TaskRow

T = TypeVar("T")

DEPLOYMENT = "airflow"
TRIGGER_STARTS = ") starting"
"""Airflow's own line, which begins with ``trigger`` and names the task and the trigger."""
PATIENCE_SECONDS = 120.0
FIRST, AFTER_RELEASE, RESUBMITTED = 1_000_001, 1_000_002, 2_000_001
"""Epochs: of the first execution, of the second in the same submission, of the first in the next."""


@dataclass(frozen=True)
class SeenJob:
    """A job, as its store tells it."""

    record: JobRecord
    events: tuple[JobEvent, ...]

    @property
    def newest(self) -> SubmissionRecord | None:
        return self.record.newest

    @property
    def state(self) -> State | None:
        """Of the newest submission; None when none is left."""
        return self.newest.state if self.newest else None

    @property
    def epochs(self) -> list[int | None]:
        """Of the executions, in the order of their admission."""
        return [event.epoch for event in self.events if event.kind == "admitted"]

    def sequence(self, kind: str, submission: int) -> int:
        """When something happened for the first time, in comparison with others."""
        found = [event.sequence for event in self.events if (event.kind, event.submission) == (kind, submission)]
        assert found, f"no {kind!r} of submission {submission} in {[(e.submission, e.kind) for e in self.events]}"
        return found[0]


class Scene:
    """One Airflow and one store of its jobs."""

    def __init__(self, airflow: RealAirflow, store: str = "default") -> None:
        self.airflow, self.rest = airflow, airflow.rest
        self.layout = StoreLayout(airflow.home / "dispatch" / store)
        self.control = airflow.home / "control"
        self.control.mkdir(exist_ok=True)
        self._settings: dict[str, object] = {"root": str(airflow.home / "dispatch"), "store": store}

    def begin(self, dag_id: str) -> Run:
        """A run with an id of its own, and so with jobs that no other Airflow on this machine can have as well."""
        self.airflow.wait_for_dag(dag_id, timeout_seconds=PATIENCE_SECONDS)
        return self.rest.trigger_dag(dag_id)

    def wait_for(self, look: Callable[[], T | None], what: str) -> T:
        return self.airflow.wait_for(look, timeout_seconds=PATIENCE_SECONDS, what=what)

    # -- tasks -------------------------------------------------------------------------------------------------------

    def wait_for_task(self, run: Run, state: str, task_id: str = "train", try_number: int | None = None) -> TaskRow:
        def look() -> TaskRow | None:
            row = self.rest.fetch_task(run, task_id)
            return row if row.state == state and try_number in (None, row.try_number) else None

        return self.wait_for(look, f"task {task_id} to be {state}")

    def wait_until_deferred(self, run: Run, task_id: str = "train", try_number: int = 1) -> TaskRow:
        """Until a trigger waits for the task, which is a moment after it was deferred."""
        self.wait_for_task(run, "deferred", task_id, try_number)
        self.wait_for_line(run, TRIGGER_STARTS, task_id, try_number)
        return self.rest.fetch_task(run, task_id)

    def wait_for_line(self, run: Run, text: str, task_id: str = "train", try_number: int = 1, times: int = 1) -> str:
        """Until the log of a try says it; answers the whole log."""

        def look() -> str | None:
            log = self.read_log(run, task_id, try_number)
            return log if log.count(text) >= times else None

        return self.wait_for(look, f"{text!r} in the log of {task_id}")

    def wait_until_watched(self, run: Run, task_id: str = "train") -> None:
        """Until the trigger of a task has seen its job; the first one in a fresh triggerer needs its time for that."""

        def look() -> bool:
            return ", epoch " in self.read_log(run, task_id).rpartition(TRIGGER_STARTS)[2]

        self.wait_until_deferred(run, task_id)
        self.wait_for(look, f"the trigger of {task_id} to see its job")

    def read_log(self, run: Run, task_id: str = "train", try_number: int = 1) -> str:
        """The log of a try; empty before it has begun."""
        try:
            return self.rest.fetch_log(run, task_id, try_number=try_number)
        except RestError as error:
            if error.status == 404:
                return ""
            raise

    def read_result(self, run: Run, task_id: str = "train") -> dict[str, JsonValue]:
        """What a task hands on."""
        found = self.rest.fetch_xcom(run, task_id)
        assert isinstance(found, dict)
        return found

    def find_processes(self, run: Run, task_id: str) -> tuple[int, int]:
        """The worker that runs a task, and the process of the task beneath it."""
        task = self.wait_for(lambda: self.rest.fetch_task(run, task_id).pid, f"a process of {task_id}")
        asked = subprocess.run(["ps", "-o", "ppid=", "-p", str(task)], capture_output=True, text=True, check=True)
        worker = int(asked.stdout)
        assert {worker, task} <= set(self.airflow.alive())
        return worker, task

    # -- jobs --------------------------------------------------------------------------------------------------------

    def find_job(self, run: Run, task_id: str = "train") -> JobID:
        return build_task_job_id(DEPLOYMENT, *run, task_id)

    def see(self, run: Run, task_id: str = "train") -> SeenJob:
        job = self.find_job(run, task_id)

        async def read() -> SeenJob:
            adapter = build_adapter(self._settings)
            try:
                return SeenJob(await adapter.find(job), await adapter.events(job))
            finally:
                await adapter.close()

        return asyncio.run(read())

    def wait_for_job(self, run: Run, state: State | None, task_id: str = "train", submission: int = 1) -> SeenJob:
        """
        :param state: None means that no submission is left.
        """

        def look() -> SeenJob | None:
            if not self.layout.database.exists():
                return None
            seen = self.see(run, task_id)
            is_meant = seen.record.ledger == submission if state is None else self._is_at(seen, submission)
            return seen if is_meant and seen.state == state else None

        return self.wait_for(look, f"the job of {task_id} to be {state or 'gone'}")

    @staticmethod
    def _is_at(seen: SeenJob, submission: int) -> bool:
        return seen.newest is not None and seen.newest.ref.submission == submission

    def tell(self, run: Run, command: str, task_id: str = "train", ranks: int = 1) -> None:
        """Hand every rank a line, which each takes soon."""
        for number in range(ranks):
            path = self.control / f"{self.find_job(run, task_id)}-node-{number}.do"
            draft = path.with_suffix(".draft")
            draft.write_text(command)
            draft.rename(path)

    def tell_ready(self, run: Run, epoch: int, task_id: str = "train") -> None:
        """Let rank 0 of a job that has a check of readiness be ready."""
        (self.control / f"{self.find_job(run, task_id)}-node-0.{epoch}.ready").touch()

    def find_ranks(self, run: Run, task_id: str = "train") -> dict[int, int]:
        """Rank to process, as the system's table of processes has them."""
        mark = f"DISPATCH_JOB_ID={self.find_job(run, task_id)}"
        rows = subprocess.run(["ps", "axeww", "-o", "pid=,command="], capture_output=True, text=True, check=True)
        found = [row.split() for row in rows.stdout.splitlines() if mark in row.split()]
        return {int(word.partition("=")[2]): int(words[0]) for words in found for word in words if is_rank(word)}

    def find_overlaps(self) -> list[str]:
        """Executions that ran beside another of the same job, as their ranks themselves have reported."""
        return [line for path in self.control.glob("*.overlap") for line in path.read_text().splitlines()]

    def kill(self, pid: int, number: signal.Signals = signal.SIGKILL) -> None:
        """End a process of this Airflow, and of no other."""
        assert pid in self.airflow.alive()
        os.kill(pid, number)

    def find_agent(self) -> int:
        return int(Path(self.layout.agent_lock).read_text())


def is_rank(word: str) -> bool:
    return word.startswith("DISPATCH_RANK=")
