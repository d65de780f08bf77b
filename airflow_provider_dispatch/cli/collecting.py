# SPDX-License-Identifier: Apache-2.0
"""The verb `gc`: finds what nobody needs any more, shows it, and removes it when told so.

What every backend has is found through the port: orphans of jobs that are over, and jobs that ended long ago. A backend
that leaves more behind, object by object, has :class:`Leftovers`. A job that is not over is never touched, and none of
another deployment than the settings name.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Protocol, runtime_checkable

from typer import Argument, Option

from airflow_provider_dispatch.cli.exit_codes import ExitCode
from airflow_provider_dispatch.cli.naming import parse_job
from airflow_provider_dispatch.cli.screen import View
from airflow_provider_dispatch.cli.session import Session, fetch_person
from airflow_provider_dispatch.cli.values import read_optional_duration
from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.core.owner import Owner
from airflow_provider_dispatch.core.records import JobRecord, JobSelector, Leftover
from airflow_provider_dispatch.core.state import ENDED, OVER
from airflow_provider_dispatch.exceptions import CapabilityError, ConflictError


class Leftovers(Protocol):
    """Objects that belong to no submission any more, orphans among them."""

    async def find(self, *, jobs: Collection[JobID], with_ledgers: bool) -> Sequence[Leftover]:
        """All of them.

        :param jobs: only of these; empty means all.
        :param with_ledgers: also the ledgers of jobs of which nothing else is left. A job that is forgotten begins to
            count its submissions anew.
        """
        ...

    async def remove(self, found: Leftover, *, deadline: datetime) -> str:
        """Remove one of them, if it may still be removed.

        :return: why it is still there; empty when it isn't.
        """
        ...


@runtime_checkable
class HasLeftovers(Protocol):
    """What an adapter may have besides the port."""

    @property
    def leftovers(self) -> Leftovers:
        """Those of the place that it looks after."""
        ...


@dataclass(frozen=True, slots=True)
class Garbage:
    """One thing that may go.

    :param job: whose it is.
    :param leftover: to be removed by itself; without, the job is stopped.
    :param owner: of the job, which must not have changed when it is stopped; None for an orphan.
    :param kept_because: why it stays all the same; empty when it may go.
    """

    object: str
    detail: str
    job: JobID
    leftover: Leftover | None = None
    owner: Owner | None = None
    kept_because: str = ""


async def gc(
    session: Session,
    *,
    jobs: Annotated[list[str] | None, Argument(metavar="JOB", help="Only these. Default: all there are.")] = None,
    ended: Annotated[str | None, Option(help="Also jobs that ended at least this long ago: 7d.")] = None,
    forget: Annotated[
        bool, Option("--forget", help="Also the ledgers of jobs of which nothing is left. Their count begins anew.")
    ] = False,
    yes: Annotated[bool, Option("--yes", "-y", help="Remove it. Without this, it is only shown.")] = False,
) -> ExitCode | None:
    """Show what nobody needs any more, and remove it with --yes. Exit 1: something could not be removed."""
    if yes:
        session.if_interrupted = "what was removed stays removed; the same call again goes on with the rest"
    age = read_optional_duration("--ended", ended)
    with session.screen.working("looking for what is left"):
        found = await _find_garbage(session, [parse_job(text).job for text in jobs or ()], age, with_ledgers=forget)
    outcome = [(each, await _remove(session, each) if yes else _describe(each)) for each in found]
    session.screen.show(_view_garbage(outcome))
    if not yes and any(not each.kept_because for each in found):
        session.screen.tell("nothing was removed; --yes removes what is marked so")
    is_left = yes and any(said.startswith("left") for _, said in outcome)
    return ExitCode.FAILED if is_left else None


async def _find_garbage(
    session: Session, jobs: list[JobID], age: timedelta | None, *, with_ledgers: bool
) -> list[Garbage]:
    """What is left of these jobs; of all there are when none is named."""
    if isinstance(session.adapter, HasLeftovers):
        found = await session.adapter.leftovers.find(jobs=jobs, with_ledgers=with_ledgers)
        garbage = [Garbage(one.object, one.detail, one.job, one, kept_because=one.kept_because) for one in found]
        return garbage + (await _find_in_jobs(session, jobs, age) if age is not None else [])
    if with_ledgers:
        raise CapabilityError(f"the {session.adapter.name} backend keeps its ledger: leave out --forget")
    return await _find_in_jobs(session, jobs, age)


async def _find_in_jobs(session: Session, jobs: list[JobID], age: timedelta | None) -> list[Garbage]:
    """Looks at each job by itself: the list tells nothing of orphans, and may be older than the job's state."""
    mine = session.settings.deployment
    if not jobs:
        listed = await session.adapter.list(JobSelector(deployment=mine or None))
        jobs = [record.ref.job for record in listed]
    found = []
    for job in jobs:
        record = await session.adapter.find(job)
        if record.newest is not None and mine not in ("", record.newest.owner.deployment):
            owner = record.newest.owner.deployment
            found.append(Garbage(f"job {job}", "", job, kept_because=f"it belongs to deployment {owner!r}"))
            continue
        seen = await session.adapter.inspect(job)
        if not isinstance(session.adapter, HasLeftovers):
            kept = "" if seen.state in OVER else f"the job is {seen.state}; stop it by hand"
            found += [Garbage(orphan, f"orphan of job {job}", job, kept_because=kept) for orphan in record.orphans]
        if age is not None and seen.state in ENDED and record.newest is not None:
            last = await _fetch_end(session, record)
            if last is not None and session.now - last >= age:
                said = f"{seen.state} {last:%Y-%m-%d %H:%M} UTC"
                found.append(Garbage(f"job {job}", said, job, owner=record.newest.owner))
    return found


async def _fetch_end(session: Session, record: JobRecord) -> datetime | None:
    """When its newest submission ended; None where nobody wrote it down."""
    if record.newest is not None and record.newest.ended_at is not None:
        return record.newest.ended_at
    events = await session.adapter.events(record.job)
    return events[-1].at if events else None


async def _remove(session: Session, garbage: Garbage) -> str:
    if garbage.kept_because:
        return _describe(garbage)
    deadline = session.build_deadline()
    if garbage.leftover is not None and isinstance(session.adapter, HasLeftovers):
        why = await session.adapter.leftovers.remove(garbage.leftover, deadline=deadline)
        return f"left: {why}" if why else "removed"
    reason = f"removed by {fetch_person().id}"
    try:
        report = await session.adapter.stop(garbage.job, reason=reason, deadline=deadline, if_owner=garbage.owner)
    except ConflictError as error:  # somebody has begun it anew
        return f"left: {error}"
    record = await session.adapter.find(garbage.job)
    left = [*(found.object for found in (*report.alive, *report.unproven)), *record.orphans]
    return f"left: {', '.join(left)}" if left else "removed"


def _describe(garbage: Garbage) -> str:
    return f"kept: {garbage.kept_because}" if garbage.kept_because else "may be removed"


def _view_garbage(outcome: Sequence[tuple[Garbage, str]]) -> View:
    plain = [{"object": each.object, "detail": each.detail, "job": each.job, "outcome": said} for each, said in outcome]
    rows = [(each.object, each.detail, said) for each, said in outcome]
    return View(plain, ("OBJECT", "DETAIL", "OUTCOME"), rows, () if rows else ("nothing to remove",))
