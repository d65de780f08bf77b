# SPDX-License-Identifier: Apache-2.0
"""Room that is set aside for waiting jobs: what is promised, to whom, and what others may therefore not have.

Two kinds: for a preemptor, until its victims have ended; and for a head that has waited too long, until enough others
have ended. All the promises together fit into every node and every quota, so each of them can be kept. Admission
makes and redeems them; a pass begins by checking those of the state against what is there now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from airflow_provider_dispatch.adapters.local.scheduling.demand import Demand
from airflow_provider_dispatch.adapters.local.scheduling.ledger import Ledger
from airflow_provider_dispatch.adapters.local.scheduling.model import (
    JobKey,
    PlacedJob,
    Placement,
    Reservation,
    WaitingJob,
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A reservation that stands.

    :param claim: what others may not have because of it, beyond what its victims still hold.
    """

    job: WaitingJob
    demand: Demand
    reservation: Reservation
    claim: Placement


class ReservationBook:
    """The reservations of a pass.

    :param empty: a ledger of nothing.
    :param used: what placed jobs use.
    :param placed: all that have room, by key.
    """

    def __init__(self, empty: Ledger, used: Ledger, placed: Mapping[JobKey, PlacedJob]) -> None:
        self._promised = empty.copy()
        self._placed = placed
        self._entries: dict[JobKey, Entry] = {}
        self.taken = used.copy()
        """What is used or set aside. What victims still hold of a reserved room isn't counted twice."""
        self.awaited: set[JobKey] = set()
        """Jobs whose end somebody with a reservation counts on."""

    def restore(
        self, reservations: Iterable[Reservation], candidates: Mapping[JobKey, tuple[WaitingJob, Demand]]
    ) -> None:
        """Take over what an earlier pass has set aside, as far as the job still waits and the room still exists."""
        for reservation in sorted(reservations, key=lambda one: (not one.is_for_preemption, one.since, one.key)):
            is_second = not reservation.is_for_preemption and self.has_starving
            if reservation.key not in candidates or reservation.key in self._entries or is_second:
                continue
            job, demand = candidates[reservation.key]
            room: Placement | None = reservation.room
            if not room or not self._promised.has_room(job.queue, room):
                room = self.find_promisable_room(job, demand)
            if room is not None:
                victims = self._find_ending(reservation.victims)
                self.reserve(job, demand, replace(reservation, room=room, victims=victims))

    @property
    def entries(self) -> tuple[Entry, ...]:
        """In the order in which they were made."""
        return tuple(sorted(self._entries.values(), key=lambda one: (one.reservation.since, one.reservation.key)))

    @property
    def has_starving(self) -> bool:
        """Somebody who had waited too long has room set aside; the next must wait for that one to start."""
        return any(not entry.reservation.is_for_preemption for entry in self._entries.values())

    def has_entry(self, key: JobKey) -> bool:
        """The job has room set aside."""
        return key in self._entries

    def find_promisable_room(self, job: WaitingJob, demand: Demand) -> Placement | None:
        """Room that is promised to nobody yet, whoever uses it at present."""
        return self._promised.fit(job.queue, demand)

    def reserve(self, job: WaitingJob, demand: Demand, reservation: Reservation) -> None:
        """Set its room aside, in place of what was set aside for the job before."""
        self.drop(job.key)
        held = (self._placed[victim].placement for victim in reservation.victims)
        claim = _subtract(reservation.room, held)
        self._entries[job.key] = Entry(job, demand, reservation, claim)
        self.awaited.update(reservation.victims)
        self._promised.add(job.queue, reservation.room)
        self.taken.add(job.queue, claim)

    def drop(self, key: JobKey) -> None:
        """Give the room back; nothing to do for a job without a reservation."""
        if key in self._entries:
            entry = self._entries.pop(key)
            self.awaited.difference_update(entry.reservation.victims)
            self._promised.add(entry.job.queue, entry.reservation.room, times=-1)
            self.taken.add(entry.job.queue, entry.claim, times=-1)

    def build_view(self, key: JobKey) -> Ledger:
        """What is taken as the job sees it: its own reservation doesn't stand in its way."""
        if key not in self._entries:
            return self.taken
        entry = self._entries[key]
        view = self.taken.copy()
        view.add(entry.job.queue, entry.claim, times=-1)
        return view

    def _find_ending(self, victims: Iterable[JobKey]) -> tuple[JobKey, ...]:
        return tuple(victim for victim in victims if victim in self._placed and self._placed[victim].is_ending)


def _subtract(room: Placement, held: Iterable[Placement]) -> Placement:
    """What of the room isn't held, node by node."""
    left = {node: dict(amounts) for node, amounts in room}
    for placement in held:
        for node, amounts in placement:
            of_node = left.get(node, {})
            for resource in of_node.keys() & amounts.keys():
                of_node[resource] = max(0, of_node[resource] - amounts[resource])
    return tuple(left.items())
