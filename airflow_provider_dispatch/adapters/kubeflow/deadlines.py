# SPDX-License-Identifier: Apache-2.0
"""The deadline of a writing verb: nothing is written past it, and a call that runs into it may be made again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime

from airflow_provider_dispatch.exceptions import UnavailableError


class DeadlineError(UnavailableError):
    """The time of a call is over."""


@asynccontextmanager
async def within(deadline: datetime, now: datetime, doing: str) -> AsyncIterator[None]:
    """Do something before *deadline*, by the monotonic clock from here on.

    :param doing: what it is, for the message.
    :raises DeadlineError: the time is over.
    """
    seconds = (deadline - now).total_seconds()
    if seconds <= 0:
        raise DeadlineError(f"the deadline of {doing} was over before it began; nothing was written")
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise DeadlineError(f"{doing} was not over in {seconds:.0f} s; the same call may be made again") from error
