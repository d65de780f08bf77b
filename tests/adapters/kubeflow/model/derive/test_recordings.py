# SPDX-License-Identifier: Apache-2.0
"""One expectation for each recorded scene, and a scene for each state and cause there is."""

from __future__ import annotations

import pytest

from airflow_provider_dispatch.adapters.kubeflow.model.derive import derive_observation
from tests.adapters.kubeflow.model.derive.expectations import EXPECTED, Expected
from tests.objects.recordings import Recording, load_recordings

RECORDINGS = {recording.id: recording for recording in load_recordings()}


@pytest.mark.parametrize("recording", RECORDINGS.values(), ids=RECORDINGS)
def test_a_recorded_scene_is_told_right(recording: Recording) -> None:
    expected = EXPECTED[recording.id]
    seen = derive_observation(recording.object_set(expected.trainjob), recording.now)
    told = (seen.state, seen.cause)
    assert told == (expected.state, expected.cause), seen.detail
    assert (expected.detail in seen.detail) if expected.detail else (seen.detail == "")
    check_pending(seen.pending, expected)
    counts = [(role.ready, role.running, role.succeeded, role.failed) for role in seen.ranks]
    assert tuple(map(sum, zip(*counts, strict=True))) == expected.ranks
    assert (seen.execution.epoch if seen.execution else None) == expected.epoch
    rank = seen.failed_rank
    assert ((rank.role, rank.rank, rank.exit_code, rank.signal) if rank else None) == expected.failed_rank
    assert (len(seen.holds), seen.waiting_role, seen.gates.others) == (
        expected.holds,
        expected.waiting_role,
        expected.others,
    )
    assert seen.result == expected.result


def check_pending(pending, expected: Expected) -> None:
    if expected.pending is None:
        assert pending is None
        return
    code, message = expected.pending
    assert pending is not None
    assert (pending.code, pending.evictions) == (code, expected.evictions)
    assert message in pending.message


def test_every_expectation_has_its_recording() -> None:
    assert set(EXPECTED) == set(RECORDINGS)
