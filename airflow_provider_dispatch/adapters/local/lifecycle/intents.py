# SPDX-License-Identifier: Apache-2.0
"""What a caller may want of a submission, checked against what is there. Pure; under the caller's own transaction.

The local adapter and the fake call it, so that both refuse the same things with the same words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from airflow_provider_dispatch.adapters.local.lifecycle.status import Status, StopIntent, Submission
from airflow_provider_dispatch.adapters.local.scheduling.model import Queue
from airflow_provider_dispatch.core.holds import Hold, HoldRequest, place_hold, release_hold
from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.core.owner import Owner
from airflow_provider_dispatch.core.records import StartRequest, SubmissionRecord
from airflow_provider_dispatch.core.state import Cause, State
from airflow_provider_dispatch.exceptions import ConflictError, RefusedError, SpecError

DEFAULT_QUEUE = "default"
HIGHEST_ATTEMPT = 2**31 - 1

Pair = tuple[Submission, Status]


def check_start(request: StartRequest, ledger: int, deployment: str | None, found: Sequence[Pair]) -> Submission | None:
    """Whether a submission may be made.

    :param deployment: of the job so far; None when it was never heard of.
    :param found: submissions of the job whose objects exist.
    :returns: the submission that stands already, when this is the same call again.
    :raises ConflictError: another spec, another deployment, a number used before, or one that has not ended.
    :raises SpecError: an attempt that doesn't count from 1.
    """
    if not 1 <= request.attempt <= HIGHEST_ATTEMPT:
        raise SpecError("attempt", f"must lie between 1 and {HIGHEST_ATTEMPT}", request.attempt)
    name = f"job {request.job}"
    if deployment is not None and deployment != request.owner.deployment:
        raise ConflictError(f"{name} belongs to deployment {deployment!r}, not to {request.owner.deployment!r}")
    for submission, _ in found:
        if submission.ref.submission == request.submission:
            if submission.request.spec.digest != request.spec.digest:
                raise ConflictError(f"submission {request.submission} of {name} exists with another spec")
            return submission
    if request.submission <= ledger:
        raise ConflictError(f"submission {request.submission} of {name} was used before; the next is {ledger + 1}")
    for submission, status in found:
        if status.end is None:
            raise ConflictError(f"submission {submission.ref.submission} of {name} has not ended; stop it first")
    return None


def check_place(target: JobRef | JobID, backend: str, place: str) -> None:
    """Refuse a reference to a job of another store or machine; a bare id says nothing of that.

    A conflict rather than "not found": a caller that takes "not found" for "gone" must not be told so about a job that
    lives elsewhere.

    :raises ConflictError: names both places.
    """
    if isinstance(target, JobRef) and (target.backend, target.place) != (backend, place):
        raise ConflictError(f"{target.id} lives in {target.backend} {target.place}, and this is {place}")


def resolve_queue(named: str | None, queues: Mapping[str, Queue] | None) -> str:
    """The queue a job goes into.

    :param queues: None means that any name will do.
    :raises SpecError: unknown; the message lists the known.
    """
    name = named or DEFAULT_QUEUE
    if queues is not None and name not in queues:
        raise SpecError("queue", f"is not one of {', '.join(sorted(queues))}", name)
    return name


def resolve_priority(named: str | int | None, priorities: Mapping[str, int]) -> int:
    """A priority as a number.

    :raises SpecError: a name that is not known.
    """
    if isinstance(named, int):
        return named
    if named is None:
        return 0
    if named not in priorities:
        raise SpecError("priority", f"must be a number or one of {', '.join(sorted(priorities))}", named)
    return priorities[named]


def open_gate(submission: Submission, now: datetime) -> Submission:
    """With our gate removed."""
    return submission if submission.opened_at is not None else replace(submission, opened_at=now)


def hold(submission: Submission, status: Status, request: HoldRequest, now: datetime) -> tuple[Submission, Hold]:
    """With one more holder.

    :raises RefusedError: it has ended, or is being stopped.
    """
    if status.end is not None:
        cause = f", {status.cause}" if status.cause else ""
        raise RefusedError(
            f"{submission.ref.id} has ended and can't be held: {status.end}{cause} {status.detail}".strip()
        )
    if submission.stop is not None:
        raise RefusedError(f"{submission.ref.id} is being stopped and can't be held: {submission.stop.reason}")
    book, placed = place_hold(submission.holds, request, now)
    return replace(submission, holds=book), placed


def release(submission: Submission, held: Hold) -> Submission:
    """With exactly that hold lifted."""
    return replace(submission, holds=release_hold(submission.holds, held))


def stop(submission: Submission, reason: str, now: datetime) -> Submission:
    """Asked to go; the first reason stays."""
    return submission if submission.stop is not None else replace(submission, stop=StopIntent(reason, now))


def adopt(submission: Submission, owner: Owner, expected: Owner) -> Submission:
    """With another owner.

    :raises ConflictError: its owner is not the expected one.
    """
    check_owner(submission, expected)
    return replace(submission, request=replace(submission.request, owner=owner))


def check_owner(submission: Submission, expected: Owner) -> None:
    """Refuse when somebody else owns it.

    :raises ConflictError: names the owner.
    """
    owner = submission.request.owner
    if not owner.is_same_caller(expected):
        who = f"{owner.dag_id}.{owner.task_id} try {owner.try_number} ({owner.instance_id})"
        raise ConflictError(f"{submission.ref.id} is owned by {who} of deployment {owner.deployment!r}")


def build_record(submission: Submission, status: Status, state: State) -> SubmissionRecord:
    """A submission as `find` and `list` tell it."""
    request = submission.request
    return SubmissionRecord(
        ref=submission.ref,
        state=state,
        spec=request.spec,
        owner=request.owner,
        supervision=request.supervision,
        attempt=request.attempt,
        cause=status.cause,
        queue=submission.queue,
        created_at=submission.created_at,
        ended_at=status.ended_at,
    )


def build_gone(ref: JobRef, stop_reason: str | None, now: datetime) -> Observation:
    """The observation when nothing is left.

    :param stop_reason: None when the job was never heard of.
    """
    if stop_reason is None:
        return Observation(State.GONE, ref, observed_at=now)
    return Observation(State.GONE, ref, cause=Cause.STOPPED, detail=stop_reason, observed_at=now)
