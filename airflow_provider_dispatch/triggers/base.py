# SPDX-License-Identifier: Apache-2.0
"""What all triggers of the provider share: their arguments, one wait, one event.

A concrete trigger (:mod:`airflow_provider_dispatch.triggers.job`) declares its own arguments and its judge. Triggers
run in the triggerer, possibly twice at once, and are rebuilt from plain JSON. They read; only a killed one writes
(:mod:`.killing`). DAG files import this module, so what runs is imported when it runs (:mod:`.running`).
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, ClassVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_dispatch.hooks.deferred_import import deferred

if TYPE_CHECKING:
    from airflow_provider_dispatch.adapters.protocol import DispatchAdapter
    from airflow_provider_dispatch.triggers import running
    from airflow_provider_dispatch.triggers.judging import Judge
    from airflow_provider_dispatch.triggers.shared import Lease
    from airflow_provider_dispatch.triggers.waiting import Output
else:
    running = deferred("airflow_provider_dispatch.triggers.running")


def wall_clock() -> datetime:
    """Now, aware."""
    return datetime.now(UTC)


class DispatchJobTrigger(BaseTrigger):
    """Waits for something about one job, then emits one event and returns.

    The event's payload is ``{"verdict": "done" | "failed" | "timeout", "reason": str, "observation": dict | None}``.
    The observation is read with :func:`airflow_provider_dispatch.core.wire.load`; it is None when there was none, or
    when the trigger itself could not go on.

    :param dispatch_conn_id: connection; the only thing about it that is stored.
    :param job: job id.
    :param submission: the one meant; None means whichever is the newest.
    :param not_before: ISO time; no event before it. Airflow can fail a task whose deferral was shorter than
        ``[workers] min_heartbeat_interval``.
    :param deadline: ISO time; verdict ``timeout`` from then on.
    :param starter: dag, run, task id and map index of the task that starts the job, for a job that may not have been
        started yet: the wait fails when that task has ended without.

    Does not change the job while it runs.
    """

    serialized_fields: ClassVar[tuple[str, ...]] = (
        "dispatch_conn_id",
        "job",
        "submission",
        "not_before",
        "deadline",
        "starter",
    )

    def __init__(
        self,
        *,
        dispatch_conn_id: str,
        job: str,
        submission: int | None = None,
        not_before: str | None = None,
        deadline: str | None = None,
        starter: Sequence[str | int] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's own class has no types
        self.dispatch_conn_id = dispatch_conn_id
        self.job = job
        self.submission = submission
        self.not_before = not_before
        self.deadline = deadline
        self.starter = starter
        self.clock: Callable[[], datetime] = wall_clock
        self.sleeper: Callable[[float], Awaitable[None]] = asyncio.sleep
        self.lease: Lease | None = None
        self.output: Output | None = None

    def serialize(self) -> tuple[str, dict[str, object]]:
        """Class path and arguments, as plain JSON."""
        kind = type(self)
        return f"{kind.__module__}.{kind.__qualname__}", {name: getattr(self, name) for name in self.serialized_fields}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait, and yield the one event."""
        payload = await running.wait_for_event(self)
        yield TriggerEvent(payload)  # type: ignore[no-untyped-call]  # Airflow's own class has no types

    async def cleanup(self) -> None:
        """Remember how far the output was printed and give the adapter back, if the wait was cut short.

        Airflow calls it after ``on_kill``, which is in a hurry.
        """
        output, self.output = self.output, None
        try:
            if output is not None:
                await output.finish(is_over=False)
        finally:
            if self.lease is not None:
                await self.lease.give_back()

    @abstractmethod
    async def build_judge(self, adapter: DispatchAdapter) -> Judge:
        """What ends the wait."""

    def build_output(self, adapter: DispatchAdapter) -> Output | None:
        """What prints the job's output meanwhile; None means nobody."""
        del adapter
        return None
