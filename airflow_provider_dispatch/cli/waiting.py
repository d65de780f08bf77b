# SPDX-License-Identifier: Apache-2.0
"""Waiting for jobs to come as far as somebody wants: `watch`, and the ``--wait`` of other verbs.

It listens to the adapter and judges with the contract's own rules. It never touches a job, however it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, cast

from typer import Option

from airflow_provider_dispatch.cli.exit_codes import ExitCode
from airflow_provider_dispatch.cli.session import Session
from airflow_provider_dispatch.cli.values import read_duration
from airflow_provider_dispatch.core.diagnosis import diagnose
from airflow_provider_dispatch.core.goals import Goal, Verdict, judge
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.narration import build_fingerprint, describe
from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.core.state import State
from airflow_provider_dispatch.exceptions import UnavailableError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a verb stays."""

    timeout: Annotated[
        str | None, Option(help="Give up after this long: 90s, 15m. What was asked for goes on all the same.")
    ] = None

    @property
    def limit(self) -> timedelta | None:
        """None means for ever, or what the verb says.

        :raises SpecError: no length of time.
        """
        return None if self.timeout is None else read_duration("--timeout", self.timeout)


@dataclass(slots=True)
class Wait:
    """A wait for one or more submissions.

    :param on_news: called with each observation that deserves a line.
    :ivar last: of each submission.
    """

    session: Session
    refs: Sequence[JobRef]
    goal: Goal
    on_news: Callable[[Observation], None]
    last: dict[JobRef, Observation] = field(default_factory=dict)

    async def run(self, limit: timedelta | None) -> ExitCode:
        """Wait until each is there or never will be; the latter is said, with the reason.

        :param limit: None means for ever.
        :raises UnavailableError: the time is over; asking again is fine.
        """
        try:
            async with asyncio.timeout(None if limit is None else limit.total_seconds()):
                return await self._listen()
        except TimeoutError:
            where = "; ".join(describe(seen, self.session.now) for seen in self.last.values()) or "nothing was seen"
            raise UnavailableError(f"not {self.goal} within {limit}: {where}; the job goes on") from None

    async def _listen(self) -> ExitCode:
        waiting = {(ref.job, ref.submission) for ref in self.refs}
        code = ExitCode.OK
        told: dict[object, object] = {}
        watch = cast("AsyncGenerator[Observation]", self.session.adapter.watch(self.refs))
        async with aclosing(watch) as observations:
            async for seen in observations:
                key = (seen.ref.job, seen.ref.submission)
                self.last[seen.ref] = seen
                if told.get(key) != (news := build_fingerprint(seen)):
                    told[key] = news
                    self.on_news(seen)
                verdict = judge(self.goal, seen)
                if key in waiting and verdict.verdict is not Verdict.WAIT:
                    waiting.discard(key)
                    if verdict.verdict is Verdict.FAIL:
                        code = ExitCode.FAILED
                        self.session.screen.tell(f"error: {_describe_failure(seen, verdict.reason)}")
                if not waiting:
                    return code
        return ExitCode.FAILED


async def wait_for(session: Session, ref: JobRef, goal: Goal, limit: timedelta | None) -> tuple[ExitCode, Observation]:
    """Wait for one submission and tell a person who waits how it comes along; the last that was seen."""
    wait = Wait(session, [ref], goal, lambda seen: session.screen.tell_progress(describe(seen, session.now)))
    code = await wait.run(limit)
    return code, wait.last.get(ref) or await session.adapter.inspect(ref)


def _describe_failure(seen: Observation, reason: str) -> str:
    if seen.is_over and seen.state is not State.SUCCEEDED:
        return diagnose(seen).to_text()
    return f"job {seen.ref.id}: {reason}"
