# SPDX-License-Identifier: Apache-2.0
"""A leg of a task over a fake backend whose clock moves whenever somebody would sleep."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from airflow_provider_dispatch.core.decision import Supervision
from airflow_provider_dispatch.core.identity import build_task_job_id
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.owner import Owner
from airflow_provider_dispatch.core.records import SubmissionRecord
from airflow_provider_dispatch.hooks.settings import ConnectionSettings
from airflow_provider_dispatch.operators.keeper import Keeper, Kept
from airflow_provider_dispatch.operators.leg import Leg
from airflow_provider_dispatch.operators.submission import Claim
from airflow_provider_dispatch.testing.fake_adapter import FakeAdapter
from airflow_provider_dispatch.testing.fake_backend import FakeBackend

FIRST = Owner("airflow", "d", "r", "train", try_number=1, instance_id="0001")
SECOND = replace(FIRST, try_number=2, instance_id="0002")
JOB = build_task_job_id("airflow", "d", "r", "train")
FOREVER = JobSpec(command=["run"], resources={"memory": "1Gi"})


@dataclass
class Stage:
    """One task's view of a world.

    :param patience: None is a task that waits in its worker.
    """

    world: FakeBackend = field(default_factory=FakeBackend)
    owner: Owner = FIRST
    cleared_try: int = 0
    patience: timedelta | None = timedelta(seconds=3)
    execution_timeout: timedelta | None = None
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.adapter = FakeAdapter(self.world)
        self.started = self.world.now

    @property
    def leg(self) -> Leg:
        """A leg that begins now."""
        return Leg(
            owner=self.owner,
            settings=ConnectionSettings(backend="fake"),
            narrator=self.lines.append,
            started=self.started,
            cleared_try=self.cleared_try,
            deadline=None if self.execution_timeout is None else self.started + self.execution_timeout,
            patience=self.patience,
            clock=self.now,
            sleeper=self.sleep,
        )

    def now(self) -> datetime:
        """The world's time."""
        return self.world.now

    async def sleep(self, seconds: float) -> None:
        """Let the world go on."""
        await asyncio.sleep(0)
        self.world.advance(timedelta(seconds=seconds))
        await asyncio.sleep(0)

    def keeper(self, **options: Any) -> Keeper:
        """The keeper of this leg."""
        return Keeper(self.adapter, JOB, self.leg, **options)

    def begin(self, spec: JobSpec = FOREVER, supervision: Supervision | None = None) -> SubmissionRecord:
        """Get a submission of one's own."""
        claim = Claim(self.owner, spec, self.cleared_try)
        return run(self.keeper().begin(claim, supervision or Supervision()))

    def keep(self, **options: Any) -> Kept:
        """Look after it for a leg."""
        return run(self.keeper(**options).keep())

    def retry(self, owner: Owner = SECOND, **changes: Any) -> Stage:
        """The same world, seen by a later try."""
        return replace(self, owner=owner, lines=[], **changes)


def run(call):
    """The coroutine's answer; it may not hang."""
    return asyncio.run(asyncio.wait_for(call, 10))
