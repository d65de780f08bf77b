# SPDX-License-Identifier: Apache-2.0
"""What admission looks at and what it answers. Built by the lifecycle (and by tests), read by every module here.

Times are seconds on one clock that never steps back; only differences matter. Resource maps hold whole numbers: cpu in
millicores, memory in bytes, anything else counted. A resource that a node or quota doesn't name: a node has none of
it, a quota doesn't limit it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

Resources = Mapping[str, int]
JobKey = str

ROOT = ""
RANKS = "ranks"
"""A counted resource of which every rank uses one, so that a machine has a most."""


@dataclass(frozen=True, slots=True)
class Queue:
    """A node of the tree of queues; jobs stand in leaves.

    :param parent: ``""`` is the root, which needs no entry and limits nothing.
    :param weight: of its share between its siblings.
    :param nominal: what it may use; a resource it doesn't name is not limited here. None limits nothing.
    :param borrowing: beyond nominal, from its parent's unused; a resource not named: without limit. In a flat tree
        there is nothing to borrow.
    :param lending: how much of its unused nominal siblings may borrow; a resource not named: all of it.
    :param is_stopped: admits nothing; what runs goes on.
    """

    name: str
    parent: str = ROOT
    weight: int = 1
    nominal: Resources | None = None
    borrowing: Resources = field(default_factory=dict)
    lending: Resources = field(default_factory=dict)
    is_stopped: bool = False


@dataclass(frozen=True, slots=True)
class Node:
    """A machine."""

    name: str
    capacity: Resources
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Shape:
    """One role as admission sees it: so many ranks, each asking for the same.

    :param request: per rank.
    :param required: labels a node must have.
    :param preferred: labels that make a node better.
    :param priority: roles of a higher one are placed first.
    """

    count: int
    request: Resources
    required: Mapping[str, str] = field(default_factory=dict)
    preferred: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """A candidate: its gate is open, nobody holds it, its pause is over.

    :param queued_since: kept over preemption and release.
    """

    key: JobKey
    queue: str
    shapes: tuple[Shape, ...]
    priority: int = 0
    queued_since: float = 0.0


Placement = tuple[tuple[str, Resources], ...]
"""Node name and what is used there, one entry a node."""


@dataclass(frozen=True, slots=True)
class PlacedJob:
    """A job that has room.

    :param is_ending: its processes have been asked to end; its room counts until they are gone.
    :param is_protected: never a victim.
    """

    key: JobKey
    queue: str
    placement: Placement
    priority: int = 0
    admitted_at: float = 0.0
    is_ending: bool = False
    is_protected: bool = False


@dataclass(frozen=True, slots=True)
class Reservation:
    """Room set aside for a waiting job: until it is admitted, nobody else of its tree gets it.

    :param is_for_preemption: made for a preemptor whose victims are ending, rather than for a starving head.
    :param room: what is set aside; empty means that admission chooses it.
    :param victims: those still ending for it; as long as they are, they hold its room.
    """

    key: JobKey
    since: float
    is_for_preemption: bool = False
    room: Placement = ()
    victims: tuple[JobKey, ...] = ()


@dataclass(frozen=True, slots=True)
class AdmissionState:
    """Everything admission needs.

    :param queues: by name; the order doesn't matter.
    :param starvation_after: seconds a blocked head lets others pass, before room is set aside for it.
    :param has_open_queues: a name that *queues* lacks is an unlimited child of the root; else such a job can't fit.
    """

    nodes: tuple[Node, ...]
    queues: tuple[Queue, ...] = ()
    waiting: tuple[WaitingJob, ...] = ()
    placed: tuple[PlacedJob, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    starvation_after: float = 60.0
    has_open_queues: bool = True


class ReasonCode(StrEnum):
    """Why a job waits; a closed set."""

    NEVER_FITS_QUOTA = "never_fits_quota"
    NEVER_FITS_NODES = "never_fits_nodes"
    UNKNOWN_QUEUE = "unknown_queue"
    QUEUE_STOPPED = "queue_stopped"
    QUOTA = "quota"
    NODES = "nodes"
    RESERVED = "reserved"
    PREEMPTING = "preempting"


NEVER = frozenset({ReasonCode.NEVER_FITS_QUOTA, ReasonCode.NEVER_FITS_NODES, ReasonCode.UNKNOWN_QUEUE})
"""Reasons that no end of another job removes."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a job waits, for programs and for people.

    :param message: for instance ``needs 2 x 500m cpu in team-a, 300m free``.
    """

    code: ReasonCode
    message: str


@dataclass(frozen=True, slots=True)
class Preemption:
    """A victim and who it is for."""

    victim: JobKey
    preemptor: JobKey
    message: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now.

    :param admit: job → where; in the order of the decisions.
    :param preempt: running jobs to end.
    :param reservations: to be handed back as the next state's.
    :param reasons: for every job that goes on waiting.
    :param wake_at: when to ask again though nothing changes; None means never.
    """

    admit: Mapping[JobKey, Placement]
    preempt: tuple[Preemption, ...]
    reservations: tuple[Reservation, ...]
    reasons: Mapping[JobKey, Reason]
    wake_at: float | None = None
