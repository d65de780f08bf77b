# SPDX-License-Identifier: Apache-2.0
"""Never two executions at once, and epochs that strictly grow, whatever is done to the objects and the machines.

The proof comes from the pods: each rank takes a lock in a folder of the host and writes its epoch down. A second
execution beside a first finds the lock taken and says so, and :meth:`tests.contract.stage.Stage.play` fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.core.identity import build_object_name
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.state import State
from tests.cluster.testbed import objects
from tests.cluster.testbed.bed import Bed
from tests.cluster.testbed.instance import is_ready
from tests.contract.stage import soon
from tests.contract.stage_kubeflow import KubeflowStage
from tests.contract.stage_processes import wait_until

LONELY = "node-2"
ON_LONELY, ONE_PER_NODE = "dispatch-on-node-2", "dispatch-one-per-node"
JOBSET = "jobset.x-k8s.io/v1alpha2"
SMALL = {"cpu": "100m"}
"""A quarter of the queue."""
QUIET_SECONDS = 8.0
"""Long enough for a new execution to start, if one may."""


@pytest.fixture(scope="module", autouse=True)
def lonely_runtime(controlled_bed: Bed) -> Iterator[None]:
    """A runtime whose pods run on the node that is taken away."""
    runtime = objects.build_runtime(ON_LONELY)
    (job,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    job["template"]["spec"]["template"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": LONELY}
    controlled_bed.api.apply(runtime)
    yield
    controlled_bed.api.delete(runtime)


@pytest.fixture(scope="module", autouse=True)
def spreading_runtime(controlled_bed: Bed) -> Iterator[None]:
    """A runtime that puts as many pods on one node as on the other."""
    runtime = objects.build_runtime(ONE_PER_NODE)
    (job,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    constraint = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}
    spread = {**constraint, "labelSelector": {"matchExpressions": [{"key": words.JOB_LABEL, "operator": "Exists"}]}}
    job["template"]["spec"]["template"]["spec"]["topologySpreadConstraints"] = [spread]
    controlled_bed.api.apply(runtime)
    yield
    controlled_bed.api.delete(runtime)


class PatientStage(KubeflowStage):
    """A node proves a death once it has been Ready again for a while."""

    patience = timedelta(seconds=150)
    limit = timedelta(seconds=300)


@pytest.fixture
def stage(controlled_bed: Bed) -> Iterator[KubeflowStage]:
    yield PatientStage(controlled_bed, {"q": {"cpu": "400m"}})
    controlled_bed.resume(LONELY)


@pytest.fixture
def plain_stage(controlled_bed: Bed) -> KubeflowStage:
    return KubeflowStage(controlled_bed, is_plain=True)


class Hands:
    """What an administrator can do to a job behind our back."""

    def __init__(self, at: KubeflowStage, ref: JobRef) -> None:
        self.at, self.api = at, at.bed.api
        self.name = build_object_name(ref.job, ref.submission)
        self.job = ref.job

    def named(self, kind: str, version: str, name: str = "") -> dict[str, Any]:
        metadata = {"name": name or self.name, "namespace": self.at.namespace}
        return {"apiVersion": version, "kind": kind, "metadata": metadata}

    @property
    def trainjob(self) -> dict[str, Any]:
        return self.named("TrainJob", objects.TRAINER_VERSION)

    def workload(self) -> dict[str, Any]:
        found = self.api.get("Workload", namespace=self.at.namespace, version=objects.KUEUE_VERSION)["items"]
        mine = [one for one in found if one["metadata"]["ownerReferences"][0]["name"] == self.name]
        return self.named("Workload", objects.KUEUE_VERSION, mine[0]["metadata"]["name"])

    def pods(self) -> list[dict[str, Any]]:
        label = f"labelSelector=dispatch.phpboyscout.uk/job={self.job.lower()}"
        found: list[dict[str, Any]] = self.api.get("Pod", namespace=self.at.namespace, query=label)["items"]
        return found

    def force_delete(self, pod: dict[str, Any]) -> None:
        path = f"/api/v1/namespaces/{self.at.namespace}/pods/{pod['metadata']['name']}"
        self.api.request("DELETE", path, {"gracePeriodSeconds": 0})

    async def quiet(self, epochs: list[int]) -> None:
        """Nothing new begins for a while."""
        await asyncio.sleep(QUIET_SECONDS)
        self.at.check_epochs(self.job, epochs)


async def run_lonely(at: KubeflowStage, **more: Any) -> tuple[JobRef, Hands]:
    """A job on the node that is taken away."""
    return await run(at, runtime=ON_LONELY, **more)


async def run(at: KubeflowStage, *behaviour: str, **more: Any) -> tuple[JobRef, Hands]:
    queue = {} if at.is_plain else {"queue": "q", "resources": SMALL}
    ref = await at.run(at.spec(*(behaviour or ("run",)), **queue, **more))
    await at.begun(ref, 1_000_001)
    return ref, Hands(at, ref)


async def await_fact(at: KubeflowStage, is_so: Callable[[], bool], what: str) -> None:
    """Wait for what only the API server tells."""
    await wait_until(is_so, what, at.patience, look_seconds=0.2)


def is_ending_pod(hands: Hands, pod: dict[str, Any]) -> bool:
    """This one was asked to end, and is there still."""
    return is_ending([one for one in hands.pods() if one["metadata"]["uid"] == pod["metadata"]["uid"]])


def is_ending(pods: list[dict[str, Any]]) -> bool:
    return bool(pods) and all("deletionTimestamp" in pod["metadata"] for pod in pods)


async def goes_on(at: KubeflowStage, ref: JobRef, executions: int) -> list[int]:
    """It runs again by itself, under a higher epoch; all epochs so far."""
    seen = await at.until(ref, lambda o: o.state is State.RUNNING and o.executions >= executions)
    assert seen.execution is not None
    await at.begun(ref, seen.execution.epoch)
    epochs = at.epochs(ref.job)
    at.check_epochs(ref.job, sorted(set(epochs)))
    return epochs


# -- a node falls silent -----------------------------------------------------------------------------------------------


def test_a_held_job_whose_node_is_silent_is_not_held_and_not_started_anew(stage: KubeflowStage) -> None:
    async def scenario(at: KubeflowStage) -> None:
        ref, hands = await run_lonely(at)
        at.bed.pause(LONELY)
        hold = await at.hold(ref)
        await hands.quiet([1_000_001])
        assert (await at.adapter.inspect(ref)).state is State.HOLDING
        await at.adapter.release(ref, hold, deadline=soon())
        await hands.quiet([1_000_001])
        waiting = await at.until(ref, lambda o: LONELY in (o.pending.message if o.pending else o.detail))
        assert hands.pods()[0]["metadata"]["name"] in (waiting.pending.message if waiting.pending else waiting.detail)
        await asyncio.to_thread(at.bed.resume, LONELY)
        assert len(await goes_on(at, ref, 2)) >= 2

    stage.play(scenario)


def test_a_preempted_job_whose_node_is_silent_waits_for_it(stage: KubeflowStage) -> None:
    async def scenario(at: KubeflowStage) -> None:
        ref, hands = await run_lonely(at, priority="low")
        at.bed.pause(LONELY)
        await wait_until(
            lambda: not is_ready(at.bed.api.get("Node", LONELY)), f"{LONELY} to be known as silent", at.patience
        )
        other = await at.start(at.spec("run", queue="q", priority="high", nodes=4, resources=SMALL))
        await at.adapter.open(other, deadline=soon())
        await at.reach(other, State.RUNNING)
        await at.adapter.stop(other.job, reason="room again", deadline=soon())
        await hands.quiet([1_000_001])
        await asyncio.to_thread(at.bed.resume, LONELY)
        assert len(await goes_on(at, ref, 2)) >= 2

    stage.play(scenario)


def test_a_stop_names_the_pod_of_a_silent_node_and_the_next_submission_waits_for_it(stage: KubeflowStage) -> None:
    async def scenario(at: KubeflowStage) -> None:
        ref, hands = await run_lonely(at)
        (pod,) = hands.pods()
        at.bed.pause(LONELY)
        report = await at.adapter.stop(ref.job, reason="over", deadline=datetime.now(UTC) + timedelta(seconds=15))
        assert not report.is_complete
        left = " ".join(f"{one.object} {one.detail}" for one in (*report.alive, *report.unproven))
        assert pod["metadata"]["name"] in left
        assert LONELY in left
        again = await at.start(at.spec("run", queue="q", resources=SMALL), job=ref.job, submission=2)
        await at.adapter.open(again, deadline=soon())
        await hands.quiet([1_000_001])
        await asyncio.to_thread(at.bed.resume, LONELY)
        await at.reach(again, State.RUNNING)
        await at.begun(again, 2_000_001)

    stage.play(scenario)


def test_a_pod_that_was_force_deleted_on_a_silent_node_is_unproven_until_the_node_is_back(stage) -> None:
    async def scenario(at: KubeflowStage) -> None:
        ref, hands = await run_lonely(at)
        at.bed.pause(LONELY)
        hold = await at.hold(ref)
        await await_fact(at, lambda: is_ending(hands.pods()), "a pod that was asked to end")
        (pod,) = hands.pods()
        hands.force_delete(pod)
        await hands.quiet([1_000_001])
        assert (await at.adapter.inspect(ref)).state is State.HOLDING
        await at.adapter.release(ref, hold, deadline=soon())
        await hands.quiet([1_000_001])
        waiting = await at.until(ref, lambda o: o.pending is not None and "not proven" in o.pending.message)
        assert waiting.pending is not None
        assert pod["metadata"]["name"] in waiting.pending.message
        assert LONELY in waiting.pending.message
        await asyncio.to_thread(at.bed.resume, LONELY)
        assert len(await goes_on(at, ref, 2)) >= 2

    stage.play(scenario)


def test_a_restart_waits_for_a_rank_that_cannot_end(stage: KubeflowStage) -> None:
    async def scenario(at: KubeflowStage) -> None:
        ref, hands = await run(at, nodes=2, max_restarts=2, runtime=ONE_PER_NODE)
        (lonely,) = [pod for pod in hands.pods() if pod["spec"]["nodeName"] == LONELY]
        at.bed.pause(LONELY)
        await at.tell(ref, "exit 5", rank=1 - int(lonely["metadata"]["labels"][words.COMPLETION_INDEX_LABEL]))
        await await_fact(at, lambda: is_ending_pod(hands, lonely), "a restart that ends the other rank")
        await hands.quiet([1_000_001])
        assert is_ending_pod(hands, lonely)
        await asyncio.to_thread(at.bed.resume, LONELY)
        assert len(await goes_on(at, ref, 2)) >= 2

    stage.play(scenario)


# -- objects are deleted or edited behind our back ---------------------------------------------------------------------


def test_a_jobset_deleted_while_running_is_a_new_execution(stage: KubeflowStage) -> None:
    async def scenario(at: KubeflowStage) -> None:
        ref, hands = await run(at, "slow", "1")
        at.bed.api.delete(hands.named("JobSet", JOBSET))
        assert len(await goes_on(at, ref, 2)) >= 2

    stage.play(scenario)


def test_a_jobset_deleted_while_held_changes_nothing(stage: KubeflowStage) -> None:
    async def scenario(at: KubeflowStage) -> None:
        ref, hands = await run(at)
        hold = await at.hold(ref)
        await at.reach(ref, State.HELD)
        at.bed.api.delete(hands.named("JobSet", JOBSET))
        await hands.quiet([1_000_001])
        assert (await at.adapter.inspect(ref)).state is State.HELD
        await at.adapter.release(ref, hold, deadline=soon())
        assert len(await goes_on(at, ref, 2)) >= 2

    stage.play(scenario)


@pytest.mark.parametrize("mode", ["kueue", "plain"])
def test_suspend_toggled_by_hand_is_a_new_execution(stage, plain_stage, mode: str) -> None:
    async def scenario(at: KubeflowStage) -> None:
        ref, hands = await run(at, "slow", "1")
        at.bed.api.patch(hands.trainjob, {"spec": {"suspend": True}})
        if at.is_plain:
            await asyncio.sleep(0.3)
            at.bed.api.patch(hands.trainjob, {"spec": {"suspend": False}})
        assert len(await goes_on(at, ref, 2)) >= 2

    (stage if mode == "kueue" else plain_stage).play(scenario)


def test_a_workload_deleted_while_held_does_not_let_the_job_go(stage: KubeflowStage) -> None:
    async def scenario(at: KubeflowStage) -> None:
        ref, hands = await run(at)
        hold = await at.hold(ref)
        await at.reach(ref, State.HELD)
        at.bed.api.delete(hands.workload())
        await hands.quiet([1_000_001])
        await at.reach(ref, State.HELD)
        await at.adapter.release(ref, hold, deadline=soon())
        assert len(await goes_on(at, ref, 2)) >= 2

    stage.play(scenario)


def test_a_hold_ends_a_job_whose_runtime_was_deleted(stage: KubeflowStage) -> None:
    async def scenario(at: KubeflowStage) -> None:
        ref, hands = await run(at)
        at.bed.api.delete(hands.named("TrainingRuntime", objects.TRAINER_VERSION))
        hold = await at.hold(ref)
        await at.reach(ref, State.HELD)
        await at.adapter.release(ref, hold, deadline=soon())
        assert len(await goes_on(at, ref, 2)) >= 2

    stage.play(scenario)


def test_a_pod_that_is_deleted_by_hand_is_replaced_under_a_higher_epoch_or_ends_the_job(stage: KubeflowStage) -> None:
    async def scenario(at: KubeflowStage) -> None:
        ref, hands = await run(at, "slow", "1", max_restarts=2)
        (pod,) = hands.pods()
        at.bed.api.delete(hands.named("Pod", "v1", pod["metadata"]["name"]))
        assert len(await goes_on(at, ref, 2)) >= 2

    stage.play(scenario)


# -- things that happen at once ----------------------------------------------------------------------------------------


def test_a_finished_initializer_blocks_nothing(stage: KubeflowStage) -> None:
    async def scenario(at: KubeflowStage) -> None:
        fetch = at.role("exit", "0", name="fetch", resources=SMALL)
        train = at.role("run", name="train", resources=SMALL, after=[{"role": "fetch", "when": "complete"}])
        ref = await at.run(at.roles(fetch, train, leading_role="train", queue="q"))
        hold = await at.hold(ref)
        await at.reach(ref, State.HELD)
        await at.adapter.release(ref, hold, deadline=soon())
        seen = await at.until(ref, lambda o: o.state is State.RUNNING and o.executions == 2)
        assert seen.execution is not None
        assert seen.execution.epoch == 1_000_002

    stage.play(scenario)


def test_a_new_submission_waits_for_the_dying_pods_of_the_old(stage: KubeflowStage) -> None:
    async def scenario(at: KubeflowStage) -> None:
        ref, _ = await run(at, "slow", "6", grace_period=20, nodes=2)
        await at.tell(ref, "exit 3", rank=1)
        await at.reach(ref, State.FAILED)
        spec = at.spec("run", queue="q", nodes=2, resources=SMALL)
        again = await at.run(spec, job=ref.job, submission=2)
        await at.begun(again, 2_000_001)
        at.check_epochs(ref.job, [1_000_001, 2_000_001])

    stage.play(scenario)


def test_holds_and_releases_at_once_end_in_one_execution(stage: KubeflowStage) -> None:
    """Three hands at once, each of which holds and lets go again."""

    async def scenario(at: KubeflowStage) -> None:
        ref, _ = await run(at, "slow", "1")

        async def hold_and_release(key: str) -> None:
            for _ in range(2):
                hold = await at.hold(ref, key)
                await at.adapter.release(ref, hold, deadline=soon())

        await asyncio.gather(*(hold_and_release(f"hand-{n}") for n in range(3)))
        await goes_on(at, ref, 2)
        seen = await at.adapter.inspect(ref)
        assert seen.execution is not None
        assert at.epochs(ref.job)[-1] == seen.execution.epoch

    stage.play(scenario)
