# SPDX-License-Identifier: Apache-2.0
"""That each measurement can be made; with numbers far too small to tell anything."""

from __future__ import annotations

import json

import pytest

from tests.cluster.benchmarks.__main__ import SUBJECTS, Sizes, measure_all, parse_arguments
from tests.cluster.testbed.bed import Bed

TINY = Sizes(rounds=1, waiting=(1, 3), window_seconds=2.0, pods=(1, 3))
EXPECTED = {
    "requests": {f"requests.{verb}" for verb in ("start.first", "start", "open", "hold", "release", "stop")},
    "start": {"start.workload"},
    "readmission": {"readmission"},
    "fence": {"fence.1", "fence.3"},
    "crowd": {"controller.memory", "controller.cpu", "waiting.1", "waiting.3"},
}


@pytest.mark.parametrize(
    "subject",
    [pytest.param(name, marks=[] if name in ("requests", "readmission") else pytest.mark.matrix) for name in SUBJECTS],
)
def test_a_subject_can_be_measured(controlled_bed: Bed, subject):
    document = measure_all(controlled_bed, [subject], TINY)
    assert document["not_measured"] == {}
    figures = {figure["name"]: figure["value"] for figure in document["figures"]}
    assert set(figures) == EXPECTED[subject]
    # The audit log may be silent while a few jobs wait, and the controller at rest; all else takes time or requests.
    assert all(value > 0 for name, value in figures.items() if not name.startswith(("waiting", "controller.cpu")))
    assert json.loads(json.dumps(document))["machine"]["load_at_the_end"]


@pytest.mark.matrix
def test_a_subject_that_fails_is_named_and_the_others_are_measured(controlled_bed: Bed):
    document = measure_all(controlled_bed, ["crowd", "fence"], Sizes(waiting=(), window_seconds=0.1, pods=(1,)))
    assert list(document["not_measured"]) == ["crowd"]
    assert [figure["name"] for figure in document["figures"]] == ["fence.1"]


def test_what_is_measured_can_be_chosen():
    assert parse_arguments([]) == (list(SUBJECTS), Sizes(waiting=[1, 100, 1_000], pods=[2, 200]))
    chosen = ["--only", "crowd", "--waiting", "5", "--window-seconds", "7", "--pods", "2", "--rounds", "3"]
    assert parse_arguments(chosen) == (["crowd"], Sizes(3, [5], 7.0, [2]))
