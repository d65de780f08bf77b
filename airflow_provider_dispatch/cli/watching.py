# SPDX-License-Identifier: Apache-2.0
"""The verbs that stay and look on: watch and logs. Ctrl-C ends them and never touches a job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from typer import Argument, Option

from airflow_provider_dispatch.adapters.protocol import OutputRequest
from airflow_provider_dispatch.cli import views
from airflow_provider_dispatch.cli.exit_codes import ExitCode
from airflow_provider_dispatch.cli.naming import JobName
from airflow_provider_dispatch.cli.session import Session
from airflow_provider_dispatch.cli.waiting import Patience, Wait
from airflow_provider_dispatch.core.goals import Goal
from airflow_provider_dispatch.core.narration import describe
from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.core.output import Cursor

UNTOUCHED = "the job goes on untouched"


async def watch(
    session: Session,
    name: JobName,
    patience: Patience,
    *,
    more: Annotated[list[str] | None, Argument(metavar="JOB", help="Further jobs.")] = None,
    until: Annotated[Goal, Option(help="How far to wait.")] = Goal.FINISHED,
) -> ExitCode:
    """Tell each change of a job until it has finished, or is as far as asked. Exit 1: it never will be."""
    limit = patience.limit
    session.if_interrupted = UNTOUCHED
    names = [name, *(JobName(job=job) for job in more or ())]
    refs = [await session.pin(each) for each in names]

    def show(seen: Observation) -> None:
        now = session.now
        which = "" if len(refs) == 1 else f"{seen.ref.job} {seen.ref.submission}  "
        plain = views.dump_observation(seen, now)
        session.screen.show_next(plain, f"{now:%H:%M:%S}  {which}{describe(seen, now)}")

    return await Wait(session, refs, until, show).run(limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineOptions:
    """Which lines to show."""

    follow: Annotated[bool, Option("--follow", "-f", help="Wait for more until the job is over.")] = False
    role: Annotated[str | None, Option(help="Role; the leading one if not given.")] = None
    rank: Annotated[int, Option(help="Rank within the role.", min=0)] = 0
    epoch: Annotated[int | None, Option(help="Of one execution; the newest if not given.", min=0)] = None
    lines: Annotated[int | None, Option(help="End after this many lines.", min=1)] = None
    cursor: Annotated[str | None, Option(help="Go on after the line that had this cursor (--output json).")] = None

    def build_request(self) -> OutputRequest:
        """The same for an adapter.

        :raises ProtocolError: not a cursor.
        """
        begin = Cursor.from_text(self.cursor) if self.cursor is not None else None
        return OutputRequest(self.role, self.rank, self.epoch, begin, self.follow, self.lines)


async def logs(
    session: Session,
    name: JobName,
    which: LineOptions,
    *,
    timestamps: Annotated[bool, Option("--timestamps", help="Begin each line with its time.")] = False,
) -> None:
    """What a rank prints, each line once. Notices about missing lines go to standard error."""
    session.if_interrupted = UNTOUCHED
    request = which.build_request()
    ref = await session.pin(name)
    async for line in session.adapter.output(ref, request):
        text = f"{line.at:%Y-%m-%dT%H:%M:%S.%fZ} {line.text}" if timestamps else line.text
        if line.notice and session.screen.is_for_people:
            session.screen.tell(text)
        else:
            session.screen.show_next(views.dump_line(line), text)
