# SPDX-License-Identifier: Apache-2.0
"""What a connection may say, and what is said about a wrong one."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from airflow_provider_dispatch.exceptions import SpecError
from airflow_provider_dispatch.get_provider_info import get_provider_info
from airflow_provider_dispatch.hooks.settings import ConnectionSettings, parse_connection

SECRET = "s3cret-words"


def parse(**extra: object) -> ConnectionSettings:
    return parse_connection("prod", "dispatch", json.dumps(extra))


def test_an_empty_connection_has_the_defaults() -> None:
    assert parse_connection("prod", "dispatch", None) == parse() == ConnectionSettings()


def test_every_field_is_read() -> None:
    settings = parse(
        backend="local", deployment="blue", store="gpu-1", queue="team-a", priority="high", call_timeout_seconds=5
    )

    assert settings.deployment == "blue"
    assert settings.call_timeout == timedelta(seconds=5)
    assert (settings.queue, settings.priority) == ("team-a", "high")
    assert settings.adapter_settings.items() >= {"store": "gpu-1", "deployment": "blue"}.items()


def test_the_local_store_lies_in_the_airflow_home(airflow_home) -> None:
    assert ConnectionSettings().adapter_settings["root"] == str(airflow_home / "dispatch")


def test_another_backend_is_not_told_where_local_stores_lie() -> None:
    assert set(ConnectionSettings(backend="fake").adapter_settings) == {"deployment"}


@pytest.mark.parametrize("emptied", ["", None])
def test_an_emptied_field_of_the_form_counts_as_unset(emptied: object) -> None:
    assert parse(queue=emptied, priority=emptied, backend=emptied) == ConnectionSettings()


@pytest.mark.parametrize(("given", "expected"), [("7", 7), ("-7", -7), (7, 7), ("high", "high")])
def test_a_priority_is_a_number_or_a_name(given: object, expected: object) -> None:
    assert parse(priority=given).priority == expected


@pytest.mark.parametrize(
    ("extra", "field"),
    [
        ({"store": f"../{SECRET}"}, "store"),
        ({"store": "UPPER"}, "store"),
        ({"call_timeout_seconds": 0}, "call_timeout_seconds"),
        ({"call_timeout_seconds": SECRET}, "call_timeout_seconds"),
        ({"deployment": SECRET * 10}, "deployment"),
        ({"priority": {"name": SECRET}}, "priority"),
        ({"kubeconfig_secret": SECRET}, "kubeconfig_secret"),
    ],
)
def test_a_wrong_field_is_named_and_its_value_is_not_shown(extra: dict, field: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(**extra)

    assert caught.value.field == f"connection prod: {field}"
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


def test_an_unknown_field_is_answered_with_the_known_ones() -> None:
    with pytest.raises(SpecError, match=r"qeue: is no field.*deployment.*queue"):
        parse(qeue="x")


@pytest.mark.parametrize("extra", [f"{{{SECRET}", f'["{SECRET}"]', f'"{SECRET}"'])
def test_an_extra_that_is_no_object_is_not_shown(extra: str) -> None:
    with pytest.raises(SpecError, match="connection prod: extra") as caught:
        parse_connection("prod", "dispatch", extra)

    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("conn_type", ["http", "", None])
def test_a_connection_of_another_type_is_refused(conn_type: str | None) -> None:
    with pytest.raises(SpecError, match="must be of type dispatch"):
        parse_connection("prod", conn_type, None)


def test_a_kubernetes_connection_means_the_cluster() -> None:
    assert parse_connection("k8s", "kubernetes", json.dumps({"namespace": "x"})).backend == "kubeflow"


def test_the_form_and_the_settings_agree() -> None:
    """The form is plain data, because every Airflow process loads it: nothing else keeps the two together."""
    (connection,) = json.loads(json.dumps(get_provider_info()))["connection-types"]
    form = connection["conn-fields"]

    defaults = {name: field["schema"].get("default") for name, field in form.items()}

    assert defaults == ConnectionSettings().model_dump()
