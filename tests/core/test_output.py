# SPDX-License-Identifier: Apache-2.0
"""Lines of output as text that is safe to show, and cursors as text."""

from __future__ import annotations

import base64
import json
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_dispatch.core.output import Cursor, clean_text
from airflow_provider_dispatch.exceptions import ProtocolError


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        (b"plain", "plain"),
        ("größe 🚀 \t tab".encode(), "größe 🚀 \t tab"),
        (b"\x1b[1;31mred\x1b[0m", "red"),
        (b"\x1b]0;title\x07text", "text"),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        (b"\x1bP1$r\x1b\\after \x1b(B\x1b7\x1bMx", "after x"),
        ("\x9b1mc1\x9d0;t\x9c!", "c1!"),
        (b"\x1b]0;never ended", "\\x1b]0;never ended"),
        (b"\x1b\x1b[0m[0m", "\\x1b[0m"),
        (b" 10%\r 20%\r100%", "100%"),
        (b" 10%\r100%\r\x1b[K", "100%"),
        (b"dos\r\n", "dos"),
        (b"\r\r\r", ""),
        (b"a\x00b\x07c\x08d\x7f", "a\\x00b\\x07c\\x08d\\x7f"),
        (b"one\ntwo\x0bthree\x0c", "one\\x0atwo\\x0bthree\\x0c"),
        ("nel\x85ls\u2028ps\u2029", "nel\\x85ls\\u2028ps\\u2029"),
        ("\u202eevil\u202c\u2066x\u2069\u200f\u200e\u061c", "\\u202eevil\\u202c\\u2066x\\u2069\\u200f\\u200e\\u061c"),
        (b"\xff\xfeok\xc3", "��ok�"),
        ("lone \ud800", "lone �"),
    ],
)
def test_what_a_rank_prints_becomes_harmless_text(raw, clean):
    assert clean_text(raw) == clean


@given(st.one_of(st.text(), st.binary(), st.text(alphabet="\x1b[]PX\\\x07\x9b\x9c\x9d\r\n0;m a\u2028\u202e")))
def test_clean_text_is_one_line_of_printable_text_and_stays_as_it_is(raw):
    clean = clean_text(raw)
    assert len(clean.splitlines()) <= 1
    assert not re.search("[\x00-\x08\x0a-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", clean)
    assert not any(
        unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"} for character in clean if character != "\t"
    )
    assert clean.encode("utf-8").decode() == clean
    assert clean_text(clean) == clean


@pytest.mark.parametrize(
    "piece", ["\x1b]", "\x1b[", "\x9d", "\x1bP0", "\x1b[0", "\x1b ", "\r", "\x1b]a\x1b", "\x9d\x90"]
)
def test_hostile_lines_cost_no_more_than_their_length(piece):
    assert len(clean_text(piece * 200_000)) <= 5 * len(piece) * 200_000


@given(*[st.integers(0, 2**40)] * 5, st.text(max_size=60))
def test_a_cursor_comes_back_from_its_text(execution, rank, generation, offset, sequence, role):
    cursor = Cursor(execution, role, rank, generation, offset, sequence)
    text = cursor.to_text()
    assert Cursor.from_text(text) == cursor
    assert re.fullmatch(r"[\w-]+", text, re.ASCII)


def _pack(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ü",
        "no cursor",
        "AAAA",
        "A" * 5000,
        _pack({}),
        _pack([1, 1, "a", 0, 0, 0]),
        _pack([2, 1, "a", 0, 0, 0, 0]),
        _pack([1, 1, "a", 0, 0, -1, 0]),
        _pack([1, 1, "a", 0, 0, True, 0]),
        _pack([1, 1, "a", 0, 0, 0.5, 0]),
        _pack([1, 1, 7, 0, 0, 0, 0]),
        base64.urlsafe_b64encode(b"[" * 3000).decode(),
    ],
)
def test_any_other_text_is_no_cursor(text):
    with pytest.raises(ProtocolError, match="not a cursor"):
        Cursor.from_text(text)


@given(st.text())
def test_reading_a_cursor_raises_nothing_else(text):
    def comes_back() -> bool:
        try:
            cursor = Cursor.from_text(text)
        except ProtocolError:
            return True
        return Cursor.from_text(cursor.to_text()) == cursor

    assert comes_back()
