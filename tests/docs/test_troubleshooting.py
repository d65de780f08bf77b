# SPDX-License-Identifier: Apache-2.0
"""Troubleshooting and the code say the same: no message that nobody says, no refusal without a cure."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from airflow_provider_dispatch import exceptions
from airflow_provider_dispatch.exceptions import AdapterError, ProtocolError
from airflow_provider_dispatch.operators.keeper import OwnedByAnotherTryError
from tests.docs.pages import read_rows, read_section
from tests.docs.sources import can_be_said, find_calls, read_text, read_texts

REFUSALS = [
    name
    for name, kind in vars(exceptions).items()
    if isinstance(kind, type) and issubclass(kind, AdapterError | ProtocolError) and kind is not AdapterError
]


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs/troubleshooting.md").read_text()


def read_messages(text: str) -> list[str]:
    return [row[0].strip("`") for row in read_rows(text)]


def read_first_texts(repository: Path, name: str) -> list[str]:
    """What calls of *name* say, with gaps."""
    calls = (call for call in find_calls(repository, name) if call.args)
    return [text for call in calls if (text := read_text(call.args[0]))]


def test_every_message_is_one_that_the_code_can_say(page: str, repository: Path) -> None:
    texts, messages = read_texts(repository), read_messages(page)

    assert len(messages) > 60
    assert [message for message in messages if not can_be_said(message, texts)] == []


@pytest.mark.parametrize("refusal", REFUSALS)
def test_every_refusal_of_an_adapter_has_a_cure(refusal: str, page: str, repository: Path) -> None:
    told = read_messages(read_section(page, "A call is refused"))
    raised = read_first_texts(repository, refusal)

    assert raised
    assert [text for text in raised if not any(can_be_said(message, [text]) for message in told)] == []


def test_the_errors_named_are_raised_with_those_messages(page: str, repository: Path) -> None:
    rows = {row[0].strip("`"): row[1].split("`")[1] for row in read_rows(read_section(page, "A call is refused"))}
    known = {*REFUSALS, OwnedByAnotherTryError.__name__}
    own = {name: set(read_first_texts(repository, name)) for name in known}
    everybody = set().union(*own.values())

    wrong = [
        (message, name)
        for message, name in rows.items()
        if can_be_said(message, everybody) and not can_be_said(message, own[name])
    ]

    assert set(rows.values()) <= known
    assert wrong == []


def test_a_gap_stands_for_anything_and_order_counts() -> None:
    assert can_be_said("no … here", ["there is no queue of yours here"])
    assert not can_be_said("queue … no", ["there is no queue here"])
    assert read_text(ast.parse("f'a {1} b' 'c'", mode="eval").body) == "a … bc"
