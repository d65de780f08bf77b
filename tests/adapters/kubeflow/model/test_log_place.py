# SPDX-License-Identifier: Apache-2.0
"""A log that can only be read again from a whole second on is given out once all the same."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_dispatch.adapters.kubeflow.model.log_place import LogLine, LogPlace, parse_line

SECOND = 1_000_000_000


def since(place: LogPlace) -> int:
    return int(place.since.timestamp()) * SECOND if place.since is not None else 0


@settings(max_examples=300, deadline=None)
@given(
    steps=st.lists(st.integers(0, 3 * SECOND // 2) | st.just(0), min_size=1, max_size=40),
    jitter=st.lists(st.integers(-900_000_000, 0), min_size=40, max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=6),
    keeps_place=st.booleans(),
)
def test_every_line_comes_once_and_in_order_whatever_breaks(
    steps: list[int], jitter: list[int], cuts: list[int], keeps_place: bool
) -> None:
    """Lines may be stamped out of order by less than a second; a reading may end after any line."""
    at, log = 1_800_000_000 * SECOND, []
    for step, shift in zip(steps, jitter, strict=False):
        at += step
        log.append(LogLine(at + (shift if step == 0 else 0), b""))
    place, given_out = LogPlace(), []
    for most in [*cuts, len(log)]:
        place.begin_again()
        begin, left = since(place), most
        for index, line in enumerate(log):
            if line.stamp < begin or left == 0:
                continue
            if place.take(line):
                given_out.append(index)
                left -= 1
        if not keeps_place:
            place = LogPlace(place.newest, place.sequence, max(place.count, place.to_skip))
    assert given_out == list(range(len(log)))
    assert place.sequence == len(log)


def test_a_log_that_was_cut_off_is_told_and_nothing_new_is_passed_over() -> None:
    place = LogPlace()
    for stamp in (10, 11, 12):
        place.take(LogLine(stamp * SECOND, b""))
    place.begin_again()
    line = LogLine(20 * SECOND, b"")
    assert place.is_cut_off(line)
    assert place.take(line)
    assert place.sequence == 4


def test_a_reading_that_goes_on_where_it_was_is_not_cut_off() -> None:
    place = LogPlace()
    for stamp in (10, 11, 12):
        place.take(LogLine(stamp * SECOND, b""))
    place.begin_again()
    assert place.since == datetime.fromtimestamp(11, UTC)
    assert [place.take(LogLine(stamp * SECOND, b"")) for stamp in (11, 12, 13)] == [False, False, True]


def test_a_reading_that_broke_while_passing_over_loses_no_count() -> None:
    place = LogPlace(12 * SECOND, 3, 2)
    place.begin_again()
    assert not place.take(LogLine(11 * SECOND, b""))
    place.begin_again()
    assert [place.take(LogLine(stamp * SECOND, b"")) for stamp in (11, 12, 12)] == [False, False, True]


@pytest.mark.parametrize(
    ("raw", "stamp", "text"),
    [
        (b"2026-03-01T12:00:00.123456789Z hello there", 1772366400123456789, b"hello there"),
        (b"2026-03-01T12:00:00.5Z x", 1772366400500000000, b"x"),
        (b"2026-03-01T12:00:00Z ", 1772366400000000000, b""),
        (b"2026-03-01T13:00:00.25+01:00 x", 1772366400250000000, b"x"),
    ],
)
def test_stamps_are_read_to_the_nanosecond(raw: bytes, stamp: int, text: bytes) -> None:
    assert parse_line(raw) == LogLine(stamp, text)


@pytest.mark.parametrize("raw", [b"", b"unable to retrieve container logs", b"2026-03-01 x", b"2026-03-01T12:00:00 x"])
def test_what_carries_no_stamp_is_no_line(raw: bytes) -> None:
    assert parse_line(raw) is None
