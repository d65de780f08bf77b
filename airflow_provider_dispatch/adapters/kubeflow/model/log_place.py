# SPDX-License-Identifier: Apache-2.0
"""How far the log of a container was given out, although the API can only go back to a whole second. Pure.

The API leaves lines out by their own stamps, and two streams written at once may be stamped out of order. So a place is
the newest stamp given out and the number of lines given out since the second before it: read again from that second,
just as many lines are passed over. A line with a newer stamp is new in any case, which tells when the beginning of the
log was cut off meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

_SECOND = 1_000_000_000
_LAG_SECONDS = 1
_CLOSED = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line as the API sent it.

    :param stamp: nanoseconds since 1970.
    """

    stamp: int
    text: bytes

    @property
    def at(self) -> datetime:
        """The stamp as a time."""
        return datetime.fromtimestamp(self.stamp // _SECOND, UTC).replace(microsecond=self.stamp % _SECOND // 1000)


@dataclass(slots=True)
class LogPlace:
    """A place in the log of one container.

    :param newest: newest stamp given out; 0 before the first line.
    :param sequence: of the next line.
    :param to_skip: lines to pass over once they are read again from :attr:`since` on.
    """

    newest: int = 0
    sequence: int = 0
    to_skip: int = 0
    _skipped: int = 0
    _by_second: dict[int, int] = field(default_factory=dict)

    @property
    def is_closed(self) -> bool:
        """Nothing comes after it: the log was read to its end, or is gone."""
        return self.newest == _CLOSED

    @property
    def window(self) -> int:
        """The second from which lines are counted."""
        return max(0, self.newest // _SECOND - _LAG_SECONDS)

    @property
    def since(self) -> datetime | None:
        """From when on the API shall send lines; None means from the first."""
        return datetime.fromtimestamp(self.window, UTC) if self.newest else None

    @property
    def count(self) -> int:
        """Lines given out since :attr:`window`."""
        return sum(count for second, count in self._by_second.items() if second >= self.window)

    def close(self) -> None:
        """Nothing more is wanted of this log."""
        self.newest, self.to_skip, self._by_second = _CLOSED, 0, {}

    def begin_again(self) -> None:
        """The log is read again from :attr:`since` on."""
        # A reading that broke while lines were passed over has given out nothing, and knows only a part of the count.
        self.to_skip = max(self.to_skip, self.count)
        self._skipped, self._by_second = 0, {}

    def is_cut_off(self, line: LogLine) -> bool:
        """Whether everything that was given out is missing before this line: lines after it may be missing too."""
        return self.to_skip > 0 and self._skipped == 0 and line.stamp > self.newest

    def take(self, line: LogLine) -> bool:
        """Count a line; whether it is to be given out."""
        second = line.stamp // _SECOND
        self._by_second[second] = self._by_second.get(second, 0) + 1
        if self._skipped < self.to_skip and line.stamp <= self.newest:
            self._skipped += 1
            return False
        self.to_skip = self._skipped = 0
        self.newest = max(self.newest, line.stamp)
        self._by_second = {second: n for second, n in self._by_second.items() if second >= self.window}
        self.sequence += 1
        return True


def parse_line(raw: bytes) -> LogLine | None:
    """A line with the stamp that the API puts before it; None for what the node says instead of a log."""
    stamp, _, text = raw.partition(b" ")
    whole, dot, rest = stamp.partition(b".")
    digits = rest[: len(rest) - len(rest.lstrip(b"0123456789"))] if dot else b""
    zone = rest[len(digits) :] if dot else b""
    try:
        at = datetime.fromisoformat((whole + zone).decode("ascii"))
    except ValueError:
        return None
    if at.tzinfo is None:
        return None
    return LogLine(int(at.timestamp()) * _SECOND + int(digits[:9].ljust(9, b"0")), text)
