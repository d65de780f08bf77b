# SPDX-License-Identifier: Apache-2.0
"""A store for each test that asks for one; whatever it has started is ended with the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adapters.local.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A store of its own."""
    made = World(tmp_path / "dispatch")
    yield made
    made.end_agent()
