# SPDX-License-Identifier: Apache-2.0
"""Looks for secrets where none may be: in texts, in plain data, in every file below a folder, in rows of SQLite files.

A test plants values that occur nowhere else, lets everything run, and asks here. A value counts in any of the forms in
which it is commonly carried: as it is, in base64 as Kubernetes keeps it, and percent-encoded.
"""

from __future__ import annotations

import base64
import contextlib
import json
import secrets
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

SQLITE = b"SQLite format 3\0"


def draw_secret(label: str) -> str:
    """A value that occurs nowhere else, and that no escaping changes but that of a URL."""
    return f"{label}~{secrets.token_hex(12)}"


def hide(_case: object) -> str:
    """The id of a case that holds a drawn value: the value must stand in no report, and differs in each process."""
    return "case"


def find_in_text(where: str, text: str | bytes, planted: Iterable[str]) -> list[str]:
    """What was found, as ``where: label``; the value isn't repeated."""
    content = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    return [f"{where}: {_name(value)}" for value in planted if any(form in content for form in list_forms(value))]


def find_in_data(where: str, data: object, planted: Iterable[str]) -> list[str]:
    """The same for anything that can be written as JSON, such as an object of a cluster."""
    return find_in_text(where, json.dumps(data, default=str, ensure_ascii=False), planted)


def find_in_folder(folder: Path, planted: Collection[str], *, but: Collection[Path] = ()) -> list[str]:
    """The same for all files below a folder.

    :param but: files that hold a value because it was put there, and folders of such.
    """
    found: list[str] = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not any(path.is_relative_to(kept) for kept in but):
            # A file may go while we look: what was in it can't be read by anybody else either.
            with contextlib.suppress(FileNotFoundError):
                content = path.read_bytes()
                found += find_in_text(str(path), content, planted)
                found += _find_in_rows(path, planted) if content.startswith(SQLITE) else []
    return found


def list_forms(value: str) -> list[bytes]:
    """How a value may be written. In base64 it depends on what stands before it: there are three ways."""
    plain = value.encode()
    # Of each way only what no neighbour changes.
    shifted = (base64.b64encode(b"\0" * shift + plain)[4 if shift else 0 : -4] for shift in range(3))
    return [plain, quote(value, safe="").encode(), *shifted]


def _name(value: str) -> str:
    """Its label, or of a value that was not drawn here the beginning."""
    label, mark, _ = value.partition("~")
    return label if mark else f"{value[:6]}…"


def _find_in_rows(path: Path, planted: Iterable[str]) -> list[str]:
    """A long value is cut where a page of the file ends, so that its bytes needn't stand together."""
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)) as connection:
        return [
            found
            for table, row in _list_rows(connection)
            for column, cell in row.items()
            if isinstance(cell, str | bytes)
            for found in find_in_text(f"{path}, {table}.{column}", cell, planted)
        ]


def _list_rows(connection: sqlite3.Connection) -> Iterator[tuple[str, Mapping[str, object]]]:
    connection.row_factory = sqlite3.Row
    connection.text_factory = bytes
    for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        table = name.decode()
        quoted = table.replace('"', '""')
        for row in connection.execute(f'SELECT * FROM "{quoted}"'):
            yield table, {key: row[key] for key in row.keys()}  # noqa: SIM118 - a row iterates over its values
