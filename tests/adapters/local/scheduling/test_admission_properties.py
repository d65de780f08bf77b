# SPDX-License-Identifier: Apache-2.0
"""What holds for every plan, whatever the state: searched for counter-examples."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_dispatch.adapters.local.scheduling.admission import decide_admission
from airflow_provider_dispatch.adapters.local.scheduling.model import (
    NEVER,
    AdmissionState,
    Node,
    PlacedJob,
    Queue,
    ReasonCode,
    Reservation,
    Shape,
    WaitingJob,
)
from tests.adapters.local.scheduling.builders import (
    NOW,
    PATIENT,
    apply,
    find_queue,
    fits,
    sum_all,
    sum_by_node,
    sum_request,
)

QUEUES = ("a", "b", "c")
amounts = st.fixed_dictionaries({"cpu": st.integers(0, 4)}, optional={"gpu": st.integers(0, 2)})
quotas = st.none() | st.fixed_dictionaries({}, optional={"cpu": st.integers(0, 10), "gpu": st.integers(0, 3)})
queues = st.sets(st.sampled_from(QUEUES)).flatmap(
    lambda names: st.tuples(
        *(
            st.builds(
                Queue,
                st.just(name),
                weight=st.integers(1, 3),
                nominal=quotas,
                is_stopped=st.sampled_from((False, False, False, True)),
            )
            for name in sorted(names)
        )
    )
)
shapes = st.lists(st.builds(Shape, st.integers(1, 3), amounts), min_size=1, max_size=2).map(tuple)
priorities = st.integers(-1, 1)
times = st.integers(0, 3).map(lambda step: NOW - step * 30)
waiting_jobs = st.builds(WaitingJob, st.just(""), st.sampled_from(QUEUES), shapes, priorities, times)
capacities = st.fixed_dictionaries({"cpu": st.integers(2, 12)}, optional={"gpu": st.integers(0, 4)})


@st.composite
def states(draw, *, nodes: int = 1, can_run: bool = True) -> AdmissionState:
    """Any state with jobs that run within the nodes; quotas may have shrunk below what runs."""
    machines = tuple(Node(f"n{number}", draw(capacities)) for number in range(draw(st.integers(1, nodes))))
    waiting = tuple(
        replace(job, key=f"w{number}") for number, job in enumerate(draw(st.lists(waiting_jobs, max_size=6)))
    )
    placed: list[PlacedJob] = []
    for number in range(draw(st.integers(0, 5)) if can_run else 0):
        node = draw(st.sampled_from(machines))
        used = sum_by_node(job.placement for job in placed).get(node.name, {})
        request = draw(amounts)
        if fits(request, {name: has - used.get(name, 0) for name, has in node.capacity.items()}):
            job = PlacedJob(
                f"p{number}",
                draw(st.sampled_from(QUEUES)),
                ((node.name, request),),
                draw(priorities),
                draw(times),
                is_ending=draw(st.sampled_from((False, False, True))),
                is_protected=draw(st.sampled_from((False, False, True))),
            )
            placed.append(job)
    keys = [job.key for job in waiting]
    reserved = draw(st.sets(st.sampled_from(keys), max_size=2)) if keys else set()
    reservations = tuple(Reservation(key, NOW - 5, is_for_preemption=draw(st.booleans())) for key in sorted(reserved))
    return AdmissionState(machines, draw(queues), waiting, tuple(placed), reservations)


@settings(PATIENT, max_examples=40)
@given(states(nodes=3))
def test_nothing_is_given_out_that_is_not_there(state: AdmissionState) -> None:
    plan = decide_admission(state, NOW)
    before = sum_by_node(job.placement for job in state.placed)
    after = apply(state, plan, NOW)
    for node in state.nodes:
        used = sum_by_node(job.placement for job in after.placed).get(node.name, {})
        assert fits(used, node.capacity), (before, used)
    for name in QUEUES:
        nominal = find_queue(state, name).nominal or {}
        used = sum_all(job.placement for job in after.placed if job.queue == name)
        had = sum_all(job.placement for job in state.placed if job.queue == name)
        for resource, quota in nominal.items():
            assert used.get(resource, 0) <= max(quota, had.get(resource, 0))


@settings(PATIENT, max_examples=40)
@given(states(nodes=3))
def test_all_the_promises_together_can_be_kept(state: AdmissionState) -> None:
    plan = decide_admission(state, NOW)
    promised = sum_by_node(reservation.room for reservation in plan.reservations)
    by_key = {job.key: job for job in state.waiting}
    for node in state.nodes:
        assert fits(promised.get(node.name, {}), node.capacity)
    for name in QUEUES:
        rooms = [one.room for one in plan.reservations if by_key[one.key].queue == name]
        needed = sum_all(rooms)
        for resource, quota in (find_queue(state, name).nominal or {}).items():
            assert needed.get(resource, 0) <= quota
    for reservation in plan.reservations:
        assert sum_all([reservation.room]) == sum_request(by_key[reservation.key])
    assert sum(not reservation.is_for_preemption for reservation in plan.reservations) <= 1


@settings(PATIENT, max_examples=30)
@given(states(nodes=3))
def test_a_gang_is_placed_whole(state: AdmissionState) -> None:
    plan = decide_admission(state, NOW)
    by_key = {job.key: job for job in state.waiting}
    for key, placement in plan.admit.items():
        assert sum_all([placement]) == sum_request(by_key[key])
        if len(by_key[key].shapes) == 1:
            (shape,) = by_key[key].shapes
            for _, used in placement:
                ranks = {used[name] / amount for name, amount in shape.request.items() if amount}
                assert len(ranks) <= 1
                assert all(count.is_integer() for count in ranks)


@settings(PATIENT, max_examples=30)
@given(states(nodes=2), st.randoms(use_true_random=False))
def test_the_order_of_the_input_does_not_matter(state: AdmissionState, random) -> None:
    def shuffle(jobs):
        return tuple(random.sample(jobs, len(jobs)))

    mixed = replace(
        state,
        nodes=shuffle(state.nodes),
        queues=shuffle(state.queues),
        waiting=shuffle(state.waiting),
        placed=shuffle(state.placed),
        reservations=shuffle(state.reservations),
    )
    plan, again = decide_admission(state, NOW), decide_admission(mixed, NOW)
    assert again == plan
    assert list(again.admit) == list(plan.admit)


@settings(PATIENT, max_examples=70)
@given(states())
def test_a_plan_that_was_carried_out_leaves_nothing_to_do(state: AdmissionState) -> None:
    plan = decide_admission(state, NOW)
    again = decide_admission(apply(state, plan, NOW), NOW)
    assert (dict(again.admit), again.preempt) == ({}, ())
    assert again.reservations == plan.reservations
    assert again.reasons == plan.reasons
    assert again.wake_at == plan.wake_at


@settings(PATIENT, max_examples=30)
@given(states(can_run=False))
def test_an_idle_machine_takes_somebody(state: AdmissionState) -> None:
    plan = decide_admission(state, NOW)
    hopeless = NEVER | {ReasonCode.QUEUE_STOPPED}
    able = [job for job in state.waiting if job.key in plan.admit or plan.reasons[job.key].code not in hopeless]
    assert bool(plan.admit) == bool(able)


@settings(PATIENT, max_examples=30)
@given(states(nodes=2))
def test_every_job_starts_or_has_a_reason(state: AdmissionState) -> None:
    plan = decide_admission(state, NOW)
    assert {*plan.admit} | {*plan.reasons} == {job.key for job in state.waiting}
    assert not {*plan.admit} & {*plan.reasons}


@settings(PATIENT, max_examples=40)
@given(states(nodes=2))
def test_nobody_is_overtaken_by_its_like(state: AdmissionState) -> None:
    plan = decide_admission(state, NOW)
    reserved = {reservation.key for reservation in (*state.reservations, *plan.reservations)}
    alike = defaultdict(list)
    for job in state.waiting:
        if job.key not in reserved:
            alike[job.queue, job.priority, repr(job.shapes)].append(job)
    for jobs in alike.values():
        starts = [job.key in plan.admit for job in sorted(jobs, key=lambda job: (job.queued_since, job.key))]
        assert starts == sorted(starts, reverse=True)


@st.composite
def crowds(draw) -> AdmissionState:
    """A full machine with one queue, and somebody important who wants in."""
    requests = draw(st.lists(amounts, min_size=2, max_size=6))
    running = tuple(
        PlacedJob(
            f"p{number}", "a", (("n0", request),), draw(priorities), draw(times), is_protected=draw(st.booleans())
        )
        for number, request in enumerate(requests)
    )
    used = sum_all(job.placement for job in running)
    capacity = {name: used.get(name, 0) + draw(st.integers(0, 1)) for name in ("cpu", "gpu")}
    preemptor = WaitingJob("w", "a", (Shape(draw(st.integers(1, 3)), draw(amounts)),), 1, NOW)
    quota = draw(st.none() | st.just(capacity) | st.just({"cpu": max(1, used["cpu"])}))
    return AdmissionState((Node("n0", capacity),), (Queue("a", nominal=quota),), (preemptor,), running)


@settings(PATIENT, max_examples=70)
@given(crowds())
def test_victims_are_allowed_complete_and_needed(state: AdmissionState) -> None:
    plan = decide_admission(state, NOW)
    (preemptor,) = state.waiting
    (node,) = state.nodes
    need = sum_request(preemptor)
    quota = state.queues[0].nominal or {}

    def has_room_without(gone: list[PlacedJob]) -> bool:
        used = sum_all(job.placement for job in state.placed if job not in gone)
        return fits(need, {name: has - used.get(name, 0) for name, has in node.capacity.items()}) and all(
            need[name] <= most - used.get(name, 0) for name, most in quota.items() if need.get(name)
        )

    allowed = [job for job in state.placed if not job.is_protected and job.priority < preemptor.priority]
    victims = [job for job in state.placed if job.key in {preemption.victim for preemption in plan.preempt}]
    assert all(job in allowed for job in victims)
    assert bool(victims) == (not has_room_without([]) and has_room_without(allowed))
    if victims:
        assert has_room_without(victims)
        for victim in victims:
            assert not has_room_without([job for job in victims if job is not victim])


@settings(PATIENT, max_examples=30)
@given(states(nodes=2))
def test_preemptions_come_to_an_end(state: AdmissionState) -> None:
    """Victims end and queue again; nobody else ends and nobody comes: after a while nothing changes any more."""
    shapes_of: dict[str, tuple[Shape, ...]] = {job.key: (Shape(1, dict(job.placement[0][1])),) for job in state.placed}
    shapes_of |= {job.key: job.shapes for job in state.waiting}
    plan = decide_admission(state, NOW)
    for turn in range(60):
        plan = decide_admission(state, NOW + turn)
        if not (plan.admit or plan.preempt) and not any(job.is_ending for job in state.placed):
            break
        state = apply(state, plan, NOW + turn)
        gone = [job for job in state.placed if job.is_ending]
        back = (WaitingJob(job.key, job.queue, shapes_of[job.key], job.priority, NOW) for job in gone)
        state = replace(
            state,
            placed=tuple(job for job in state.placed if not job.is_ending),
            waiting=(*state.waiting, *back),
        )
    assert not plan.preempt
    assert not plan.admit
