# SPDX-License-Identifier: Apache-2.0
"""Why a job waits, in words and numbers. Admission asks once for each queue and demand, at the end of a pass.

Decides nothing: it looks at the same ledgers as the decision did and says what it finds first.
"""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_dispatch.adapters.local.scheduling.demand import Demand
from airflow_provider_dispatch.adapters.local.scheduling.ledger import Ledger, QuotaGap
from airflow_provider_dispatch.adapters.local.scheduling.model import (
    JobKey,
    PlacedJob,
    Preemption,
    Reason,
    ReasonCode,
    Shape,
    WaitingJob,
)
from airflow_provider_dispatch.adapters.local.scheduling.placement import Lack, Room, find_lack
from airflow_provider_dispatch.adapters.local.scheduling.queue_tree import QueueTree
from airflow_provider_dispatch.core.quantity import format_quantity

MOST_NAMES = 5


class Explainer:
    """Explains the demands of one pass; what is the same for all queues is worked out once.

    :param empty: a ledger of nothing.
    :param used: by jobs that have room.
    """

    def __init__(self, tree: QueueTree, empty: Ledger, used: Ledger) -> None:
        self._tree = tree
        self._empty = empty
        self._used = used
        self._never: dict[Demand, Reason | None] = {}
        self._nodes: dict[Demand, Reason] = {}

    def explain_never(self, queue: str, demand: Demand) -> Reason | None:
        """Why the demand can't be met though nothing else ran; None if nothing is known against it."""
        if not self._tree.find_lineage(queue):
            known = list_names(self._tree.names)
            return Reason(ReasonCode.UNKNOWN_QUEUE, f"there is no queue {queue!r}; known: {known}")
        gap = self._empty.find_gap(queue, demand.total)
        if gap is not None:
            need, quota = describe_need(demand, gap.resource), format_quantity(gap.resource, gap.free)
            return Reason(ReasonCode.NEVER_FITS_QUOTA, f"needs {need} in {gap.level}, whose quota is {quota}")
        if demand not in self._never:
            self._never[demand] = _explain_too_large(demand, self._empty.rooms)
        return self._never[demand]

    def explain_stopped(self, queue: str) -> Reason | None:
        """Why the queue admits nothing; None if it does."""
        for level in self._tree.find_lineage(queue):
            if level.is_stopped:
                return Reason(ReasonCode.QUEUE_STOPPED, f"queue {level.name} is stopped")
        return None

    def explain_blocked(self, queue: str, demand: Demand, taken: Ledger, holders: Sequence[JobKey]) -> Reason:
        """Why the demand isn't met now.

        :param taken: used or set aside for others.
        :param holders: for whom room is set aside, that of the first made first.
        """
        gap = self._used.find_gap(queue, demand.total)
        if gap is not None:
            return Reason(ReasonCode.QUOTA, _describe_gap(gap, demand))
        if self._used.place(demand) is None:
            if demand not in self._nodes:
                self._nodes[demand] = Reason(ReasonCode.NODES, _describe_nodes(demand, self._used.rooms))
            return self._nodes[demand]
        gap = taken.find_gap(queue, demand.total)
        message = _describe_nodes(demand, taken.rooms) if gap is None else _describe_gap(gap, demand)
        return Reason(ReasonCode.RESERVED, f"{message} beside what is set aside for {list_names(holders)}")


def explain_preempting(victims: Sequence[JobKey]) -> Reason:
    """Why a preemptor hasn't started yet."""
    verb = "is" if len(victims) == 1 else "are"
    return Reason(ReasonCode.PREEMPTING, f"takes the room of {list_names(victims)}, which {verb} ending")


def explain_next(reason: Reason) -> Reason:
    """The same reason, for the job that room is set aside for."""
    return Reason(reason.code, f"{reason.message}; it has waited longest and what becomes free is set aside for it")


def build_preemption(victim: PlacedJob, preemptor: WaitingJob) -> Preemption:
    """With the reason that the victim's owner is told."""
    priorities = f"priority {preemptor.priority} over {victim.priority}"
    return Preemption(victim.key, preemptor.key, f"makes room in {victim.queue} for {preemptor.key}, {priorities}")


def describe_need(demand: Demand, resource: str) -> str:
    """For instance ``2 x 500m + 1 x 2 cpu``."""
    parts = (
        f"{shape.count} x {format_quantity(resource, shape.request[resource])}"
        for shape in demand.shapes
        if shape.request.get(resource)
    )
    return f"{' + '.join(parts)} {resource}"


def list_names(names: Sequence[str]) -> str:
    """All of them, or the first few and how many more."""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return (", ".join(names[:MOST_NAMES]) or "none") + more


def _explain_too_large(demand: Demand, rooms: Sequence[Room]) -> Reason | None:
    lack = find_lack(demand, rooms)
    if lack is None:
        return None
    rest = f"{'has' if len(rooms) == 1 else 'have'} {_describe_rest(lack)}"
    message = f"needs {_describe_lack(lack, demand)} on {_name_nodes(rooms)}, which {rest}"
    if rooms and lack.resource is not None and not any(lack.resource in node.capacity for node, _ in rooms):
        # Most often a slip, or a GPU: this machine's processors and memory are found out, everything else is told.
        message += f"; correct the name {lack.resource}, or say in node.capacity how many there are"
    return Reason(ReasonCode.NEVER_FITS_NODES, message)


def _describe_gap(gap: QuotaGap, demand: Demand) -> str:
    free = format_quantity(gap.resource, gap.free)
    return f"needs {describe_need(demand, gap.resource)} in {gap.level}, {free} free"


def _describe_nodes(demand: Demand, rooms: Sequence[Room]) -> str:
    lack = find_lack(demand, rooms)
    if lack is None:
        shapes = " + ".join(_describe_shape(shape) for shape in demand.shapes)
        return f"needs {shapes} on {_name_nodes(rooms)}, where the free pieces don't match"
    suffix = " free" if lack.resource is not None else " now"
    return f"needs {_describe_lack(lack, demand)} on {_name_nodes(rooms)}, {_describe_rest(lack)}{suffix}"


def _describe_lack(lack: Lack, demand: Demand) -> str:
    if lack.shape is not None:
        return _describe_shape(lack.shape)
    return describe_need(demand, lack.resource or "")


def _describe_rest(lack: Lack) -> str:
    return f"room for {lack.free}" if lack.resource is None else format_quantity(lack.resource, lack.free)


def _describe_shape(shape: Shape) -> str:
    amounts = [f"{format_quantity(name, amount)} {name}" for name, amount in sorted(shape.request.items())]
    asked = ", ".join(amounts) or "nothing"
    labels = ",".join(f"{name}={value}" for name, value in sorted(shape.required.items()))
    return f"{shape.count} x ({asked})" + (f" with {labels}" if labels else "")


def _name_nodes(rooms: Sequence[Room]) -> str:
    return rooms[0][0].name if len(rooms) == 1 else f"{len(rooms)} nodes"
