# SPDX-License-Identifier: Apache-2.0
"""The verb `gc`: finds what nobody needs any more, shows it, and removes it when told so.

What every backend has is found through the port: orphans of jobs that are over, and jobs that ended long ago. A backend
that leaves more behind has the two methods of :class:`LeftoverCollector`. A job that is not over is never touched.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from airflow_provider_dispatch.core.records import JobSelector, ObjectReport
from airflow_provider_dispatch.core.state import ENDED, OVER
from airflow_provider_dispatch.exceptions import CapabilityError


@runtime_checkable
class LeftoverCollector(Protocol):
    """What an adapter may have besides the port: objects that belong to no job any more."""

    async def find_leftovers(self, *, with_ledgers: bool) -> Sequence[ObjectReport]:
        """Objects that may be removed.

        :param with_ledgers: also the ledgers of jobs of which nothing else is left. A job that is forgotten begins to
            count its submissions anew.
        """
        ...

    async def remove_leftover(self, found: ObjectReport, *, deadline: datetime) -> None:
        """Remove one of them, if it may still be removed."""
        ...


@dataclass(frozen=True, slots=True)
class Garbage:
    """One thing that may go.

    :param job: to be stopped; None for an object of no job.
    :param kept_because: why it stays all the same; empty when it may go.
    """

    object: str
    detail: str
    job: JobID | None = None
    leftover: ObjectReport | None = None
    kept_because: str = ""


async def gc(
    session: Session,
    *,
    jobs: Annotated[list[str] | None, Argument(metavar="[JOB]...", help="Only these. Default: all there are.")] = None,
    ended: Annotated[str | None, Option(help="Also jobs that ended at least this long ago: 7d.")] = None,
    forget: Annotated[
        bool, Option("--forget", help="Also the ledgers of jobs of which nothing is left. Their count begins anew.")
    ] = False,
    yes: Annotated[bool, Option("--yes", "-y", help="Remove it. Without this, it is only shown.")] = False,
) -> ExitCode | None:
    """Show what nobody needs any more, and remove it with --yes. Exit 1: something could not be removed."""
    session.if_interrupted = "what was removed stays removed; the rest is untouched"
    age = read_optional_duration("--ended", ended)
    with session.screen.working("looking for what is left"):
        found = await _find_garbage(session, [parse_job(text).job for text in jobs or ()], age)
        if not jobs:
            found += await _find_leftovers(session, with_ledgers=forget)
    outcome = [(each, await _remove(session, each) if yes else _describe(each)) for each in found]
    session.screen.show(_view_garbage(outcome))
    if not yes and any(not each.kept_because for each in found):
        session.screen.tell("nothing was removed; --yes removes what is marked so")
    is_left = yes and any(said.startswith("left") for _, said in outcome)
    return ExitCode.FAILED if is_left else None


async def _find_garbage(session: Session, jobs: list[JobID], age: timedelta | None) -> list[Garbage]:
    """Looks at each job by itself: the list tells nothing of orphans, and may be older than the job's state."""
    if not jobs:
        jobs = [record.ref.job for record in await session.adapter.list(JobSelector())]
    found = []
    for job in jobs:
        record = await session.adapter.find(job)
        seen = await session.adapter.inspect(job)
        kept = "" if seen.state in OVER else f"the job is {seen.state}; stop it by hand"
        found += [Garbage(orphan, f"orphan of job {job}", job, kept_because=kept) for orphan in record.orphans]
        if age is not None and seen.state in ENDED and record.newest is not None:
            last = await _fetch_last_change(session, job, record.newest.created_at)
            if last is not None and session.now - last >= age:
                found.append(Garbage(f"job {job}", f"{seen.state} {last:%Y-%m-%d %H:%M} UTC", job))
    return found


async def _fetch_last_change(session: Session, job: JobID, otherwise: datetime | None) -> datetime | None:
    events = await session.adapter.events(job)
    return events[-1].at if events else otherwise


async def _find_leftovers(session: Session, *, with_ledgers: bool) -> list[Garbage]:
    if isinstance(session.adapter, LeftoverCollector):
        found = await session.adapter.find_leftovers(with_ledgers=with_ledgers)
        return [Garbage(each.object, each.detail, leftover=each) for each in found]
    if with_ledgers:
        raise CapabilityError(f"the {session.adapter.name} backend keeps its ledger: leave out --forget")
    return []


async def _remove(session: Session, garbage: Garbage) -> str:
    deadline = session.build_deadline()
    if garbage.kept_because:
        return _describe(garbage)
    if garbage.leftover is not None and isinstance(session.adapter, LeftoverCollector):
        await session.adapter.remove_leftover(garbage.leftover, deadline=deadline)
        return "removed"
    assert garbage.job is not None
    reason = f"removed by {fetch_person().id}"
    report = await session.adapter.stop(garbage.job, reason=reason, deadline=deadline)
    record = await session.adapter.find(garbage.job)
    left = [*(found.object for found in (*report.alive, *report.unproven)), *record.orphans]
    return f"left: {', '.join(left)}" if left else "removed"


def _describe(garbage: Garbage) -> str:
    return f"kept: {garbage.kept_because}" if garbage.kept_because else "may be removed"


def _view_garbage(outcome: Sequence[tuple[Garbage, str]]) -> View:
    plain = [{"object": each.object, "detail": each.detail, "job": each.job, "outcome": said} for each, said in outcome]
    rows = [(each.object, each.detail, said) for each, said in outcome]
    return View(plain, ("OBJECT", "DETAIL", "OUTCOME"), rows, () if rows else ("nothing to remove",))
