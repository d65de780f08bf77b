# SPDX-License-Identifier: Apache-2.0
"""Where a call goes: a connection, a file, or the store that a task without a connection uses."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from airflow_provider_dispatch.cli.settings import SETTINGS_VARIABLE, BackendSettings, load_settings, parse_settings
from airflow_provider_dispatch.exceptions import SpecError
from airflow_provider_dispatch.hooks.settings import ConnectionSettings
from tests.cli.conftest import FakeWorld


@pytest.fixture(autouse=True)
def _no_settings_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SETTINGS_VARIABLE, raising=False)


def test_without_anything_it_is_the_store_of_a_task_without_a_connection(airflow_home: Path) -> None:
    task = ConnectionSettings()

    found = load_settings(None, None)

    assert (found.backend, found.fields) == (task.backend, task.adapter_settings)
    assert found.fields["root"] == str(airflow_home / "dispatch")
    assert found.deployment == task.deployment


def test_a_file_is_named_by_an_option_or_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("backend: local\nroot: ~/jobs\nqueue: team-a\npriority: low\ncall_timeout_seconds: 5\n")

    named = load_settings(None, path)
    monkeypatch.setenv(SETTINGS_VARIABLE, str(path))

    assert named == load_settings(None, None)
    assert (named.queue, named.priority, named.call_timeout.total_seconds()) == ("team-a", "low", 5)
    assert named.fields == {"root": os.path.expanduser("~/jobs")}


def test_the_root_of_a_local_file_is_that_of_a_task(airflow_home: Path) -> None:
    assert parse_settings({"backend": "local"}).fields == {"root": str(airflow_home / "dispatch")}


def test_a_cluster_is_told_its_default_queue() -> None:
    fields = {"backend": "kubeflow", "namespace": "ml", "queue": "team-a", "deployment": "research"}

    found = parse_settings(fields)

    assert found == BackendSettings(
        "kubeflow", {"namespace": "ml", "queue": "team-a", "deployment": "research"}, "research", "team-a"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("backend: nowhere", "error: backend = 'nowhere': must be one of "),
        ("- local", "error: --settings: must hold a mapping"),
        ("", "error: --settings: must hold a mapping"),
        ("a: b: hush", "is neither YAML nor JSON in line 1, column 5"),
        ("call_timeout_seconds: hush", "error: settings.call_timeout_seconds: Input should be a valid number"),
        ("roots: hush", "error: roots: "),
        ("root: hush/relative", "error: root: must be an absolute path"),
    ],
)
def test_a_wrong_file_is_named_and_its_values_are_not_shown(fake: FakeWorld, text: str, said: str) -> None:
    fake.path.write_text(text)

    answer = fake.dispatch("list")

    assert answer.code == 2
    assert said in answer.err
    assert "hush" not in answer.err


@pytest.mark.parametrize(("content", "said"), [(None, "No such file"), (b"\xff", "it is not UTF-8")])
def test_a_file_that_cannot_be_read_is_named(fake: FakeWorld, content: bytes | None, said: str) -> None:
    fake.path.unlink()
    if content is not None:
        fake.path.write_bytes(content)

    answer = fake.dispatch("list")

    assert (answer.code, str(fake.path) in answer.err, said in answer.err) == (2, True, True)


def test_a_connection_of_airflow_names_the_backend(fake: FakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"backend": "fake", "queue": "team-a", "deployment": "research"}
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", json.dumps({"conn_type": "dispatch", "extra": extra}))

    ref = fake.dispatch.json("start", "--conn-id", "cluster", "--", "run")
    (listed,) = fake.dispatch.json("list", "-c", "cluster", "--queue", "team-a", "--deployment", "research")

    assert listed["ref"] == ref
    assert load_settings("cluster", None).deployment == "research"


def test_a_task_of_airflow_is_named_in_the_deployment_of_its_connection(
    fake: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"backend": "fake", "deployment": "research"}
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", json.dumps({"conn_type": "dispatch", "extra": extra}))

    answer = fake.dispatch("inspect", "-c", "cluster", "--dag", "d", "--run", "r", "--task", "t", "-o", "json")

    assert (answer.code, answer.data["description"]) == (4, "not started yet")
    assert answer.data["ref"]["job"] in answer.err


def test_a_connection_that_does_not_exist_is_an_error_but_for_the_default(fake: FakeWorld) -> None:
    answer = fake.dispatch("list", "--conn-id", "typo")

    assert answer.code == 2
    assert answer.err.splitlines()[-1] == "error: --conn-id = 'typo': Airflow has no connection of that name"
    assert load_settings("dispatch_default", None) == load_settings(None, None)


def test_a_connection_and_a_file_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="not both"):
        load_settings("cluster", tmp_path)
