# SPDX-License-Identifier: Apache-2.0
"""The command over a real local store, and over the fake."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from airflow_provider_dispatch.adapters import registry
from airflow_provider_dispatch.adapters.protocol import DispatchAdapter
from airflow_provider_dispatch.testing.fake_adapter import FakeAdapter
from airflow_provider_dispatch.testing.fake_backend import FakeBackend
from tests.adapters.local.world import World
from tests.cli.calling import Caller


def write_settings(path: Path, fields: dict[str, object]) -> Path:
    path.write_text(yaml.safe_dump(fields))
    return path


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One store for all tests of a module; each has jobs of its own."""
    made = World(tmp_path_factory.mktemp("cli") / "dispatch")
    yield made
    made.end_agent()


@pytest.fixture
def dispatch(world: World, tmp_path: Path) -> Caller:
    """The command over that store."""
    settings = world.settings.model_dump(mode="json", exclude_none=True)
    return Caller(write_settings(tmp_path / "settings.yaml", {"backend": "local", **settings}))


class FakeWorld:
    """A backend on paper, and the command over it."""

    def __init__(self, tmp_path: Path) -> None:
        self.backend = FakeBackend()
        self.adapter: DispatchAdapter = FakeAdapter(self.backend)
        self.path = tmp_path / "fake.yaml"
        self.dispatch = Caller(write_settings(self.path, {"backend": "fake"}))
        registry.register_adapter("fake", lambda _: self.adapter)

    @property
    def fake(self) -> FakeAdapter:
        """The adapter that is asked."""
        assert isinstance(self.adapter, FakeAdapter)
        return self.adapter


@pytest.fixture
def fake(tmp_path: Path) -> FakeWorld:
    """The command over a fake."""
    return FakeWorld(tmp_path)
