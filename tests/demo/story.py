# SPDX-License-Identifier: Apache-2.0
"""What a run of the demonstration has left behind, as plain values: read by ``evidence``, told by ``timeline``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from airflow_provider_dispatch.core.records import JobEvent, StopReport

TRAIN, MAINTENANCE = "train", "maintenance"
DEFERRED = "deferred"


@dataclass(frozen=True, slots=True)
class TaskChange:
    """A task came into a state, as Airflow's REST API told it.

    :param at: the task's own start or end where Airflow records it, else when we asked.
    """

    at: datetime
    task_id: str
    state: str


@dataclass(frozen=True, slots=True)
class Said:
    """A line that a rank of a job printed."""

    at: datetime
    epoch: int
    rank: int
    text: str


@dataclass(frozen=True, slots=True)
class JobStory:
    """One job: the events of the store, what its ranks printed, and the result that its task handed on."""

    name: str
    events: tuple[JobEvent, ...]
    said: tuple[Said, ...] = ()
    result: Mapping[str, object] = field(default_factory=dict)

    def when(self, kind: str) -> datetime | None:
        """The first event of a kind; None if there was none."""
        return next((event.at for event in self.events if event.kind == kind), None)

    @property
    def epochs(self) -> list[int]:
        """One for each admission, in their order."""
        return [event.epoch for event in self.events if event.kind == "admitted" and event.epoch is not None]


@dataclass(frozen=True, slots=True)
class Story:
    """The whole run.

    :param tries: task to the number of its last try.
    :param uninterrupted_accuracy: of the same training, run once without Airflow and without interruption.
    """

    began: datetime
    ended: datetime
    state: str
    changes: tuple[TaskChange, ...]
    tries: Mapping[str, int]
    train: JobStory
    maintenance: JobStory
    stop_report: StopReport
    uninterrupted_accuracy: float
