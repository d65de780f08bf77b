# SPDX-License-Identifier: Apache-2.0
"""Tells the story of a run to somebody who sees it for the first time. Pure: a story comes in, lines of text go out."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from airflow_provider_dispatch.core.records import JobEvent
from tests.demo.story import DEFERRED, JobStory, Story

AIRFLOW = "Airflow"
INTRODUCTION = (
    "A job of two processes, train, was trained as one task of an Airflow DAG. Beside it other tasks of the same run"
    " held it, used its room for a second job, maintenance, and released it: their queue has room for one of the two."
)
WIDTH = 62
LONGEST_TEXT = 92

WORDS = {
    "submitted": "submitted: {message}",
    "queued": "QUEUED   {message}",
    "admitted": "ADMITTED all ranks get their room together; execution {epoch} starts",
    "running": "RUNNING  execution {epoch}: all ranks are ready",
    "hold": "asked to give its room back: {message}",
    "holding": "HOLDING  its processes save a checkpoint and end",
    "held": "HELD     every process is gone, the room is free",
    "release": "its hold is lifted",
    "succeeded": "SUCCEEDED",
    "stopped": "GONE     what was left of it is removed",
}
"""Kind of event to what it means. Other kinds are told in their own words."""

UNTOLD = frozenset({"gated", "opened", "starting", "gone", "waiting", "stop"})
"""Kinds that say in more detail what another line says."""

MARKS = {"gated": "-", "queued": "-", "starting": "+", "running": "#", "holding": "=", "held": "="}
TASK_MARKS = {"running": "w", DEFERRED: "d"}
LEGEND = (
    f"task: w in a worker, {TASK_MARKS[DEFERRED]} deferred"
    " · job: - waiting for room, + starting, # running, = held, its room free"
)

TASK_WORDS = {
    "running": "task {task} begins in a worker",
    DEFERRED: "task {task} is deferred: it waits without a worker",
    "success": "task {task} is done",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the timeline."""

    at: datetime
    who: str
    what: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that the demonstration is to show, and whether it did."""

    is_shown: bool
    text: str


def render(story: Story) -> list[str]:
    """The whole report."""
    lines = ["", *textwrap.wrap(INTRODUCTION, 110), ""]
    lines += [f"What happened, in seconds since the DAG run began at {story.began:%H:%M:%S} UTC:", ""]
    lines += (render_entry(entry, story.began) for entry in build_entries(story))
    lines += ["", "The same as a picture:", "", *render_bars(story), "", "What that shows:", ""]
    for finding in build_findings(story):
        mark = "  ok  " if finding.is_shown else "  NO  "
        lines += textwrap.wrap(finding.text, 110, initial_indent=mark, subsequent_indent=" " * len(mark))
    return [*lines, ""]


# -- the timeline ----------------------------------------------------------------------------------------------------


def build_entries(story: Story) -> list[Entry]:
    """In the order of time."""
    entries = [
        Entry(story.began, AIRFLOW, "the DAG run begins"),
        *_tell_tasks(story),
        *_tell_job(story.train),
        *_tell_job(story.maintenance),
        Entry(story.ended, AIRFLOW, f"the DAG run ends: {story.state}"),
    ]
    return sorted(entries, key=lambda entry: entry.at)


def render_entry(entry: Entry, began: datetime) -> str:
    seconds = (entry.at - began).total_seconds()
    what = entry.what if len(entry.what) <= LONGEST_TEXT else entry.what[: LONGEST_TEXT - 1] + "…"
    return f"  {seconds:5.1f}  {entry.who:<11}  {what}"


def _tell_tasks(story: Story) -> Iterator[Entry]:
    for change in story.changes:
        words = TASK_WORDS.get(change.state, f"task {{task}}: {change.state}")
        yield Entry(change.at, AIRFLOW, words.format(task=change.task_id))


def _tell_job(job: JobStory) -> Iterator[Entry]:
    for event in job.events:
        if event.kind not in UNTOLD:
            yield Entry(event.at, job.name, _tell_event(event))
    for line in job.said:
        yield Entry(line.at, job.name, f"rank {line.rank} says: {line.text}")


def _tell_event(event: JobEvent) -> str:
    words = WORDS.get(event.kind, event.kind.upper() + "  {message}")
    message = event.message.removeprefix("queued in ") if event.kind == "queued" else event.message
    return words.format(message=message, epoch=event.epoch)


# -- the picture -----------------------------------------------------------------------------------------------------


def render_bars(story: Story) -> list[str]:
    """A lane for the task and for the job of the training, and one for the other job."""
    tasks = [(change.at, TASK_MARKS.get(change.state, " ")) for change in story.changes if change.task_id == "train"]
    lanes = {
        "task train": tasks,
        "job train": _mark_job(story.train),
        "job maintenance": _mark_job(story.maintenance),
    }
    bars = [f"  {name:<16} |{_draw(marks, story)}|" for name, marks in lanes.items()]
    end = f"{(story.ended - story.began).total_seconds():.0f} s"
    return [*bars, f"  {'':<16}  0{end:>{WIDTH - 1}}", "", f"  {LEGEND}"]


def _mark_job(job: JobStory) -> list[tuple[datetime, str]]:
    ends = {"succeeded": " ", "failed": " ", "stopped": " "}
    marks = MARKS | ends
    return [(event.at, marks[event.kind]) for event in job.events if event.kind in marks]


def _draw(marks: Sequence[tuple[datetime, str]], story: Story) -> str:
    """Each column shows what was last at the end of its time."""
    length = max((story.ended - story.began).total_seconds(), 1e-9)
    columns = []
    for column in range(WIDTH):
        until = story.began.timestamp() + length * (column + 1) / WIDTH
        columns.append(next((mark for at, mark in reversed(marks) if at.timestamp() < until), " "))
    return "".join(columns)


# -- what it shows ---------------------------------------------------------------------------------------------------


def build_findings(story: Story) -> list[Finding]:
    """In the order in which they are told."""
    return [
        _find_deferral(story),
        _find_epochs(story),
        _find_resumption(story),
        _find_use_of_room(story),
        _find_accuracy(story),
        _find_stop(story),
    ]


def _find_deferral(story: Story) -> Finding:
    states = [change.state for change in story.changes if change.task_id == "train"]
    tries = story.tries.get("train", 0)
    text = (
        f"train was one task, deferred while its job ran, was held and ran again; tries: {tries}, so no retry was spent"
    )
    return Finding(states.count(DEFERRED) >= 1 and tries == 1 and states[-1] == "success", text)


def _find_epochs(story: Story) -> Finding:
    epochs = story.train.epochs
    text = (
        f"its job ran twice, under the epochs {' and '.join(map(str, epochs))}: what the later one writes sorts behind"
    )
    return Finding(epochs == [1000001, 1000002], text)


def _find_resumption(story: Story) -> Finding:
    source = str(story.train.result.get("resumed_from"))
    text = f"the second execution went on from {source}, which the first had saved when it was held"
    saved = any(line.epoch == 1000001 and line.text.endswith(f"saved {source}") for line in story.train.said)
    return Finding(saved, text)


def _find_use_of_room(story: Story) -> Finding:
    """The other job's own stamps against the interval in which nothing of the training was alive."""
    held, released = story.train.when("held"), story.train.when("release")
    stamps = sorted(read_stamps(story.maintenance))
    if held is None or released is None or len(stamps) < 2:
        return Finding(
            is_shown=False, text=f"maintenance in the freed room: {len(stamps)} stamps, held {held}, {released}"
        )
    first, last = stamps[0], stamps[-1]
    text = (
        f"maintenance used the freed room: by its own stamps it ran from {_clock(first)} to {_clock(last)},"
        f" and train was held from {_clock(held)} to {_clock(released)}"
    )
    return Finding(held <= first <= last <= released, text)


def _find_accuracy(story: Story) -> Finding:
    accuracy, other = story.train.result.get("accuracy"), story.uninterrupted_accuracy
    text = f"it reads {accuracy} of the test digits right; trained without interruption, {other}"
    return Finding(isinstance(accuracy, float) and abs(accuracy - other) <= 0.01, text)


def _find_stop(story: Story) -> Finding:
    report = story.stop_report
    parts = {"stopped": report.stopped, "alive": report.alive, "unproven": report.unproven}
    listed = ", ".join(f"{name}: {', '.join(found.object for found in part) or 'none'}" for name, part in parts.items())
    return Finding(report.is_complete and bool(report.stopped), f"the report of the stop task: {listed}")


def read_stamps(job: JobStory) -> list[datetime]:
    """What the processes themselves say about when they began and ended: ``… begins at <ISO time>``."""
    stamps = []
    for line in job.said:
        _, mark, stamp = line.text.rpartition(" at ")
        if mark:
            stamps.append(datetime.fromisoformat(stamp))
    return stamps


def _clock(at: datetime) -> str:
    return f"{at:%H:%M:%S}.{at.microsecond // 1000:03d}"
