# SPDX-License-Identifier: Apache-2.0
"""The hold-and-release example under a real Airflow, unchanged, with a connection that points at the cluster."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from airflow_provider_dispatch.adapters.registry import build_adapter
from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.core.records import JobEvent
from airflow_provider_dispatch.core.state import Cause, State
from airflow_provider_dispatch.hooks.settings import parse_connection
from airflow_provider_dispatch.testing.airflow_processes import RealAirflow
from airflow_provider_dispatch.testing.airflow_rest import Run
from tests.cluster.testbed.bed import Bed
from tests.cluster.testbed.objects import RUNTIME, build_namespace, build_quota_queue
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

    :param extra: of the connection.
    :param state: the host's folder that becomes theirs.
    """

    extra: Mapping[str, object]
    state: Path

    def find_checkpoints(self, job: JobID) -> dict[int, dict[str, datetime]]:
        """By epoch: the names, and when each was written. Host and pods have one clock."""
        found: dict[int, dict[str, datetime]] = {}
        for path in (self.state / job.lower()).glob("checkpoint-e*.npz"):
            epoch = int(path.name.split("-")[1].removeprefix("e"))
            found.setdefault(epoch, {})[path.name] = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        return found


@pytest.fixture
def place(controlled_bed: Bed) -> Iterator[Place]:
    bed, name = controlled_bed, f"example-dag-{secrets.token_hex(3)}"
    queue, local_queue = build_quota_queue(name, QUEUE, ROOM_OF_ONE)
    state = bed.shared_folder / name
    state.mkdir(mode=0o777)
    bed.api.apply(build_namespace(name), queue, local_queue)
    yield Place(
        {
            "backend": "kubeflow",
            "kubeconfig": str(bed.kubeconfig),
            "namespace": name,
            "runtime": RUNTIME,
            "image": EXAMPLES_IMAGE,
            "state_host_path": str(state),
        },
        state,
    )
    bed.api.delete(build_namespace(name))
    bed.api.delete(queue)
    shutil.rmtree(state)


@pytest.fixture
def airflow(place: Place, repository: Path) -> Iterator[RealAirflow]:
    environment = {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(repository), os.environ.get("PYTHONPATH")])),
        "AIRFLOW_CONN_DISPATCH_DEFAULT": json.dumps({"conn_type": "dispatch", "extra": dict(place.extra)}),
    }
    with RealAirflow(None, repository / "example_dags", env=environment) as airflow:
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


def test_a_training_on_the_cluster_is_held_and_released_around_maintenance(airflow, place):
    run = run_example(airflow, "hold_and_release")
    train, maintenance = find_job(*run, "train"), find_job(*run, "maintenance")

    result = airflow.rest.fetch_xcom(run, "train")
    assert (result["epoch"], result["executions"], result["submission"]) == (SECOND, 2, 1)
    saved = result["result"]["resumed_from"]
    assert saved.startswith(f"checkpoint-e{FIRST}-")
    assert result["result"]["accuracy"] > 0.94
    log = airflow.rest.fetch_log(run, "train")
    assert re.findall(r"epoch (\d+) begins .*: (?:resumed from )?(.*)", log) == [
        (str(FIRST), "no checkpoint yet"),
        (str(SECOND), saved),
    ]
    assert airflow.rest.fetch_xcom(run, "maintenance")["result"]["products"] > 0

    # By their own stamps: the last thing that the first execution wrote, the self-test, the first of the second.
    begun, ended = read_self_test(airflow.rest.fetch_log(run, "maintenance"))
    checkpoints = place.find_checkpoints(train)
    assert max(checkpoints[FIRST], key=checkpoints[FIRST].__getitem__) == saved
    assert checkpoints[FIRST][saved] <= begun < ended <= min(checkpoints[SECOND].values())
    seen, events = see(place, train)
    assert [event.message for event in events if "under epoch" in event.message] == [
        f"2 of 2 pods start under epoch {epoch}" for epoch in (FIRST, SECOND)
    ]
    (held,), (released,) = ([event.at for event in events if event.kind == kind] for kind in ("held", "released"))
    assert held <= begun < ended <= released

    report = airflow.rest.fetch_xcom(run, "stop")
    kinds = {stopped["object"].split()[0] for stopped in report["stopped"]}
    assert {"TrainJob", "TrainingRuntime", "JobSet", "Job", "Pod", "Workload"} <= kinds
    assert (report["job"], report["alive"], report["unproven"]) == (train, [], [])
    assert (seen.state, seen.cause, seen.detail) == (State.GONE, Cause.STOPPED, "all done")
    assert see(place, maintenance)[0].state is State.SUCCEEDED
