# SPDX-License-Identifier: Apache-2.0
"""A *leg*: one stretch of a task in a worker, from its start to its first deferral, or from an event on.

It says who acts, for which Airflow, and when the leg and the task must end. The run-time half of the operators is
handed one; making it reads the task instance and Airflow's settings and asks no backend.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypedDict

from airflow_provider_dispatch.core.identity import NOT_MAPPED, JobID, build_task_job_id
from airflow_provider_dispatch.core.owner import Owner
from airflow_provider_dispatch.operators.worker_cursors import WorkerCursors
from airflow_provider_dispatch.triggers.base import wall_clock
from airflow_provider_dispatch.triggers.cursors import CursorStore, NoCursors
from airflow_provider_dispatch.triggers.legs import build_not_before

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

    from airflow_provider_dispatch.hooks.settings import ConnectionSettings


class TriggerTimes(TypedDict):
    """Arguments of every trigger."""

    not_before: str
    deadline: str | None


@dataclass(frozen=True, slots=True)
class Leg:
    """Who acts, for which Airflow, and until when.

    :param started: when the try began; stays the same over its legs.
    :param cleared_try: the last try before the task was cleared; 0 when it never was.
    :param deadline: end of the task by its execution_timeout.
    :param cursors: how far the job's output is printed; shared with the trigger of the same task.
    :param patience: how long to wait before deferring; None means as long as it takes.
    """

    owner: Owner
    settings: ConnectionSettings
    narrator: Callable[[str], None]
    started: datetime
    cleared_try: int = 0
    deadline: datetime | None = None
    patience: timedelta | None = None
    clock: Callable[[], datetime] = wall_clock
    sleeper: Callable[[float], Awaitable[None]] = asyncio.sleep
    cursors: CursorStore = field(default_factory=NoCursors)

    def call_deadline(self, extra: timedelta = timedelta(0)) -> datetime:
        """Past it a call that begins now writes nothing more."""
        return self.clock() + self.settings.call_timeout + extra

    @property
    def patience_end(self) -> datetime | None:
        """When a wait that begins now is given up for a deferral."""
        return None if self.patience is None else self.clock() + self.patience


def build_leg(
    task: BaseOperator,
    context: Context,
    settings: ConnectionSettings,
    *,
    patience: timedelta | None,
    is_resumed: bool,
) -> Leg:
    """The leg that begins now."""
    instance = context["ti"]
    return Leg(
        owner=build_owner(context, settings.deployment),
        settings=settings,
        narrator=task.log.info,
        started=instance.start_date,
        # Airflow raises the limit of tries by the number of the try that was cleared.
        cleared_try=max((instance.max_tries or 0) - (task.retries or 0), 0),
        deadline=instance.start_date + task.execution_timeout if task.execution_timeout is not None else None,
        patience=patience,
        cursors=WorkerCursors(instance, is_resumed=is_resumed),
    )


def build_owner(context: Context, deployment: str) -> Owner:
    """The task instance that acts."""
    instance = context["ti"]
    return Owner(
        deployment=deployment,
        dag_id=instance.dag_id,
        run_id=instance.run_id,
        task_id=instance.task_id,
        map_index=NOT_MAPPED if instance.map_index is None else instance.map_index,
        try_number=instance.try_number,
        instance_id=str(instance.id),
    )


def build_trigger_times(leg: Leg, *, deadline: datetime | None = None) -> TriggerTimes:
    """Bounds of a deferral that begins now, as triggers take them.

    :param deadline: None means the leg's own.
    """
    deadline = deadline or leg.deadline
    return {
        "not_before": build_not_before(leg.clock()),
        "deadline": None if deadline is None else deadline.astimezone(UTC).isoformat(),
    }


def derive_own_job(leg: Leg) -> JobID:
    """The job that the leg's task owns."""
    owner = leg.owner
    return build_task_job_id(owner.deployment, owner.dag_id, owner.run_id, owner.task_id, owner.map_index)
