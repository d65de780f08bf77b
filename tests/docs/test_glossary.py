# SPDX-License-Identifier: Apache-2.0
"""The glossary's closed sets are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_provider_dispatch.adapters.local.scheduling.model import ReasonCode
from airflow_provider_dispatch.core.capabilities import Capability
from airflow_provider_dispatch.core.diagnosis import ERROR_OF_CAUSE
from airflow_provider_dispatch.core.goals import Goal
from airflow_provider_dispatch.core.state import Cause, State
from tests.docs.pages import read_rows, read_section
from tests.docs.sources import find_first_words


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs/glossary.md").read_text()


def read_names(page: str, heading: str) -> list[str]:
    return [row[0].strip("`") for row in read_rows(read_section(page, heading))]


def test_it_has_every_state_in_the_order_of_precedence(page: str) -> None:
    assert read_names(page, "States") == [state.value for state in State]


def test_it_has_every_cause_with_its_exception(page: str) -> None:
    rows = list(read_rows(read_section(page, "Causes")))

    assert {row[0].strip("`"): row[2].strip("`") for row in rows} == {
        cause.value: ERROR_OF_CAUSE[cause].__name__ for cause in Cause
    }


def test_it_has_every_reason_to_wait(page: str, repository: Path) -> None:
    given_elsewhere = find_first_words(repository, "Pending")

    assert sorted(read_names(page, "Why a job waits")) == sorted({*ReasonCode, *given_elsewhere})


def test_it_has_every_kind_of_event(page: str, repository: Path) -> None:
    kinds = find_first_words(repository, "note")

    assert "admitted" in kinds
    assert sorted(read_names(page, "Events")) == sorted(kinds)


def test_it_has_every_goal(page: str) -> None:
    (goals,) = re.findall(r"worth waiting for: ([\w, ]+)\.", page)

    assert goals.split(", ") == [goal.value for goal in Goal]


def test_words_stand_in_the_order_of_the_alphabet(page: str) -> None:
    words = re.findall(r"^(\w[\w -]*)\n  \S", read_section(page, "Words"), re.MULTILINE)

    assert len(words) > 40
    assert words == sorted(words, key=str.casefold)


def test_pages_name_only_capabilities_that_there_are(repository: Path) -> None:
    named = re.findall(r"`(\w+)` is `(?:yes|no)`", (repository / "docs/local.md").read_text())

    assert named
    assert set(named) <= {capability.value for capability in Capability}
