# SPDX-License-Identifier: Apache-2.0
"""Holds as a set: a job is held while somebody holds it.

Adapters keep a :class:`HoldBook` for each submission and change it only by the functions here, under their own
compare-and-swap. An active hold with the same key is the same hold (a retried task); another key adds a holder.
Nothing here asks whether the job has ended: that comes first and belongs to the adapter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from airflow_provider_dispatch.exceptions import SpecError, StaleHoldError


class ActorKind(StrEnum):
    """Who acts: a person, a pipeline or rule, or the backend's own machinery."""

    HUMAN = "human"
    POLICY = "policy"
    SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class Actor:
    """Who placed a hold; *id* is a user name, a task or a component."""

    kind: ActorKind
    id: str


@dataclass(frozen=True, slots=True)
class HoldRequest:
    """A wish to hold.

    :param key: names this hold for its caller, and the same key again is the same hold. A task uses dag, run, task
        and map index.
    :param until: when it is lifted by itself; None means never.
    """

    key: str
    actor: Actor
    reason: str = ""
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Hold:
    """One holder of a job.

    :param instance: grows by one with each hold placed on the submission.
    """

    instance: int
    key: str
    actor: Actor
    reason: str
    since: datetime
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class HoldBook:
    """Every hold ever placed on a submission that matters still.

    :param active: in the order of their instances.
    :param last_instance: highest instance given out; those not active are released.
    """

    active: tuple[Hold, ...] = ()
    last_instance: int = 0

    @property
    def is_held(self) -> bool:
        """True while anybody holds the job."""
        return bool(self.active)


def check_request(request: HoldRequest, now: datetime) -> None:
    """Refuse a hold that could never hold anything.

    :raises SpecError: an empty key, an ``until`` without time zone or in the past.
    """
    if not request.key:
        raise SpecError("hold.key", "must not be empty")
    if request.until is None:
        return
    if request.until.tzinfo is None:
        raise SpecError("hold.until", "needs a time zone", request.until.isoformat())
    if request.until <= now:
        raise SpecError("hold.until", "lies in the past", request.until.isoformat())


def place_hold(book: HoldBook, request: HoldRequest, now: datetime) -> tuple[HoldBook, Hold]:
    """Add a holder, or find the active one with the same key.

    A hold whose ``until`` has passed answers no more, whether or not :func:`lift_expired` has been called since:
    the caller would believe to hold a job that is about to run.

    :raises SpecError: see :func:`check_request`. A key that is already active is answered even then.
    """
    for hold in book.active:
        if hold.key == request.key and not _is_over(hold, now):
            return book, hold
    check_request(request, now)
    instance = book.last_instance + 1
    hold = Hold(instance, request.key, request.actor, request.reason, now, request.until)
    return HoldBook((*book.active, hold), instance), hold


def release_hold(book: HoldBook, hold: Hold) -> HoldBook:
    """Lift exactly that hold. Lifting a released one changes nothing.

    :raises StaleHoldError: the instance was never given out here, or belongs to another key or moment.
    """
    if not 1 <= hold.instance <= book.last_instance:
        raise StaleHoldError(f"hold {hold.instance} was never placed on this job; its last is {book.last_instance}")
    for held in book.active:
        # Instances count anew in each submission, so the stamp tells a hold from its namesake in an earlier one.
        if held.instance == hold.instance and (held.key, held.since) != (hold.key, hold.since):
            given = f"that of {hold.key!r} since {hold.since.isoformat()}"
            raise StaleHoldError(
                f"hold {hold.instance} belongs to {held.key!r} since {held.since.isoformat()}, not {given}"
            )
    return replace(book, active=tuple(held for held in book.active if held.instance != hold.instance))


def lift_expired(book: HoldBook, now: datetime) -> tuple[HoldBook, tuple[Hold, ...]]:
    """Lift the holds whose ``until`` has passed; the second part says which."""
    over = tuple(hold for hold in book.active if _is_over(hold, now))
    return replace(book, active=tuple(hold for hold in book.active if hold not in over)), over


def next_expiry(book: HoldBook) -> datetime | None:
    """When the next hold is lifted by itself."""
    return min((hold.until for hold in book.active if hold.until is not None), default=None)


def _is_over(hold: Hold, now: datetime) -> bool:
    return hold.until is not None and hold.until <= now
