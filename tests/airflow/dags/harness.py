# SPDX-License-Identifier: Apache-2.0
"""The smallest DAGs that use every process of an Airflow: a worker, a trigger, and a worker again."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
from airflow.sdk import DAG, BaseOperator, get_current_context, task


class WaitOperator(BaseOperator):
    """Defers for some seconds."""

    def __init__(self, *, seconds: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seconds = seconds

    def execute(self, context: Any) -> None:
        self.defer(trigger=TimeDeltaTrigger(timedelta(seconds=self.seconds)), method_name="resume")

    def resume(self, context: Any, event: Any = None) -> str:
        return "waited"


with DAG("harness", schedule=None):

    @task
    def greet() -> dict[str, object]:
        context = get_current_context()
        print(f"hello {context['params'].get('name', 'stranger')}")
        return {"try": context["ti"].try_number, "foreign": os.environ.get("AIRFLOW__CORE__UNIT_TEST_MODE")}

    greet() >> WaitOperator(task_id="wait", seconds=0.5)

with DAG("harness_long", schedule=None):
    WaitOperator(task_id="wait", seconds=600)
