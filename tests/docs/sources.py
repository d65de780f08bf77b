# SPDX-License-Identifier: Apache-2.0
"""What the code can say: its texts, read without running it, and the calls that raise or note something."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator
from pathlib import Path

PACKAGE = "airflow_provider_dispatch"
GAP = "…"


@functools.cache
def parse_modules(repository: Path) -> tuple[ast.Module, ...]:
    """All modules of the package but those for tests."""
    folder = repository / PACKAGE
    paths = (path for path in sorted(folder.rglob("*.py")) if path.relative_to(folder).parts[0] != "testing")
    return tuple(ast.parse(path.read_text()) for path in paths)


def walk(repository: Path) -> Iterator[ast.AST]:
    return (node for module in parse_modules(repository) for node in ast.walk(module))


def read_text(node: ast.AST) -> str | None:
    """A text with a gap for each value that is put into it; None for anything else."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(read_text(part) or GAP for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            texts = read_text(left), read_text(right)
            return None if texts == (None, None) else "".join(text or GAP for text in texts)
        case _:
            return None


@functools.cache
def read_texts(repository: Path) -> frozenset[str]:
    """Every text of the package."""
    return frozenset(text for node in walk(repository) if (text := read_text(node)) is not None)


def can_be_said(message: str, texts: Iterable[str]) -> bool:
    """Whether one of the texts holds the message, a gap of which stands for anything."""
    pieces = [piece for piece in message.split(GAP) if piece.strip()]
    return any(has_in_order(text, pieces) for text in texts)


def has_in_order(text: str, pieces: Iterable[str]) -> bool:
    at = 0
    for piece in pieces:
        found = text.find(piece, at)
        if found < 0:
            return False
        at = found + len(piece)
    return True


def find_calls(repository: Path, name: str) -> Iterator[ast.Call]:
    """All calls of a function, class or method of that name."""
    for node in walk(repository):
        match node:
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called)) if called == name:
                yield node


def find_first_words(repository: Path, name: str) -> set[str]:
    """The texts that calls of *name* have as their first argument."""
    return {
        call.args[0].value
        for call in find_calls(repository, name)
        if call.args and isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, str)
    }
