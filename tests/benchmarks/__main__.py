# SPDX-License-Identifier: Apache-2.0
"""The command: ``python -m tests.benchmarks [--only parse start agent triggers admission]``.

Prints one JSON document on standard output and what it is doing on standard error. It measures in a throw-away Airflow
home and ends all that it starts. A figure that misses its aim is no failure of the command; one that can't be measured
is.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.benchmarks.figure import Figure
from tests.benchmarks.machine import read_load, read_machine

Measure = Callable[[Path], list[Figure]]
# Each is imported when it is asked for: some load Airflow, which must find its home first.


def measure_parsing(folder: Path) -> list[Figure]:
    """What DAG files cost."""
    del folder
    from tests.benchmarks.building import measure_building
    from tests.benchmarks.importing import measure_import

    return [*measure_import(), *measure_building()]


def measure_start(folder: Path) -> list[Figure]:
    """From start to running."""
    from tests.benchmarks.starting import measure_starting

    return measure_starting(folder)


def measure_agent(folder: Path) -> list[Figure]:
    """An agent at rest."""
    from tests.benchmarks.idle_agent import measure_idle_agent

    return measure_idle_agent(folder)


def measure_triggers(folder: Path) -> list[Figure]:
    """Deferred tasks."""
    from tests.benchmarks.waiting_triggers import measure_waiting_triggers

    return measure_waiting_triggers(folder)


def measure_decisions(folder: Path) -> list[Figure]:
    """Admission."""
    del folder
    from tests.benchmarks.admission import measure_admission

    return measure_admission()


SUBJECTS: dict[str, Measure] = {
    "parse": measure_parsing,
    "start": measure_start,
    "agent": measure_agent,
    "triggers": measure_triggers,
    "admission": measure_decisions,
}


def isolate_airflow(home: Path) -> None:
    """Nothing of the caller's own Airflow counts."""
    for name in [name for name in os.environ if name.startswith(("AIRFLOW__", "AIRFLOW_CONN_", "AIRFLOW_VAR_"))]:
        del os.environ[name]
    os.environ |= {"AIRFLOW_HOME": str(home), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}


def measure_all(subjects: list[str]) -> dict[str, object]:
    """The document."""
    machine, begun = read_machine(), time.monotonic()
    figures: list[dict[str, object]] = []
    failures: dict[str, str] = {}
    for subject in subjects:
        print(f"{subject} …", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="dispatch-bench-") as folder:
            try:
                figures += [figure.to_plain() for figure in SUBJECTS[subject](Path(folder))]
            except Exception as error:  # noqa: BLE001 - the others are measured all the same
                traceback.print_exc()
                failures[subject] = f"{type(error).__name__}: {error}"
    machine |= {"load_at_the_end": read_load(), "seconds": round(time.monotonic() - begun, 1)}
    return {"machine": machine, "figures": figures, "not_measured": failures}


def main() -> int:
    """Measure and print; 1 when something could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=SUBJECTS, default=list(SUBJECTS), metavar="SUBJECT")
    chosen = parser.parse_args().only
    # So that what was started is ended as well when the command is asked to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="dispatch-bench-home-") as home:
        isolate_airflow(Path(home))
        with contextlib.redirect_stdout(sys.stderr):
            document = measure_all(chosen)
    print(json.dumps(document, indent=2))
    return 1 if document["not_measured"] else 0


if __name__ == "__main__":
    sys.exit(main())
