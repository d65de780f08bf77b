# SPDX-License-Identifier: Apache-2.0
"""Reads what the shim has written down of a rank's output: line by line, each exactly once, from a cursor on.

Called by the adapter for ``output``. The shim may be writing, turning over or removing files meanwhile; only whole
lines are handed out, and lines that were removed before they were read are counted in a notice. Never writes and
keeps no state: the cursor is all.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow_provider_dispatch.adapters.local.shim.records import (
    HEADER,
    LONGEST_LINE,
    NOTICE,
    STDERR,
    STDOUT,
    build_file_name,
)
from airflow_provider_dispatch.core.output import Cursor, OutputLine, clean_text
from airflow_provider_dispatch.exceptions import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

BYTES_AT_ONCE = 4 * 1024 * 1024
# Holds at least one whole unit, wherever it begins.
_BLOCK = 4 * LONGEST_LINE
_STREAMS = (STDOUT, STDERR, NOTICE, HEADER)
_LARGEST_SEQUENCE = 2**53


@dataclass(frozen=True, slots=True)
class _Unit:
    """What is handed out as one line.

    :param size: bytes of its records in the file.
    """

    at: datetime
    stream: bytes
    text: bytes
    size: int


def read_lines(
    log_dir: Path, *, execution: int, role: str, rank: int, cursor: Cursor | None = None, limit: int = 1000
) -> tuple[list[OutputLine], Cursor]:
    """The next lines of one rank, at most *limit*, and the cursor that follows them.

    No lines means: none for now. A line without an end is handed out when the rank has ended it or has itself ended.

    :param log_dir: folder of the execution's logs.
    :param execution: R of the execution.
    :param cursor: of an earlier call; None to begin.
    :raises ProtocolError: if *cursor* belongs to another rank or execution.
    """
    here = cursor or Cursor(execution, role, rank)
    if (here.execution, here.role, here.rank) != (execution, role, rank):
        raise ProtocolError(f"the cursor belongs to {here.role}-{here.rank} of execution {here.execution}")
    reader = _Reader(log_dir, here)
    while len(reader.lines) < limit and reader.advance(limit):
        pass
    return reader.lines, reader.cursor


def open_regular_file(path: Path) -> BinaryIO:
    """Open for reading what a rank could have put in its place: a FIFO would keep us waiting, a link lead us away.

    :raises OSError: it is not there, or no file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a file", str(path))
    return os.fdopen(fd, "rb")


def list_generations(log_dir: Path, role: str, rank: int) -> set[int]:
    """Numbers of a rank's log files; of a long log the first ones are gone."""
    start, end = build_file_name(role, rank, 0).removesuffix("0.log"), ".log"
    try:
        names = [path.name for path in log_dir.iterdir()]
    except FileNotFoundError:
        return set()
    middles = (name[len(start) : -len(end)] for name in names if name.startswith(start) and name.endswith(end))
    return {int(middle) for middle in middles if middle.isdecimal()}


class _Reader:
    """One call of :func:`read_lines`: the lines found and how far they reach."""

    def __init__(self, log_dir: Path, cursor: Cursor) -> None:
        self._log_dir = log_dir
        self.cursor = cursor
        self.lines: list[OutputLine] = []
        self._bytes_left = BYTES_AT_ONCE

    def advance(self, limit: int) -> bool:
        """Take what can be had from one file, or go on to the next; False if there is no more for now."""
        generations = list_generations(self._log_dir, self.cursor.role, self.cursor.rank)
        data = self._read_file(self.cursor.generation, self.cursor.offset)
        if data is None:
            oldest = min(generations, default=0)
            return oldest > self.cursor.generation and self._skip_to(oldest)
        self._bytes_left -= len(data)
        if self._take(data, limit):
            return self._bytes_left >= _BLOCK
        # Listed before it was read to its end: a successor in that list means that nothing can be added any more.
        if self.cursor.generation + 1 not in generations:
            return False
        self.cursor = replace(self.cursor, generation=self.cursor.generation + 1, offset=0)
        return True

    def _take(self, data: bytes, limit: int) -> bool:
        """Hand out the units in *data*; whether there was one."""
        before = self.cursor.offset
        for unit in _cut_units(data):
            offset = self.cursor.offset + unit.size
            if unit.stream == HEADER:
                self.cursor = replace(self.cursor, offset=offset)
                continue
            if len(self.lines) >= limit:
                break
            following = replace(self.cursor, offset=offset, sequence=self.cursor.sequence + 1)
            self._hand_out(unit, unit.stream.decode(), clean_text(unit.text), following)
        return self.cursor.offset > before

    def _skip_to(self, oldest: int) -> bool:
        """Go on with the oldest file there is, counting what was in those that are gone."""
        data = self._read_file(oldest, 0)
        header = next(_cut_units(data or b""), None)
        if header is None or header.stream != HEADER:
            return False
        sequence = _read_sequence(header.text)
        missing = sequence - self.cursor.sequence
        following = replace(self.cursor, generation=oldest, offset=0, sequence=sequence)
        if missing > 0:
            text = f"{missing} lines are left out here: they were removed to keep this rank's log within its size"
            self._hand_out(header, NOTICE.decode(), text, following)
        self.cursor = following
        return True

    def _hand_out(self, unit: _Unit, stream: str, text: str, following: Cursor) -> None:
        here, is_notice = self.cursor, stream == NOTICE.decode()
        self.lines.append(
            OutputLine(
                unit.at,
                here.role,
                here.rank,
                here.execution,
                here.sequence,
                stream,
                text,
                notice=is_notice,
                cursor=following,
            )
        )
        self.cursor = following

    def _read_file(self, generation: int, offset: int) -> bytes | None:
        """A block from *offset* on; None if there is no such file."""
        try:
            path = self._log_dir / build_file_name(self.cursor.role, self.cursor.rank, generation)
            with open_regular_file(path) as file:
                file.seek(offset)
                return file.read(_BLOCK)
        except FileNotFoundError:
            return None


def _read_sequence(header: bytes) -> int:
    try:
        sequence = json.loads(header)["sequence"]
    except (ValueError, TypeError, KeyError, RecursionError):
        sequence = None
    if type(sequence) is not int or not 0 <= sequence <= _LARGEST_SEQUENCE:
        raise ProtocolError(f"the header of a rank's log is spoilt: {clean_text(header[:100])}")
    return sequence


def _cut_units(data: bytes) -> Iterator[_Unit]:
    """The whole units at the beginning of *data*; what has no end yet is left."""
    pieces: list[bytes] = []
    size = taken = start = 0
    while (end := data.find(b"\n", start)) >= 0:
        at, stream, tag, text = _split_record(data[start:end])
        size += end + 1 - start
        taken += len(text)
        pieces.append(text)
        start = end + 1
        if tag == b"F" or taken >= LONGEST_LINE:
            yield _Unit(at, stream, b"".join(pieces), size)
            pieces, size, taken = [], 0, 0


def _split_record(record: bytes) -> tuple[datetime, bytes, bytes, bytes]:
    """Time, stream, tag and text; a record that somebody else has spoilt is shown whole, as a notice."""
    parts = record.split(b" ", 3)
    if len(parts) == 4 and parts[1] in _STREAMS and parts[2] in (b"P", b"F"):
        # A time within a day of either end of the calendar overflows when it is moved to UTC.
        with contextlib.suppress(ValueError, OverflowError):
            return datetime.fromisoformat(parts[0].decode("ascii")).astimezone(UTC), parts[1], parts[2], parts[3]
    return datetime.fromtimestamp(0, UTC), NOTICE, b"F", b"unreadable: " + record
