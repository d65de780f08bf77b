# SPDX-License-Identifier: Apache-2.0
"""What admission promises over many passes: nothing starves, shares stay even, and every promise of room is kept."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_dispatch.adapters.local.scheduling.admission import decide_admission
from airflow_provider_dispatch.adapters.local.scheduling.model import (
    NEVER,
    AdmissionState,
    Node,
    PlacedJob,
    Plan,
    Queue,
    WaitingJob,
)
from tests.adapters.local.scheduling.builders import PATIENT, apply, ask, fits, sum_all, waiting

GRACE = 5.0


@dataclass
class Machine:
    """Runs jobs for as long as they say, on a clock of its own."""

    state: AdmissionState
    durations: dict[str, float]
    now: float = 0.0
    started: dict[str, float] = field(default_factory=dict)
    ends: dict[str, float] = field(default_factory=dict)
    preemptions: int = 0

    def decide(self) -> Plan:
        plan = decide_admission(self.state, self.now)
        self.state = apply(self.state, plan, self.now)
        for key in plan.admit:
            self.started[key] = self.now
            self.ends[key] = self.now + self.durations[key]
        for preemption in plan.preempt:
            self.preemptions += 1
            self.ends[preemption.victim] = min(self.ends[preemption.victim], self.now + GRACE)
        self.check()
        return plan

    def check(self) -> None:
        for node in self.state.nodes:
            assert fits(sum_all(job.placement for job in self.state.placed), node.capacity)
        again = decide_admission(self.state, self.now)
        assert (dict(again.admit), again.preempt) == ({}, ())

    def submit(self, job: WaitingJob, duration: float) -> None:
        self.durations[job.key] = duration
        self.state = replace(self.state, waiting=(*self.state.waiting, job))

    def advance(self, until: float) -> None:
        """Let time pass; a pass is made whenever a job ends or the last plan asked for it."""
        plan = self.decide()
        while True:
            times = [*self.ends.values(), *([plan.wake_at] if plan.wake_at is not None else [])]
            if not times or min(times) > until:
                break
            self.now = min(times)
            gone = {key for key, end in self.ends.items() if end <= self.now}
            self.ends = {key: end for key, end in self.ends.items() if key not in gone}
            self.state = replace(self.state, placed=tuple(job for job in self.state.placed if job.key not in gone))
            plan = self.decide()
        self.now = until


durations = st.integers(1, 40).map(float)
small_jobs = st.lists(
    st.tuples(st.sampled_from(("a", "b")), st.integers(1, 3), durations, st.integers(1, 6)), min_size=15, max_size=35
)


@settings(PATIENT, max_examples=15)
@given(small_jobs, st.integers(4, 6), st.sampled_from((None, 6)))
def test_a_large_gang_starts_although_small_jobs_keep_coming(jobs, size: int, quota: int | None) -> None:
    queues = (Queue("a", nominal=None if quota is None else {"slot": quota}), Queue("b"))
    state = AdmissionState((Node("host", {"slot": 6}),), queues, starvation_after=30.0)
    machine = Machine(state, {})
    for number in range(6):
        machine.submit(waiting(f"old{number}", ask(1, slot=1), queue="b", since=0), 20.0 + number)
    machine.advance(1.0)
    machine.submit(waiting("gang", ask(size, slot=1), queue="a", since=1), 10.0)
    clock = 1.0
    for number, (queue, slots, duration, gap) in enumerate(jobs):
        machine.submit(waiting(f"s{number}", ask(slots, slot=1), queue=queue, since=clock + 0.5), duration)
        clock += gap
        machine.advance(clock)
    machine.advance(clock + 500)
    assert machine.started["gang"] <= 1 + 30 + 40
    assert machine.state.waiting == ()


def test_without_patience_running_out_the_gang_would_wait_for_ever() -> None:
    """The opposite of the test above: it is the reservation that lets the gang start, not luck."""
    state = AdmissionState((Node("host", {"slot": 2}),), (), starvation_after=1e9)
    machine = Machine(state, {})
    for number in range(60):
        machine.submit(waiting(f"s{number}", ask(1, slot=1), queue="b", since=number * 5.0), 10.0)
        if number == 2:
            machine.submit(waiting("gang", ask(2, slot=1), queue="a", since=10.0), 10.0)
        machine.advance(number * 5.0 + 5.0)
    assert "gang" not in machine.started


@settings(PATIENT, max_examples=25)
@given(st.integers(2, 4), st.integers(1, 9), st.lists(st.lists(st.integers(0, 8), max_size=4), max_size=12))
def test_saturated_queues_of_equal_weight_differ_by_one_job_at_most(count, slots, endings) -> None:
    names = [f"q{number}" for number in range(count)]
    backlog = tuple(
        waiting(f"{name}-{number}", ask(1, slot=1), queue=name, since=0) for name in names for number in range(60)
    )
    state = AdmissionState(
        (Node("host", {"slot": slots}),), tuple(Queue(name) for name in names), backlog, starvation_after=1e9
    )
    for step, gone in enumerate(endings or [[]]):
        keys = {job.key for index, job in enumerate(state.placed) if index in gone}
        state = replace(state, placed=tuple(job for job in state.placed if job.key not in keys))
        state = apply(state, decide_admission(state, float(step)), float(step))
        running = [sum(job.queue == name for job in state.placed) for name in names]
        assert sum(running) == slots
        assert max(running) - min(running) <= 1


def test_shares_follow_the_weights() -> None:
    queues = (Queue("light"), Queue("heavy", weight=3))
    jobs = tuple(
        waiting(f"{queue.name}-{number}", ask(1, cpu=1000), queue=queue.name, since=0)
        for queue in queues
        for number in range(20)
    )
    plan = decide_admission(AdmissionState((Node("host", {"cpu": 8000}),), queues, jobs), 0)
    started = [key.split("-")[0] for key in plan.admit]
    assert (started.count("light"), started.count("heavy")) == (2, 6)


def test_the_share_is_that_of_the_resource_a_queue_uses_most_of() -> None:
    jobs = [waiting(f"c{number}", ask(1, cpu=3, memory=1), queue="cpu", since=0) for number in range(9)]
    jobs += [waiting(f"m{number}", ask(1, cpu=1, memory=4), queue="mem", since=0) for number in range(9)]
    plan = decide_admission(AdmissionState((Node("host", {"cpu": 9, "memory": 18}),), waiting=tuple(jobs)), 0)
    assert list(plan.admit) == ["c0", "m0", "m1", "c1", "m2"]


events = st.lists(
    st.one_of(
        st.tuples(
            st.just("submit"),
            st.sampled_from(("a", "b")),
            st.integers(1, 3),
            st.integers(1, 2),
            st.integers(-1, 1),
            durations,
        ),
        st.tuples(st.just("pass"), st.integers(1, 40)),
        st.tuples(st.just("hold"), st.integers(0, 9)),
        st.tuples(st.just("withdraw"), st.integers(0, 9)),
    ),
    max_size=25,
)


@settings(PATIENT, max_examples=40)
@given(events, st.sampled_from(({"cpu": 4}, {"cpu": 3}, None)))
def test_in_any_history_all_that_can_run_has_run_in_the_end(history, quota) -> None:
    state = AdmissionState((Node("host", {"cpu": 4}),), (Queue("a", nominal=quota), Queue("b")), starvation_after=20.0)
    machine = Machine(state, {})
    withdrawn: set[str] = set()
    for number, (what, *rest) in enumerate(history):
        if what == "submit":
            queue, count, cpu, priority, duration = rest
            job = waiting(f"j{number}", ask(count, cpu=cpu), queue=queue, priority=priority, since=machine.now)
            machine.submit(job, duration)
            machine.decide()
        elif what == "pass":
            machine.advance(machine.now + rest[0])
        elif what == "hold" and len(machine.state.placed) > rest[0]:
            held = machine.state.placed[rest[0]]
            kept = tuple(replace(job, is_ending=job.is_ending or job is held) for job in machine.state.placed)
            machine.state = replace(machine.state, placed=kept)
            machine.ends[held.key] = min(machine.ends[held.key], machine.now + GRACE)
        elif what == "withdraw" and len(machine.state.waiting) > rest[0]:
            gone = machine.state.waiting[rest[0]]
            withdrawn.add(gone.key)
            machine.state = replace(
                machine.state, waiting=tuple(job for job in machine.state.waiting if job is not gone)
            )
    machine.advance(machine.now + 40.0 * (len(history) + 1) * 2)
    reasons = decide_admission(machine.state, machine.now).reasons
    assert all(reason.code in NEVER for reason in reasons.values())
    assert machine.state.placed == ()
    assert not machine.state.reservations
    assert {*machine.started} | {*reasons} | withdrawn == {*machine.durations}


@pytest.mark.parametrize("priority", [0, 1])
def test_a_preemptor_starts_when_its_victims_are_gone_and_not_before(priority: int) -> None:
    machine = Machine(AdmissionState((Node("host", {"slot": 4}),), starvation_after=1e9), {})
    for number in range(4):
        machine.submit(waiting(f"low{number}", ask(1, slot=1), since=0), 100.0)
    machine.advance(10.0)
    machine.submit(waiting("other", ask(1, slot=1), queue="z", since=1), 10.0)
    machine.submit(waiting("high", ask(3, slot=1), priority=priority, since=10), 10.0)
    machine.advance(300.0)
    assert machine.preemptions == 3 * priority
    assert machine.started["high"] == (15.0 if priority else 100.0)
    # What the victims leave is not given to the queue with the lesser share in the meantime.
    assert machine.started["other"] == (25.0 if priority else 100.0)


def test_a_placed_job_keeps_its_room_while_it_is_ending() -> None:
    placed = PlacedJob("old", "a", (("host", {"slot": 4}),), is_ending=True)
    state = AdmissionState((Node("host", {"slot": 4}),), (), (waiting("new", ask(1, slot=1), since=0),), (placed,))
    assert decide_admission(state, 0.0).admit == {}
    assert decide_admission(replace(state, placed=()), 0.0).admit == {"new": (("host", {"slot": 1}),)}
