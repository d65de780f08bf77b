# SPDX-License-Identifier: Apache-2.0
"""What an administrator does with the command alone: makes a queue and takes it away, acts for a dead controller."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.state import State
from airflow_provider_dispatch.testing.waiting import Waiter
from tests.cli.calling import Caller
from tests.cluster.controller_process import ControllerProcess
from tests.cluster.set_up import Installation, installed, opened, run_controller, soon, start, until
from tests.cluster.testbed import objects
from tests.cluster.testbed.bed import Bed

KUEUE = objects.KUEUE_VERSION


@pytest.fixture(scope="module")
def made(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    bed.api.apply(*objects.build_shared_objects())
    with installed(bed, tmp_path_factory.mktemp("by-hand")) as installation:
        yield installation


@pytest.fixture
def controller(made: Installation, tmp_path: Path) -> Iterator[ControllerProcess]:
    with run_controller(made, tmp_path) as process:
        yield process


@pytest.fixture
def dispatch(made: Installation, tmp_path: Path) -> Caller:
    """The administrator's."""
    path = tmp_path / "settings.yaml"
    cluster = {
        "backend": "kubeflow",
        "kubeconfig": str(made.write_kubeconfig(made.jobs, "person")),
        "namespace": made.jobs,
    }
    path.write_text(yaml.safe_dump(cluster | made.terms.names))
    return Caller(path)


def test_a_queue_comes_and_goes_and_leaves_nothing(
    made: Installation, controller: ControllerProcess, dispatch: Caller
) -> None:
    quota = ("--cpu", "1", "--memory", "512Mi", "--cohort", f"{made.jobs}-cohort", "--weight", "2", "--reclaim", "any")
    assert dispatch("queue", "create", "train", *quota).code == 0
    again = dispatch("queue", "create", "train", *quota)
    assert {row[0] for row in again.rows[1:-1]} == {"same"}
    Waiter().wait_for(
        lambda: dispatch("queue", "show", "train").code == 0, timeout_seconds=30, what="Kueue's word on the queue"
    )
    gone = dispatch("queue", "delete", "train", "-o", "json")
    assert {one["outcome"] for one in gone.data} == {"removed"}
    for kind in ("ClusterQueue", "ResourceFlavor"):
        assert made.bed.api.find(kind, f"{made.jobs}-train", version=KUEUE) is None


async def start_in_queue(made: Installation) -> JobRef:
    async with opened(made, made.jobs, queue=objects.LOCAL_QUEUE) as adapter:
        return await start(adapter)


async def open_it(made: Installation, ref: JobRef) -> None:
    async with opened(made, made.jobs) as adapter:
        await adapter.open(ref, deadline=soon())


async def await_running(made: Installation, ref: JobRef) -> int:
    async with opened(made, made.jobs) as adapter:
        seen = await until(adapter, ref, State.RUNNING)
        assert seen.execution is not None
        return seen.execution.epoch


async def stop_it(made: Installation, job: JobID) -> None:
    async with opened(made, made.jobs) as adapter:
        assert (await adapter.stop(job, reason="the test is over", deadline=soon())).is_complete


def test_a_person_lifts_while_no_controller_does(
    made: Installation, controller: ControllerProcess, dispatch: Caller
) -> None:
    ref = asyncio.run(start_in_queue(made))
    refused = dispatch("fence", "lift", ref.job)
    assert (refused.code, "holds Lease" in refused.err) == (4, True)
    controller.kill()
    asyncio.run(open_it(made, ref))
    lifted = dispatch("fence", "lift", ref.job, "--timeout", "120s", "-o", "json")
    assert lifted.code == 0, lifted.err
    decided = json.loads(lifted.out)["decided"]
    assert {"admission-raised", "check-ready", "started"} <= set(decided)
    assert asyncio.run(await_running(made, ref)) == 1_000_001
    lease = made.bed.api.get(
        "Lease", "dispatch-admission", namespace=made.terms.system_namespace, version="coordination.k8s.io/v1"
    )
    assert not lease["spec"].get("holderIdentity")
    assert dispatch("queue", "delete", objects.LOCAL_QUEUE).code == 4
    asyncio.run(stop_it(made, ref.job))
