# SPDX-License-Identifier: Apache-2.0
"""How the demonstration ends when a step can't be done: in a plain message and an exit status, after tidying up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Never

import pytest

from airflow_provider_dispatch.exceptions import UnavailableError
from airflow_provider_dispatch.testing.airflow_processes import RealAirflow
from tests.demo.__main__ import Show, main
from tests.demo.steps import Say, StepError
from tests.demo.story import Story


def build_show(error: BaseException, tidied: list[str]) -> Show:
    """A demonstration whose first step ends in *error*."""

    @contextmanager
    def show(say: Say) -> Iterator[tuple[RealAirflow, Story]]:
        say("beginning")
        try:
            yield fail(error)
        finally:
            tidied.append("all")

    return show


def fail(error: BaseException) -> Never:
    raise error


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (StepError("task hold is failed"), 1, "FAILED: task hold is failed"),
        (UnavailableError("no agent answers"), 1, "FAILED: no agent answers"),
        (TimeoutError("waited 180 s for the API server"), 1, "FAILED: waited 180 s for the API server"),
        (PermissionError(13, "Permission denied", "/x"), 1, "FAILED: [Errno 13] Permission denied: '/x'"),
        (KeyboardInterrupt(), 130, "interrupted; nothing is left running"),
    ],
)
def test_a_step_that_fails_ends_it_with_a_plain_message(capsys, error, status, message):
    tidied: list[str] = []

    assert main([], build_show(error, tidied)) == status
    assert capsys.readouterr().out.splitlines()[-1].endswith(f"] {message}")
    assert tidied == ["all"]


def test_a_mistake_in_the_code_is_not_hidden():
    with pytest.raises(ZeroDivisionError):
        main([], build_show(ZeroDivisionError(), []))
