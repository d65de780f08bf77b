# SPDX-License-Identifier: Apache-2.0
"""A policy decides by its rules in order, each within its own limit; resources grow exactly."""

from __future__ import annotations

import math
from datetime import timedelta
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.recovery import (
    DEFAULT_POLICY,
    Recovery,
    RecoveryPolicy,
    RecoveryRule,
    RecoveryStep,
    decide_recovery,
    scale_resources,
)
from airflow_provider_dispatch.core.state import Cause
from airflow_provider_dispatch.exceptions import SpecError
from tests.core.strategies import seconds

FAIL = RecoveryStep(Recovery.FAIL, None, seconds(0))
LOST, MEMORY = Cause.NODE_LOST, Cause.OUT_OF_MEMORY
MIXED = RecoveryPolicy(
    (
        RecoveryRule((Cause.IMAGE,), Recovery.FAIL, limit=0),
        RecoveryRule((LOST, MEMORY), limit=2, back_off=seconds(5)),
        RecoveryRule((MEMORY,), Recovery.HOLD, back_off=seconds(1)),
        RecoveryRule((), limit=1),
    )
)


def test_what_a_rule_may_do() -> None:
    assert [*Recovery] == ["resubmit", "fail", "hold"]
    assert RecoveryRule((LOST,)) == RecoveryRule((LOST,), Recovery.RESUBMIT, 1, seconds(0), {})


@pytest.mark.parametrize(
    ("cause", "used", "step"),
    [
        (Cause.IMAGE, (), RecoveryStep(Recovery.FAIL, 0, seconds(0))),
        (LOST, (), RecoveryStep(Recovery.RESUBMIT, 1, seconds(5))),
        (LOST, (1,), RecoveryStep(Recovery.RESUBMIT, 1, seconds(10))),
        (LOST, (1, 1), RecoveryStep(Recovery.RESUBMIT, 3, seconds(0))),
        (LOST, (1, 3, 1), FAIL),
        (LOST, (3,), RecoveryStep(Recovery.RESUBMIT, 1, seconds(5))),
        (MEMORY, (1, 1), RecoveryStep(Recovery.HOLD, 2, seconds(1))),
        (MEMORY, (1, 1, 2), RecoveryStep(Recovery.RESUBMIT, 3, seconds(0))),
        (MEMORY, (1, 1, 2, 3), FAIL),
        (Cause.EXITED, (), RecoveryStep(Recovery.RESUBMIT, 3, seconds(0))),
        (Cause.EXITED, (3,), FAIL),
    ],
)
def test_the_first_rule_with_room_decides(cause: Cause, used: tuple, step: RecoveryStep) -> None:
    assert decide_recovery(MIXED, cause, used) == step


@pytest.mark.parametrize("cause", Cause)
def test_without_rules_a_job_fails(cause: Cause) -> None:
    assert decide_recovery(RecoveryPolicy(), cause, ()) == FAIL


@pytest.mark.parametrize("cause", Cause)
def test_by_default_a_lost_machine_costs_three_submissions_and_nothing_else_any(cause: Cause) -> None:
    steps = [decide_recovery(DEFAULT_POLICY, cause, (0,) * times) for times in range(4)]

    if cause in {Cause.NODE_LOST, Cause.EVICTED}:
        assert [step.back_off for step in steps[:3]] == [seconds(1), seconds(2), seconds(4)]
        assert {(step.action, step.rule) for step in steps[:3]} == {(Recovery.RESUBMIT, 0)}
        assert steps[3] == FAIL
    else:
        assert steps == [FAIL] * 4


