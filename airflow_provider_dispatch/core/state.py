# SPDX-License-Identifier: Apache-2.0
"""The closed sets of states and causes, and the one ladder that puts states in order of precedence.

Every adapter reduces what it sees to :class:`Signals` and asks :func:`derive_state`, so that all of them agree where
several states fit at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """State of a submission, in the order of precedence."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPING = "stopping"
    HOLDING = "holding"
    HELD = "held"
    GATED = "gated"
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    GONE = "gone"
    UNKNOWN = "unknown"


ENDED = frozenset({State.SUCCEEDED, State.FAILED})
OVER = ENDED | {State.GONE}
"""States that no submission leaves."""


class Cause(StrEnum):
    """Why a job is where it is. Never folded into "failed"."""

    PREEMPTED = "preempted"
    NODE_LOST = "node_lost"
    OUT_OF_MEMORY = "out_of_memory"
    EVICTED = "evicted"
    TIMEOUT = "timeout"
    NO_CAPACITY = "no_capacity"
    IMAGE = "image"
    EXITED = "exited"
    MISCONFIGURED = "misconfigured"
    DEPENDENCY_FAILED = "dependency_failed"
    STOPPED = "stopped"
    DELETED = "deleted"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Signals:
    """What an adapter has seen of a submission, reduced to questions with a yes or a no.

    :param end: SUCCEEDED or FAILED once that was proved; latched by the adapter.
    :param has_objects: anything of the submission is left besides the ledger.
    :param has_processes: something may still run; terminating and unproven count.
    :param is_recognised: the combination is one this version understands.
    """

    end: State | None = None
    has_objects: bool = True
    is_stopping: bool = False
    is_held: bool = False
    has_processes: bool = False
    is_gated: bool = False
    is_admitted: bool = False
    is_ready: bool = False
    is_recognised: bool = True


def derive_state(signals: Signals) -> State:
    """The first state that fits."""
    if signals.end is not None and signals.has_objects:
        return signals.end
    if not signals.has_objects:
        return State.GONE
    if signals.is_stopping:
        return State.STOPPING
    if signals.is_held:
        return State.HOLDING if signals.has_processes else State.HELD
    if not signals.is_recognised:
        return State.UNKNOWN
    if signals.is_gated:
        return State.GATED
    if not signals.is_admitted:
        return State.QUEUED
    return State.RUNNING if signals.is_ready else State.STARTING
