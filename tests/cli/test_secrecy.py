# SPDX-License-Identifier: Apache-2.0
"""What the command prints in any form, and what it leaves in the store, holds no secret of a job or of its settings."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from airflow_provider_dispatch.cli.screen import OutputForm
from tests.adapters.local.world import WAIT, World, new_job
from tests.cli.calling import Answer, Caller
from tests.cli.test_verbs import PYTHON
from tests.secrecy import draw_secret, find_in_folder, find_in_text, hide

VALUE, VARIABLE = draw_secret("value"), draw_secret("variable")
PLANTED = (VALUE, VARIABLE)
READING = ("inspect", "find", "events", "explain")
SHOW = "import hashlib, os; print(hashlib.sha256(os.environ['TOKEN'].encode()).hexdigest())"


@pytest.fixture
def answers(dispatch: Caller, world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Answer]]:
    """The answers to come, all of which are searched in the end."""
    path = world.layout.secrets / "team/token"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(VALUE)
    monkeypatch.setenv("MY_VARIABLE", VARIABLE)
    given: list[Answer] = []
    yield given
    assert len(given) > 3
    assert find_in_text("answers", "\n".join(f"{answer.out}{answer.err}" for answer in given), PLANTED) == []


def test_a_whole_life_shows_neither_secrets_nor_values_of_variables(
    dispatch: Caller, world: World, answers: list[Answer]
) -> None:
    job = new_job()
    given = ("--job", job, "--secret", "TOKEN=team/token", "--env", "MY_VARIABLE")
    answers.append(dispatch("start", *given, "--open", "--", *PYTHON, f"{SHOW}; {WAIT}"))
    answers.append(dispatch("watch", job, "--until", "running", "--timeout", "30s", "-o", "json"))
    answers.append(dispatch("start", *given, "--submission", "1", "--", *PYTHON, "pass"))
    answers += [dispatch("hold", job, "--wait"), dispatch("release", job, "-o", "yaml"), dispatch("adopt", job)]
    answers += [dispatch(verb, job, "-o", form) for form in OutputForm for verb in READING]
    answers += [dispatch("list", "-o", form) for form in OutputForm]
    answers += [dispatch("logs", job, "-o", form) for form in OutputForm]
    answers += [dispatch("stop", job), dispatch("find", job), dispatch("gc", "--ended", "0s")]

    assert hashlib.sha256(VALUE.encode()).hexdigest() in "".join(answer.out for answer in answers)
    assert find_in_folder(world.layout.folder, [VALUE], but=[world.layout.secrets]) == []


def test_neither_does_a_job_that_fails(dispatch: Caller, world: World, answers: list[Answer]) -> None:
    job = new_job()
    words = ("start", "--job", job, "--open", "--wait", "--env", "MY_VARIABLE")
    answers.append(dispatch(*words, "--secret", "TOKEN=team/token", "--", *PYTHON, f"{SHOW}; raise SystemExit(3)"))
    answers += [dispatch(verb, job, "-o", form) for form in OutputForm for verb in READING]
    answers.append(dispatch(*words, "--secret", "TOKEN=team/nothing", "--", *PYTHON, "pass"))

    assert [answers[0].code, answers[-1].code] == [1, 1]
    assert "there is no secret team/nothing" in answers[-1].err
    assert find_in_folder(world.layout.folder, [VALUE], but=[world.layout.secrets]) == []


@pytest.mark.parametrize(
    "spec",
    [
        f"command: [train]\nenv: {{TOKEN: {VALUE}\n",
        f"command: [train]\nenv:\n  TOKEN: !{VALUE}\n",
        yaml.safe_dump({"command": ["train"], "secrets": {"TOKEN": VALUE}}),
        yaml.safe_dump({"command": ["train"], "env": {"A": "1", f"TOKEN={VALUE}": "x"}}),
        yaml.safe_dump({"command": ["train"], "env": [f"TOKEN={VALUE}"]}),
        yaml.safe_dump({"command": ["train"], "environment": {"TOKEN": VALUE}}),
        yaml.safe_dump({"command": ["train"], "env": {"A": VALUE}, "secrets": {"A": "team/token"}}),
        yaml.safe_dump({"roles": [{"name": "a", "command": ["x"], "env": {"A": VALUE}, "nodes": 0}]}),
    ],
    ids=hide,
)
def test_a_job_in_a_file_that_is_refused_is_not_repeated(dispatch: Caller, spec: str) -> None:
    answer = dispatch("start", "--file", "-", stdin=spec)

    assert (answer.code, answer.out) == (2, "")
    assert find_in_text("error", answer.err, PLANTED) == []


@pytest.mark.parametrize(
    "settings",
    [
        f"backend: local\ntoken: {VALUE}\n",
        f"backend: local\nroot: [{VALUE}]\n",
        f"backend: kubeflow\npassword: {VALUE}\n",
        f"backend: kubeflow\nruntime: {VALUE}\n",
        f"backend: {{{VALUE}: 1}}\n",
        f"backend: [{VALUE}\n",
        f"call_timeout_seconds: {VALUE}\n",
        VALUE,
    ],
    ids=hide,
)
def test_settings_that_are_refused_are_not_repeated(tmp_path: Path, settings: str) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(settings)

    answer = Caller(path)("list")

    assert (answer.code, answer.out) == (2, "")
    assert find_in_text("error", answer.err, PLANTED) == []
