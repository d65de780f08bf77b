# SPDX-License-Identifier: Apache-2.0
"""What a sensor refuses when the DAG is parsed."""

from __future__ import annotations

from datetime import timedelta

import pytest
from airflow.sdk import DAG

from airflow_provider_dispatch.core.goals import Goal
from airflow_provider_dispatch.core.state import State
from airflow_provider_dispatch.exceptions import SpecError
from airflow_provider_dispatch.sensors.gate import DispatchGateSensor
from airflow_provider_dispatch.sensors.hold import DispatchHoldSensor
from airflow_provider_dispatch.sensors.job import DispatchJobSensor


def build(kind: type = DispatchGateSensor, **arguments: object):
    with DAG("d", schedule=None):
        return kind(**{"task_id": "wait", "job_task_id": "train", **arguments})


@pytest.mark.parametrize(
    ("kind", "arguments", "field"),
    [
        (DispatchGateSensor, {"until": "held"}, "until"),
        (DispatchHoldSensor, {"until": "gated"}, "until"),
        (DispatchJobSensor, {"until": "finished"}, "until"),
        (DispatchJobSensor, {"until": []}, "until"),
        (DispatchJobSensor, {"until": {"running", "done"}}, "until"),
        (DispatchGateSensor, {"if_unknown": "skip"}, "if_unknown"),
        (DispatchGateSensor, {"job_task_id": None}, "job_task_id"),
        (DispatchGateSensor, {"job_id": "01ARZ3NDEKTSV4RRFFQ69G5FAV"}, "job_task_id"),
        (DispatchGateSensor, {"job_map_index": "all"}, "job_map_index"),
        (DispatchGateSensor, {"mode": "reschedule", "poke_interval": 9.9}, "poke_interval"),
        (
            DispatchGateSensor,
            {"mode": "reschedule", "poke_interval": 19, "exponential_backoff": True},
            "poke_interval",
        ),
        (DispatchGateSensor, {"mode": "reschedule", "max_wait": timedelta(seconds=5)}, "max_wait"),
    ],
)
def test_a_wrong_argument_is_refused_by_its_name(kind: type, arguments: dict, field: str) -> None:
    with pytest.raises(SpecError) as caught:
        build(kind, **arguments)

    assert caught.value.field == field


@pytest.mark.parametrize(
    "arguments",
    [
        {"mode": "reschedule", "poke_interval": 10},
        {"mode": "reschedule", "poke_interval": timedelta(seconds=20), "exponential_backoff": True},
        {"mode": "poke", "poke_interval": 1},
        {"mode": "reschedule", "poke_interval": 1, "deferrable": True},
    ],
)
def test_short_intervals_are_fine_where_no_leg_is_short(arguments: dict) -> None:
    assert build(**arguments).task_id == "wait"


def test_the_names_of_states_and_points_are_the_contracts() -> None:
    """They are written out, because a DAG file that is only parsed must not load the contract."""
    assert set(DispatchJobSensor.choices) == set(State)
    assert {*DispatchGateSensor.choices, *DispatchHoldSensor.choices} <= set(Goal)


def test_states_are_given_by_name_or_as_the_contracts_values() -> None:
    assert build(DispatchJobSensor, until={State.RUNNING, "held"})._states() == ["held", "running"]


@pytest.mark.parametrize("field", ["job_task_id", "job_map_index", "job_ref", "job_id", "dispatch_conn_id"])
def test_what_varies_from_run_to_run_may_be_templated(field: str) -> None:
    assert field in DispatchGateSensor.template_fields
