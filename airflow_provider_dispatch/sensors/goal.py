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
from airflow_provider_dispatch.triggers.job import DispatchJobGoalTrigger

if TYPE_CHECKING:
    from airflow_provider_dispatch.core import goals
    from airflow_provider_dispatch.triggers import judging
    from airflow_provider_dispatch.triggers.base import DispatchJobTrigger
    from airflow_provider_dispatch.triggers.judging import Judge
else:
    goals = deferred("airflow_provider_dispatch.core.goals")
    judging = deferred("airflow_provider_dispatch.triggers.judging")


class DispatchGoalSensor(DispatchJobBaseSensor):
    """Waits for one of some points in a job's life.

    :param until: which, by its name.
    """

    choices: ClassVar[tuple[str, ...]]

    def __init__(self, *, until: str, **kwargs: object) -> None:
        super().__init__(**kwargs)  # type: ignore[arg-type]  # the arguments of the sensors' own base
        self.until = until
        if until not in self.choices:
            raise SpecError("until", f"must be one of {', '.join(self.choices)}", until)

    def build_judge(self, submission: int | None) -> Judge:
        """The goal decides."""
        return judging.build_goal_judge(goals.Goal(self.until), submission=submission)

    def build_trigger(self, arguments: Mapping[str, object]) -> DispatchJobTrigger:
        """Waits for the same goal."""
        return DispatchJobGoalTrigger(goal=self.until, **arguments)  # type: ignore[arg-type]  # those of the base
