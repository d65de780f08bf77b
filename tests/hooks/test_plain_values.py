# SPDX-License-Identifier: Apache-2.0
"""Values in which Airflow's search for other tasks' results would find nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from airflow.sdk import DAG, task

from airflow_provider_dispatch.hooks.plain_values import are_plain
from airflow_provider_dispatch.operators.job import DispatchTrainJobOperator
from airflow_provider_dispatch.sensors.job import DispatchJobSensor


class Words(list):
    """A subclass may hold anything, anywhere."""


@pytest.mark.parametrize(
    "value",
    [None, "text", 1, 1.5, True, timedelta(1), datetime.now(UTC), [], {"a": [1, ("b", {2})]}, {"deep": {"er": [{}]}}],
)
def test_plain_values_hold_nothing_of_other_tasks(value: object) -> None:
    assert are_plain(["before", value])


@pytest.mark.parametrize("value", [object(), Words(), {"a": [object()]}, [{"a": object()}], (1, [Words()])])
def test_anything_else_may_hold_some(value: object) -> None:
    assert not are_plain(["before", value, "after"])


def test_results_of_other_tasks_are_found_however_deep_they_lie() -> None:
    with DAG("d", schedule=None):

        @task
        def find(what: str) -> str:
            return what

        command = ["python", find.override(task_id="program")("train.py")]
        train = DispatchTrainJobOperator(task_id="train", roles=[{"name": "node", "command": command}])
        wait = DispatchJobSensor(task_id="wait", until="running", job_ref=find.override(task_id="job")("train"))

    assert train.upstream_task_ids == {"program"}
    assert wait.upstream_task_ids == {"job"}
