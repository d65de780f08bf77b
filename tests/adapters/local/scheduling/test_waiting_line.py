# SPDX-License-Identifier: Apache-2.0
"""The order within a queue, as people are told it."""

from __future__ import annotations

from airflow_provider_dispatch.adapters.local.scheduling.waiting_line import positions
from tests.adapters.local.scheduling.builders import ask, build_state, placed, waiting


def test_positions_count_from_one_in_each_queue() -> None:
    jobs = (
        waiting("late", ask(1), since=9),
        waiting("early", ask(1), since=3),
        waiting("early-too", ask(1), since=3),
        waiting("low", ask(1), priority=-1, since=1),
        waiting("high", ask(1), priority=1, since=20),
        waiting("elsewhere", ask(1), queue="b", since=0),
        placed("running", cpu=1),
    )
    expected = {"high": 1, "early": 2, "early-too": 3, "late": 4, "low": 5, "elsewhere": 1}
    assert positions(build_state(*jobs)) == expected
    assert positions(build_state(*reversed(jobs))) == expected


def test_nobody_waits() -> None:
    assert positions(build_state()) == {}
