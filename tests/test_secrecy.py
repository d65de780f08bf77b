# SPDX-License-Identifier: Apache-2.0
"""A search that finds nothing proves nothing unless it would have found something."""

from __future__ import annotations

import base64
import contextlib
import json
import sqlite3
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.secrecy import draw_secret, find_in_data, find_in_folder, find_in_text, hide

VALUE = draw_secret("token")
OTHER = draw_secret("other")


@pytest.mark.parametrize(
    "text",
    [
        VALUE,
        f"error: {VALUE}!",
        json.dumps({"a": [VALUE]}),
        quote(f"?q={VALUE}"),
        *(base64.b64encode(b"x" * shift + VALUE.encode() + b"behind").decode() for shift in range(6)),
        base64.b64encode(VALUE.encode()),
    ],
    ids=hide,
)
def test_a_value_is_found_in_every_form(text: str | bytes) -> None:
    assert find_in_text("log", text, [OTHER, VALUE]) == ["log: token"]


def test_nothing_is_found_where_nothing_is() -> None:
    assert find_in_text("log", "token ~ other", [VALUE, OTHER]) == []
    assert find_in_data("object", {"kind": "Pod"}, [VALUE]) == []


def test_a_value_is_found_in_data(tmp_path: Path) -> None:
    assert find_in_data("object", {"metadata": [{"note": VALUE}], "at": tmp_path}, [VALUE]) == ["object: token"]


def test_a_value_is_found_in_files_but_where_it_belongs(tmp_path: Path) -> None:
    kept, leak = tmp_path / "secrets/team/token", tmp_path / "logs/deep/task.log"
    for path in (kept, leak):
        path.parent.mkdir(parents=True)
        path.write_text(VALUE)
    leak.write_bytes(b"\xff" + VALUE.encode())

    assert find_in_folder(tmp_path, [VALUE, OTHER], but=[tmp_path / "secrets"]) == [f"{leak}: token"]


def test_a_value_that_a_page_of_a_database_cuts_is_found_in_its_row(tmp_path: Path) -> None:
    path = tmp_path / "some.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute('CREATE TABLE "odd name" (at INTEGER, note TEXT, raw BLOB)')
        for behind in range(4000, 4100):
            text = "x" * 5000 + VALUE + "y" * behind
            connection.execute('INSERT INTO "odd name" VALUES (?, ?, NULL)', (behind, text))
        connection.execute('INSERT INTO "odd name" VALUES (0, NULL, ?)', (OTHER.encode(),))
        connection.commit()

    found = find_in_folder(tmp_path, [VALUE, OTHER])

    assert found.count(f"{path}, odd name.note: token") == 100
    assert f"{path}, odd name.raw: other" in found
    assert path.read_bytes().count(VALUE.encode()) < 100
