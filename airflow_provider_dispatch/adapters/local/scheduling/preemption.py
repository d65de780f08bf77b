# SPDX-License-Identifier: Apache-2.0
"""Whom to end so that a job of a higher priority gets room: a complete and smallest set, or nobody.

Only jobs of the same queue are victims: priority doesn't reach into other queues. Admission asks when a job is
blocked; ending the victims is not decided twice, because the preemptor then holds a reservation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from airflow_provider_dispatch.adapters.local.scheduling.demand import Demand
from airflow_provider_dispatch.adapters.local.scheduling.ledger import Ledger
from airflow_provider_dispatch.adapters.local.scheduling.model import JobKey, PlacedJob, Placement, WaitingJob


@dataclass(frozen=True, slots=True)
class Eviction:
    """What makes room for a job.

    :param room: where the preemptor will be.
    :param gone: whose end makes the room: jobs that are ending anyway, and victims that still run.
    """

    room: Placement
    gone: tuple[PlacedJob, ...]

    @property
    def victims(self) -> tuple[PlacedJob, ...]:
        """Those that must be asked to end."""
        return tuple(job for job in self.gone if not job.is_ending)


class VictimPool:
    """Who could be ended, by queue: those that run, in the order in which they are taken, and those that end anyway."""

    def __init__(self, placed: Iterable[PlacedJob]) -> None:
        self._running: dict[str, list[PlacedJob]] = defaultdict(list)
        self._ending: dict[str, list[PlacedJob]] = defaultdict(list)
        # The lowest priority first, then the shortest run, then the key.
        for job in sorted(placed, key=lambda job: (job.priority, -job.admitted_at, job.key)):
            if job.is_ending:
                self._ending[job.queue].append(job)
            elif not job.is_protected:
                self._running[job.queue].append(job)

    def find_eviction(
        self, job: WaitingJob, demand: Demand, taken: Ledger, awaited: Container[JobKey]
    ) -> Eviction | None:
        """The jobs to end for *job*; None if no set of them makes enough room.

        :param taken: what is used or set aside for others.
        :param awaited: jobs whose room somebody else counts on already.
        """
        lower = [victim for victim in self._running[job.queue] if victim.priority < job.priority]
        # What ends anyway spares a victim, but gives nobody a claim who could not have taken the room by force.
        if not lower or _fit_without(lower, job, demand, taken) is None:
            return None
        ending = [gone for gone in self._ending[job.queue] if gone.key not in awaited]
        chosen = _prune(_take_until_fit([*ending, *lower], job, demand, taken), job, demand, taken)
        room = _fit_without(chosen, job, demand, taken)
        return None if room is None else Eviction(room, tuple(chosen))

    def remove(self, victims: Iterable[PlacedJob]) -> None:
        """They have been asked to end and are nobody else's victims."""
        for victim in victims:
            self._running[victim.queue].remove(victim)


def _fit_without(gone: Iterable[PlacedJob], job: WaitingJob, demand: Demand, taken: Ledger) -> Placement | None:
    trial = taken.copy()
    for other in gone:
        trial.add(other.queue, other.placement, times=-1)
    return trial.fit(job.queue, demand)


def _take_until_fit(candidates: Sequence[PlacedJob], job: WaitingJob, demand: Demand, taken: Ledger) -> list[PlacedJob]:
    trial = taken.copy()
    count = 0
    while count < len(candidates) and trial.fit(job.queue, demand) is None:
        trial.add(candidates[count].queue, candidates[count].placement, times=-1)
        count += 1
    return list(candidates[:count])


def _prune(chosen: list[PlacedJob], job: WaitingJob, demand: Demand, taken: Ledger) -> list[PlacedJob]:
    """Give back, from the last taken to the first, whoever isn't needed."""
    for other in reversed(chosen):
        without = [kept for kept in chosen if kept is not other]
        if _fit_without(without, job, demand, taken) is not None:
            return _prune(without, job, demand, taken)
    return chosen
