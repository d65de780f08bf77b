# SPDX-License-Identifier: Apache-2.0
"""DAGs of the long matrix: jobs in every state, jobs whose time runs out, a worker that goes away, instant waits."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG

from airflow_provider_dispatch.operators.gate import DispatchOpenGateOperator
from airflow_provider_dispatch.operators.hold import DispatchHoldJobOperator, DispatchReleaseJobOperator
from airflow_provider_dispatch.operators.job import DispatchTrainJobOperator
from airflow_provider_dispatch.sensors.gate import DispatchGateSensor
from airflow_provider_dispatch.sensors.hold import DispatchHoldSensor
from airflow_provider_dispatch.sensors.job import DispatchJobSensor
from tests.airflow.programs import ACTIONS, rank, told_ready

BY_ITS_STORE: dict[str, Any] = {"dispatch_conn_id": "queues", "deferrable": True}
AT_ONCE = timedelta(seconds=1)
SOON = timedelta(seconds=8)
NO_SHORT_WAIT = timedelta(0)
# Runs until it is held, then takes a second to end; after its release it is done in a second.
ENDS_AFTER_RELEASE = """
import os, signal, sys, time
if os.environ["DISPATCH_EPOCH"] == "1000002":
    time.sleep(1)
    sys.exit()
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), sys.exit()))
time.sleep(3600)
"""


def add_job(task_id: str, *behaviour: str, **arguments: Any) -> DispatchTrainJobOperator:
    given: dict[str, Any] = {"dispatch_conn_id": "queues", "queue": "wide", **rank(*behaviour), **arguments}
    return DispatchTrainJobOperator(task_id=task_id, **given)


def add_sensor(job: str) -> DispatchJobSensor:
    return DispatchJobSensor(task_id=f"{job}_runs", job_task_id=job, until={"running"}, **BY_ITS_STORE)


def build_states(action: str) -> None:
    """Seven jobs, each of which stays in the state after which its task is named."""
    narrow: dict[str, Any] = {"queue": f"narrow-{action}", "resources_per_node": {"seat": 1}}
    add_job("gated", "run", open_gate=False)
    add_job("running", "run", **narrow)
    add_sensor("running") >> add_job("queued", "run", **narrow)
    add_job("starting", "run", readiness=told_ready())
    # Doesn't end when it is asked to, but when a test says so.
    add_job("holding", "stubborn", grace_period=timedelta(minutes=10))
    add_job("held", "run")
    add_job("ended", "run", "0.2")
    hold = DispatchHoldJobOperator(task_id="hold", job_task_ids=["holding", "held"], wait=False, **BY_ITS_STORE)
    [add_sensor("holding"), add_sensor("held")] >> hold


for action_of_a_person in ACTIONS:
    with DAG(f"states_{action_of_a_person}", schedule=None):
        build_states(action_of_a_person)

with DAG("time_outs", schedule=None):
    add_job("gated", "run", open_gate=False, gate_timeout=SOON)
    add_job("queued", "run", queue="none", resources_per_node={"seat": 1}, on_unfittable="wait", queue_timeout=SOON)
    add_job("starting", "run", readiness=told_ready(), startup_timeout=SOON)
    add_job("running", "run", run_timeout=SOON)
    add_job("running_then_held", "run", run_timeout=SOON, on_timeout="hold")
    add_job("running_then_left", "run", execution_timeout=timedelta(seconds=30), on_timeout="leave")
    add_job("held", "run", hold_timeout=SOON)
    DispatchHoldJobOperator(task_id="hold", job_task_id="held", wait=False, **BY_ITS_STORE)

with DAG("worker_goes_away", schedule=None):
    DispatchTrainJobOperator(task_id="train", deferrable=False, retries=1, retry_delay=AT_ONCE, **rank("run"))


class InstantGateSensor(DispatchGateSensor):
    """Defers also for what would be true in a moment."""

    wait_in_worker = NO_SHORT_WAIT


class InstantHoldSensor(DispatchHoldSensor):
    """The same for holds."""

    wait_in_worker = NO_SHORT_WAIT


class InstantHoldOperator(DispatchHoldJobOperator):
    """The same for holding."""

    patience = NO_SHORT_WAIT


class InstantReleaseOperator(DispatchReleaseJobOperator):
    """The same for releasing."""

    patience = NO_SHORT_WAIT


with DAG("instant", schedule=None):
    command = [sys.executable, "-I", "-S", "-c", ENDS_AFTER_RELEASE]
    DispatchTrainJobOperator(task_id="train", open_gate=False, command=command)
    gate = DispatchOpenGateOperator(task_id="gate", job_task_id="train")
    admitted = InstantGateSensor(task_id="admitted", until="admitted", deferrable=True, job_task_id="train")
    held = InstantHoldOperator(task_id="held", job_task_id="train")
    released = InstantHoldSensor(task_id="released", until="released", deferrable=True, job_task_id="train")
    [gate, admitted] >> held >> [released, InstantReleaseOperator(task_id="release", job_task_id="train")]
