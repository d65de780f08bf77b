# SPDX-License-Identifier: Apache-2.0
"""What the local store has to say about a job of an example, read after the run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_dispatch.adapters.local.adapter import build_adapter
from airflow_provider_dispatch.adapters.local.layout import StoreLayout
from airflow_provider_dispatch.adapters.protocol import OutputRequest
from airflow_provider_dispatch.core.identity import JobID, build_task_job_id
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.core.records import JobEvent, JobRecord

DEPLOYMENT, STORE = "airflow", "default"


@dataclass(frozen=True)
class SeenJob:
    """One job, as the store tells it."""

    record: JobRecord
    observation: Observation
    events: tuple[JobEvent, ...]

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    @property
    def epochs(self) -> list[int | None]:
        """Of the executions, in the order of their admission."""
        return [event.epoch for event in self.events if event.kind == "admitted"]

    @property
    def result(self) -> dict:
        assert isinstance(self.observation.result, dict)
        return self.observation.result

    def find(self, kind: str) -> JobEvent:
        """The first event of a kind."""
        return next(event for event in self.events if event.kind == kind)


def find_job(dag_id: str, run_id: str, task_id: str) -> JobID:
    return build_task_job_id(DEPLOYMENT, dag_id, run_id, task_id)


def see_job(home: Path, job: JobID) -> SeenJob:
    async def see() -> SeenJob:
        adapter = build_adapter({"root": str(home / "dispatch"), "store": STORE})
        try:
            return SeenJob(await adapter.find(job), await adapter.inspect(job), await adapter.events(job))
        finally:
            await adapter.close()

    return asyncio.run(see())


def read_output(home: Path, ref: JobRef, epoch: int | None = None) -> list[str]:
    """All lines of rank 0, or those of one execution."""

    async def read() -> list[str]:
        adapter = build_adapter({"root": str(home / "dispatch"), "store": STORE})
        try:
            return [line.text async for line in adapter.output(ref, OutputRequest(epoch=epoch))]
        finally:
            await adapter.close()

    return asyncio.run(read())


def find_checkpoints(home: Path, job: JobID) -> set[str]:
    state_dir = StoreLayout(home / "dispatch" / STORE).state_dir(job)
    return {path.name for path in state_dir.glob("checkpoint-*.npz")}
