# SPDX-License-Identifier: Apache-2.0
"""The page about preflight and the code say the same: the checks, what rests on them, each message and its cure."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from airflow_provider_dispatch.adapters.kubeflow.model.preflight import CHECKS, OF_A_QUEUE
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.capabilities import RESTS_ON
from tests.docs.pages import read_rows, read_section, read_spans
from tests.docs.sources import can_be_said, read_text, read_texts

MODEL = "airflow_provider_dispatch/adapters/kubeflow/model"
ANSWERS = ("refute", "doubt")


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs/preflight.md").read_text()


def read_reasons(repository: Path) -> list[str]:
    """Everything that a check can say of a fault: written where it is answered, or where it is explained."""
    trees = [ast.parse(path.read_text()) for path in sorted((repository / MODEL / "preflight").glob("*.py"))]
    calls = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args)
    reasons = [call.args[0] for call in calls if isinstance(call.func, ast.Name) and call.func.id in ANSWERS]
    guard = ast.parse((repository / MODEL / "queue_guard.py").read_text())
    for node in ast.walk(guard):
        match node:
            case ast.Return(value=ast.Tuple(elts=[_, said])):
                reasons.append(said)
            case ast.Return(value=ast.expr() as said):
                reasons.append(said)
    return [text for reason in reasons if (text := read_text(reason)) and text.strip("… ;:")]


def test_the_checks_are_those_of_the_code_in_their_order(page: str) -> None:
    assert [row[0].strip("`") for row in read_rows(read_section(page, "The checks"))] == list(CHECKS)
    told = read_section(page, "The checks").split("In plain mode")[1].split(". Without")[0]
    assert set(read_spans([told])) == {*OF_A_QUEUE, "quota"}


def test_the_capabilities_rest_on_what_the_page_says(page: str) -> None:
    rows = {
        row[0].strip("`"): tuple(read_spans(row[1:]))
        for row in read_rows(read_section(page, "What the capabilities rest on"))
    }
    assert rows == {capability.value: checks for capability, checks in RESTS_ON.items()}


def test_every_message_has_its_cure(page: str, repository: Path) -> None:
    rows = list(read_rows(read_section(page, "Messages and their cures")))
    told = [row[1].strip("`") for row in rows]
    reasons = read_reasons(repository)

    assert len(reasons) > 40
    assert [text for text in reasons if not any(can_be_said(message, [text]) for message in told)] == []
    assert all(cure for _, _, cure in rows)


def test_every_message_is_one_that_the_code_can_say_of_a_check_that_there_is(page: str, repository: Path) -> None:
    rows = list(read_rows(read_section(page, "Messages and their cures")))
    texts = read_texts(repository)

    assert [row[1] for row in rows if not can_be_said(row[1].strip("`"), texts)] == []
    assert {name for row in rows for name in read_spans(row[:1])} == set(CHECKS)
