# SPDX-License-Identifier: Apache-2.0
"""The job's queue never becomes the queue of the task's worker, mapped or not."""

from __future__ import annotations

import copy

from airflow.sdk import DAG
from airflow.sdk.configuration import conf

from airflow_provider_dispatch.operators.job import DispatchStartJobOperator, DispatchTrainJobOperator
from airflow_provider_dispatch.operators.worker_queue import WorkerQueue

USUAL = conf.get("operators", "default_queue")
COMMAND = ["true"]


def unmap(mapped):
    return mapped.unmap({"priority": 1})


def test_a_task_has_the_usual_worker_queue() -> None:
    train = DispatchTrainJobOperator(task_id="train", command=COMMAND, queue="team-a")

    assert (train.queue, train.spec["queue"]) == (USUAL, "team-a")


def test_a_worker_queue_can_be_named() -> None:
    start = DispatchStartJobOperator(task_id="start", command=COMMAND, queue="team-a", worker_queue="gpu-workers")

    assert (start.queue, start.spec["queue"]) == ("gpu-workers", "team-a")


def test_a_mapped_task_keeps_both_queues_apart() -> None:
    with DAG("d"):
        mapped = DispatchTrainJobOperator.partial(task_id="train", command=COMMAND, queue="team-a").expand(
            priority=[1, 2]
        )
        plain = DispatchTrainJobOperator.partial(task_id="plain", command=COMMAND).expand(priority=[1, 2])
        named = DispatchTrainJobOperator.partial(
            task_id="named", command=COMMAND, queue="team-a", worker_queue="gpu-workers"
        ).expand(priority=[1, 2])

    assert [task.queue for task in (mapped, plain, named)] == [USUAL, USUAL, "gpu-workers"]
    assert [unmap(task).spec.get("queue") for task in (mapped, plain, named)] == ["team-a", None, "team-a"]
    assert [unmap(task).queue for task in (mapped, plain, named)] == [USUAL, USUAL, "gpu-workers"]


def test_both_queues_survive_a_copy() -> None:
    copied = copy.deepcopy(WorkerQueue("gpu-workers", "team-a"))

    assert (str(copied), copied.job_queue) == ("gpu-workers", "team-a")
