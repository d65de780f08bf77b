# SPDX-License-Identifier: Apache-2.0
"""What an administrator does with the command alone: makes a queue and takes it away, acts for a dead controller,
vouches for a pod whose end nobody saw.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
import yaml

from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.state import State
from airflow_provider_dispatch.testing.waiting import Waiter
from tests.cli.calling import Caller
from tests.cluster.controller_process import ControllerProcess
from tests.cluster.crashes import crash_processes, delete_by_force
from tests.cluster.set_up import Installation, installed, opened, run_controller, soon, start, until
from tests.cluster.testbed import objects
from tests.cluster.testbed.api import Manifest
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


def test_a_person_vouches_for_a_pod_that_a_silent_node_has_kept(
    made: Installation, controller: ControllerProcess, dispatch: Caller
) -> None:
    ref = asyncio.run(start_in_queue(made))
    asyncio.run(open_it(made, ref))
    assert asyncio.run(await_running(made, ref)) == 1_000_001
    pod, node = find_rank(made, ref)
    made.bed.pause(node)
    try:
        assert dispatch("hold", ref.job).code == 0
        await_ending(made, ref)
        delete_by_force(made.bed, made.jobs, pod)
        doubts = await_doubts(dispatch, ref)
        assert [(one["pod"], one["node"], one["is_there"]) for one in doubts] == [(pod, node, False)]
        assert [row[:3] for row in dispatch("fence", "show", ref.job).rows] == [
            ["POD", "SUBMISSION", "NODE"],
            [pod, "1", node],
        ]
        # What is vouched for has to be so: its machine has lost power, say, or somebody ended it there.
        assert crash_processes("DISPATCH_JOB_ID", ref.job) > 0
        unsure = dispatch("fence", "confirm", ref.job, "--node", node)
        assert (unsure.code, "nothing was written" in unsure.err) == (1, True)
        assert dispatch.json("inspect", ref.job)["state"] == "holding"

        sure = dispatch("fence", "confirm", ref.job, "--node", node, "--yes", "-o", "json")
        assert (sure.code, sure.data) == (0, []), sure.err
        assert dispatch("watch", ref.job, "--until", "held", "--timeout", "60s").code == 0
        await_silence(made, node)
        assert dispatch("release", ref.job).code == 0
        assert asyncio.run(await_running(made, ref)) == 1_000_002
        assert find_rank(made, ref)[1] != node
        asyncio.run(stop_it(made, ref.job))
    finally:
        made.bed.resume(node)


def fetch_rank(made: Installation, ref: JobRef) -> Manifest:
    """The only pod of a job."""
    label = f"labelSelector=dispatch.phpboyscout.uk/job={ref.job.lower()}"
    (pod,) = made.bed.api.get("Pod", namespace=made.jobs, query=label)["items"]
    return cast("Manifest", pod)


def find_rank(made: Installation, ref: JobRef) -> tuple[str, str]:
    """The name of the pod, and its node."""
    pod = fetch_rank(made, ref)
    return pod["metadata"]["name"], pod["spec"]["nodeName"]


def await_ending(made: Installation, ref: JobRef) -> None:
    """Until the hold has reached the pod. One that goes before is a failure of the job."""
    Waiter().wait_for(
        lambda: "deletionTimestamp" in fetch_rank(made, ref)["metadata"], timeout_seconds=30, what="a pod that ends"
    )


def await_doubts(dispatch: Caller, ref: JobRef) -> list[dict[str, object]]:
    """Until a recorded pod is missed; the whole answer."""

    def look() -> list[dict[str, object]] | None:
        answer = dispatch("fence", "show", ref.job, "-o", "json")
        assert answer.code == 1, answer.err
        return answer.data if not any(one["is_there"] for one in answer.data) else None

    return Waiter().wait_for(look, timeout_seconds=30, what="a pod that is missed")


def await_silence(made: Installation, node: str) -> None:
    """Until the cluster gives it no more pods."""

    def is_silent() -> bool:
        found = made.bed.api.get("Node", node)["status"]["conditions"]
        return any(one["type"] == "Ready" and one["status"] != "True" for one in found)

    Waiter().wait_for(is_silent, timeout_seconds=60, what=f"the silence of {node}")
