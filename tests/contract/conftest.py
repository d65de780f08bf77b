# SPDX-License-Identifier: Apache-2.0
"""The backends that the contract suite runs over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.contract.stage import Stage
from tests.contract.stage_fake import FakeStage
from tests.contract.stage_local import LocalStage

MakeStage = Callable[..., Stage]


def _make_fake(tmp_path: Path, queues: Mapping[str, Mapping[str, str | int]] | None) -> Stage:
    return FakeStage(queues)


def _make_local(tmp_path: Path, queues: Mapping[str, Mapping[str, str | int]] | None) -> Stage:
    return LocalStage(tmp_path / str(len(list(tmp_path.iterdir()))), queues)


STAGES = {"fake": _make_fake, "local": _make_local}


@pytest.fixture(params=sorted(STAGES))
def make_stage(request: pytest.FixtureRequest, tmp_path: Path) -> MakeStage:
    """Makes a stage with queues of its own: name → quota; None: any queue, no limit."""

    def make(queues: Mapping[str, Mapping[str, str | int]] | None = None) -> Stage:
        return STAGES[request.param](tmp_path, queues)

    return make


@pytest.fixture
def stage(make_stage: MakeStage) -> Stage:
    """A backend without limits."""
    return make_stage()
