# SPDX-License-Identifier: Apache-2.0
"""The command as a program: its help, what it loads, what it needs, its manners on a terminal and in a pipe."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import click
import pytest
import yaml
from typer.main import get_group

import airflow_provider_dispatch
from airflow_provider_dispatch.cli.app import GROUPS, VERBS, app
from tests.adapters.local.world import World
from tests.cli.calling import PROGRAM, Caller
from tests.cli.conftest import FakeWorld

STYLE = re.compile(r"\x1b\[[0-9;]*m")
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|9[0-7])[;m]")
PATIENCE_SECONDS = 60


def run(*words: str, code: str = "", **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code] if code else PROGRAM
    return subprocess.run([*command, *words], capture_output=True, text=True, timeout=PATIENCE_SECONDS, **options)


def test_every_verb_has_a_help_with_the_options_of_all(fake: FakeWorld) -> None:
    for verb in VERBS:
        answer = fake.dispatch(verb, "--help")

        assert answer.code == 0
        assert {"--conn-id", "--settings", "--output", "--call-timeout"} <= set(re.findall(r"--[a-z-]+", answer.out))


def list_commands(group: Any, name: str = "") -> Iterator[tuple[str, click.Command]]:
    for word, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from list_commands(command, f"{name}{word} ")
        else:
            yield f"{name}{word}", command


def test_nothing_that_can_be_given_is_left_unexplained() -> None:
    """A name as people write it and a help, for each verb and each of its options and arguments."""
    commands = dict(list_commands(get_group(app)))
    given = [(name, parameter) for name, command in commands.items() for parameter in command.params]

    assert len(commands) > len(VERBS)
    assert [name for name, command in commands.items() if not (command.help or "").strip()] == []
    assert [(name, one.name) for name, one in given if not getattr(one, "help", None)] == []
    metavars = {one.metavar for _, one in given if isinstance(one, click.Argument)}
    assert metavars <= {"JOB", "NAME", "-- COMMAND"}


def test_the_documentation_has_every_verb(repository) -> None:
    text = (repository / "docs/command.md").read_text()

    assert re.findall(r"^\| `([a-z]+)` \|", text, re.MULTILINE) == [*VERBS, *GROUPS]


def test_the_help_loads_neither_a_backend_nor_airflow() -> None:
    look = (
        "import sys; from airflow_provider_dispatch.cli.app import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: pass\n"
        "print('loaded', *sys.modules)"
    )

    loaded = run(code=look).stdout.splitlines()[-1].split()

    assert loaded[0] == "loaded"
    heavy = ("airflow", "kubernetes", "airflow_provider_dispatch.adapters.local", "airflow_provider_dispatch.hooks")
    assert [name for name in loaded if f"{name}.".startswith(tuple(f"{each}." for each in heavy))] == []


@pytest.mark.parametrize("library", ["typer", "rich", "yaml"])
def test_a_missing_library_is_named_with_what_to_install(library: str) -> None:
    code = f"import sys, runpy; sys.modules[{library!r}] = None; runpy.run_module({PROGRAM[-1]!r}, run_name='__main__')"

    done = run(code=code)

    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr == (
        f"error: the command needs {library}, which is not installed: pip install 'airflow-provider-dispatch[cli]'\n"
    )


def test_the_version_is_told() -> None:
    done = run("--version")

    assert (done.returncode, done.stdout) == (0, f"{airflow_provider_dispatch.__version__}\n")


def test_completion_is_offered() -> None:
    done = run(env=os.environ | {"_DISPATCH_COMPLETE": "complete_bash", "COMP_WORDS": "dispatch ex", "COMP_CWORD": "1"})

    assert (done.returncode, done.stdout.split()) == (0, ["explain"])


def run_on_a_terminal(dispatch: Caller, *words: str, **variables: str) -> str:
    """What a terminal gets to see of the answer."""
    leader, follower = pty.openpty()
    variables = {"TERM": "xterm-256color", "NO_COLOR": ""} | variables
    with dispatch.spawn(*words, stdout=follower, stderr=subprocess.DEVNULL, env=variables) as process:
        os.close(follower)
        seen = b"".join(iter(lambda: read_some(leader), b""))
        os.close(leader)
        assert process.wait(PATIENCE_SECONDS) == 0
    return seen.decode()


def read_some(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other side is closed
        return b""


def test_colours_appear_on_a_terminal_only_and_not_where_they_are_unwanted(dispatch: Caller, world: World) -> None:
    assert COLOUR.search(run_on_a_terminal(dispatch, "capabilities"))
    assert not COLOUR.search(run_on_a_terminal(dispatch, "capabilities", NO_COLOR="1"))
    assert not STYLE.search(dispatch("capabilities").out)
    assert not STYLE.search(run_on_a_terminal(dispatch, "capabilities", "-o", "json"))


def test_a_reader_that_leaves_early_does_no_harm(dispatch: Caller) -> None:
    process = dispatch.spawn("capabilities")
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    said = process.stderr.read()
    process.wait(PATIENCE_SECONDS)
    process.stderr.close()

    assert "Traceback" not in said


@pytest.mark.parametrize("redirection", [">&-", "2>&-", ">&- 2>&-"])
def test_who_closes_its_output_gets_the_exit_status(dispatch: Caller, redirection: str) -> None:
    program = shlex.join([*PROGRAM, "list"])
    called = subprocess.run(
        ["sh", "-c", f"{program} {redirection}"], env=os.environ | dispatch.environment, capture_output=True, text=True
    )
    assert (called.returncode, "Traceback" in called.stderr) == (0, False), called.stderr


def test_the_form_of_json_is_that_of_yaml(fake: FakeWorld) -> None:
    fake.dispatch("start", "--", "run")

    as_json, as_yaml = (fake.dispatch("list", "-o", form).out for form in ("json", "yaml"))

    assert json.loads(as_json) == yaml.safe_load(as_yaml)
