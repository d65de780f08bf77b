# SPDX-License-Identifier: Apache-2.0
"""What holds of every derivation, whatever the objects look like: total, blind to order, never un-ending a job."""

from __future__ import annotations

import copy
from dataclasses import replace
from datetime import timedelta

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.derive import derive_observation
from airflow_provider_dispatch.adapters.kubeflow.model.object_set import ObjectSet
from airflow_provider_dispatch.adapters.kubeflow.model.submission import End, dump
from airflow_provider_dispatch.core import wire
from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.core.state import ENDED, Cause, State
from tests.adapters.kubeflow.model.derive.expectations import EXPECTED
from tests.objects.recordings import Recording, build_object_set, load_recordings

RECORDINGS = load_recordings()
RUBBISH = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.text(max_size=5),
    st.sampled_from(
        [
            *("True", "False", "0", "1", "9" * 5000, "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "2026-11-30"),
            *("{}", "[]", "null", '{"active": [], "last_instance": -1}', '{"state": "failed", "at": "2026-01-01"}'),
            *('{"running": {"since": "2026-01-01T00:00:00"}}', '{"r": 3, "pods": [1]}', "[" * 2000),
        ]
    ),
    st.builds(list),
    st.builds(dict),
    st.builds(lambda: [None, 1, {"type": 3}]),
)
scenes = st.sampled_from(RECORDINGS)
relaxed = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def mangled(draw: st.DrawFn) -> Recording:
    """Some of the objects of a recording, with some of their fields gone or turned into something else."""
    recording = draw(scenes)
    kept = draw(st.sets(st.sampled_from(range(len(recording.objects)))))
    objects = [copy.deepcopy(recording.objects[place]) for place in sorted(kept)]
    for one in objects:
        for _ in range(draw(st.integers(0, 4))):
            _mangle(draw, one)
    return replace(recording, objects=tuple(objects))


def _mangle(draw: st.DrawFn, value: object) -> None:
    """Walk to a random place and break it."""
    while isinstance(value, dict | list) and value:
        keys = sorted(value) if isinstance(value, dict) else list(range(len(value)))
        key = draw(st.sampled_from(keys))
        if isinstance(value[key], dict | list) and value[key] and draw(st.integers(0, 4)):
            value = value[key]
            continue
        if draw(st.booleans()):
            value[key] = draw(RUBBISH)
        else:
            del value[key]
        return


@relaxed
@given(mangled())
def test_no_objects_make_it_raise(recording: Recording) -> None:
    seen = derive_observation(build_object_set(recording.objects), recording.now)
    assert seen.state in State
    assert seen.state is not State.UNKNOWN or seen.evidence
    assert wire.load(Observation, wire.dump(seen)).state is seen.state


ANNOTATIONS = (
    *(words.SPEC_ANNOTATION, words.OWNER_ANNOTATION, words.SUPERVISION_ANNOTATION, words.HOLDS_ANNOTATION),
    *(words.RECORD_ANNOTATION, words.CLOCKS_ANNOTATION, words.END_ANNOTATION, words.STOP_ANNOTATION),
    *(words.ADMISSIONS_ANNOTATION, words.CALLER_ATTEMPT_ANNOTATION, words.NOT_BEFORE_ANNOTATION),
)


@relaxed
@given(scenes, st.dictionaries(st.sampled_from(ANNOTATIONS), RUBBISH.filter(lambda one: isinstance(one, str))))
def test_no_annotation_makes_it_raise(recording: Recording, annotations: dict[str, str]) -> None:
    seen = derive_observation(annotate(subject(recording), annotations), recording.now)
    assert seen.state is not State.UNKNOWN or {proof.field for proof in seen.evidence} <= {*annotations, "data"}


@relaxed
@given(scenes, st.randoms(use_true_random=False))
def test_the_order_of_lists_means_nothing(recording: Recording, random) -> None:
    known = derive_observation(subject(recording), recording.now)
    objects = [copy.deepcopy(one) for one in recording.objects]
    random.shuffle(objects)
    for one in objects:
        shuffle_lists(one, random)
    shuffled = replace(recording, objects=tuple(objects))
    assert derive_observation(subject(shuffled), recording.now) == known


@relaxed
@given(scenes.filter(lambda one: subject(one).trainjob is not None), scenes, st.sampled_from(sorted(ENDED)))
def test_nothing_un_ends_a_job(recording: Recording, later: Recording, state: State) -> None:
    end = End(state, recording.now, Cause.EXITED if state is State.FAILED else None, "so it was")
    marked = annotate(subject(recording), {words.END_ANNOTATION: dump(end)})
    mixed = replace(subject(later), trainjob=marked.trainjob)
    for objects in (marked, mixed):
        seen = derive_observation(objects, recording.now + timedelta(days=1))
        assert (seen.state, seen.cause, seen.detail) == (state, end.cause, "so it was")


@relaxed
@given(scenes, st.integers(0, 10**7))
def test_later_looks_make_no_clock_run_backwards(recording: Recording, seconds: int) -> None:
    later = recording.now + timedelta(seconds=seconds)
    first = derive_observation(subject(recording), recording.now)
    second = derive_observation(subject(recording), later)
    for name in ("gated", "queued", "starting", "running", "held"):
        before, after = getattr(first.clocks, name), getattr(second.clocks, name)
        assert after.elapsed(later) >= before.elapsed(recording.now)


def subject(recording: Recording) -> ObjectSet:
    """The submission that the recording is about."""
    expected = EXPECTED.get(recording.id)
    return recording.object_set(expected.trainjob if expected is not None else "")


def annotate(objects: ObjectSet, annotations: dict[str, str]) -> ObjectSet:
    """With these annotations on the TrainJob."""
    if objects.trainjob is None:
        return objects
    metadata = objects.trainjob["metadata"]
    both = {**(metadata.get("annotations") or {}), **annotations}
    return replace(objects, trainjob={**objects.trainjob, "metadata": {**metadata, "annotations": both}})


def shuffle_lists(value: object, random) -> None:
    """All lists that are sets to Kubernetes, at any depth; words of a command keep their order."""
    if isinstance(value, dict):
        for key, part in value.items():
            if isinstance(part, list) and key not in ("command", "args"):
                random.shuffle(part)
            shuffle_lists(part, random)
    elif isinstance(value, list):
        for part in value:
            shuffle_lists(part, random)
