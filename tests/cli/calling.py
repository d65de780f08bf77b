# SPDX-License-Identifier: Apache-2.0
"""Calls the command as a person does, in this process or in one of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from airflow_provider_dispatch.cli.app import app
from airflow_provider_dispatch.cli.settings import SETTINGS_VARIABLE

PROGRAM = [sys.executable, "-m", "airflow_provider_dispatch.cli"]


@dataclass(frozen=True)
class Answer:
    """What a call gave."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """The answer as JSON."""
        return json.loads(self.out)

    @property
    def rows(self) -> list[list[str]]:
        """The words of each line."""
        return [line.split() for line in self.out.splitlines()]


class Caller:
    """Calls with one settings file."""

    def __init__(self, settings: Path) -> None:
        self.settings = settings
        self.environment = {SETTINGS_VARIABLE: str(settings), "COLUMNS": "200", "TERM": "dumb"}

    def __call__(self, *words: str, stdin: str | None = None) -> Answer:
        """Call within this process."""
        result = CliRunner().invoke(app, list(words), input=stdin, env=self.environment)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Answer(result.exit_code, result.stdout, result.stderr)

    def json(self, verb: str, *words: str) -> Any:
        """Call within this process and read the answer, which must be a good one."""
        answer = self(verb, "--output", "json", *words)
        assert answer.code == 0, answer.err
        return answer.data

    def spawn(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """Begin a call in a process of its own, in a process group of its own."""
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        environment = os.environ | self.environment | options.pop("env", {})
        return subprocess.Popen([*PROGRAM, *words], text=True, env=environment, process_group=0, **options)
