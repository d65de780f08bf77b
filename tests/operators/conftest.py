# SPDX-License-Identifier: Apache-2.0
"""A fake backend under a connection of its own, and an Airflow that lives in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from airflow_provider_dispatch.adapters import registry
from airflow_provider_dispatch.testing.fake_adapter import FakeAdapter
from airflow_provider_dispatch.testing.fake_backend import FakeBackend
from tests.operators.task_run import Airflow

CONNECTION_ID = "dispatch_fake"
SECRET = "do-not-show"


@pytest.fixture
def world() -> FakeBackend:
    """The backend; its clock stands still unless a test moves it."""
    return FakeBackend()


@pytest.fixture
def connection(world: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Id of a connection to *world*."""
    name = f"fake-{id(world)}"
    registry.register_adapter(name, lambda _: FakeAdapter(world))
    extra = {"backend": name, "deployment": "airflow", "queue": "team-a"}
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONNECTION_ID.upper()}", json.dumps({"conn_type": "dispatch", "extra": extra}))
    yield CONNECTION_ID
    registry.unregister_adapter(name) if hasattr(registry, "unregister_adapter") else None


@pytest.fixture
def airflow() -> Airflow:
    """Knows nothing yet."""
    return Airflow()
