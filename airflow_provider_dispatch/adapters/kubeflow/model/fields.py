# SPDX-License-Identifier: Apache-2.0
"""Reading raw API objects: the one module where a value may be of any type, so that no other needs to ask.

All readers are total: what is missing or of another shape reads as empty, because an object may be half-written,
older or newer than we know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

Raw = Mapping[str, Any]
"""An API object as the server sent it."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One entry of ``status.conditions``; *at* is its last transition."""

    type: str
    is_true: bool
    reason: str = ""
    message: str = ""
    at: datetime | None = None


def dig(raw: object, *path: str) -> Any:
    """The value at a path of keys, or None."""
    for step in path:
        if not isinstance(raw, Mapping):
            return None
        raw = raw.get(step)
    return raw


def text(raw: object, *path: str) -> str:
    """The text there; empty for anything else."""
    value = dig(raw, *path)
    return value if isinstance(value, str) else ""


def number(raw: object, *path: str) -> int:
    """The whole number there; 0 for anything else."""
    value = dig(raw, *path)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def flag(raw: object, *path: str, default: bool = False) -> bool:
    """The boolean there."""
    value = dig(raw, *path)
    return value if isinstance(value, bool) else default


def items(raw: object, *path: str) -> list[Raw]:
    """The mappings in the list there."""
    value = dig(raw, *path)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def mapping(raw: object, *path: str) -> Raw:
    """The mapping there; an empty one for anything else."""
    value = dig(raw, *path)
    return value if isinstance(value, Mapping) else {}


def texts(raw: object, *path: str) -> dict[str, str]:
    """The mapping of texts there, such as labels."""
    return {str(key): value for key, value in mapping(raw, *path).items() if isinstance(value, str)}


def moment(raw: object, *path: str) -> datetime | None:
    """The time there, aware; None for anything else."""
    return parse_time(text(raw, *path))


def parse_time(stamp: str) -> datetime | None:
    """A stamp of the API or of an annotation, in UTC; None for anything else."""
    try:
        parsed = datetime.fromisoformat(stamp)
        return parsed.astimezone(UTC) if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)
    except (ValueError, OverflowError):  # the latter within a day of either end of the calendar
        return None


def format_time(moment: datetime) -> str:
    """A stamp as the API writes it, to the microsecond."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def name(raw: object) -> str:
    """``metadata.name``."""
    return text(raw, "metadata", "name")


def uid(raw: object) -> str:
    """``metadata.uid``."""
    return text(raw, "metadata", "uid")


def label(raw: object, key: str) -> str:
    """One label; empty when it isn't there."""
    return text(raw, "metadata", "labels", key)


def annotation(raw: object, key: str) -> str:
    """One annotation; empty when it isn't there."""
    return text(raw, "metadata", "annotations", key)


def is_deleting(raw: object) -> bool:
    """It has a deletion timestamp."""
    return bool(text(raw, "metadata", "deletionTimestamp"))


def whole_number(stamp: str) -> int | None:
    """An annotation or label that is a count; None for anything else."""
    return int(stamp) if stamp.isascii() and stamp.isdecimal() and len(stamp) < 20 else None


def conditions(raw: object) -> dict[str, Condition]:
    """``status.conditions`` by type."""
    found = (
        Condition(
            text(item, "type"),
            text(item, "status") == "True",
            text(item, "reason"),
            text(item, "message"),
            moment(item, "lastTransitionTime"),
        )
        for item in items(raw, "status", "conditions")
    )
    return {condition.type: condition for condition in found}


def is_true(raw: object, kind: str) -> bool:
    """Whether a condition is there and True."""
    condition = conditions(raw).get(kind)
    return condition is not None and condition.is_true


def has_controller(raw: object, owner_uid: str) -> bool:
    """Whether an object belongs to the owner with this UID."""
    return any(text(owner, "uid") == owner_uid for owner in items(raw, "metadata", "ownerReferences"))
