# SPDX-License-Identifier: Apache-2.0
"""Stores for the tests that ask for one; whatever was started for a store is ended with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.adapters.local.world import World


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    """Stores with settings of their own."""
    made: list[World] = []

    def make(**settings: object) -> World:
        made.append(World(tmp_path / f"dispatch-{len(made)}", **settings))
        return made[-1]

    yield make
    for world in made:
        world.end_agent()


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    """A store of its own, for a test that does something to it or to its agent."""
    return make_world()


@pytest.fixture(scope="module")
def shared_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A store that the tests of a module share: each has jobs of its own, and none harms the agent."""
    made = World(tmp_path_factory.mktemp("shared") / "dispatch")
    yield made
    made.end_agent()
