# SPDX-License-Identifier: Apache-2.0
"""One expectation for each recorded scene, and a scene for each state and cause there is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.derive import derive_observation
from airflow_provider_dispatch.adapters.kubeflow.model.object_set import ObjectSet
from airflow_provider_dispatch.core.state import Cause, State
from tests.adapters.kubeflow.model.derive.expectations import (
    EXCUSED_CAUSES,
    EXCUSED_STATES,
    EXPECTED,
    Expected,
)
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


LATCHED = {name: recording for name, recording in RECORDINGS.items() if words.END_ANNOTATION in str(recording.objects)}
SEEN_TOO_LATE = {"kueue-0.19.2/evicted"}
"""What proved the cause had gone when this was recorded: only the end that was written down knows it."""


@pytest.mark.parametrize("name", sorted(LATCHED.keys() - SEEN_TOO_LATE))
def test_an_end_that_was_written_down_is_also_what_the_objects_show(name: str) -> None:
    recording = LATCHED[name]
    seen = derive_observation(forget_end(recording.object_set()), recording.now)
    expected = EXPECTED[name]
    assert (seen.state, seen.cause) == (expected.state, expected.cause)
    assert expected.detail in seen.detail


def forget_end(objects: ObjectSet) -> ObjectSet:
    """As if nobody had written the end down."""
    assert objects.trainjob is not None
    metadata = objects.trainjob["metadata"]
    notes = {key: note for key, note in metadata["annotations"].items() if key != words.END_ANNOTATION}
    return replace(objects, trainjob={**objects.trainjob, "metadata": {**metadata, "annotations": notes}})


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


def test_every_state_was_recorded_or_has_its_excuse() -> None:
    told = {expected.state for expected in EXPECTED.values()}
    assert set(State) - told == EXCUSED_STATES.keys()
    assert all(EXCUSED_STATES.values())


def test_every_cause_was_recorded_or_has_its_excuse() -> None:
    told = {expected.cause for expected in EXPECTED.values()}
    assert set(Cause) - told == EXCUSED_CAUSES.keys()
    assert all(EXCUSED_CAUSES.values())
