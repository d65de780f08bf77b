# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.demo [--keep]``: shows what the provider is for with a real Airflow, and checks that it is true.

Exit status: 0 when all was shown, 1 when a step failed or something was not as promised, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import FrameType

from airflow_provider_dispatch.exceptions import DispatchError
from airflow_provider_dispatch.testing.airflow_processes import ComponentEndedError, RealAirflow
from airflow_provider_dispatch.testing.airflow_rest import RestError
from airflow_provider_dispatch.testing.guarded_processes import GuardError
from tests.demo.steps import Say, StepError, show
from tests.demo.story import Story
from tests.demo.timeline import build_findings, render

Show = Callable[[Say], AbstractContextManager[tuple[RealAirflow, Story]]]
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PLAIN_ERRORS = (
    StepError, ComponentEndedError, RestError, GuardError, DispatchError, TimeoutError, OSError,
    subprocess.SubprocessError,
)  # fmt: skip
"""What may go wrong on a machine. Anything else is a mistake in the code, and its traceback is wanted."""


def main(arguments: Sequence[str], show: Show = show) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.demo", description="Watch a job trained, held and released.")
    parser.add_argument("--keep", action="store_true", help="leave Airflow's UI open until Ctrl-C")
    keep = parser.parse_args(arguments).keep
    say = build_say()
    try:
        return demonstrate(say, show, keep=keep)
    except PLAIN_ERRORS as error:
        say(f"FAILED: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted; nothing is left running")
        return 130


def demonstrate(say: Say, show: Show, *, keep: bool) -> int:
    with show(say) as (airflow, story):
        print("\n".join(render(story)), flush=True)
        if not all(finding.is_shown for finding in build_findings(story)):
            raise StepError("something was not as it should be: see the line that begins with NO")
        if keep:
            wait_for_interrupt(airflow)
    say("done; nothing is left running")
    return 0


def wait_for_interrupt(airflow: RealAirflow) -> None:
    login = next(iter(airflow.logins.values()))
    print(f"Airflow stays open: {airflow.url}\n  user      {login.username}\n  password  {login.password}")
    print("Ctrl-C ends it.", flush=True)
    while True:
        signal.pause()


def build_say() -> Say:
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"[{time.monotonic() - began:3.0f} s] {line}", flush=True)

    return say


def interrupt(_number: int, _frame: FrameType | None) -> None:
    """Once: while everything is being ended, further signals would only leave something behind."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    for number in SIGNALS:
        signal.signal(number, interrupt)
    sys.exit(main(sys.argv[1:]))
