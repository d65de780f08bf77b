# SPDX-License-Identifier: Apache-2.0
"""One call of the command: its adapter, its screen, its deadline, and how a name becomes an address.

Made by :mod:`.verb` for each verb and closed with it. The only part of the command that reads the clock.
"""

from __future__ import annotations

import getpass
import os
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from airflow_provider_dispatch.adapters.protocol import DispatchAdapter
from airflow_provider_dispatch.cli.naming import JobName, NamedJob
from airflow_provider_dispatch.cli.screen import Screen
from airflow_provider_dispatch.cli.settings import BackendSettings
from airflow_provider_dispatch.core.holds import Actor, ActorKind
from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.exceptions import JobNotFoundError


@dataclass(slots=True)
class Session:
    """What a verb works with.

    :param if_interrupted: told to a person who presses Ctrl-C.
    """

    settings: BackendSettings
    adapter: DispatchAdapter
    screen: Screen
    if_interrupted: str = "nothing was changed"

    @property
    def now(self) -> datetime:
        """The wall clock."""
        return datetime.now(UTC)

    def build_deadline(self, limit: timedelta | None = None) -> datetime:
        """When a call that begins now must have ended.

        :param limit: None means what the settings say.
        """
        return self.now + (self.settings.call_timeout if limit is None else limit)

    async def locate(self, name: JobName) -> JobRef | JobID:
        """The address of a job: the bare id where only that was given, which means its newest submission.

        :raises SpecError: a wrong name.
        :raises ConflictError: the reference is of another place.
        """
        return await self.locate_named(name.parse(self.settings.deployment))

    async def locate_named(self, named: NamedJob) -> JobRef | JobID:
        """The same for a name that has been read."""
        if named.submission is None:
            return named.job
        if named.place:
            return JobRef(named.job, named.submission, self.adapter.name, named.place)
        newest = (await self.adapter.inspect(named.job)).ref
        return newest if newest.submission == named.submission else replace(newest, submission=named.submission, uid="")

    async def pin(self, name: JobName) -> JobRef:
        """The reference of the submission that is meant.

        :raises JobNotFoundError: nobody has heard of the job.
        """
        seen = await self.adapter.inspect(await self.locate(name))
        if seen.is_unheard_of:
            raise build_not_found(seen.ref)
        return seen.ref


def build_not_found(ref: JobRef) -> JobNotFoundError:
    """The error about a job nobody has heard of."""
    named = f"submission {ref.submission} of job {ref.job}" if ref.submission else f"job {ref.job}"
    return JobNotFoundError(f"there is no {named} in {ref.place}; dispatch list shows what there is")


def fetch_person() -> Actor:
    """Who is at the keyboard, as this machine calls them."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in many containers
        user = f"user {os.getuid()}"
    return Actor(ActorKind.HUMAN, user)
