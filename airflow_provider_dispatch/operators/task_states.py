# SPDX-License-Identifier: Apache-2.0
"""What Airflow's database says about the instances of a task. Asked through the supervisor of the running task."""

from __future__ import annotations

from airflow_provider_dispatch.core.identity import NOT_MAPPED


def fetch_task_states(dag_id: str, run_id: str, task_id: str) -> dict[int, str | None]:
    """State by map index; -1 for a task that is not mapped, or not expanded yet. Empty when there is no such task."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance  # noqa: PLC0415 - loaded in every worker

    found = RuntimeTaskInstance.get_task_states(dag_id=dag_id, task_ids=[task_id], run_ids=[run_id])
    return parse_task_states(task_id, found.get(run_id, {}))


def parse_task_states(task_id: str, states: dict[str, str | None]) -> dict[int, str | None]:
    """Airflow answers with ``<task id>`` or ``<task id>_<map index>`` as keys."""
    found: dict[int, str | None] = {}
    for key, state in states.items():
        index = key.removeprefix(f"{task_id}_")
        if key == task_id:
            found[NOT_MAPPED] = state
        elif index != key and index.isdecimal():
            found[int(index)] = state
    return found
