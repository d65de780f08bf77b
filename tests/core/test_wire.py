# SPDX-License-Identifier: Apache-2.0
"""Every value of the contract survives JSON; what can't be read is told by the name of its field."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_dispatch.core import wire
from airflow_provider_dispatch.core.clocks import Budgets
from airflow_provider_dispatch.core.holds import Actor, ActorKind, Hold
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.core.recovery import RecoveryRule
from airflow_provider_dispatch.core.state import State
from airflow_provider_dispatch.exceptions import ProtocolError
from tests.core.strategies import NOW, REF, flat_specs, iter_dataclasses, observe

KINDS = sorted(iter_dataclasses(), key=lambda kind: kind.__name__)


def names(kind: type) -> str:
    return kind.__name__


def test_the_dataclasses_are_found() -> None:
    assert {"Observation", "Hold", "Identity", "Supervision", "StopReport", "Preflight", "Diagnosis"} <= set(
        map(names, KINDS)
    )
    assert len(KINDS) >= 35


@pytest.mark.parametrize("kind", KINDS, ids=names)
def test_every_dataclass_is_slotted(kind: type) -> None:
    assert "__slots__" in vars(kind)


@pytest.mark.parametrize("kind", KINDS, ids=names)
@given(data=st.data())
@settings(max_examples=3)
def test_every_dataclass_is_frozen(kind: type, data: st.DataObject) -> None:
    value = data.draw(st.from_type(kind))

    for field in fields(kind):
        with pytest.raises(FrozenInstanceError):
            setattr(value, field.name, None)


@pytest.mark.parametrize("kind", KINDS, ids=names)
@given(data=st.data())
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_every_dataclass_travels_as_json(kind: type, data: st.DataObject) -> None:
    value = data.draw(st.from_type(kind))

    text = json.dumps(wire.dump(value), allow_nan=False)

    assert wire.load(kind, json.loads(text)) == value


@given(spec=flat_specs())
def test_a_spec_travels_as_json(spec: JobSpec) -> None:
    assert wire.load(JobSpec, json.loads(json.dumps(wire.dump(spec)))) == spec


def test_a_value_already_read_is_taken_as_it_is() -> None:
    assert wire.load(JobRef, REF) is REF


def test_the_keys_are_the_names_of_the_fields() -> None:
    assert wire.dump(REF) == {
        "job": REF.job,
        "submission": 1,
        "backend": "local",
        "place": "store@host",
        "uid": "",
    }


def test_an_old_value_without_newer_fields_is_read() -> None:
    old = {"state": "running", "ref": {"job": REF.job, "submission": 1, "backend": "local", "place": "store@host"}}

    assert wire.load(Observation, old) == observe(State.RUNNING)


def test_fields_of_a_newer_version_are_ignored_at_every_depth() -> None:
    hold = Hold(1, "key", Actor(ActorKind.HUMAN, "ann"), "why", NOW)
    newer: dict[str, Any] = wire.dump(observe(State.HELD, holds=(hold,))) | {"mood": "good"}
    newer["ref"] |= {"mood": "good"}
    newer["holds"][0]["actor"]["mood"] = "good"

    assert wire.load(Observation, newer) == observe(State.HELD, holds=(hold,))


def test_a_newer_spec_is_refused_because_a_part_of_it_would_be_another_job() -> None:
    newer = wire.dump(JobSpec(command=["a"])) | {"accelerator": "x"}

    with pytest.raises(ProtocolError, match=r"^not a JobSpec: value: accelerator: there is no such field"):
        wire.load(JobSpec, newer)


@pytest.mark.parametrize(
    ("kind", "data", "message"),
    [
        (JobRef, {}, "not a JobRef: job: Field required"),
        (JobRef, [], "not a JobRef: value: Input should be a dictionary or an instance of JobRef"),
        (Observation, {"state": "sleeping"}, "not a Observation: state: Input should be 'succeeded', "),
        (Observation, wire.dump(observe(State.HELD)) | {"holds": [{}]}, "not a Observation: holds.0.instance: Field"),
        (RecoveryRule, {"causes": [], "limit": -1}, "not a RecoveryRule: value: recovery.limit = -1: must not be"),
        (Budgets, {"gated": "-PT1S"}, "not a Budgets: value: budgets.gated = '-1 day, 23:59:59': must lie between"),
        (JobSpec, 5, "not a JobSpec: value: Input should be a valid dictionary"),
        (JobSpec, {"command": ["a"], "nodes": 0}, "not a JobSpec: value: nodes = 0: Input should be greater"),
    ],
)
def test_the_error_names_the_field(kind: type, data: object, message: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        wire.load(kind, data)

    assert str(caught.value).startswith(message)
    assert caught.value.__suppress_context__
