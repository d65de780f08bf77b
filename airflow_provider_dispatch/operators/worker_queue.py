# SPDX-License-Identifier: Apache-2.0
"""Two queues with one name: `queue` of our operators is the job's, `queue` of Airflow's is that of the task's worker.

Airflow reads the latter off the arguments of a mapped task before any operator is made. So there the worker's queue
travels under that name and carries the job's with it. Used by the operators that start jobs, and by nothing else.
"""

from __future__ import annotations

from typing import Any, Self

from airflow.sdk import BaseOperator

from airflow_provider_dispatch.version_compat import conf


class WorkerQueue(str):
    """Name of the queue whose workers run the task, with the queue that the job is sent to."""

    __slots__ = ("job_queue",)
    job_queue: object

    def __new__(cls, name: str | None, job_queue: object = None) -> Self:
        queue = super().__new__(cls, name or conf.get("operators", "default_queue", fallback="default"))
        queue.job_queue = job_queue
        return queue


def split_queues(queue: object, worker_queue: str | None) -> tuple[object, dict[str, Any]]:
    """The job's queue, and the argument of Airflow's operator for the worker's."""
    if isinstance(queue, WorkerQueue):
        queue, worker_queue = queue.job_queue, str(queue)
    return queue, {} if worker_queue is None else {"queue": worker_queue}


class TwoQueues(BaseOperator):
    """An operator whose `queue` is the job's also when it is mapped."""

    @classmethod
    def partial(cls, *, queue: object = None, worker_queue: str | None = None, **kwargs: Any) -> Any:
        """Arguments that all mapped tasks share."""
        return super().partial(queue=WorkerQueue(worker_queue, queue), **kwargs)
