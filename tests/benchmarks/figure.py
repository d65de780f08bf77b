# SPDX-License-Identifier: Apache-2.0
"""What a benchmark says. Every module here makes figures; the command prints them.

A figure is judged by its aim, which is a ratio to the peer wherever the aim allows: times alone say as much about the
machine and its load as about the code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number.

    :param says: what was measured, and how.
    :param peer: what it is compared with, measured in the same run; empty where there is nothing like it.
    :param is_met: whether the aim is reached; None when there is none.
    :param context: whatever else helps to read it.
    """

    name: str
    says: str
    value: float
    unit: str
    peer: str = ""
    peer_value: float | None = None
    aim: str = ""
    is_met: bool | None = None
    context: Mapping[str, object] = field(default_factory=dict)

    def to_plain(self) -> dict[str, object]:
        """As JSON shows it."""
        return {
            "name": self.name,
            "says": self.says,
            "value": round(self.value, 4),
            "unit": self.unit,
            "peer": self.peer or None,
            "peer_value": None if self.peer_value is None else round(self.peer_value, 4),
            "ratio": round(self.value / self.peer_value, 3) if self.peer_value else None,
            "aim": self.aim or None,
            "met": self.is_met,
            "context": dict(self.context),
        }


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that *percent* of them don't exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
