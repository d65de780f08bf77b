# SPDX-License-Identifier: Apache-2.0
"""The hold-and-release example on the cluster of all tests, its controller a process beside them.

:mod:`.test_bare_to_proven` plays it where the controller runs in pods.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.hold_and_release import FIRST, QUEUE, ROOM_OF_ONE, SECOND, Place, open_airflow, play_hold_and_release
from tests.cluster.testbed.bed import Bed
from tests.cluster.testbed.objects import build_namespace, build_quota_queue


@pytest.fixture
def place(controlled_bed: Bed) -> Iterator[Place]:
    bed, name = controlled_bed, f"example-dag-{secrets.token_hex(3)}"
    queue, local_queue = build_quota_queue(name, QUEUE, ROOM_OF_ONE)
    state = bed.shared_folder / name
    state.mkdir(mode=0o777)
    bed.api.apply(build_namespace(name), queue, local_queue)
    yield Place(bed.kubeconfig, name, state)
    bed.api.delete(build_namespace(name))
    bed.api.delete(queue)
    shutil.rmtree(state)


def test_a_training_on_the_cluster_is_held_and_released_around_maintenance(place: Place, repository: Path) -> None:
    with open_airflow(place, repository) as airflow:
        assert play_hold_and_release(airflow, place) == [FIRST, SECOND]
