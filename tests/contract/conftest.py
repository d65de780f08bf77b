# SPDX-License-Identifier: Apache-2.0
"""The backends that the contract suite runs over. Those that need a cluster carry the marker ``cluster``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.contract.stage import Stage
from tests.contract.stage_fake import FakeStage
from tests.contract.stage_local import LocalStage

MakeStage = Callable[..., Stage]
Queues = Mapping[str, Mapping[str, str | int]] | None


def _make_fake(_request: pytest.FixtureRequest, _folder: Path, queues: Queues) -> Stage:
    return FakeStage(queues)


def _make_local(_request: pytest.FixtureRequest, folder: Path, queues: Queues) -> Stage:
    return LocalStage(folder / str(len(list(folder.iterdir()))), queues)


def _make_kubeflow(request: pytest.FixtureRequest, _folder: Path, queues: Queues) -> Stage:
    from tests.contract.stage_kubeflow import KubeflowStage

    bed, granted = request.getfixturevalue("controlled_bed"), request.getfixturevalue("granted")
    return KubeflowStage(bed, queues, granted=granted)


def _make_plain(request: pytest.FixtureRequest, _folder: Path, queues: Queues) -> Stage:
    from tests.contract.stage_kubeflow import KubeflowStage

    if queues is not None:
        pytest.skip("kubeflow in plain mode: jobs name no queue")
    bed, granted = request.getfixturevalue("controlled_bed"), request.getfixturevalue("granted")
    return KubeflowStage(bed, is_plain=True, granted=granted)


STAGES = {"fake": _make_fake, "local": _make_local, "kubeflow": _make_kubeflow, "plain": _make_plain}
ON_A_CLUSTER = {"kubeflow", "plain"}


@pytest.fixture(
    params=[pytest.param(name, marks=[pytest.mark.cluster] if name in ON_A_CLUSTER else []) for name in sorted(STAGES)]
)
def make_stage(request: pytest.FixtureRequest, tmp_path: Path) -> MakeStage:
    """Makes a stage with queues of its own: name → quota; None: any queue, no limit."""

    def make(queues: Queues = None) -> Stage:
        return STAGES[request.param](request, tmp_path, queues)

    return make


@pytest.fixture
def stage(make_stage: MakeStage) -> Stage:
    """A backend without limits."""
    return make_stage()
