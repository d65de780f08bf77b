# SPDX-License-Identifier: Apache-2.0
"""What a rank has left when it ended: its last lines and its result. Reads files that the rank could write, so nothing
in them is trusted: not their size, not even that they are files.
"""

from __future__ import annotations

import os
from pathlib import Path

from airflow_provider_dispatch.adapters.local.logs import list_generations, open_regular_file, read_lines
from airflow_provider_dispatch.adapters.local.shim.records import build_file_name
from airflow_provider_dispatch.core.output import Cursor
from airflow_provider_dispatch.core.result import LARGEST_RESULT_BYTES, parse_result
from airflow_provider_dispatch.exceptions import ProtocolError, cut_text

LINES_SHOWN = 10
_TAIL_BYTES = 64 * 1024


def read_result(path: Path) -> tuple[object, str]:
    """The result, and why there is none though something was left."""
    try:
        with open_regular_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > LARGEST_RESULT_BYTES:
                return None, f"the result has {size} bytes; at most {LARGEST_RESULT_BYTES} are carried"
            content = file.read(LARGEST_RESULT_BYTES + 1)
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, f"the result can't be read: {error.strerror}"
    try:
        return parse_result(content), ""
    except ProtocolError as error:
        return None, str(error)


def read_last_lines(log_dir: Path, *, execution: int, role: str, rank: int) -> tuple[str, ...]:
    """The end of a rank's output, oldest line first."""
    try:
        cursor = _find_tail(log_dir, Cursor(execution, role, rank))
        lines, _ = read_lines(log_dir, execution=execution, role=role, rank=rank, cursor=cursor, limit=100_000)
    except (OSError, ProtocolError):
        return ()
    return tuple(cut_text(line.text) for line in lines[-LINES_SHOWN:])


def _find_tail(log_dir: Path, start: Cursor) -> Cursor:
    """A place in the newest file from which there is not much to read."""
    generation = max(list_generations(log_dir, start.role, start.rank), default=0)
    path = log_dir / build_file_name(start.role, start.rank, generation)
    offset = max(0, path.stat().st_size - _TAIL_BYTES) if path.exists() else 0
    if offset:
        with open_regular_file(path) as file:
            file.seek(offset)
            offset += len(file.readline())
    return Cursor(start.execution, start.role, start.rank, generation, offset)
