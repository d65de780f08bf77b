# SPDX-License-Identifier: Apache-2.0
"""The format of a rank's log: how bytes become records, and what the shim and the reader must agree on.

A record is a line in the format of the Container Runtime Interface: time, stream, ``P`` (a piece, more follows) or
``F`` (full, or the last piece), text. Pieces of one line stand together; a line longer than :data:`LONGEST_LINE` is
handed out in parts of that size, so a *unit* (what a reader hands out as one line) is a run of records that ends with
``F`` or with the piece that completes that size. Besides ``stdout`` and ``stderr`` there are two streams that a
rank can't write to: ``notice`` says what could not be written, ``header`` begins every file but the first.

Used by the shim to write and by ``logs`` to read. Does no input or output.
"""

from __future__ import annotations

PIECE = 16 * 1024
LONGEST_LINE = 4 * PIECE
GENERATION_BYTES = 10 * 1024 * 1024
GENERATIONS_KEPT = 3

STDOUT, STDERR, NOTICE, HEADER = b"stdout", b"stderr", b"notice", b"header"


def build_file_name(role: str, rank: int, generation: int) -> str:
    """Name of one file of a rank's series."""
    return f"{role}-{rank}.{generation}.log"


def build_unit(at: bytes, stream: bytes, line: bytes, *, is_whole: bool = True) -> bytes:
    """The records of one unit.

    :param is_whole: False for a part of a longer line; it then has exactly :data:`LONGEST_LINE` bytes.
    """
    if len(line) <= PIECE:
        return b"%b %b F %b\n" % (at, stream, line)
    pieces = [line[start : start + PIECE] for start in range(0, len(line), PIECE)]
    last = b"F" if is_whole else b"P"
    tags = [b"P"] * (len(pieces) - 1) + [last]
    return b"".join(b"%b %b %b %b\n" % (at, stream, tag, piece) for tag, piece in zip(tags, pieces, strict=True))


class LineSplitter:
    """Cuts one stream into units; keeps what has no end yet, never more than a unit and a chunk."""

    def __init__(self, stream: bytes) -> None:
        self._stream = stream
        self._rest = b""

    def feed(self, chunk: bytes, at: bytes) -> list[bytes]:
        """Add *chunk*; the units that are now complete."""
        *lines, rest = (self._rest + chunk).split(b"\n")
        units: list[bytes] = []
        for line in lines:
            end = self._cut(line, units, at)
            units.append(build_unit(at, self._stream, end))
        self._rest = self._cut(rest, units, at)
        return units

    def flush(self, at: bytes) -> list[bytes]:
        """The last line, if it has no end: nothing follows it."""
        rest, self._rest = self._rest, b""
        return [build_unit(at, self._stream, rest)] if rest else []

    def _cut(self, line: bytes, units: list[bytes], at: bytes) -> bytes:
        # Only what is longer: a line of just that size must not be followed by an empty one.
        start = 0
        while len(line) - start > LONGEST_LINE:
            part = line[start : start + LONGEST_LINE]
            units.append(build_unit(at, self._stream, part, is_whole=False))
            start += LONGEST_LINE
        return line[start:]
