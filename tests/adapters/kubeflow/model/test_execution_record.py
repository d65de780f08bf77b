# SPDX-License-Identifier: Apache-2.0
"""The execution record: written, read again by any version, and carried from one submission to the next."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_dispatch.adapters.kubeflow.model.execution_record import (
    EMPTY_RECORD,
    VERSION,
    ExecutionRecord,
    RecordedPod,
    Slot,
    build_undead,
    confirm_dead,
)
from airflow_provider_dispatch.exceptions import ProtocolError

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
POD = RecordedPod(Slot("node", 0, 0), "u0", "dj-s1-node-0", submission=1)

moments = st.none() | st.datetimes(timezones=st.just(UTC))
pods = st.builds(
    RecordedPod,
    slot=st.builds(Slot, st.text(), st.integers(0, 9), st.integers(0, 9)),
    uid=st.text(),
    name=st.text(),
    node=st.none() | st.text(min_size=1),
    is_dead=st.booleans(),
    vanished_at=moments,
    recorded_at=moments,
    submission=st.integers(0, 9),
    grace=st.none() | st.timedeltas(timedelta(), timedelta(days=9)),
)
records = st.builds(
    ExecutionRecord,
    r=st.integers(0, 999_999),
    a=st.integers(-9, 999_999),
    jobset_uid=st.text(),
    restart=st.integers(0, 9),
    pods=st.lists(pods, max_size=3).map(tuple),
    undead=st.lists(pods, max_size=3).map(tuple),
)


@given(records)
def test_what_is_written_is_read_again(record):
    assert ExecutionRecord.from_json(record.to_json()) == record


def test_a_record_of_a_thousand_pods_fits_into_an_annotation():
    gang = tuple(
        RecordedPod(Slot("node", 0, n), "8" * 36, "dj-" + "x" * 50, node="node-12", recorded_at=NOW, submission=1)
        for n in range(700)
    )
    assert len(ExecutionRecord(1, 1, "7" * 36, 0, gang).to_json()) < 200_000


def test_defaults_are_left_out():
    written = json.loads(ExecutionRecord(1, 1, "j", 0, (POD,)).to_json())
    assert set(written["pods"][0]) == {"slot", "uid", "name", "submission"}
    assert written["version"] == VERSION


def test_a_newer_version_is_understood_and_named():
    newer = json.loads(replace(EMPTY_RECORD, r=4).to_json()) | {"version": 9, "colour": "blue"}
    assert ExecutionRecord.from_json(json.dumps(newer)) == replace(EMPTY_RECORD, r=4, version=9)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '"x"',
        '{"r": "many"}',
        '{"r": 1, "pods": [{}]}',
        ExecutionRecord(pods=(replace(POD, vanished_at=NOW),)).to_json().replace("12:00:00Z", "12:00:00"),
    ],
)
def test_garbage_is_no_empty_record(text):
    with pytest.raises(ProtocolError):
        ExecutionRecord.from_json(text)


def test_what_is_not_proven_dead_is_left_to_the_ledger():
    old, dead = replace(POD, uid="old"), replace(POD, uid="dead", is_dead=True)
    record = ExecutionRecord(1, 1, "j", 0, (POD, dead), (old, replace(dead, uid="dead-too")))
    assert record.unproven == (old, POD)


def test_only_earlier_submissions_are_carried_over_and_each_pod_once():
    old = replace(POD, uid="old")
    ours, known = replace(POD, uid="ours", submission=2), replace(old, uid="known", is_dead=True)
    record = ExecutionRecord(1, 1, "j", 0, (ours,), (known,))
    carried = (old, replace(known, is_dead=False), ours, replace(ours, uid="copy of our own last execution"))
    assert build_undead(record, carried, 2) == (known, old)


def test_a_person_vouches_for_single_pods():
    record = ExecutionRecord(1, 1, "j", 0, (POD, replace(POD, uid="u1")), (replace(POD, uid="u2"),))
    confirmed = confirm_dead(record, {"u0", "u2", "nobody"})
    assert [pod.uid for pod in confirmed.unproven] == ["u1"]
