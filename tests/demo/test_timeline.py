# SPDX-License-Identifier: Apache-2.0
"""The report of the demonstration: what it tells, and that it notices when something is not as promised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_provider_dispatch.core.records import JobEvent, ObjectReport, StopReport
from tests.core.strategies import JOB
from tests.demo.story import JobStory, Said, Story, TaskChange
from tests.demo.timeline import WIDTH, build_entries, build_findings, render, render_bars, render_entry

BEGAN = datetime(2030, 1, 1, 12, tzinfo=UTC)
FIRST, SECOND = 1000001, 1000002


def after(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


def events(*rows: tuple[float, str, int | None]) -> tuple[JobEvent, ...]:
    return tuple(
        JobEvent(number, after(seconds), 1, kind, f"{kind} it is", epoch)
        for number, (seconds, kind, epoch) in enumerate(rows)
    )


def build_story() -> Story:
    """A run of a minute in which all went well."""
    train = JobStory(
        "train",
        events(
            (2, "submitted", None),
            (2, "gated", None),
            (3, "admitted", FIRST),
            (3, "starting", FIRST),
            (10, "running", FIRST),
            (20, "hold", FIRST),
            (20, "holding", FIRST),
            (21, "held", FIRST),
            (40, "release", FIRST),
            (40, "admitted", SECOND),
            (41, "running", SECOND),
            (50, "succeeded", SECOND),
            (55, "stopped", SECOND),
        ),
        (Said(after(20.5), FIRST, 0, "epoch 1000001 interrupted at step 7: saved checkpoint-e1000001-7.npz"),),
        {"accuracy": 0.95, "resumed_from": "checkpoint-e1000001-7.npz"},
    )
    maintenance = JobStory(
        "maintenance",
        events((15, "queued", None), (21, "admitted", FIRST), (22, "running", FIRST), (30, "succeeded", FIRST)),
        say_stamps((23, "begins"), (29, "ends")),
    )
    return Story(
        began=BEGAN,
        ended=after(62),
        state="success",
        changes=(
            TaskChange(after(1), "train", "running"),
            TaskChange(after(5), "train", "deferred"),
            TaskChange(after(52), "train", "success"),
        ),
        tries={"train": 1},
        train=train,
        maintenance=maintenance,
        stop_report=StopReport(JOB, (ObjectReport("submission 1"),)),
        uninterrupted_accuracy=0.955,
    )


def say_stamps(*stamps: tuple[float, str]) -> tuple[Said, ...]:
    return tuple(
        Said(after(seconds), FIRST, rank, f"self-test of rank {rank} {what} at {after(seconds).isoformat()}")
        for seconds, what in stamps
        for rank in (0, 1)
    )


def find_failures(story: Story) -> list[int]:
    return [number for number, finding in enumerate(build_findings(story)) if not finding.is_shown]


def test_a_good_run_shows_all():
    assert find_failures(build_story()) == []
    assert [line[:4] for line in render(build_story()) if line.startswith("  ok")] == ["  ok"] * 6


def test_entries_are_in_the_order_of_time_and_leave_details_out():
    entries = build_entries(build_story())

    assert [entry.at for entry in entries] == sorted(entry.at for entry in entries)
    told = [entry.what.split()[0] for entry in entries if entry.who == "train"]
    assert told == [
        *("submitted:", "ADMITTED", "RUNNING", "asked", "HOLDING", "rank", "HELD", "its"),
        *("ADMITTED", "RUNNING", "SUCCEEDED", "GONE"),
    ]
    assert "execution 1000002" in " ".join(entry.what for entry in entries)


def test_an_event_nobody_expected_is_told_in_its_own_words():
    story = build_story()
    story = replace(story, train=replace(story.train, events=events((4, "preempted", FIRST))))

    (entry,) = [entry for entry in build_entries(story) if entry.who == "train" and "rank" not in entry.what]
    assert entry.what == "PREEMPTED  preempted it is"


def test_a_line_says_when_who_and_what_and_is_cut():
    (entry, *_) = build_entries(build_story())
    assert render_entry(entry, BEGAN) == "    0.0  Airflow      the DAG run begins"
    assert render_entry(replace(entry, at=after(12.34), what="x" * 500), BEGAN).endswith("…")


def test_the_picture_shows_what_was_when():
    task, train, maintenance, axis, *_ = render_bars(build_story())

    lane = train.partition("|")[2]
    assert [lane[second] for second in (0, 5, 15, 30, 45, 60)] == [" ", "+", "#", "=", "#", " "]
    assert [task.partition("|")[2][second] for second in (0, 3, 30, 60)] == [" ", "w", "d", " "]
    assert [maintenance.partition("|")[2][second] for second in (10, 18, 25, 40)] == [" ", "-", "#", " "]
    assert axis.endswith("62 s")
    assert len(lane) == WIDTH + 1


def test_a_run_without_length_is_drawn_too():
    story = replace(build_story(), ended=BEGAN)
    assert len(render_bars(story)[0].partition("|")[2]) == WIDTH + 1


def with_train(**changes: Any) -> Story:
    story = build_story()
    return replace(story, train=replace(story.train, **changes))


def with_stamps(*stamps: tuple[float, str]) -> Story:
    story = build_story()
    return replace(story, maintenance=replace(story.maintenance, said=say_stamps(*stamps)))


@pytest.mark.parametrize(
    ("story", "failures"),
    [
        pytest.param(replace(build_story(), tries={"train": 2}), [0], id="a retry was spent"),
        pytest.param(replace(build_story(), changes=build_story().changes[::2]), [0], id="never deferred"),
        pytest.param(with_train(events=events((1, "admitted", FIRST))), [1, 3], id="never held"),
        pytest.param(with_train(said=()), [2], id="no checkpoint was saved at the hold"),
        pytest.param(with_train(result={"accuracy": 0.5, "resumed_from": None}), [2, 4], id="began anew, worse"),
        pytest.param(with_train(result={"resumed_from": "checkpoint-e1000001-7.npz"}), [4], id="no accuracy"),
        pytest.param(with_stamps((20, "begins"), (29, "ends")), [3], id="began before the room was free"),
        pytest.param(with_stamps((23, "begins"), (41, "ends")), [3], id="ended after the release"),
        pytest.param(with_stamps(), [3], id="said nothing"),
        pytest.param(replace(build_story(), stop_report=StopReport(JOB)), [5], id="nothing was stopped"),
        pytest.param(
            replace(build_story(), stop_report=StopReport(JOB, (ObjectReport("s"),), alive=(ObjectReport("a"),))),
            [5],
            id="something is alive",
        ),
    ],
)
def test_what_is_not_as_promised_is_noticed(story: Story, failures: Sequence[int]):
    assert find_failures(story) == failures
    assert len([line for line in render(story) if line.startswith("  NO  ")]) == len(failures)
