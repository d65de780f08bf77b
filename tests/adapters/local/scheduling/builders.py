# SPDX-License-Identifier: Apache-2.0
"""Short ways to write admission states down, and the rules of a plan's application that the lifecycle keeps as well."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from hypothesis import HealthCheck, settings

from airflow_provider_dispatch.adapters.local.scheduling.model import (
    AdmissionState,
    Node,
    PlacedJob,
    Placement,
    Plan,
    Queue,
    Resources,
    Shape,
    WaitingJob,
)

# How long it takes to think of an example says more about the machine than about the code.
PATIENT = settings(suppress_health_check=[HealthCheck.too_slow])
NOW = 1000.0
HOST = Node("host", {"cpu": 5000})


def ask(count: int, **request: int) -> Shape:
    """*count* ranks, each asking for *request*."""
    return Shape(count, request)


def waiting(key: str, *shapes: Shape, queue: str = "team-a", priority: int = 0, since: float = NOW) -> WaitingJob:
    return WaitingJob(key, queue, shapes, priority, since)


def placed(key: str, node: str = "host", queue: str = "team-a", *, at: float = 0.0, priority: int = 0, **used: int):
    return PlacedJob(key, queue, ((node, used),), priority, at)


def ending(job: PlacedJob) -> PlacedJob:
    return replace(job, is_ending=True)


def protected(job: PlacedJob) -> PlacedJob:
    return replace(job, is_protected=True)


def build_state(*jobs: WaitingJob | PlacedJob, nodes: Iterable[Node] = (HOST,), **rest) -> AdmissionState:
    return AdmissionState(
        nodes=tuple(nodes),
        waiting=tuple(job for job in jobs if isinstance(job, WaitingJob)),
        placed=tuple(job for job in jobs if isinstance(job, PlacedJob)),
        **rest,
    )


def apply(state: AdmissionState, plan: Plan, now: float) -> AdmissionState:
    """The state in which everything that the plan wants has been begun: victims are ending, none has ended."""
    victims = {preemption.victim for preemption in plan.preempt}
    by_key = {job.key: job for job in state.waiting}
    started = (
        PlacedJob(key, by_key[key].queue, placement, by_key[key].priority, now) for key, placement in plan.admit.items()
    )
    kept = (replace(job, is_ending=job.is_ending or job.key in victims) for job in state.placed)
    return replace(
        state,
        waiting=tuple(job for job in state.waiting if job.key not in plan.admit),
        placed=(*kept, *started),
        reservations=plan.reservations,
    )


def sum_by_node(placements: Iterable[Placement]) -> dict[str, dict[str, int]]:
    total: dict[str, dict[str, int]] = {}
    for placement in placements:
        for node, amounts in placement:
            tally = total.setdefault(node, {})
            for resource, amount in amounts.items():
                tally[resource] = tally.get(resource, 0) + amount
    return total


def sum_all(placements: Iterable[Placement]) -> dict[str, int]:
    total: dict[str, int] = {}
    for amounts in sum_by_node(placements).values():
        for resource, amount in amounts.items():
            total[resource] = total.get(resource, 0) + amount
    return total


def sum_request(job: WaitingJob) -> dict[str, int]:
    total: dict[str, int] = {}
    for shape in job.shapes:
        for resource, amount in shape.request.items():
            total[resource] = total.get(resource, 0) + shape.count * amount
    return total


def fits(need: Resources, free: Mapping[str, int]) -> bool:
    return all(amount <= free.get(resource, 0) for resource, amount in need.items() if amount)


def find_queue(state: AdmissionState, name: str) -> Queue:
    return next((queue for queue in state.queues if queue.name == name), Queue(name))
