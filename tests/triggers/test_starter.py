# SPDX-License-Identifier: Apache-2.0
"""Asking Airflow about the task that should start a job."""

from __future__ import annotations

import asyncio

import pytest
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse, GetTaskStates, TaskStatesResult
from airflow.sdk.execution_time.supervisor import set_supervisor_comms

from airflow_provider_dispatch.triggers.starter import build_starter_probe


class Supervisor:
    """Knows the states of one run."""

    def __init__(self, states: dict[str, str | None]) -> None:
        self.states = states
        self.asked: list[GetTaskStates] = []

    def send(self, message: GetTaskStates) -> TaskStatesResult:
        self.asked.append(message)
        return TaskStatesResult(task_states={"run": self.states})


@pytest.mark.parametrize(
    ("states", "map_index", "expected"),
    [
        ({"train": "running"}, -1, None),
        ({"train": "deferred"}, -1, None),
        ({"train": "up_for_retry"}, -1, None),
        ({"train": None}, -1, None),
        ({}, -1, None),
        ({"train": "failed"}, -1, "failed"),
        ({"train": "skipped"}, -1, "skipped"),
        ({"train": "upstream_failed"}, -1, "upstream_failed"),
        ({"train": "success"}, -1, "success"),
        ({"train_3": "success"}, 3, "success"),
        ({"train_30": "success"}, 3, None),
    ],
)
def test_only_a_task_that_has_ended_is_told(states: dict, map_index: int, expected: str | None) -> None:
    supervisor = Supervisor(states)
    probe = build_starter_probe(["dag", "run", "train", map_index])
    assert probe is not None

    async def ask() -> str | None:
        return await probe()

    with set_supervisor_comms(supervisor):
        found = asyncio.run(ask())

    (asked,) = supervisor.asked
    assert found == expected
    assert (asked.dag_id, asked.run_ids, asked.task_ids) == ("dag", ["run"], ["train"])
    assert asked.map_index == (None if map_index < 0 else map_index)


@pytest.mark.parametrize(
    "error",
    [
        AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail={"status_code": 502})),
        ConnectionResetError("supervisor"),
        RuntimeError("no answer"),
    ],
)
def test_a_question_that_airflow_can_not_answer_is_asked_again(error: Exception) -> None:
    class Away(Supervisor):
        def send(self, message: GetTaskStates) -> TaskStatesResult:
            if not self.asked:
                self.asked.append(message)
                raise error
            return super().send(message)

    probe = build_starter_probe(["dag", "run", "train", -1])
    assert probe is not None

    async def ask() -> list[str | None]:
        return [await probe(), await probe()]

    with set_supervisor_comms(Away({"train": "failed"})):
        assert asyncio.run(ask()) == [None, "failed"]


def test_without_a_starter_there_is_nobody_to_ask_about() -> None:
    assert build_starter_probe(None) is None
