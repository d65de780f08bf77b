# SPDX-License-Identifier: Apache-2.0
"""DAGs whose jobs do what a test tells them, so that it decides when something happens."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from airflow_provider_dispatch.operators.hold import DispatchHoldJobOperator, DispatchReleaseJobOperator
from airflow_provider_dispatch.operators.job import DispatchTrainJobOperator
from airflow_provider_dispatch.sensors.job import DispatchJobSensor
from tests.airflow.programs import rank, told_ready

AT_ONCE = timedelta(seconds=1)


class PatientTrainJobOperator(DispatchTrainJobOperator):
    """Stays in its first leg for as long as a test needs."""

    patience = timedelta(minutes=5)


with DAG("one_job", schedule=None):
    DispatchTrainJobOperator(task_id="train", **rank("run"))

with DAG("worker_job", schedule=None):
    DispatchTrainJobOperator(task_id="train", deferrable=False, **rank("run"))

with DAG("short_job", schedule=None):
    PatientTrainJobOperator(task_id="train", **rank("run", "0.2"))

with DAG("limited_job", schedule=None):
    DispatchTrainJobOperator(task_id="train", **rank("run"), execution_timeout=timedelta(seconds=30))

with DAG("held_and_released", schedule=None):
    DispatchTrainJobOperator(task_id="train", readiness=told_ready(), **rank("run"))
    (
        DispatchJobSensor(task_id="runs", job_task_id="train", until={"running"}, deferrable=True)
        >> DispatchHoldJobOperator(task_id="hold", job_task_id="train", reason="maintenance")
        >> DispatchReleaseJobOperator(task_id="release", job_task_id="train")
    )

with DAG("bad_day", schedule=None):
    PatientTrainJobOperator(task_id="first_leg", retries=1, retry_delay=AT_ONCE, **rank("run"))
    DispatchTrainJobOperator(task_id="in_worker", deferrable=False, retries=1, retry_delay=AT_ONCE, **rank("run"))
    DispatchTrainJobOperator(task_id="deferred", retries=1, **rank("run"))
    DispatchTrainJobOperator(task_id="on_lost_node", dispatch_conn_id="fragile", retries=1, **rank("run"))
    DispatchTrainJobOperator(task_id="with_killed_rank", num_nodes=2, **rank("run"))
