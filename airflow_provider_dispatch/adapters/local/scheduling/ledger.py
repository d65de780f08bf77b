# SPDX-License-Identifier: Apache-2.0
"""Who uses what, by queue and by node, and whether a demand fits into the rest.

One pass keeps several: what is used, what is used or set aside, what is set aside. None outlives the pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_dispatch.adapters.local.scheduling.demand import Demand, shift, sum_placement
from airflow_provider_dispatch.adapters.local.scheduling.model import Node, Placement, Queue, Resources
from airflow_provider_dispatch.adapters.local.scheduling.placement import Room, place
from airflow_provider_dispatch.adapters.local.scheduling.queue_tree import QueueTree


@dataclass(frozen=True, slots=True)
class QuotaGap:
    """A quota that a demand breaks.

    :param level: name of the queue whose quota it is.
    :param free: what is left of it, never below zero.
    """

    level: str
    resource: str
    free: int


class Ledger:
    """Adds up placements. What a node or a queue doesn't name follows the rule of the model."""

    def __init__(self, tree: QueueTree, nodes: Sequence[Node]) -> None:
        self._tree = tree
        self._nodes = tuple(sorted(nodes, key=lambda node: node.name))
        self._by_queue: dict[str, dict[str, int]] = {}
        self._by_node: dict[str, dict[str, int]] = {}
        self._rooms: list[Room] | None = None
        self._places: dict[Demand, Placement] = {}
        self._too_large: set[Demand] = set()
        self._shares: dict[str, tuple[float, ...]] = {}
        self._limits: dict[str, tuple[tuple[str, str, int], ...]] = {}
        self._capacity: dict[str, int] = {}
        for node in nodes:
            shift(self._capacity, node.capacity, 1)

    def copy(self) -> Ledger:
        """One to try things on."""
        twin = Ledger(self._tree, self._nodes)
        twin._limits = self._limits
        twin._by_queue = {name: dict(tally) for name, tally in self._by_queue.items()}
        twin._by_node = {name: dict(tally) for name, tally in self._by_node.items()}
        return twin

    def add(self, queue: str, placement: Placement, *, times: int = 1) -> None:
        """Count a placement in; ``times=-1`` takes it out again."""
        total = sum_placement(placement)
        for level in self._tree.find_lineage(queue):
            shift(self._by_queue.setdefault(level.name, {}), total, times)
        for node, amounts in placement:
            shift(self._by_node.setdefault(node, {}), amounts, times)
        self._rooms = None
        self._places.clear()
        self._shares.clear()
        if times < 0:
            # What was too large stays so until something is taken out.
            self._too_large.clear()

    @property
    def rooms(self) -> list[Room]:
        """Every node with what is free on it."""
        if self._rooms is None:
            self._rooms = [(node, self._find_free(node)) for node in self._nodes]
        return self._rooms

    def _find_free(self, node: Node) -> Resources:
        used = self._by_node.get(node.name, {})
        return {resource: max(0, has - used.get(resource, 0)) for resource, has in node.capacity.items()}

    def find_gap(self, queue: str, total: Resources) -> QuotaGap | None:
        """The first quota, from the queue upwards, that this much more would break."""
        for level, resource, quota in self._find_limits(queue):
            needed = total.get(resource, 0)
            free = quota - self._by_queue.get(level, {}).get(resource, 0)
            if needed and needed > free:
                return QuotaGap(level, resource, max(free, 0))
        return None

    def _find_limits(self, queue: str) -> tuple[tuple[str, str, int], ...]:
        known = self._limits.get(queue)
        if known is None:
            known = self._limits[queue] = tuple(
                (level.name, resource, quota)
                for level in self._tree.find_lineage(queue)
                for resource, quota in sorted((level.nominal or {}).items())
            )
        return known

    def fit(self, queue: str, demand: Demand) -> Placement | None:
        """Where the demand has room now, within every quota; None if it has none."""
        return self.place(demand) if self.find_gap(queue, demand.total) is None else None

    def place(self, demand: Demand) -> Placement | None:
        """Where the nodes have room for it now, whatever the quotas say."""
        if demand in self._too_large:
            return None
        if demand not in self._places:
            found = place(demand, self.rooms)
            if found is None:
                self._too_large.add(demand)
                return None
            self._places[demand] = found
        return self._places[demand]

    def has_room(self, queue: str, placement: Placement) -> bool:
        """Exactly this placement fits."""
        free = {node.name: room for node, room in self.rooms}
        return self.find_gap(queue, sum_placement(placement)) is None and all(
            amount <= free.get(node, {}).get(resource, 0)
            for node, amounts in placement
            for resource, amount in amounts.items()
        )

    def find_share(self, queue: str) -> tuple[float, ...]:
        """Weighted dominant shares from below the root down to the queue: the least tuple has the next turn."""
        if queue not in self._shares:
            lineage = reversed(self._tree.find_lineage(queue))
            self._shares[queue] = tuple(self._find_share_of(level) for level in lineage)
        return self._shares[queue]

    def _find_share_of(self, level: Queue) -> float:
        shares = (
            # A resource that no node has any more divides by one: what it was used for still counts.
            used / ((self._capacity.get(resource, 0) or 1) * level.weight)
            for resource, used in self._by_queue.get(level.name, {}).items()
        )
        return max(shares, default=0.0)
