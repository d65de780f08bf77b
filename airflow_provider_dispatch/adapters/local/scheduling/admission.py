# SPDX-License-Identifier: Apache-2.0
"""Who starts now, who is ended for whom, for whom room is set aside, and why everybody else waits.

The lifecycle calls :func:`decide_admission` after every change, carries the plan out and hands the plan's reservations
back next time. A pass only ever takes room and never gives any: what is ending counts as used until it is gone. So
whoever is blocked once stays blocked for the pass, and a second pass over a plan that was carried out changes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from airflow_provider_dispatch.adapters.local.scheduling import reasons
from airflow_provider_dispatch.adapters.local.scheduling.demand import Demand
from airflow_provider_dispatch.adapters.local.scheduling.ledger import Ledger
from airflow_provider_dispatch.adapters.local.scheduling.model import (
    AdmissionState,
    JobKey,
    Placement,
    Plan,
    Preemption,
    Reason,
    Reservation,
    WaitingJob,
)
from airflow_provider_dispatch.adapters.local.scheduling.preemption import Eviction, VictimPool
from airflow_provider_dispatch.adapters.local.scheduling.queue_tree import QueueTree
from airflow_provider_dispatch.adapters.local.scheduling.reservations import Entry, ReservationBook
from airflow_provider_dispatch.adapters.local.scheduling.waiting_line import Group, Line, build_groups

Heads = dict[str, tuple[WaitingJob, Demand]]
"""Of each queue the first job that has no room."""


def decide_admission(state: AdmissionState, now: float) -> Plan:
    """What to do now. The order of anything in *state* doesn't matter.

    :param now: on the clock of the state's times.
    """
    return _Pass(state, now).decide()


class _Pass:
    """One decision. The steps of :meth:`decide` stand in the order in which claims go before each other."""

    def __init__(self, state: AdmissionState, now: float) -> None:
        self._state = state
        self._now = now
        self._tree = QueueTree(state.queues, has_open_queues=state.has_open_queues)
        placed = {job.key: job for job in state.placed}
        self._empty = Ledger(self._tree, state.nodes)
        self._used = self._empty.copy()
        for job in state.placed:
            self._used.add(job.queue, job.placement)
        self._book = ReservationBook(self._empty, self._used, placed)
        self._pool = VictimPool(state.placed)
        self._groups = build_groups(state.waiting)
        self._explainer = reasons.Explainer(self._tree, self._empty, self._used)
        self._hopeless = self._find_hopeless()
        self._admit: dict[JobKey, Placement] = {}
        self._preempt: list[Preemption] = []

    def decide(self) -> Plan:
        self._restore_reservations()
        while self._settle_reserved():
            pass
        lines = self._build_lines()
        starving = self._set_aside_for_starving({name: (line.head, line.demand) for name, line in lines.items()})
        if starving is not None:
            lines[starving.queue].advance()
        heads = self._walk(lines)
        self._set_aside_for_starving(heads)
        return Plan(
            admit=self._admit,
            preempt=tuple(self._preempt),
            reservations=tuple(entry.reservation for entry in self._book.entries),
            reasons=self._explain(),
            wake_at=self._find_wake(heads),
        )

    def _find_hopeless(self) -> dict[tuple[str, Demand], Reason]:
        """Why demands can't be met at all, or not while their queue is stopped."""
        hopeless: dict[tuple[str, Demand], Reason] = {}
        for queue, demand in {(group.queue, group.demand) for group in self._groups}:
            reason = self._explainer.explain_never(queue, demand)
            reason = reason or self._explainer.explain_stopped(queue)
            if reason is not None:
                hopeless[queue, demand] = reason
        return hopeless

    def _restore_reservations(self) -> None:
        wanted = {reservation.key for reservation in self._state.reservations}
        candidates = {
            job.key: (job, group.demand)
            for group in self._groups
            if wanted and (group.queue, group.demand) not in self._hopeless
            for job in group.jobs
            if job.key in wanted
        }
        self._book.restore(self._state.reservations, candidates)

    def _settle_reserved(self) -> bool:
        """Take one step with a reservation: redeem it, or turn it into a preemption. True if there was one to take."""
        for entry in self._book.entries:
            job, demand, reservation = entry.job, entry.demand, entry.reservation
            if self._let_pass(entry):
                return True
            view = self._book.build_view(job.key)
            room = view.fit(job.queue, demand)
            if room is None and view.has_room(job.queue, reservation.room):
                room = reservation.room
            if room is not None:
                self._book.drop(job.key)
                self._start(job, room)
                return True
            if not reservation.is_for_preemption and self._try_preemption(job, demand, since=reservation.since):
                return True
        return False

    def _let_pass(self, entry: Entry) -> bool:
        """Let somebody of the queue who has a higher priority go first, with the room of the reservation if need be.

        Else the holder would be started now and ended for that somebody in the next pass.
        """
        for group in self._groups:
            if group.queue != entry.job.queue or group.jobs[0].priority <= entry.job.priority:
                continue
            rival = next((job for job in group.jobs if self._is_free(job)), None)
            if rival is None or (group.queue, group.demand) in self._hopeless:
                continue
            if self._try_start(rival, group.demand):
                return True
            self._book.drop(entry.job.key)
            if self._try_start(rival, group.demand):
                return True
            self._book.reserve(entry.job, entry.demand, entry.reservation)
        return False

    def _is_free(self, job: WaitingJob) -> bool:
        return job.key not in self._admit and not self._book.has_entry(job.key)

    def _build_lines(self) -> dict[str, Line]:
        """Everybody who may start now and has no reservation, by queue."""
        by_queue: dict[str, list[Group]] = defaultdict(list)
        for group in self._groups:
            if (group.queue, group.demand) not in self._hopeless:
                by_queue[group.queue].append(group)
        lines = {queue: Line(groups, stands=self._is_free) for queue, groups in by_queue.items()}
        return {queue: line for queue, line in lines.items() if line}

    def _walk(self, lines: dict[str, Line]) -> Heads:
        """Let the queue with the least share have its turn, until all lines are empty. Returns who is blocked first."""
        heads: Heads = {}
        turns = [self._build_turn(queue, line) for queue, line in lines.items() if line]
        heapify(turns)
        while turns:
            turn = heappop(turns)
            queue = turn[-1]
            line = lines[queue]
            # Shares only grow in a pass, so a turn that has become later is found when it would have come.
            if self._build_turn(queue, line) == turn:
                self._take_turn(line, heads)
            if line:
                heappush(turns, self._build_turn(queue, line))
        return heads

    def _build_turn(self, queue: str, line: Line) -> tuple[tuple[float, ...], float, str]:
        # Of equal shares the one with the older head is first: by name the same queue would always win.
        return self._used.find_share(queue), line.head.queued_since, queue

    def _take_turn(self, line: Line, heads: Heads) -> None:
        job, demand = line.head, line.demand
        if self._try_start(job, demand):
            line.advance()
        else:
            # Nothing gets free in a pass: who asks for the same behind it, at this or a lower priority, fails as well.
            heads.setdefault(job.queue, (job, demand))
            line.skip_demand()

    def _try_start(self, job: WaitingJob, demand: Demand) -> bool:
        """Give it room now, or that of its victims when they are gone."""
        room = self._book.taken.fit(job.queue, demand)
        if room is not None:
            self._start(job, room)
            return True
        return self._try_preemption(job, demand, since=self._now)

    def _start(self, job: WaitingJob, room: Placement) -> None:
        self._admit[job.key] = room
        self._used.add(job.queue, room)
        self._book.taken.add(job.queue, room)

    def _find_eviction(self, job: WaitingJob, demand: Demand) -> Eviction | None:
        return self._pool.find_eviction(job, demand, self._book.build_view(job.key), self._book.awaited)

    def _try_preemption(self, job: WaitingJob, demand: Demand, *, since: float) -> bool:
        eviction = self._find_eviction(job, demand)
        if eviction is None:
            return False
        self._pool.remove(eviction.victims)
        self._preempt += [reasons.build_preemption(victim, job) for victim in eviction.victims]
        gone = tuple(sorted(one.key for one in eviction.gone))
        made = Reservation(job.key, since, is_for_preemption=True, room=eviction.room, victims=gone)
        self._book.reserve(job, demand, made)
        return True

    def _set_aside_for_starving(self, heads: Heads) -> WaitingJob | None:
        """Reserve room for the head that has been blocked longest, unless somebody else's turn it is already."""
        if self._book.has_starving:
            return None
        starving = [one for one in heads.values() if self._now >= self._find_patience(one[0])]
        for job, demand in sorted(starving, key=lambda one: (one[0].queued_since, one[0].key)):
            if self._empty.fit(job.queue, demand) is None or not self._is_blocked(job, demand):
                continue
            room = self._book.find_promisable_room(job, demand)
            if room is None:
                return None
            self._book.reserve(job, demand, Reservation(job.key, self._now, room=room))
            return job
        return None

    def _is_blocked(self, job: WaitingJob, demand: Demand) -> bool:
        return self._book.taken.fit(job.queue, demand) is None and self._find_eviction(job, demand) is None

    def _find_patience(self, job: WaitingJob) -> float:
        """When its patience ends."""
        return job.queued_since + self._state.starvation_after

    def _find_wake(self, heads: Heads) -> float | None:
        if self._book.has_starving:
            return None
        ends = (self._find_patience(job) for job, _ in heads.values())
        return min((end for end in ends if end > self._now), default=None)

    def _explain(self) -> dict[JobKey, Reason]:
        found: dict[JobKey, Reason] = {}
        shared = dict(self._hopeless)
        holders = [entry.job.key for entry in self._book.entries]
        for group in self._groups:
            key = (group.queue, group.demand)
            waiting = [job.key for job in group.jobs if job.key not in self._admit]
            if waiting:
                if key not in shared:
                    shared[key] = self._explainer.explain_blocked(*key, self._book.taken, holders)
                found.update(dict.fromkeys(waiting, shared[key]))
        return found | {entry.job.key: self._explain_entry(entry, holders) for entry in self._book.entries}

    def _explain_entry(self, entry: Entry, holders: Sequence[JobKey]) -> Reason:
        """The job that holds a reservation has a reason of its own."""
        if entry.reservation.victims:
            return reasons.explain_preempting(entry.reservation.victims)
        others = [holder for holder in holders if holder != entry.job.key]
        view = self._book.build_view(entry.job.key)
        reason = self._explainer.explain_blocked(entry.job.queue, entry.demand, view, others)
        return reason if entry.reservation.is_for_preemption else reasons.explain_next(reason)
