# SPDX-License-Identifier: Apache-2.0
"""Finds nodes for all ranks of a job, or for none.

Exact on one node. On several, packing roles of different sizes is a puzzle for which two orders are tried; so only
:func:`find_lack`, which is right on any number of nodes, may say that a job can *never* fit. The ledger calls it; it
knows nothing of queues.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_dispatch.adapters.local.scheduling.demand import Demand, shift
from airflow_provider_dispatch.adapters.local.scheduling.model import Node, Placement, Resources, Shape

Room = tuple[Node, Resources]
"""A node and what is free on it; never below zero."""


@dataclass(frozen=True, slots=True)
class Lack:
    """Why a demand can't be placed however it is packed.

    :param resource: that all the rooms together don't have; None when single ranks of *shape* find no node.
    :param free: of the resource in all, or so many ranks of the shape have a place.
    """

    free: int
    resource: str | None = None
    shape: Shape | None = None


def place(demand: Demand, rooms: Sequence[Room]) -> Placement | None:
    """Nodes for every rank, or None.

    Roles of a higher priority choose first; each rank takes, among the nodes with its required labels, the one with
    most of its preferred labels, then the fullest. If that leads nowhere, the role that is hardest to place chooses
    first and nobody's preference counts.
    """
    if find_lack(demand, rooms) is not None:
        return None
    if len(rooms) == 1:
        return ((rooms[0][0].name, demand.total),)
    wished = sorted(demand.shapes, key=lambda shape: -shape.priority)
    found = _pack(wished, rooms, heeds_preferences=True)
    if found is None:
        hardest_first = sorted(wished, key=lambda shape: _count_places(shape, rooms))
        found = _pack(hardest_first, rooms, heeds_preferences=False)
    return found


def find_lack(demand: Demand, rooms: Sequence[Room]) -> Lack | None:
    """Why the demand can't be placed in any way; None doesn't promise that it can."""
    for resource, needed in sorted(demand.total.items()):
        free = sum(room.get(resource, 0) for _, room in rooms)
        if needed > free:
            return Lack(free, resource=resource)
    for shape in demand.shapes:
        places = _count_places(shape, rooms)
        if places < shape.count:
            return Lack(places, shape=shape)
    return None


def _count_places(shape: Shape, rooms: Sequence[Room]) -> int:
    return sum(_count_fitting(shape, room) for node, room in rooms if has_labels(node, shape.required))


def has_labels(node: Node, labels: Mapping[str, str]) -> bool:
    """The node carries all of them."""
    return labels.items() <= node.labels.items()


def _count_fitting(shape: Shape, room: Resources) -> int:
    """How many ranks of the shape fit, all of them at most."""
    places = shape.count
    for resource, amount in shape.request.items():
        if amount:
            places = min(places, room.get(resource, 0) // amount)
    return places


def _pack(shapes: Sequence[Shape], rooms: Sequence[Room], *, heeds_preferences: bool) -> Placement | None:
    left = {node.name: dict(room) for node, room in rooms}
    taken: dict[str, dict[str, int]] = {}
    nodes = [node for node, _ in rooms]
    for shape in shapes:
        missing = shape.count
        for node in _rank_nodes(shape, nodes, left, heeds_preferences=heeds_preferences):
            # The fullest node stays the fullest while it fills up, so that its ranks can be placed in one go.
            ranks = min(missing, _count_fitting(shape, left[node.name]))
            if ranks:
                shift(left[node.name], shape.request, -ranks)
                shift(taken.setdefault(node.name, {}), shape.request, ranks)
                missing -= ranks
        if missing:
            return None
    return tuple(sorted(taken.items()))


def _rank_nodes(
    shape: Shape, nodes: Sequence[Node], left: Mapping[str, Resources], *, heeds_preferences: bool
) -> list[Node]:
    wishes = shape.preferred.items() if heeds_preferences else {}.items()

    def order(node: Node) -> tuple[int, float, str]:
        return -len(wishes & node.labels.items()), _find_slack(shape, left[node.name]), node.name

    return sorted((node for node in nodes if has_labels(node, shape.required)), key=order)


def _find_slack(shape: Shape, room: Resources) -> float:
    """How many times one rank would fit, fractions included: least on the fullest node."""
    return min((room.get(name, 0) / amount for name, amount in shape.request.items() if amount), default=0.0)
