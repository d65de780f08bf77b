# SPDX-License-Identifier: Apache-2.0
"""The sensor for states.

For DAG files: it says which states there are; :class:`DispatchJobBaseSensor` waits for those asked for. It never
changes a job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from airflow_provider_dispatch.exceptions import SpecError
from airflow_provider_dispatch.hooks.deferred_import import deferred
from airflow_provider_dispatch.sensors.base import DispatchJobBaseSensor

if TYPE_CHECKING:
    from airflow_provider_dispatch.core import state
    from airflow_provider_dispatch.triggers import job as triggers
    from airflow_provider_dispatch.triggers import judging
    from airflow_provider_dispatch.triggers.base import DispatchJobTrigger
    from airflow_provider_dispatch.triggers.judging import Judge
else:
    state = deferred("airflow_provider_dispatch.core.state")
    judging = deferred("airflow_provider_dispatch.triggers.judging")
    triggers = deferred("airflow_provider_dispatch.triggers.job")


class DispatchJobSensor(DispatchJobBaseSensor):
    """Waits until a job is in one of some states.

    :param until: states by their names (required), for instance ``{"running"}`` or ``{"succeeded", "failed"}``.

    For the other arguments see :class:`~airflow_provider_dispatch.sensors.base.DispatchJobBaseSensor`. Fails at once
    when the job is over in another state. Does not notice a state that has passed between two looks in poke and
    reschedule mode; deferred it can miss only what lasts for moments.
    """

    choices = (
        "succeeded",
        "failed",
        "stopping",
        "holding",
        "held",
        "gated",
        "queued",
        "starting",
        "running",
        "gone",
        "unknown",
    )

    def _check_until(self) -> None:
        wanted = self._states()
        if not wanted or not all(name in self.choices for name in wanted):
            raise SpecError("until", f"must be some of {', '.join(self.choices)}", wanted)

    def build_judge(self, submission: int | None) -> Judge:
        """The states decide."""
        return judging.build_states_judge({state.State(name) for name in self._states()}, submission=submission)

    def build_trigger(self, arguments: Mapping[str, object]) -> DispatchJobTrigger:
        """Waits for the same states."""
        return triggers.DispatchJobStatesTrigger(states=self._states(), **arguments)  # type: ignore[arg-type]  # those of the base

    def _states(self) -> list[str]:
        wanted = {self.until} if isinstance(self.until, str) else set(self.until or ())
        return sorted(map(str, wanted))
