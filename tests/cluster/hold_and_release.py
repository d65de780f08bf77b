# SPDX-License-Identifier: Apache-2.0
"""The hold-and-release example under a real Airflow, unchanged, with a connection that points at a cluster.

Played once for each way in which a controller runs; the tests bring the cluster with the queue and look after both.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow_provider_dispatch.adapters.registry import build_adapter
from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.core.records import JobEvent
from airflow_provider_dispatch.core.state import Cause, State
from airflow_provider_dispatch.hooks.settings import parse_connection
from airflow_provider_dispatch.testing.airflow_processes import RealAirflow
from airflow_provider_dispatch.testing.airflow_rest import Run
from tests.cluster.testbed.objects import RUNTIME
from tests.cluster.testbed.pins import EXAMPLES_IMAGE
from tests.example_dags.jobs import find_job

FIRST, SECOND = 1_000_001, 1_000_002
QUEUE = "research"
ROOM_OF_ONE = {"cpu": "1", "memory": "512Mi"}
"""Of two ranks, of the training or of the maintenance."""
PATIENCE_SECONDS = 300.0


@dataclass(frozen=True)
class Place:
    """Where the example's jobs run.

    :param kubeconfig: of whoever starts them.
    :param namespace: it has the queue.
    :param state: the host's folder that becomes theirs.
    """

    kubeconfig: Path
    namespace: str
    state: Path

    @property
    def extra(self) -> Mapping[str, object]:
        """Of the connection."""
        return {
            "backend": "kubeflow",
            "kubeconfig": str(self.kubeconfig),
            "namespace": self.namespace,
            "runtime": RUNTIME,
            "image": EXAMPLES_IMAGE,
            "state_host_path": str(self.state),
        }

    def find_checkpoints(self, job: JobID) -> dict[int, dict[str, datetime]]:
        """By epoch: the names, and when each was written. Host and pods have one clock."""
        found: dict[int, dict[str, datetime]] = {}
        for path in (self.state / job.lower()).glob("checkpoint-e*.npz"):
            epoch = int(path.name.split("-")[1].removeprefix("e"))
            found.setdefault(epoch, {})[path.name] = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        return found


@contextmanager
def open_airflow(place: Place, repository: Path, dags: Path | None = None) -> Iterator[RealAirflow]:
    """With the connection that the example DAGs ask for.

    :param dags: None means the examples themselves.
    """
    environment = {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(repository), os.environ.get("PYTHONPATH")])),
        "AIRFLOW_CONN_DISPATCH_DEFAULT": json.dumps({"conn_type": "dispatch", "extra": dict(place.extra)}),
    }
    with RealAirflow(None, dags or repository / "example_dags", env=environment) as airflow:
        yield airflow


def run_example(airflow: RealAirflow, dag_id: str) -> Run:
    airflow.wait_for_dag(dag_id, timeout_seconds=PATIENCE_SECONDS)
    run = airflow.rest.trigger_dag(dag_id)
    ended = airflow.wait_for_run(run, timeout_seconds=PATIENCE_SECONDS)
    rows = airflow.rest.fetch_tasks(run)
    failed = [row.task_id for row in rows if row.state == "failed"]
    logs = "\n".join(f"{task_id}:\n{airflow.rest.fetch_log(run, task_id)}" for task_id in failed)
    tasks = {row.task_id: (row.state, row.try_number) for row in rows}
    assert (ended.state, set(tasks.values())) == ("success", {("success", 1)}), f"{tasks}\n{logs}"
    return run


def read_self_test(log: str) -> tuple[datetime, datetime]:
    """When rank 0 of the maintenance began and ended, as it says itself."""
    begun, ended = re.findall(r"self-test of rank 0 (?:begins|ends) at (\S+)", log)
    return datetime.fromisoformat(begun), datetime.fromisoformat(ended)


def see(place: Place, job: JobID) -> tuple[Observation, tuple[JobEvent, ...]]:
    """What the cluster has to say of a job once everything is over."""
    settings = parse_connection("dispatch_default", "dispatch", json.dumps(dict(place.extra))).adapter_settings

    async def ask() -> tuple[Observation, tuple[JobEvent, ...]]:
        adapter = build_adapter("kubeflow", settings)
        try:
            return await adapter.inspect(job), await adapter.events(job)
        finally:
            await adapter.close()

    return asyncio.run(ask())


def play_hold_and_release(airflow: RealAirflow, place: Place) -> list[int]:
    """Run it and see that it did what it promises: by its results, its files, its log and the cluster's own word.

    :return: the epochs that all pods of the training were started under.
    """
    run = run_example(airflow, "hold_and_release")
    train = find_job(*run, "train")
    saved = check_results(airflow, run)
    epochs = check_order(airflow, run, place, train, saved)
    check_stop(airflow, run, place, train)
    assert see(place, find_job(*run, "maintenance"))[0].state is State.SUCCEEDED
    return epochs


def check_results(airflow: RealAirflow, run: Run) -> str:
    """Both jobs did their work, the training in two executions; the checkpoint between them."""
    result = fetch_xcom(airflow, run, "train")
    assert (result["epoch"], result["executions"], result["submission"]) == (SECOND, 2, 1)
    saved: str = result["result"]["resumed_from"]
    assert saved.startswith(f"checkpoint-e{FIRST}-")
    assert result["result"]["accuracy"] > 0.94
    log = airflow.rest.fetch_log(run, "train")
    assert re.findall(r"epoch (\d+) begins .*: (?:resumed from )?(.*)", log) == [
        (str(FIRST), "no checkpoint yet"),
        (str(SECOND), saved),
    ]
    assert fetch_xcom(airflow, run, "maintenance")["result"]["products"] > 0
    return saved


def check_order(airflow: RealAirflow, run: Run, place: Place, train: JobID, saved: str) -> list[int]:
    """By their own stamps: the last thing that the first execution wrote, the self-test, the first of the second."""
    begun, ended = read_self_test(airflow.rest.fetch_log(run, "maintenance"))
    checkpoints = place.find_checkpoints(train)
    assert max(checkpoints[FIRST], key=checkpoints[FIRST].__getitem__) == saved
    assert checkpoints[FIRST][saved] <= begun < ended <= min(checkpoints[SECOND].values())
    _, events = see(place, train)
    (held,), (released,) = ([event.at for event in events if event.kind == kind] for kind in ("held", "released"))
    assert held <= begun < ended <= released
    said = (re.fullmatch(r"2 of 2 pods start under epoch (\d+)", event.message) for event in events)
    return [int(started[1]) for started in said if started]


def check_stop(airflow: RealAirflow, run: Run, place: Place, train: JobID) -> None:
    report = fetch_xcom(airflow, run, "stop")
    kinds = {stopped["object"].split()[0] for stopped in report["stopped"]}
    assert {"TrainJob", "TrainingRuntime", "JobSet", "Job", "Pod", "Workload"} <= kinds
    assert (report["job"], report["alive"], report["unproven"]) == (train, [], [])
    seen, _ = see(place, train)
    assert (seen.state, seen.cause, seen.detail) == (State.GONE, Cause.STOPPED, "all done")


def fetch_xcom(airflow: RealAirflow, run: Run, task_id: str) -> Any:
    return airflow.rest.fetch_xcom(run, task_id)
