# SPDX-License-Identifier: Apache-2.0
"""The log files of one rank: written, turned over at a size, and survived when the disk is full.

Used by the shim alone. Never raises for what the disk does: output that can't be written is counted, and the count is
written once writing works again.
"""
# ruff: noqa: PTH103, PTH108 - pathlib would be the dearest import of the shim

from __future__ import annotations

import contextlib
import os
import time

from airflow_provider_dispatch.adapters.local.shim.records import (
    GENERATION_BYTES,
    GENERATIONS_KEPT,
    HEADER,
    NOTICE,
    build_file_name,
    build_unit,
)
from airflow_provider_dispatch.adapters.local.shim.wire import format_time


class RankLog:
    """Appends units to ``<folder>/<role>-<rank>.<generation>.log``.

    :param generation_bytes: a file is followed by a new one before it grows beyond this.
    """

    def __init__(self, folder: str, role: str, rank: int, *, generation_bytes: int = GENERATION_BYTES) -> None:
        self._folder, self._role, self._rank = folder, role, rank
        self._generation_bytes = generation_bytes
        self._generation = -1
        self._fd = -1
        self._size = 0
        self._sequence = 0
        self._lost_lines = 0
        self._lost_reason = ""

    def write(self, units: list[bytes]) -> None:
        """Append *units*; those that fail are counted."""
        if self._lost_lines and units:
            units = self._state_loss(units)
        while units:
            try:
                units = units[self._append(units) :]
            except OSError as error:
                self._count_loss(units, error)
                return

    def close(self) -> None:
        """State a loss that is still unsaid, as far as the disk allows, and close the file."""
        if self._lost_lines:
            self._state_loss([])
        self._close_file()

    def _state_loss(self, units: list[bytes]) -> list[bytes]:
        """Write the notice about the loss; what is left of *units* to write: nothing while the disk is full."""
        text = f"{self._lost_lines} lines could not be written: {self._lost_reason}"
        try:
            self._append([build_unit(_now(), NOTICE, text.encode())])
        except OSError as error:
            self._count_loss(units, error)
            return []
        self._lost_lines = 0
        return units

    def _append(self, units: list[bytes]) -> int:
        """Write as many of *units* as fit into the present file, at least one; how many.

        :raises OSError: if not even one could be written.
        """
        if self._fd < 0 or self._size + len(units[0]) > self._generation_bytes:
            self._turn_over()
        batch: list[bytes] = []
        room = self._generation_bytes - self._size
        for unit in units:
            room -= len(unit)
            if room < 0 and batch:
                break
            batch.append(unit)
        return self._write_whole(batch)

    def _write_whole(self, batch: list[bytes]) -> int:
        """Write *batch*, leaving only whole units in the file; how many."""
        data = memoryview(b"".join(batch))
        written, failure = 0, None
        while written < len(data) and failure is None:
            try:
                written += os.write(self._fd, data[written:])
            except OSError as error:
                failure = error
        kept = 0
        for unit in batch:
            if len(unit) > written:
                break
            written -= len(unit)
            self._size += len(unit)
            kept += 1
        self._sequence += kept
        if failure is not None:
            self._trim()
            if not kept:
                raise failure
        return kept

    def _trim(self) -> None:
        """Take half a unit off the end. A file that can't be trimmed gets a successor: readers skip a torn end."""
        try:
            os.ftruncate(self._fd, self._size)
        except OSError:
            self._close_file()

    def _turn_over(self) -> None:
        generation = self._generation + 1
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(generation - GENERATIONS_KEPT))
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        # A rank may have put a FIFO there, which would keep the shim waiting.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(self._path(generation), flags, 0o600)
        self._close_file()
        self._fd, self._generation, self._size = fd, generation, 0
        if generation:
            self._write_header()

    def _write_header(self) -> None:
        """Tell a reader that comes too late for the file before how many lines it held."""
        facts = b'{"generation": %d, "sequence": %d}' % (self._generation, self._sequence)
        header = build_unit(_now(), HEADER, facts)
        try:
            self._write_whole([header])
        except OSError:
            # Without its header the file would be misread: make it anew with the next line.
            self._close_file()
            self._generation -= 1
            raise
        self._sequence -= 1

    def _close_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _path(self, generation: int) -> str:
        return f"{self._folder}/{build_file_name(self._role, self._rank, generation)}"

    def _count_loss(self, units: list[bytes], error: OSError) -> None:
        self._lost_lines += len(units)
        self._lost_reason = error.strerror or str(error)


def _now() -> bytes:
    return format_time(time.time_ns()).encode()
