# SPDX-License-Identifier: Apache-2.0
"""The state of the explored world: API objects, processes on nodes, operations in flight and what must be remembered.

Plain tuples, small and hashable. Optimistic concurrency is exact: an operation carries one "changed since I read it"
for each object, which is what a resourceVersion tests. A stale cache is a read followed by a long pause.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

KINDS = (
    "hold", "toggle", "delete-jobset", "delete-pod", "delete-workload", "force-delete", "gc", "by-hand", "preempt",
    "restart", "crash", "adapter-crash", "pause", "unreserve", "new-submission", "miss", "fail", "timeout", "wanted",
    "delete-trainjob",
)  # fmt: skip
"""What the adversary can do; a bound gives it a number of actions, each kind once."""

# What a pod's object is: at the fence, lifted, bound to a node, terminating, ended; GONE has only a process left.
GATED, LIFTED, BOUND, TERMINATING, SUCCEEDED, FAILED, GONE = "g", "p", "b", "t", "s", "f", "u"
LIVE = (GATED, LIFTED, BOUND, TERMINATING)
COUNTED_BY_KUEUE = (GATED, LIFTED, BOUND)
# What its process is: none, known to the kubelet, alive, ended.
NONE, KNOWN, ALIVE, ENDED = 0, 1, 2, 3
BY_HAND = -1
"""The epoch of a pod whose gate somebody else removed."""

QUEUED, RESERVED, ADMITTED = "Q", "V", "A"


class Entry(NamedTuple):
    """A recorded pod; node 0 is unknown."""

    uid: int
    slot: int
    submission: int
    node: int = 0
    dead: bool = False
    vanished: bool = False


class Record(NamedTuple):
    r: int = 0
    a: int = 0
    jobset: int = 0
    restart: int = 0
    pods: tuple[Entry, ...] = ()
    undead: tuple[Entry, ...] = ()

    @property
    def entries(self) -> tuple[Entry, ...]:
        return self.pods + self.undead


class TrainJob(NamedTuple):
    """*raised*: A was raised for the present reservation."""

    suspended: bool = True
    a: int = 0
    raised: bool = False
    held: bool = False
    instance: int = 0
    record: Record = Record()
    finished: bool = False


class Workload(NamedTuple):
    """*instance*: the hold that its annotations show."""

    active: bool = True
    status: str = QUEUED
    evicted: bool = False
    ready: bool = False
    instance: int = 0


class JobSet(NamedTuple):
    uid: int
    restart: int = 0


class Pod(NamedTuple):
    uid: int
    slot: int
    submission: int
    jobset: int
    restart: int
    object: str = GATED
    epoch: int = 0
    process: int = NONE
    node: int = 0


class Node(NamedTuple):
    up: bool = True
    ready: bool = True


class Operation(NamedTuple):
    """What a controller is in the middle of: a step of `check`, `fence` or `sync` with what it has read or decided."""

    kind: str
    step: str
    submission: int
    data: tuple
    trainjob_changed: bool = False
    workload_changed: bool = False
    other_reservation: bool = False


class Ticket(NamedTuple):
    """A pod to lift, and the epoch it gets."""

    uid: int
    epoch: int


class Adapter(NamedTuple):
    """Second halves still to be written: the instance to deactivate for, and the one to reactivate for."""

    holding: int = 0
    releasing: int = 0


class Budget(NamedTuple):
    left: int
    kinds: frozenset[str]


class Monitor(NamedTuple):
    """What the invariants remember.

    *epoch*, *slots*: highest epoch started and the slots started under it. *a_before*, *a_now*: highest A used by
    earlier admissions and by this one. *held*: HELD could be observed and nobody has released since.
    """

    epoch: int = 0
    slots: frozenset[int] = frozenset()
    a_before: int = -1
    a_now: int = -1
    held: bool = False


class World(NamedTuple):
    trainjob: TrainJob
    workload: Workload
    jobset: JobSet | None
    pods: tuple[Pod, ...]
    nodes: tuple[Node, ...]
    operations: tuple[Operation | None, ...]
    adapter: Adapter
    budget: Budget
    monitor: Monitor
    submission: int = 1
    ledger: tuple[Entry, ...] = ()

    def can(self, *kinds: str) -> bool:
        """The adversary can still pay for all of these at once."""
        return self.budget.left >= len(kinds) and all(kind in self.budget.kinds for kind in kinds)

    def pay(self, *kinds: str) -> World:
        return self._replace(budget=Budget(self.budget.left - len(kinds), self.budget.kinds.difference(kinds)))

    def write_trainjob(self, **changes: Any) -> World:
        operations = tuple(one and one._replace(trainjob_changed=True) for one in self.operations)
        return self._replace(trainjob=self.trainjob._replace(**changes), operations=operations)

    def write_workload(self, **changes: Any) -> World:
        operations = tuple(one and one._replace(workload_changed=True) for one in self.operations)
        return self._replace(workload=self.workload._replace(**changes), operations=operations)

    def begin_reservation(self) -> World:
        """The key on the TrainJob names another reservation from now on, though nobody writes the TrainJob."""
        operations = tuple(one and one._replace(other_reservation=True) for one in self.operations)
        return self._replace(trainjob=self.trainjob._replace(raised=False), operations=operations)

    def change_pod(self, uid: int, **changes: Any) -> World:
        return self._replace(pods=tuple(pod._replace(**changes) if pod.uid == uid else pod for pod in self.pods))

    def set_operation(self, replica: int, operation: Operation | None) -> World:
        return self._replace(operations=(*self.operations[:replica], operation, *self.operations[replica + 1 :]))

    def evict(self) -> World:
        return self.write_workload(evicted=True, ready=False)

    def is_settled(self, node: int) -> bool:
        """Ready for so long that its kubelet has ended every process without a pod object."""
        orphans = (pod for pod in self.pods if pod.node == node and pod.object == GONE)
        return all(self.nodes[node - 1]) and all(pod.process not in (KNOWN, ALIVE) for pod in orphans)


@dataclass(frozen=True)
class Bounds:
    """How large a world is explored.

    :param actions: of the adversary in all.
    :param admissions: a state with a higher A is not followed further.
    :param most_states: the search ends here, if it must.
    """

    slots: int = 1
    controllers: int = 1
    nodes: int = 1
    actions: int = 1
    kinds: tuple[str, ...] = KINDS
    admissions: int = 4
    restarts: int = 2
    most_states: int = 2_000_000


def build_world(bounds: Bounds) -> World:
    budget = Budget(bounds.actions, frozenset(bounds.kinds))
    nodes, operations = (Node(),) * bounds.nodes, (None,) * bounds.controllers
    return World(TrainJob(), Workload(), None, (), nodes, operations, Adapter(), budget, Monitor())


def find_fresh(used: Iterable[int]) -> int:
    """The lowest number nobody can confuse: what is forgotten is given out again, so that the world stays finite."""
    taken = set(used)
    return next(number for number in range(1, len(taken) + 2) if number not in taken)


def find_used_uids(world: World) -> set[int]:
    used = {pod.uid for pod in world.pods} | {entry.uid for entry in (*world.trainjob.record.entries, *world.ledger)}
    for operation in world.operations:
        if operation:
            used |= _uids_in(operation.data)
    return used


def find_used_jobsets(world: World) -> set[int]:
    used = {pod.jobset for pod in world.pods} | {world.trainjob.record.jobset}
    used |= {world.jobset.uid} if world.jobset else set()
    for operation in world.operations:
        if operation:
            used |= {part.jobset for part in _parts(operation.data) if isinstance(part, Record)}
            used |= {part.uid for part in _parts(operation.data) if isinstance(part, JobSet)}
    return used


def _parts(value: object) -> Iterable[object]:
    yield value
    if isinstance(value, tuple):
        for part in value:
            yield from _parts(part)


def _uids_in(data: tuple) -> set[int]:
    return {part.uid for part in _parts(data) if isinstance(part, (Entry, Ticket))}


END = World(TrainJob(finished=True), Workload(), None, (), (), (), Adapter(), Budget(0, frozenset()), Monitor())
"""All ended worlds are one."""


def settle(world: World) -> World:
    """Forget what nobody can refer to, and look whether HELD can be observed."""
    trainjob, monitor = world.trainjob, world.monitor
    if trainjob.finished and not world.can("new-submission") and not world.can("delete-trainjob"):
        return END
    pods = tuple(sorted(pod for pod in world.pods if pod.object != GONE or pod.process in (KNOWN, ALIVE)))
    held = trainjob.held and (monitor.held or (not world.workload.active and not any(map(_is_alive, pods))))
    operations = world.operations
    if len(operations) > 1:
        operations = tuple(sorted(operations, key=repr))
    return world._replace(pods=pods, monitor=monitor._replace(held=held), operations=operations)


def _is_alive(pod: Pod) -> bool:
    return pod.object in LIVE or pod.process in (KNOWN, ALIVE)


class Violation(NamedTuple):
    """*name* is that of the invariant; see :mod:`.invariants`."""

    name: str
    text: str


class Step(NamedTuple):
    """One thing that can happen.

    *kind* is `calm` (what the cluster does by itself), `controller`, `release` or `adversary`. *world* is what comes
    of it, or the *violation*.
    """

    label: str
    kind: str
    world: World
    violation: Violation | None = None
