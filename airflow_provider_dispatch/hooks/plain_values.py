# SPDX-License-Identifier: Apache-2.0
"""Whether an argument can hold the result of another task, told quickly.

Airflow searches every templated field of a new task for results of other tasks, which for a nested field costs a fifth
of the task. Operators and sensors spare it the search where there is nothing to be found.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

PLAIN_KINDS = frozenset({str, int, float, bool, type(None), timedelta, datetime})
SEQUENCES = frozenset({list, tuple, set, frozenset})


def are_plain(values: Iterable[object]) -> bool:
    """True when none of these is or holds anything but texts, numbers, times and plain containers of them."""
    for value in values:
        # Exact kinds: a subclass may be anything.
        kind = type(value)
        if kind in PLAIN_KINDS:
            continue
        if kind is dict:
            value = value.values()  # type: ignore[attr-defined]  # noqa: PLW2901 - by its kind; looked at instead of the dict
        elif kind not in SEQUENCES:
            return False
        if not are_plain(value):  # type: ignore[arg-type]  # an iterable, by its kind
            return False
    return True