@pytest.mark.parametrize(
    ("back_off", "times", "pause"),
    [
        (seconds(0), 99, seconds(0)),
        (seconds(1), 11, seconds(2048)),
        (seconds(1), 12, timedelta(hours=1)),
        (seconds(3600), 0, timedelta(hours=1)),
        (timedelta(days=1), 0, timedelta(hours=1)),
        (timedelta.max, 10_000, timedelta(hours=1)),
        (timedelta(microseconds=1), 31, timedelta(microseconds=2**31)),
        (timedelta(microseconds=1), 32, timedelta(hours=1)),
        (timedelta(microseconds=1), 10_000, timedelta(hours=1)),
    ],
)
def test_the_pause_doubles_up_to_an_hour(back_off: timedelta, times: int, pause: timedelta) -> None:
    policy = RecoveryPolicy((RecoveryRule((LOST,), limit=times + 1, back_off=back_off),))

    assert decide_recovery(policy, LOST, (0,) * times) == RecoveryStep(Recovery.RESUBMIT, 0, pause)


@given(
    st.lists(st.builds(RecoveryRule, st.lists(st.sampled_from([LOST, MEMORY])).map(tuple), limit=st.integers(0, 4))),
    st.lists(st.sampled_from([LOST, MEMORY]), max_size=40),
)
def test_no_rule_acts_more_often_than_its_limit(rules: list[RecoveryRule], ends: list[Cause]) -> None:
    used: list[int] = []
    for cause in ends:
        step = decide_recovery(RecoveryPolicy(tuple(rules)), cause, used)
        if step.rule is not None:
            used.append(step.rule)
            assert not rules[step.rule].causes or cause in rules[step.rule].causes

    assert all(used.count(index) <= rule.limit for index, rule in enumerate(rules))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"limit": -1}, "recovery.limit = -1: must not be negative"),
        ({"back_off": -seconds(1)}, "recovery.back_off = datetime.timedelta(days=-1, seconds=86399): must not be"),
        ({"scale": {"cpu": 2, "memory": 0}}, "recovery.scale.memory = 0: must be above 0 and at most 1000"),
        ({"scale": {"memory": -1}}, "recovery.scale.memory = -1: must be above 0 and at most 1000"),
        ({"scale": {"memory": 1000.1}}, "recovery.scale.memory = 1000.1: must be above 0 and at most 1000"),
        ({"scale": {"memory": math.nan}}, "recovery.scale.memory = nan: must be above 0 and at most 1000"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(fields: dict, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        RecoveryRule((LOST,), **fields)

    assert str(caught.value).startswith(message)


def test_the_borders_of_a_rule() -> None:
    rule = RecoveryRule((LOST,), limit=0, back_off=seconds(0), scale={"cpu": 0.001, "memory": 1000})

    assert decide_recovery(RecoveryPolicy((rule,)), LOST, ()) == FAIL


def test_resources_are_scaled_where_they_are_asked_for() -> None:
    spec = JobSpec(
        roles=[
            {"name": "leader", "command": ["a"], "resources": {"cpu": "500m", "memory": "1Gi"}},
            {"name": "worker", "command": ["b"], "resources": {"cpu": 1, "gpu": 3}, "nodes": 2},
        ],
        queue="team-a",
    )

    scaled = scale_resources(spec, {"memory": 1.5, "gpu": 1.1, "disk": 2})

    leader, worker = scaled.roles
    assert leader.resources == {"cpu": "500m", "memory": str(3 * 2**29)}
    assert worker.resources == {"cpu": 1, "gpu": "4"}
    assert (scaled.queue, worker.nodes, worker.command) == ("team-a", 2, ("b",))
    assert spec.roles[0].resources == {"cpu": "500m", "memory": "1Gi"}


def test_cpu_is_scaled_in_millicores() -> None:
    spec = scale_resources(JobSpec(command=["a"], resources={"cpu": "333m"}), {"cpu": 0.5})

    assert spec.roles[0].resources == {"cpu": "167m"}


@given(st.integers(0, 2**40), st.floats(0.001, 1000))
def test_scaling_is_exact_and_rounds_up(memory: int, factor: float) -> None:
    spec = scale_resources(JobSpec(command=["a"], resources={"memory": memory}), {"memory": factor})

    exact = memory * Fraction(repr(factor))
    assert exact <= spec.roles[0].requests["memory"] < exact + 1


def test_scaling_nothing_changes_nothing() -> None:
    spec = JobSpec(command=["a"], resources={"cpu": 1})

    assert scale_resources(spec, {}) == spec
