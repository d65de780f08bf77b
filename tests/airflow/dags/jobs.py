# SPDX-License-Identifier: Apache-2.0
"""DAGs whose jobs do what a test tells them through a file, so that it decides when something happens.

The programs are those of the contract suite; a test finds the folder they listen in beneath the Airflow home.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG

from airflow_provider_dispatch.operators.hold import DispatchHoldJobOperator, DispatchReleaseJobOperator
from airflow_provider_dispatch.operators.job import DispatchTrainJobOperator
from airflow_provider_dispatch.sensors.job import DispatchJobSensor

RANK = Path(__file__).parents[2] / "contract" / "rank.py"
CONTROL = Path(os.environ["AIRFLOW_HOME"]) / "control"
AT_ONCE = timedelta(seconds=1)


def rank(*behaviour: str) -> dict[str, object]:
    """Arguments of an operator: a program that runs until it is told otherwise."""
    return {"command": [sys.executable, "-I", "-S", str(RANK), *behaviour], "env": {"CONTROL": str(CONTROL)}}


def told_ready() -> dict[str, object]:
    """A check that a test lets pass."""
    path = '"$CONTROL/$DISPATCH_JOB_ID-$DISPATCH_ROLE-$DISPATCH_RANK.$DISPATCH_EPOCH.ready"'
    return {"command": ["/bin/sh", "-c", f"test -e {path}"]}


class PatientTrainJobOperator(DispatchTrainJobOperator):
    """Stays in its first leg for as long as a test needs."""

    patience = timedelta(minutes=5)


with DAG("one_job", schedule=None):
    DispatchTrainJobOperator(task_id="train", **rank("run"))

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
