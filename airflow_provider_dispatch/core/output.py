# SPDX-License-Identifier: Apache-2.0
"""What a rank printed, and the place up to which it has been read.

Adapters make :class:`OutputLine` objects out of what they store, and hand out a :class:`Cursor` that a caller keeps as
text between two calls. Triggers, the command and the page print the lines. Never reads a file and never adds the prefix
that tells whose line it is: whoever prints a line does that.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_dispatch.exceptions import ProtocolError

if TYPE_CHECKING:
    from datetime import datetime

_CURSOR_VERSION = 1
_LONGEST_CURSOR = 4096

# Bodies exclude every byte that begins or ends a sequence: each pattern stays linear on hostile input.
_CONTROL_SEQUENCES = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movement
    "|(?:\x1b[\\]PX^_]|[\x90\x98\x9d\x9e\x9f])[^\x07\x1b\x90\x98\x9c-\x9f]*(?:\x07|\x1b\\\\|\x9c)"  # OSC, DCS and such
    "|\x1b[ -/]*[0-OQ-WYZ\\\\`-~]"  # the other escapes, two characters and more
)


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}"


_LONE_SURROGATES = dict.fromkeys(range(0xD800, 0xE000), "\N{REPLACEMENT CHARACTER}")
_HARMFUL = (
    *(code for code in range(0x20) if code != ord("\t")),
    *range(0x7F, 0xA0),
    0x061C,  # the directional marks, overrides and isolates can show a line in another order than it is
    0x200E,
    0x200F,
    *range(0x2028, 0x202F),
    *range(0x2066, 0x206A),
)
_REPLACEMENTS = {code: _escape(code) for code in _HARMFUL} | _LONE_SURROGATES


def clean_text(raw: bytes | str) -> str:
    r"""One line of a rank's output as text that is safe in a task log.

    Terminal sequences are dropped, a bar redrawn with ``\r`` keeps its last state, invalid UTF-8 is replaced, and
    what could end the line, hide a part of it or turn its direction is shown as an escape.
    """
    text = raw.decode("utf-8", errors="replace") if isinstance(raw, bytes) else raw
    last_state = _CONTROL_SEQUENCES.sub("", text).rstrip("\r\n").rpartition("\r")[2]
    return last_state.translate(_REPLACEMENTS)


@dataclass(frozen=True, slots=True)
class OutputLine:
    """One line that a rank printed, or a notice about lines that are missing.

    :param execution: R of the execution that printed it.
    :param sequence: position in the output of this rank and execution, from 0. A notice about lines that are gone has
        the sequence of the first of them.
    :param stream: ``stdout`` or ``stderr``; ``notice`` for a notice.
    :param text: cleaned by :func:`clean_text`; a very long line comes in several of these.
    :param notice: written by us, not by the rank.
    :param cursor: where reading goes on after this line.
    """

    at: datetime
    role: str
    rank: int
    execution: int
    sequence: int
    stream: str
    text: str
    notice: bool = False
    cursor: Cursor | None = None


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where reading the output of one rank goes on.

    :param execution: R of the execution.
    :param generation: which file of the series.
    :param offset: bytes into that file, always between two lines.
    :param sequence: of the next line.
    """

    execution: int
    role: str
    rank: int
    generation: int = 0
    offset: int = 0
    sequence: int = 0

    def to_text(self) -> str:
        """The cursor as opaque text without spaces, for JSON, URLs and command lines."""
        fields = [self.execution, self.role, self.rank, self.generation, self.offset, self.sequence]
        packed = json.dumps([_CURSOR_VERSION, *fields], separators=(",", ":")).encode()
        return base64.urlsafe_b64encode(packed).decode().rstrip("=")

    @classmethod
    def from_text(cls, text: str) -> Cursor:
        """Read back what :meth:`to_text` wrote.

        :raises ProtocolError: for anything else.
        """
        role, numbers = _unpack(text)
        execution, rank, generation, offset, sequence = numbers
        return cls(execution, role, rank, generation, offset, sequence)


def _unpack(text: str) -> tuple[str, list[int]]:
    unreadable = ProtocolError(f"not a cursor of this version: {text[:60]!r}; begin again without one")
    if len(text) > _LONGEST_CURSOR:
        raise unreadable
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        fields = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (UnicodeError, binascii.Error, ValueError, RecursionError) as error:
        raise unreadable from error
    if not isinstance(fields, list) or len(fields) != 7 or fields[0] != _CURSOR_VERSION:
        raise unreadable
    role, numbers = fields[2], [fields[1], *fields[3:]]
    if not isinstance(role, str) or any(type(number) is not int or number < 0 for number in numbers):
        raise unreadable
    return role, numbers
