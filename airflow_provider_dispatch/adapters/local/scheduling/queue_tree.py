# SPDX-License-Identifier: Apache-2.0
"""Which queues stand above which. Built once a pass; the ledger and the reasons climb it, nothing changes it."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_dispatch.adapters.local.scheduling.model import Queue


class QueueTree:
    """The known queues, and any other name too where queues are open.

    What stands above a queue limits it by its own nominal quota as well. Borrowing and lending are not decided here:
    between flat queues there is nothing to borrow.
    """

    def __init__(self, queues: Iterable[Queue], *, has_open_queues: bool) -> None:
        self._queues = {queue.name: queue for queue in queues}
        self._is_open = has_open_queues
        self._lineages: dict[str, tuple[Queue, ...]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Of all known queues, sorted."""
        return tuple(sorted(self._queues))

    def find_lineage(self, name: str) -> tuple[Queue, ...]:
        """The queue and those above it, the root left out; empty if there is no such queue."""
        known = self._lineages.get(name)
        if known is None:
            known = self._lineages[name] = self._climb(name)
        return known

    def _climb(self, name: str) -> tuple[Queue, ...]:
        if name not in self._queues:
            return (Queue(name),) if self._is_open else ()
        lineage: list[Queue] = []
        # A circle would be a mistake of the caller; it ends the climb rather than the agent.
        while name in self._queues and self._queues[name] not in lineage:
            lineage.append(self._queues[name])
            name = lineage[-1].parent
        return tuple(lineage)
