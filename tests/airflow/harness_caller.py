# SPDX-License-Identifier: Apache-2.0
"""Starts a real Airflow, tells its processes, and waits to be ended; raises when its standard input says so."""

from __future__ import annotations

import sys
from pathlib import Path

from airflow_provider_dispatch.testing.airflow_processes import RealAirflow


def main(home: Path, dags_folder: Path) -> None:
    with RealAirflow(home, dags_folder) as airflow:
        print(*airflow.alive(), flush=True)
        raise RuntimeError(sys.stdin.readline())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
