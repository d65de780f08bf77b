# SPDX-License-Identifier: Apache-2.0
"""The base of the sensors that wait for a named point in a job's life. Each of them says which points it knows.

Names are compared with a tuple of its own, so that a DAG file doesn't load the contract to be checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from airflow_provider_dispatch.exceptions import SpecError
from airflow_provider_dispatch.hooks.deferred_import import deferred
from airflow_provider_dispatch.sensors.base import DispatchJobBaseSensor

if TYPE_CHECKING:
    from airflow_provider_dispatch.core import goals
    from airflow_provider_dispatch.triggers import job as triggers
    from airflow_provider_dispatch.triggers import judging
    from airflow_provider_dispatch.triggers.base import DispatchJobTrigger
    from airflow_provider_dispatch.triggers.judging import Judge
else:
    goals = deferred("airflow_provider_dispatch.core.goals")
    judging = deferred("airflow_provider_dispatch.triggers.judging")
    triggers = deferred("airflow_provider_dispatch.triggers.job")


class DispatchGoalSensor(DispatchJobBaseSensor):
    """Waits for one of some points in a job's life.

    :cvar choices: the points it knows.
    :cvar default_until: the one it waits for unless told.
    """

    until: str
    default_until: ClassVar[str]

    def _check_until(self) -> None:
        if self.until not in self.choices:
            raise SpecError("until", f"must be one of {', '.join(self.choices)}", self.until)

    def build_judge(self, submission: int | None) -> Judge:
        """The goal decides."""
        return judging.build_goal_judge(goals.Goal(self.until), submission=submission)

    def build_trigger(self, arguments: Mapping[str, object]) -> DispatchJobTrigger:
        """Waits for the same goal."""
        return triggers.DispatchJobGoalTrigger(goal=self.until, **arguments)  # type: ignore[arg-type]  # those of the base
