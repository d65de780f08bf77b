# SPDX-License-Identifier: Apache-2.0
"""What is told when a DAG is parsed, what only when the task runs, and what neither may cost."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta

import pytest
from airflow.sdk import DAG, task

from airflow_provider_dispatch.core.clocks import Clock
from airflow_provider_dispatch.core.decision import OnTimeout, OnUnfittable, Supervision
from airflow_provider_dispatch.core.job_spec import FLAT_ROLE_FIELDS, JobSpec, RoleSpec
from airflow_provider_dispatch.core.recovery import DEFAULT_POLICY, Recovery, RecoveryPolicy, RecoveryRule
from airflow_provider_dispatch.core.state import Cause
from airflow_provider_dispatch.exceptions import SpecError
from airflow_provider_dispatch.operators import arguments, recovery_rules
from airflow_provider_dispatch.operators.gate import DispatchOpenGateOperator
from airflow_provider_dispatch.operators.hold import DispatchHoldJobOperator, DispatchReleaseJobOperator
from airflow_provider_dispatch.operators.job import DispatchStartJobOperator, DispatchTrainJobOperator
from airflow_provider_dispatch.operators.stop import DispatchStopJobOperator

ACTING = (DispatchOpenGateOperator, DispatchHoldJobOperator, DispatchReleaseJobOperator, DispatchStopJobOperator)
COMMAND = ["python", "train.py"]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "command"),
        ({"command": COMMAND, "roles": [{"name": "a", "command": COMMAND}]}, "command"),
        ({"command": "python train.py"}, "command"),
        ({"command": []}, "command"),
        ({"command": COMMAND, "num_nodes": 0}, "num_nodes"),
        ({"command": COMMAND, "num_nodes": True}, "num_nodes"),
        ({"command": COMMAND, "max_restarts": -1}, "max_restarts"),
        ({"command": COMMAND, "max_preemptions": -1}, "max_preemptions"),
        ({"command": COMMAND, "grace_period": timedelta(seconds=-1)}, "grace_period"),
        ({"command": COMMAND, "env": ["A=1"]}, "env"),
        ({"roles": [{"name": "a", "command": COMMAND}, {"nods": 2, "command": COMMAND}]}, "roles[1].nods"),
    ],
)
@pytest.mark.parametrize("kind", [DispatchTrainJobOperator, DispatchStartJobOperator])
def test_a_wrong_job_fails_when_the_dag_is_parsed(kind: type, given: dict, field: str) -> None:
    with pytest.raises(SpecError) as caught:
        kind(task_id="train", **given)

    assert caught.value.field == field


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"gate_timeout": timedelta(seconds=-1)}, "gate_timeout"),
        ({"queue_timeout": -1}, "queue_timeout"),
        ({"startup_timeout": "soon"}, "startup_timeout"),
        ({"run_timeout": [1]}, "run_timeout"),
        ({"hold_timeout": "nan-sense"}, "hold_timeout"),
        ({"on_timeout": "explode"}, "on_timeout"),
        ({"on_unfittable": "explode"}, "on_unfittable"),
        ({"recovery": "always"}, "recovery"),
        ({"recovery": [{"causes": ["bad_luck"]}]}, "recovery[0].causes"),
        ({"recovery": [{"causes": "node_lost"}]}, "recovery[0].causes"),
        ({"recovery": [{"times": 3}]}, "recovery[0].times"),
        ({"recovery": ["node_lost"]}, "recovery[0]"),
        ({"recovery": [{"action": "pray"}]}, "recovery[0].action"),
        ({"recovery": [{"limit": "some"}]}, "recovery[0]"),
        ({"recovery": [{"limit": float("inf")}]}, "recovery[0]"),
        ({"recovery": [{"limit": -1}]}, "recovery[0].limit"),
        ({"recovery": [{"back_off": -1}]}, "recovery[0].back_off"),
        ({"recovery": [{"scale": {"memory": 0}}]}, "recovery[0].scale.memory"),
        ({"stream_ranks": 0}, "stream_ranks"),
        ({"stream_ranks": [-1]}, "stream_ranks"),
        ({"stream_ranks": [["worker", "first"]]}, "stream_ranks"),
    ],
)
def test_wrong_supervision_fails_when_the_dag_is_parsed(given: dict, field: str) -> None:
    with pytest.raises(SpecError) as caught:
        DispatchTrainJobOperator(task_id="train", command=COMMAND, **given)

    assert caught.value.field == field


@pytest.mark.parametrize("kind", ACTING)
@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "job_task_id"),
        ({"job_task_id": "a", "job_id": "b"}, "job_task_id"),
        ({"job_task_id": "a", "job_task_ids": ["a"]}, "job_task_id"),
        ({"job_task_ids": ["a"], "select": {"queue": "q"}}, "job_task_id"),
        ({"job_id": "nonsense"}, "job_id"),
        ({"job_task_id": "a", "job_map_index": -2}, "job_map_index"),
        ({"select": {"queue": "q"}, "job_map_index": 1}, "job_map_index"),
        ({"select": {"colour": "red"}}, "select.colour"),
        ({"select": {}}, "select"),
        ({"job_task_ids": "train"}, "job_task_ids"),
        ({"job_task_id": "a", "if_unknown": "panic"}, "if_unknown"),
        ({"job_task_id": "a", "unknown_timeout": -1}, "unknown_timeout"),
    ],
)
def test_wrong_names_fail_when_the_dag_is_parsed(kind: type, given: dict, field: str) -> None:
    with pytest.raises(SpecError) as caught:
        kind(task_id="act", **given)

    assert caught.value.field == field


@pytest.mark.parametrize(
    ("kind", "given", "field"),
    [
        (DispatchHoldJobOperator, {"until": "tomorrow"}, "until"),
        (DispatchHoldJobOperator, {"until": datetime(2030, 1, 1)}, "until"),  # noqa: DTZ001 - the mistake itself
        (DispatchHoldJobOperator, {"until": timedelta(0)}, "until"),
        (DispatchHoldJobOperator, {"wait_timeout": -1}, "wait_timeout"),
        (DispatchReleaseJobOperator, {"wait_until": "done"}, "wait_until"),
        (DispatchReleaseJobOperator, {"hold": {}, "hold_task_id": "hold"}, "hold"),
        (DispatchReleaseJobOperator, {"wait_timeout": -1}, "wait_timeout"),
        (DispatchStopJobOperator, {"stop_timeout": -1}, "stop_timeout"),
    ],
)
def test_an_operators_own_arguments_fail_when_the_dag_is_parsed(kind: type, given: dict, field: str) -> None:
    with pytest.raises(SpecError) as caught:
        kind(task_id="act", job_task_id="train", **given)

    assert caught.value.field == field


def test_a_release_by_its_hold_task_needs_no_other_name() -> None:
    assert DispatchReleaseJobOperator(task_id="release", hold_task_id="hold").names == {}


def test_what_is_a_template_or_anothers_result_is_left_to_the_run() -> None:
    with DAG("d"):

        @task
        def number() -> int:
            return 2

        train = DispatchTrainJobOperator(
            task_id="train",
            command="{{ params.command }}",
            num_nodes=number(),
            run_timeout="{{ params.hours }}",
            on_timeout="{{ params.what }}",
            recovery=[{"causes": ["{{ params.cause }}"]}],
            stream_ranks="{{ params.ranks }}",
        )
        hold = DispatchHoldJobOperator(task_id="hold", job_id="{{ params.id }}", until="{{ ds }}")

    assert train.upstream_task_ids == {"number"}
    assert hold.names == {"job_id": "{{ params.id }}"}


def test_every_field_of_a_spec_is_an_argument() -> None:
    fields = {arguments.FIELD_OF_ARGUMENT.get(name, name) for name in arguments.SPEC_ARGUMENTS}

    assert fields == {*JobSpec.model_fields, *FLAT_ROLE_FIELDS}
    assert tuple(RoleSpec.model_fields) == arguments.ROLE_FIELDS


def test_arguments_become_a_spec() -> None:
    spec = arguments.build_spec({"command": COMMAND, "num_nodes": "2", "grace_period": "5", "queue": "team-a"})

    assert (spec.nodes, spec.grace_period, spec.queue) == (2, timedelta(seconds=5), "team-a")


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"command": COMMAND, "num_nodes": "many"}, "num_nodes"),
        ({"command": COMMAND, "resources_per_node": {"cpu": "lots"}}, "resources_per_node.cpu"),
        ({"command": COMMAND, "image": ""}, "image"),
        ({"roles": [{"name": "a", "nodes": -1, "command": COMMAND}]}, "roles[0].nodes"),
    ],
)
def test_the_model_complains_of_the_operators_own_argument(given: dict, field: str) -> None:
    with pytest.raises(SpecError) as caught:
        arguments.build_spec(given)

    assert caught.value.field == field


def test_arguments_become_a_supervision() -> None:
    supervision = arguments.build_supervision(
        {
            "gate_timeout": 1,
            "queue_timeout": timedelta(seconds=2),
            "startup_timeout": "3",
            "run_timeout": 4.0,
            "hold_timeout": 5,
            "on_timeout": "leave",
            "on_unfittable": "wait",
            "recovery": [{"causes": ["out_of_memory"], "limit": "2", "back_off": 7, "scale": {"memory": "1.5"}}],
        }
    )

    assert [supervision.budgets.limit(clock) for clock in Clock] == [timedelta(seconds=n) for n in range(1, 6)]
    assert (supervision.on_timeout, supervision.on_unfittable) == (OnTimeout.LEAVE, OnUnfittable.WAIT)
    assert supervision.policy.rules == (
        RecoveryRule((Cause.OUT_OF_MEMORY,), Recovery.RESUBMIT, 2, timedelta(seconds=7), {"memory": 1.5}),
    )


def test_policies_come_in_three_shapes() -> None:
    rule = RecoveryRule((), Recovery.HOLD)

    assert recovery_rules.read_policy(None) is DEFAULT_POLICY
    assert recovery_rules.read_policy([]) == RecoveryPolicy()
    assert (
        recovery_rules.read_policy([rule])
        == recovery_rules.read_policy(RecoveryPolicy((rule,)))
        == RecoveryPolicy((rule,))
    )
    assert arguments.is_literal(RecoveryPolicy((rule,)))


def test_a_policy_of_the_contracts_own_classes_is_taken_when_the_dag_is_parsed() -> None:
    rule = RecoveryRule((), Recovery.HOLD)

    for given in (RecoveryPolicy((rule,)), [rule, {"causes": ["node_lost"]}]):
        assert (
            DispatchTrainJobOperator(task_id="train", command=COMMAND, recovery=given).supervision["recovery"] is given
        )


def test_the_names_of_choices_are_the_contracts() -> None:
    """They are written out, because a DAG file that is only parsed must not load the contract."""
    assert set(recovery_rules.CAUSES) == set(Cause)
    assert set(recovery_rules.ACTIONS) == set(Recovery)
    assert recovery_rules.PlainRule._fields == tuple(field.name for field in dataclasses.fields(RecoveryRule))
    assert {name: set(choices) for name, choices in arguments.CHOICES_OF_ARGUMENT.items()} == {
        "on_timeout": set(OnTimeout),
        "on_unfittable": set(OnUnfittable),
    }


def test_what_is_left_out_is_the_contracts_default() -> None:
    assert arguments.build_supervision({}) == Supervision()
    assert recovery_rules.read_policy([{}]).rules == (RecoveryRule(()),)


def test_ranks_are_numbers_or_pairs() -> None:
    assert arguments.read_ranks([0, "1", ("worker", 2), [None, 3]]) == ((None, 0), (None, 1), ("worker", 2), (None, 3))


def test_a_closed_set_is_named_in_full() -> None:
    with pytest.raises(SpecError, match="stop, hold, leave"):
        arguments.build_supervision({"on_timeout": "explode"})
