# SPDX-License-Identifier: Apache-2.0
"""Reads what people write after an option: lengths of time, moments, ``name=value`` pairs.

The verbs call it; the option's name goes into the error. Pure: the time is an argument.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timedelta

from airflow_provider_dispatch.exceptions import SpecError

LONGEST = timedelta(days=3650)
_SECONDS = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
_DURATION = re.compile(rf"(?=.)(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:({_SECONDS.pattern})s)?", re.ASCII)


def read_duration(option: str, text: str) -> timedelta:
    """A length of time: ``90``, ``90s``, ``15m``, ``1h30m``, ``2d``.

    :raises SpecError: something else, or more than ten years.
    """
    text = text.strip()
    # A number alone counts seconds; behind another unit it could be anything.
    match = _DURATION.fullmatch(f"{text}s" if _SECONDS.fullmatch(text) else text)
    if match is None:
        raise SpecError(option, "must be a length of time such as 90s, 15m, 1h30m or 2d", text)
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    try:
        duration = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    except OverflowError:
        duration = timedelta.max
    if duration > LONGEST:
        raise SpecError(option, "must be at most ten years", text)
    return duration


def read_optional_duration(option: str, text: str | None) -> timedelta | None:
    """The same for an option that may be left out."""
    return None if text is None else read_duration(option, text)


def read_moment(option: str, text: str, now: datetime) -> datetime:
    """A moment: a length of time from *now*, or ISO text. Without a time zone it means that of this machine.

    :raises SpecError: neither.
    """
    text = text.strip()
    if _SECONDS.fullmatch(text) or _DURATION.fullmatch(text):
        return now + read_duration(option, text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        problem = "must be a length of time such as 2h, or a moment such as 2030-01-31T18:00"
        raise SpecError(option, problem, text) from None
    return moment if moment.tzinfo is not None else moment.astimezone()


def read_pairs(option: str, texts: Iterable[str], *, is_shown: bool = True) -> dict[str, str]:
    """Pairs written ``name=value``.

    :param is_shown: False where somebody may have written a secret by mistake.
    :raises SpecError: no ``=``, or nothing before it.
    """
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise SpecError(option, "must be written name=value", text if is_shown else None)
        pairs[name] = value
    return pairs
