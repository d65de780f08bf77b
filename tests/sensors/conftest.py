# SPDX-License-Identifier: Apache-2.0
"""A fake backend behind the connection ``fake``, and an Airflow that lives in memory."""

from __future__ import annotations

import json

import pytest

from airflow_provider_dispatch.adapters import registry
from tests.operators.task_run import Airflow
from tests.triggers.world import World


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    registry.register_adapter("fake", made.build_adapter)
    connection = {"conn_type": "dispatch", "extra": {"backend": "fake"}}
    monkeypatch.setenv("AIRFLOW_CONN_FAKE", json.dumps(connection))
    return made


@pytest.fixture
def airflow() -> Airflow:
    """Knows nothing yet."""
    return Airflow()
