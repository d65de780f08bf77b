# SPDX-License-Identifier: Apache-2.0
"""The world in memory that the controller's tests play in."""

from __future__ import annotations

import pytest

from tests.controller.world import World


@pytest.fixture
def world() -> World:
    return World()
