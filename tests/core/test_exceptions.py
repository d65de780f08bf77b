# SPDX-License-Identifier: Apache-2.0
"""The tree that is drawn is the tree that is, and errors say where, what and what to do."""

from __future__ import annotations

import copy
import pickle
import re

import pytest

from airflow_provider_dispatch import exceptions
from airflow_provider_dispatch.core.diagnosis import diagnose
from airflow_provider_dispatch.core.state import State
from airflow_provider_dispatch.exceptions import DispatchError, JobFailedError, SpecError, cut_text
from tests.core.strategies import observe

NAME = re.compile(r"[A-Z]\w+Error")
ERRORS = {
    name: value
    for name, value in vars(exceptions).items()
    if isinstance(value, type) and issubclass(value, DispatchError)
}


def read_drawing() -> list[tuple[int, str, str]]:
    """Depth, name and answer of each class in the docstring's drawing; an empty answer where none is drawn."""
    drawing = (exceptions.__doc__ or "").split("::\n")[1].split("\nRaised by")[0]
    found = []
    for line in drawing.splitlines():
        for match in NAME.finditer(line):
            depth = 0 if "─" not in line else line.index("─") // 4
            answer = re.match(r"\s+(yes|no)\b", line[match.end() :])
            found.append((depth, match[0], answer[1] if answer else ""))
    return found


def parents_in_drawing() -> dict[str, str]:
    parents, line = {}, ["", "", "", ""]
    for depth, name, _ in read_drawing():
        parents[name] = line[depth - 1] if depth else ""
        line[depth] = name
    return parents


def test_the_drawing_shows_the_real_tree() -> None:
    real = {name: kind.__bases__[0].__name__ if kind is not DispatchError else "" for name, kind in ERRORS.items()}

    assert parents_in_drawing() == real


def test_the_drawing_tells_which_calls_may_be_made_again() -> None:
    drawn = {name: answer == "yes" for _, name, answer in read_drawing()}

    assert drawn == {name: kind.is_retryable for name, kind in ERRORS.items()}


def test_only_groups_and_classes_of_causes_are_drawn_without_an_answer() -> None:
    unanswered = {name for _, name, answer in read_drawing() if not answer}

    causes = {name for name, kind in ERRORS.items() if issubclass(kind, JobFailedError)} - {"JobFailedError"}
    assert unanswered == causes | {"DispatchError", "AdapterError"}


@pytest.mark.parametrize("kind", ERRORS.values(), ids=ERRORS)
def test_every_error_says_in_its_docstring_when_it_is_raised(kind: type) -> None:
    assert kind.__doc__
    assert kind.__doc__.split("\n")[0].endswith(".")


def test_a_wrong_value_is_also_a_value_error() -> None:
    assert issubclass(SpecError, ValueError)


def test_a_spec_error_names_field_value_and_cure() -> None:
    error = SpecError("roles[0].nodes", "must be at least 1", -3)

    assert str(error) == "roles[0].nodes = -3: must be at least 1"
    assert (error.field, error.problem, error.value) == ("roles[0].nodes", "must be at least 1", -3)


def test_a_spec_error_without_a_value_shows_none() -> None:
    assert str(SpecError("hold.key", "must not be empty")) == "hold.key: must not be empty"


def test_a_spec_error_shows_a_number_that_is_too_long_by_its_type() -> None:
    error = SpecError("nodes", "must be smaller", 10**5000)
    assert str(error) == "nodes = <int too long to show>: must be smaller"


def test_a_spec_error_shows_a_long_value_in_part() -> None:
    error = SpecError("queue", "is too long", "q" * 300)

    assert str(error) == "queue = '" + "q" * 119 + "… (182 more characters): is too long"


@pytest.mark.parametrize("copied", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy])
def test_errors_cross_process_borders(copied) -> None:
    spec_error = copied(SpecError("queue", "is unknown", "q"))
    observation = observe(State.FAILED)
    job_error = copied(JobFailedError("it failed", observation=observation, diagnosis=diagnose(observation)))

    assert str(spec_error) == "queue = 'q': is unknown"
    assert (spec_error.field, spec_error.problem, spec_error.value) == ("queue", "is unknown", "q")
    assert str(job_error) == "it failed"
    assert (job_error.observation, job_error.diagnosis) == (observation, diagnose(observation))


def test_a_job_error_may_come_without_details() -> None:
    error = JobFailedError("it failed")

    assert (error.observation, error.diagnosis) == (None, None)


@pytest.mark.parametrize(
    ("text", "limit", "shown"),
    [
        ("", 3, ""),
        ("abc", 3, "abc"),
        ("abcd", 3, "abc… (1 more characters)"),
        ("x" * 500, 500, "x" * 500),
    ],
)
def test_text_from_outside_is_cut(text: str, limit: int, shown: str) -> None:
    assert cut_text(text, limit) == shown


def test_text_from_outside_is_cut_at_500_characters_unless_told() -> None:
    assert cut_text("x" * 501) == "x" * 500 + "… (1 more characters)"
