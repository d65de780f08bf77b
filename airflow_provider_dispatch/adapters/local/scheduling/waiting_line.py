# SPDX-License-Identifier: Apache-2.0
"""The order in which jobs of a queue are looked at: higher priority, then longest queued, then key.

Jobs that ask for the same stand in one group, so that a group that is blocked costs one look and not one a job.
Admission walks the lines; :func:`positions` tells people where their job stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from operator import attrgetter

from airflow_provider_dispatch.adapters.local.scheduling.demand import Demand, DemandBook
from airflow_provider_dispatch.adapters.local.scheduling.model import AdmissionState, JobKey, WaitingJob


@dataclass(eq=False, slots=True)
class Group:
    """Jobs of one queue, priority and demand, in their order."""

    queue: str
    demand: Demand
    jobs: list[WaitingJob] = field(default_factory=list)


class Line:
    """What still waits in one queue, to be taken from the front.

    :param stands: whether a job stands in it at all.
    """

    def __init__(self, groups: Iterable[Group], *, stands: Callable[[WaitingJob], bool]) -> None:
        self._stands = stands
        self._fronts: list[tuple[tuple[int, float, JobKey], int, Group]] = []
        for group in groups:
            self._place(group, 0)

    def __bool__(self) -> bool:
        return bool(self._fronts)

    @property
    def head(self) -> WaitingJob:
        """The first job."""
        _, index, group = self._fronts[0]
        return group.jobs[index]

    @property
    def demand(self) -> Demand:
        """Of the first job."""
        return self._fronts[0][2].demand

    def advance(self) -> None:
        """Take the first job out."""
        _, index, group = heappop(self._fronts)
        self._place(group, index + 1)

    def skip_demand(self) -> None:
        """Take out all jobs that ask for the same as the first."""
        demand = self.demand
        self._fronts = [front for front in self._fronts if front[2].demand is not demand]
        heapify(self._fronts)

    def _place(self, group: Group, start: int) -> None:
        for index in range(start, len(group.jobs)):
            job = group.jobs[index]
            if self._stands(job):
                # Keys are unique, so two fronts never tie and groups are never compared.
                heappush(self._fronts, ((-job.priority, job.queued_since, job.key), index, group))
                return


def build_groups(jobs: Iterable[WaitingJob]) -> list[Group]:
    """All jobs, each in the group of its queue, priority and demand."""
    book = DemandBook()
    groups: dict[tuple[str, int, Demand], Group] = {}
    # Jobs that share their shapes, as those of one spec do, are spared the search for an equal demand. An identity
    # stands for its shapes as long as they live, and *jobs* keeps them alive.
    shortcuts: dict[tuple[str, int, int], Group] = {}
    for job in sort_waiting(jobs):
        shortcut = (job.queue, job.priority, id(job.shapes))
        group = shortcuts.get(shortcut)
        if group is None:
            demand = book.find(job.shapes)
            group = groups.setdefault((job.queue, job.priority, demand), Group(job.queue, demand))
            shortcuts[shortcut] = group
        group.jobs.append(job)
    return list(groups.values())


def sort_waiting(jobs: Iterable[WaitingJob]) -> list[WaitingJob]:
    """In the order of a queue."""
    # Three stable sorts by one attribute each are several times faster than one by a tuple.
    ordered = sorted(jobs, key=attrgetter("key"))
    ordered.sort(key=attrgetter("queued_since"))
    ordered.sort(key=attrgetter("priority"), reverse=True)
    return ordered


def positions(state: AdmissionState) -> Mapping[JobKey, int]:
    """Where each waiting job stands in its queue; the first has 1."""
    lengths: dict[str, int] = {}
    found: dict[JobKey, int] = {}
    for job in sort_waiting(state.waiting):
        found[job.key] = lengths[job.queue] = lengths.get(job.queue, 0) + 1
    return found
