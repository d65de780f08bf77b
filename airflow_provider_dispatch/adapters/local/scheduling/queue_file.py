# SPDX-License-Identifier: Apache-2.0
"""Reads the queues of a machine from its parsed ``queues.toml``. The adapter and the agent call it.

::

    starvation_after_seconds = 60

    [node]
    capacity = {cpu = "8", memory = "16Gi", gpu = 1}

    [priorities]
    urgent = 1000

    [queues.team-a]
    quota = {cpu = "2", memory = "4Gi"}
    weight = 2
    stopped = false

Never opens a file and never guesses: a word it doesn't know is an error that names the known ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from airflow_provider_dispatch.adapters.local.scheduling.model import Queue, Resources
from airflow_provider_dispatch.core.quantity import parse_quantity
from airflow_provider_dispatch.exceptions import SpecError

DEFAULT_PRIORITIES: Mapping[str, int] = {"low": -100, "normal": 0, "high": 100}
DEFAULT_STARVATION_AFTER = 60.0
HIGHEST_PRIORITY = 2**31 - 1
HEAVIEST_WEIGHT = 1_000_000

_NAME_RULE = "must be letters, digits, '.', '-' and '_', up to 253, beginning and ending with a letter or digit"
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?", re.ASCII)


@dataclass(frozen=True, slots=True)
class QueueFile:
    """What the file says, with the defaults filled in.

    :param capacity: of this machine.
    :param priorities: name → number.
    :param starvation_after: seconds.
    """

    queues: tuple[Queue, ...]
    capacity: Resources
    priorities: Mapping[str, int] = field(default_factory=lambda: dict(DEFAULT_PRIORITIES))
    starvation_after: float = DEFAULT_STARVATION_AFTER


def parse_queues(data: Mapping[str, object], *, default_capacity: Resources) -> QueueFile:
    """Read the file's contents.

    :param default_capacity: what the machine has; the file may say otherwise for each resource.
    :raises SpecError: anything that can't be right, with its place in the file.
    """
    _check_words(data, ("queues", "node", "priorities", "starvation_after_seconds"), "")
    node = _read_table(data.get("node", {}), "node")
    _check_words(node, ("capacity",), "node.")
    queues = _read_table(data.get("queues", {}), "queues")
    return QueueFile(
        queues=tuple(_read_queue(name, queues[name]) for name in sorted(queues)),
        capacity={**default_capacity, **_read_amounts(node.get("capacity", {}), "node.capacity")},
        priorities=_read_priorities(_read_table(data.get("priorities", {}), "priorities")),
        starvation_after=_read_seconds(data.get("starvation_after_seconds", DEFAULT_STARVATION_AFTER)),
    )


def _read_queue(name: str, value: object) -> Queue:
    place = f"queues.{name}"
    if not _NAME.fullmatch(name):
        raise SpecError("queues", _NAME_RULE, name)
    table = _read_table(value, place)
    for word in ("parent", "borrowing", "lending"):
        if word in table:
            raise SpecError(f"{place}.{word}", "queues stand side by side here; take it out", table[word])
    _check_words(table, ("quota", "weight", "stopped"), f"{place}.")
    quota = table.get("quota")
    return Queue(
        name=name,
        weight=_read_integer(table.get("weight", 1), f"{place}.weight", 1, HEAVIEST_WEIGHT),
        nominal=None if quota is None else _read_amounts(quota, f"{place}.quota"),
        is_stopped=_read_flag(table.get("stopped", False), f"{place}.stopped"),
    )


def _read_priorities(table: Mapping[str, object]) -> dict[str, int]:
    found = dict(DEFAULT_PRIORITIES)
    for name, value in table.items():
        if not _NAME.fullmatch(name):
            raise SpecError("priorities", _NAME_RULE, name)
        found[name] = _read_integer(value, f"priorities.{name}", -HIGHEST_PRIORITY, HIGHEST_PRIORITY)
    return found


def _read_amounts(value: object, place: str) -> dict[str, int]:
    amounts: dict[str, int] = {}
    for resource, amount in _read_table(value, place).items():
        if not isinstance(amount, (str, int, float)):
            raise SpecError(f"{place}.{resource}", "must be a quantity such as 2, '500m' or '4Gi'", amount)
        amounts[resource] = parse_quantity(resource, amount, field=place)
    return amounts


def _read_table(value: object, place: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise SpecError(place, f"must be a table, for instance [{place}]", value)
    return value


def _read_integer(value: object, place: str, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise SpecError(place, f"must be a whole number from {least} to {most}", value)
    return value


def _read_flag(value: object, place: str) -> bool:
    if not isinstance(value, bool):
        raise SpecError(place, "must be true or false", value)
    return value


def _read_seconds(value: object) -> float:
    place = "starvation_after_seconds"
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < float("inf"):
        raise SpecError(place, "must be a number of seconds, 0 or more", value)
    return float(value)


def _check_words(table: Mapping[str, object], known: Iterable[str], prefix: str) -> None:
    for word in table:
        if word not in known:
            raise SpecError(f"{prefix}{word}", f"is not known; use one of {', '.join(sorted(known))}")
