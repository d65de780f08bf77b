# SPDX-License-Identifier: Apache-2.0
"""What a connection may say, and what is said about a wrong one."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings, RuntimeSettings, parse_settings
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


def test_a_cluster_is_told_what_the_connection_says_of_it() -> None:
    extra = {
        "backend": "kubeflow",
        "namespace": "team",
        "kubeconfig": "/etc/kube",
        "context": "prod",
        "runtime": "torch",
        "runtime_kind": "TrainingRuntime",
        "image": "i:1",
        "queue": "lq",
        "priority": "high",
        "state_claim": "state",
        "has_controller": False,
        "deployment": "blue",
    }
    told = parse_settings(parse(**extra).adapter_settings)
    assert told == KubeflowSettings(
        namespace="team",
        kubeconfig="/etc/kube",
        context="prod",
        deployment="blue",
        queue="lq",
        priority_class="high",
        runtime=RuntimeSettings(name="torch", kind="TrainingRuntime"),
        image="i:1",
        state_claim="state",
        has_controller=False,
    )


def test_an_empty_connection_to_a_cluster_leaves_the_backend_its_defaults() -> None:
    settings = parse(backend="kubeflow", priority=5)
    assert settings.adapter_settings == {"deployment": "airflow", "has_controller": True}
    assert parse_settings(settings.adapter_settings) == KubeflowSettings(deployment="airflow")


@pytest.mark.parametrize("extra", [{"namespace": "team"}, {"has_controller": False}, {"runtime": "torch"}])
def test_a_cluster_without_its_backend_is_a_backend_forgotten(extra: dict) -> None:
    with pytest.raises(SpecError, match=f"{next(iter(extra))}: means nothing locally; set backend kubeflow"):
        parse(**extra)


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({}, {}),
        (
            {"namespace": "team", "kube_config_path": "/k", "cluster_context": "c", "disable_verify_ssl": True},
            {"namespace": "team", "kubeconfig": "/k", "context": "c"},
        ),
        ({"extra__kubernetes__namespace": "team", "kube_config_path": ""}, {"namespace": "team"}),
        ({"in_cluster": True, "kube_config_path": "/k", "cluster_context": "c", "namespace": "n"}, {"namespace": "n"}),
        ({"namespace": "a", "dispatch": {"namespace": "b", "queue": "lq"}}, {"namespace": "b", "queue": "lq"}),
    ],
)
def test_a_kubernetes_connection_is_read_as_its_own_provider_reads_it(extra: dict, expected: dict) -> None:
    settings = parse_connection("k8s", "kubernetes", json.dumps(extra))
    assert settings == ConnectionSettings(backend="kubeflow", **expected)


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"kube_config": SECRET}, "kube_config: is a whole kubeconfig"),
        ({"dispatch": [SECRET]}, "dispatch: must be an object"),
        ({"dispatch": {"qeue": SECRET}}, "qeue: is no field"),
    ],
)
def test_a_kubernetes_connection_that_says_too_much_or_wrong_is_refused(extra: dict, said: str) -> None:
    with pytest.raises(SpecError, match=f"connection k8s: {said}") as caught:
        parse_connection("k8s", "kubernetes", json.dumps(extra))
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("wrong", [{"state_host_path": "a"}, {"state_host_path": "/a", "state_claim": "b"}])
def test_a_state_that_no_pod_could_mount_is_refused(wrong: dict) -> None:
    with pytest.raises(SpecError, match="state_host_path"):
        parse_settings(wrong)
