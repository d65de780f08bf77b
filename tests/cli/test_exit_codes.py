# SPDX-License-Identifier: Apache-2.0
"""The exit status: complete over the tree of errors, as documented, and without a traceback."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_dispatch import exceptions as errors
from airflow_provider_dispatch.cli.exit_codes import CODE_OF_ERROR, ExitCode, derive_exit_code
from airflow_provider_dispatch.core.diagnosis import ERROR_OF_CAUSE
from airflow_provider_dispatch.testing.fake_adapter import FakeAdapter
from tests.cli.conftest import FakeWorld

ABSTRACT = {errors.DispatchError, errors.AdapterError}


def list_errors(kind: type[errors.DispatchError] = errors.DispatchError) -> Iterator[type[errors.DispatchError]]:
    """The package's classes at and below *kind* that a verb can meet; tests and operators have more."""
    room = kind.__module__.removeprefix("airflow_provider_dispatch.").partition(".")[0]
    if room in {"adapters", "cli", "controller", "core", "exceptions"}:
        yield kind
        for child in kind.__subclasses__():
            yield from list_errors(child)


def build(kind: type[errors.DispatchError]) -> errors.DispatchError:
    return errors.SpecError("field", "problem") if kind is errors.SpecError else kind("what happened")


def test_every_error_has_a_number_of_its_own_kind() -> None:
    kinds = set(list_errors()) - ABSTRACT

    assert {kind for kind in kinds if not any(base in CODE_OF_ERROR for base in kind.__mro__)} == set()
    assert len(kinds) >= 10 + len(ERROR_OF_CAUSE)
    assert derive_exit_code(errors.AdapterError("?")) is ExitCode.REFUSED


def test_the_number_says_whether_to_try_again() -> None:
    for kind in set(list_errors()) - ABSTRACT:
        assert (derive_exit_code(build(kind)) is ExitCode.RETRY) == kind.is_retryable, kind


class BrokenAdapter(FakeAdapter):
    """Fails in whatever way it is told to."""

    error: errors.DispatchError

    async def list(self, selector):
        raise self.error


@pytest.mark.parametrize("kind", [kind for kind in list_errors() if kind not in ABSTRACT])
def test_an_error_is_one_line_and_a_number(fake: FakeWorld, kind: type[errors.DispatchError]) -> None:
    adapter = BrokenAdapter(fake.backend)
    adapter.error = build(kind)
    fake.adapter = adapter

    answer = fake.dispatch("list")

    assert (answer.code, answer.out) == (derive_exit_code(adapter.error), "")
    assert answer.err == f"error: {adapter.error}\n"


def test_the_documented_table_is_the_code(repository: Path) -> None:
    text = (repository / "docs/command.md").read_text()
    rows = re.findall(r"^\| (\d+) \|[^|]*\|(.*)\|$", text, re.MULTILINE)

    documented = {int(number): set(re.findall(r"`(\w+Error)`", cell)) for number, cell in rows}
    written = {code: {kind.__name__ for kind, of in CODE_OF_ERROR.items() if of is code} for code in ExitCode}
    assert documented == {int(code): names for code, names in written.items()}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["inspect"], "error: JOB: name a job: its id, or --dag, --run and --task\n"),
        (["inspect", "x"], "error: JOB = 'x': a job id has 26 characters"),
        (["inspect", "--dag", "d"], "error: JOB: give --run, --task too\n"),
        (["start"], "error: COMMAND: say what to run: a command after --, or a spec with --file\n"),
        (["start", "job.yaml"], "error: COMMAND = 'job.yaml': looks like a spec: give it with --file\n"),
        (["start", "--nodes", "0", "true"], "error: nodes = 0: Input should be greater than or equal to 1\n"),
        (["start", "--resource", "cpu", "true"], "error: --resource = 'cpu': must be written name=value\n"),
        (["start", "--resource", "cpu=1x", "true"], "error: resources.cpu = '1x': "),
        (
            ["start", "--env", "DISPATCH_NOT_SET", "true"],
            "error: --env = 'DISPATCH_NOT_SET': you have no such variable",
        ),
        (["start", "--env", "=hush", "true"], "error: env: the name that begins with ''"),
        (["start", "--secret", "hush", "true"], "error: --secret: must be written name=value\n"),
        (["start", "--secret", "TOKEN=hush", "true"], "error: secrets.TOKEN: name a secret and a key in it, such as "),
        (["start", "--file", "/nowhere/x", "true"], "error: --file = '/nowhere/x': can't be read: No such file"),
        (["start", "--grace-period", "soon", "true"], "error: --grace-period = 'soon': must be a length of time"),
        (
            ["hold", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "--until", "noon"],
            "error: --until = 'noon': must be a length of time",
        ),
        (["list", "--label", "team"], "error: --label = 'team': must be written name=value\n"),
        (["list", "--call-timeout", "x"], "error: --call-timeout = 'x': must be a length of time"),
    ],
)
def test_a_wrong_word_is_named_with_what_to_do(fake: FakeWorld, words: list[str], said: str) -> None:
    answer = fake.dispatch(*words)

    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(said)
    assert answer.err.count("\n") == 1
    assert "hush" not in answer.err


@pytest.mark.parametrize(
    "words", [["nonsense"], ["list", "--state", "lost"], ["logs", "x", "--rank", "-1"], ["list", "--nope"]]
)
def test_what_typer_refuses_has_the_same_number(fake: FakeWorld, words: list[str]) -> None:
    answer = fake.dispatch(*words)

    assert (answer.code, answer.out) == (2, "")
    assert "Usage: " in answer.err
