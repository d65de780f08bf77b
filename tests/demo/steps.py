# SPDX-License-Identifier: Apache-2.0
"""The steps of the demonstration, each of which says what it does, and what ends everything again.

A step that can't be done raises :class:`StepError` with a plain message. Nothing here outlives its caller: Airflow and
all beneath it run under the guard of :mod:`airflow_provider_dispatch.testing.process_guard`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from airflow_provider_dispatch.adapters.local.layout import StoreLayout
from airflow_provider_dispatch.adapters.local.processes import is_lock_free
from airflow_provider_dispatch.testing.airflow_processes import ENDED_RUN_STATES, RealAirflow
from airflow_provider_dispatch.testing.airflow_rest import Run
from airflow_provider_dispatch.testing.waiting import Waiter
from tests.demo.evidence import STORE, Watcher, read_events, read_story
from tests.demo.story import MAINTENANCE, TRAIN, Story

EXAMPLES = Path(__file__).resolve().parents[2] / "example_dags"
DAG_ID = "hold_and_release"
LOST_STATES = frozenset({"failed", "upstream_failed", "skipped"})
RUN_PATIENCE_SECONDS, AGENT_PATIENCE_SECONDS, LOOK_SECONDS = 240.0, 5.0, 0.5
LIVE_EVENTS = {
    "queued": "waits for room",
    "admitted": "gets its room",
    "running": "runs",
    "holding": "is to give its room back: it saves and ends",
    "held": "is held, its room is free",
    "release": "is released",
    "preempted": "gives way to another job",
    "succeeded": "has succeeded",
    "failed": "has failed",
}
Say = Callable[[str], None]


class StepError(RuntimeError):
    """A step could not be done; the message is for people."""


class Baseline:
    """The same training once more: plainly, in one process, without Airflow and without interruption."""

    def __init__(self, folder: Path) -> None:
        self._result = folder / "result.json"
        environment = {"PATH": os.environ.get("PATH", ""), "DISPATCH_RESULT_PATH": str(self._result)}
        self._process = subprocess.Popen(
            [sys.executable, str(EXAMPLES / "training" / "digits.py")],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def fetch_accuracy(self) -> float:
        """Waits for its end."""
        _, complaint = self._process.communicate(timeout=RUN_PATIENCE_SECONDS)
        if self._process.returncode != 0:
            raise StepError(f"the training without interruption failed:\n{complaint}")
        return float(json.loads(self._result.read_text())["accuracy"])

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextlib.contextmanager
def run_baseline() -> Iterator[Baseline]:
    """Beside the block; ended with it at the latest."""
    with tempfile.TemporaryDirectory(prefix="dispatch-demo-") as folder:
        baseline = Baseline(Path(folder))
        try:
            yield baseline
        finally:
            baseline.end()


@contextlib.contextmanager
def run_airflow(say: Say) -> Iterator[RealAirflow]:
    """A real Airflow in a throw-away home, whose local store has the queues of the examples."""
    starting = RealAirflow(None, EXAMPLES)
    say(f"starting a real Airflow in {starting.home}: database, API server, scheduler, DAG processor, triggerer")
    with starting as airflow:
        layout = StoreLayout(airflow.home / "dispatch" / STORE)
        layout.folder.mkdir(mode=0o700, parents=True)
        shutil.copyfile(EXAMPLES / "queues.toml", layout.queues)
        try:
            yield airflow
        finally:
            end_agent(layout)


def end_agent(layout: StoreLayout) -> None:
    """End the agent of a store by its id; its ranks end with it. On Linux the guard would find it in any case."""
    waiter = Waiter()
    for number in (signal.SIGTERM, signal.SIGKILL):
        if not layout.agent_lock.exists() or is_lock_free(layout.agent_lock):
            return
        with contextlib.suppress(ProcessLookupError, ValueError):
            os.kill(int(layout.agent_lock.read_text()), number)
        with contextlib.suppress(TimeoutError):
            waiter.wait_for(
                lambda: is_lock_free(layout.agent_lock), timeout_seconds=AGENT_PATIENCE_SECONDS, what="the agent to end"
            )


def follow_run(airflow: RealAirflow, run: Run, say: Say) -> Watcher:
    """Say what happens until the run has ended.

    :raises StepError: a task is lost, or it takes too long.
    """
    watcher, told, until = Watcher(airflow.rest, run), 0, time.monotonic() + RUN_PATIENCE_SECONDS
    while True:
        # Before the tasks: when the run has ended, one more look sees them all.
        state = airflow.rest.fetch_run(run).state
        for task_id, task_state in watcher.look().items():
            if task_state in LOST_STATES:
                raise StepError(describe_loss(airflow, run, task_id, task_state))
            if task_state in {"deferred", "success"}:
                say(f"Airflow: task {task_id} is {'done' if task_state == 'success' else task_state}")
        told = tell_events(airflow.home, run, told, say)
        if state in ENDED_RUN_STATES:
            break
        if time.monotonic() > until:
            raise StepError(f"the run has not ended after {RUN_PATIENCE_SECONDS:.0f} s")
        airflow.wait_for(lambda: True, what="nothing but a component that ended by itself")
        time.sleep(LOOK_SECONDS)
    if state != "success":
        raise StepError(f"the DAG run ended as {state}")
    return watcher


def tell_events(home: Path, run: Run, told: int, say: Say) -> int:
    """Say what is new since event *told*; the number of the newest."""
    events = [(event, name) for name in (TRAIN, MAINTENANCE) for event in read_events(home, run, name)]
    for event, name in sorted(events, key=lambda pair: pair[0].sequence):
        if event.sequence > told and event.kind in LIVE_EVENTS:
            epoch = f" (execution {event.epoch})" if event.kind in {"admitted", "running"} else ""
            say(f"job {name} {LIVE_EVENTS[event.kind]}{epoch}")
    return max([told, *(event.sequence for event, _ in events)])


def describe_loss(airflow: RealAirflow, run: Run, task_id: str, state: str) -> str:
    log = airflow.rest.fetch_log(run, task_id) if state == "failed" else ""
    tail = "\n".join(f"    {line}" for line in log.splitlines()[-25:])
    return f"task {task_id} is {state}" + (f"; the end of its log:\n{tail}" if tail else "")


@contextlib.contextmanager
def show(say: Say) -> Iterator[tuple[RealAirflow, Story]]:
    """Everything up to the report, which the block makes. All that runs ends with the block."""
    with run_baseline() as baseline:
        say("training once without Airflow and without interruption, to compare with")
        with run_airflow(say) as airflow:
            say(f"Airflow is up at {airflow.url}")
            airflow.wait_for_dag(DAG_ID)
            run = airflow.rest.trigger_dag(DAG_ID)
            say(f"running the DAG {DAG_ID}, which is example_dags/{DAG_ID}.py")
            watcher = follow_run(airflow, run, say)
            accuracy = baseline.fetch_accuracy()
            yield airflow, read_story(airflow.home, airflow.rest, run, watcher, accuracy)
            say("ending everything")
