# SPDX-License-Identifier: Apache-2.0
"""Has the task that should start a job ended? Asked of Airflow while nobody has heard of the job.

Triggers and sensors build a probe; the wait loop calls it now and then. One question at a time for the whole process:
Airflow answers them one after another, and the first takes seconds. It reads states only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from airflow.sdk.exceptions import AirflowException, AirflowRuntimeError
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from airflow_provider_dispatch.hooks.naming import NOT_MAPPED
from airflow_provider_dispatch.triggers.waiting import StarterProbe

log = logging.getLogger(__name__)
NO_ANSWER = (AirflowException, AirflowRuntimeError, OSError, RuntimeError)
"""Ways in which Airflow's supervisor says that it can't do what it was asked for."""
ENDED_STATES = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})

_TURNS: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


def build_starter_probe(starter: Sequence[str | int] | None) -> StarterProbe | None:
    """A probe for one task instance.

    :param starter: dag id, run id, task id, map index; None means that nobody knows who starts the job.
    """
    if starter is None:
        return None
    dag_id, run_id, task_id = (str(part) for part in starter[:3])
    map_index = int(starter[3])

    async def probe() -> str | None:
        async with get_turn():
            return await asyncio.to_thread(fetch_end, dag_id, run_id, task_id, map_index)

    return probe


def fetch_end(dag_id: str, run_id: str, task_id: str, map_index: int) -> str | None:
    """The state that a task instance has ended in; None while it goes on, and while Airflow gives no answer; blocks."""
    try:
        state = fetch_task_state(dag_id, run_id, task_id, map_index)
    except NO_ANSWER as error:
        log.warning("Airflow does not say in what state task %s is; it will be asked again: %s", task_id, error)
        return None
    return state if state in ENDED_STATES else None


def fetch_task_state(dag_id: str, run_id: str, task_id: str, map_index: int) -> str | None:
    """State of one task instance as Airflow knows it now; blocks."""
    found = RuntimeTaskInstance.get_task_states(
        dag_id=dag_id,
        run_ids=[run_id],
        task_ids=[task_id],
        map_index=None if map_index == NOT_MAPPED else map_index,
    )
    of_run = found.get(run_id, {})
    key = task_id if map_index == NOT_MAPPED else f"{task_id}_{map_index}"
    state = of_run.get(key)
    return None if state is None else str(state)


def get_turn() -> asyncio.Lock:
    """The lock under which this process asks Airflow something that can wait."""
    return _TURNS.setdefault(asyncio.get_running_loop(), asyncio.Lock())
