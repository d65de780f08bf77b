# SPDX-License-Identifier: Apache-2.0
"""Reads the pages of the documentation for tests: their blocks, tables and code spans."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def read_blocks(page: str, language: str) -> list[str]:
    """The contents of a page's fenced blocks in one language, in their order."""
    return [match["text"] for match in BLOCK.finditer(page) if match["language"] == language]


def read_section(page: str, heading: str) -> str:
    """What stands below a heading, up to the next one of the same rank or higher."""
    # A comment in a block of code isn't a heading.
    prose = BLOCK.sub(lambda block: re.sub(r"[^\n]", " ", block[0]), page)
    match = re.search(rf"^(#+) {re.escape(heading)}\n", prose, re.MULTILINE)
    assert match, f"the page has no heading {heading!r}"
    end = re.search(rf"^#{{1,{len(match[1])}}} ", prose[match.end() :], re.MULTILINE)
    return page[match.end() :][: end.start() if end else None]


def read_rows(text: str) -> Iterator[list[str]]:
    """The rows of all tables, without those that only head them."""
    lines = text.splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("|") and not line.startswith("| ---") and not following.startswith("| ---"):
            yield [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def read_spans(cells: Iterable[str]) -> list[str]:
    """What stands in backticks."""
    return [span for cell in cells for span in re.findall(r"`([^`]+)`", cell)]
