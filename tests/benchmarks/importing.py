# SPDX-License-Identifier: Apache-2.0
"""What a DAG file pays for importing the provider: CPU time of a fresh interpreter, over Airflow's own.

The interpreter imports Airflow's DAG, then the modules named, and tells what these cost and loaded. One is started in
turn for us and for the peer.
"""

from __future__ import annotations

import compileall
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import airflow_provider_dispatch
from airflow_provider_dispatch.get_provider_info import get_provider_info
from tests.benchmarks.figure import Figure

PEER = "airflow.providers.cncf.kubernetes.operators.job"
FORBIDDEN = ("aiohttp", "kubernetes", "kubernetes_asyncio", "sqlite3")
OWN_FORBIDDEN = ("airflow_provider_dispatch.adapters.kubeflow", "airflow_provider_dispatch.adapters.local")
ROUNDS = 5
AIM_MILLISECONDS = 25.0
PROGRAM = """
import importlib, json, sys, time
from airflow.sdk import DAG
before, start = set(sys.modules), time.process_time()
for name in sys.argv[1:]:
    importlib.import_module(name)
end = time.process_time()
print(json.dumps([(end - start) * 1000, start * 1000, sorted(set(sys.modules) - before)]))
"""


@dataclass(frozen=True, slots=True)
class FreshImport:
    """What importing some modules did to an interpreter that knew Airflow's DAG.

    :param cost: milliseconds of CPU.
    :param airflow_cost: the same, from the interpreter's start until it knew Airflow's DAG.
    :param loaded: modules that were not loaded before.
    """

    cost: float
    airflow_cost: float
    loaded: list[str]


def list_dag_facing_modules() -> list[str]:
    """The modules whose classes DAG files name: those that the provider tells Airflow of."""
    return sorted(_list_told())


def _list_told() -> Iterator[str]:
    info = json.loads(json.dumps(get_provider_info()))
    for room in ("operators", "sensors", "hooks", "triggers"):
        for told in info[room]:
            yield from told["python-modules"]


def measure_import() -> list[Figure]:
    """All DAG-facing modules together, and those that nearly every DAG file does with: operators and sensors."""
    compile_package()
    told = list_dag_facing_modules()
    usual = [name for name in told if ".operators." in name or ".sensors." in name]
    costs: dict[str, list[float]] = {"all": [], "usual": [], "peer": []}
    heavy: set[str] = set()
    for _ in range(ROUNDS):
        for name, modules in (("all", told), ("usual", usual), ("peer", [PEER])):
            found = import_fresh(modules)
            costs[name].append(found.cost)
            if name != "peer":
                heavy |= set(find_forbidden(found.loaded))
    value, peer = statistics.median(costs["all"]), statistics.median(costs["peer"])
    context = {
        "modules": told,
        "operators_and_sensors_alone": round(statistics.median(costs["usual"]), 2),
        "least": {name: round(min(measured), 2) for name, measured in costs.items()},
        "forbidden_modules_loaded": sorted(heavy),
    }
    return [
        Figure(
            name="parse.import",
            says="CPU time for importing every DAG-facing module after `from airflow.sdk import DAG`, in a fresh "
            f"interpreter with compiled code; median of {ROUNDS}",
            value=value,
            unit="ms",
            peer=PEER,
            peer_value=peer,
            aim=f"at most {AIM_MILLISECONDS:g} ms, and no client, no aiohttp, no adapter loaded",
            is_met=value <= AIM_MILLISECONDS and not heavy,
            context=context,
        )
    ]


def compile_package() -> None:
    """So that no interpreter pays for it."""
    compileall.compile_dir(Path(airflow_provider_dispatch.__file__).parent, quiet=1)


def import_fresh(modules: list[str]) -> FreshImport:
    """Import some modules in a fresh interpreter that knows Airflow's DAG."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *modules], check=True, capture_output=True, text=True, timeout=120
    )
    cost, airflow_cost, loaded = json.loads(done.stdout.splitlines()[-1])
    return FreshImport(cost, airflow_cost, loaded)


def find_forbidden(loaded: list[str]) -> list[str]:
    """Those of some modules that a DAG file must not load."""
    return [name for name in loaded if any(f"{name}.".startswith(f"{bad}.") for bad in (*FORBIDDEN, *OWN_FORBIDDEN))]
