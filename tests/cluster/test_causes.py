# SPDX-License-Identifier: Apache-2.0
"""Every cause, brought about on real pods and told from end to end: state, cause, evidence, advice, the last lines.

And what has failed is over: none of its pods lives on, also where only we know that it has failed. How one snapshot of
objects is read is the derivation's own matter; see ``tests/objects``. A time-out of the start is the operator's, not
the cluster's, and a job that Kueue admits and can't resume takes a manifest that `start` never writes: recorded there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_dispatch.adapters.kubeflow.model.hold_sync import GIVEN_UP_PATIENCE
from airflow_provider_dispatch.core.diagnosis import ADVICE, Diagnosis, build_error, diagnose
from airflow_provider_dispatch.core.identity import build_object_name
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.core.state import Cause, State
from airflow_provider_dispatch.exceptions import RefusedError
from airflow_provider_dispatch.testing.waiting import Waiter
from tests.cluster.testbed import objects
from tests.cluster.testbed.api import Manifest
from tests.cluster.testbed.bed import Bed
from tests.contract.stage import soon
from tests.contract.stage_kubeflow import KubeflowStage
from tests.contract.stage_processes import wait_until

LONELY = "node-2"
SMALL = {"cpu": "100m", "memory": "64Mi"}
QUICK = [
    {"key": f"node.kubernetes.io/{taint}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 4}
    for taint in ("not-ready", "unreachable")
]
SPREAD = [
    {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchExpressions": [{"key": "dispatch.phpboyscout.uk/job", "operator": "Exists"}]},
    }
]


class CauseStage(KubeflowStage):
    """With runtimes whose pods differ, and an eye on what is left of a job."""

    cpu_parts = 1
    runtimes: list[Manifest]

    async def set_up(self) -> None:
        self.runtimes = []
        await super().set_up()

    def _remove(self) -> None:
        super()._remove()
        for runtime in self.runtimes:
            self.bed.api.delete(runtime)

    def runtime(self, *, container: Manifest | None = None, **pod: Any) -> str:
        """A runtime whose pods, or their container, have these fields besides; its name."""
        runtime = objects.build_runtime(f"{self.namespace}-{len(self.runtimes)}")
        (job,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
        spec = job["template"]["spec"]["template"]["spec"]
        spec |= pod
        spec["containers"][0] |= container or {}
        self.bed.api.apply(runtime)
        self.runtimes.append(runtime)
        return str(runtime["metadata"]["name"])

    def trainjob(self, ref: JobRef) -> Manifest:
        """Names it."""
        name = {"name": build_object_name(ref.job, ref.submission), "namespace": self.namespace}
        return {"apiVersion": objects.TRAINER_VERSION, "kind": "TrainJob", "metadata": name}

    def workload(self, ref: JobRef) -> Manifest:
        """As it is now."""
        found = self.bed.api.get("Workload", namespace=self.namespace, version=objects.KUEUE_VERSION)["items"]
        name = build_object_name(ref.job, ref.submission)
        (mine,) = [one for one in found if one["metadata"]["ownerReferences"][0]["name"] == name]
        return {"apiVersion": objects.KUEUE_VERSION, "kind": "Workload", **mine}

    def pods(self, ref: JobRef) -> list[Manifest]:
        label = f"labelSelector=dispatch.phpboyscout.uk/job={ref.job.lower()}"
        found: list[Manifest] = self.bed.api.get("Pod", namespace=self.namespace, query=label)["items"]
        return found

    def living(self, ref: JobRef) -> list[str]:
        """Its pods that have not ended: name and node."""
        return [
            f"{pod['metadata']['name']} on {pod['spec'].get('nodeName', 'no node')}"
            for pod in self.pods(ref)
            if pod["status"].get("phase") not in {"Succeeded", "Failed"}
        ]

    def remove_pods(self, ref: JobRef) -> None:
        """As Kubernetes does once there are many that have ended. Returns when they are gone."""
        for pod in self.pods(ref):
            self.bed.api.delete({"apiVersion": "v1", "kind": "Pod", "metadata": pod["metadata"]})
        Waiter(0.2).wait_for(lambda: not self.pods(ref), timeout_seconds=30, what="pods to be gone")

    async def is_over(self, ref: JobRef, *, but_on: str = "no such node") -> None:
        """None of its pods lives longer than the grace, once Kubernetes or the controller has seen the failure.

        :param but_on: a node that can't end any.
        """
        patience = GIVEN_UP_PATIENCE + self.grace + self.patience
        await wait_until(
            lambda: [pod for pod in self.living(ref) if but_on not in pod] == [], f"the end of {ref.job}", patience
        )
        assert (await self.adapter.inspect(ref)).state is State.FAILED

    async def see(self, ref: JobRef, is_there: Callable[[Observation], bool]) -> Observation:
        """Look, with events, which no watch brings, until something is so."""
        loop = asyncio.get_running_loop()
        over = loop.time() + self.patience.total_seconds()
        while not is_there(seen := await self.adapter.inspect(ref)):
            assert loop.time() < over, f"never seen; the last was {seen}"
            await asyncio.sleep(0.2)
        return seen


@pytest.fixture
def stage(controlled_bed: Bed) -> CauseStage:
    return CauseStage(controlled_bed, {"q": {"cpu": "400m"}})


@pytest.fixture
def plain_stage(controlled_bed: Bed) -> CauseStage:
    return CauseStage(controlled_bed, is_plain=True)


@pytest.fixture
def shaky_stage(stage: CauseStage) -> Iterator[CauseStage]:
    """Its scenarios take a node away."""
    yield stage
    stage.bed.resume(LONELY)


async def start(at: CauseStage, *behaviour: str, **more: Any) -> JobRef:
    queue = {} if at.is_plain else {"queue": "q"}
    ref = await at.start(at.spec(*(behaviour or ("run",)), **(queue | {"resources": SMALL} | more)))
    await at.adapter.open(ref, deadline=soon())
    return ref


async def run(at: CauseStage, *behaviour: str, **more: Any) -> JobRef:
    ref = await start(at, *behaviour, **more)
    await at.reach(ref, State.RUNNING)
    return ref


def assert_told(seen: Observation, state: State, cause: Cause, *parts: str, proof: str = "") -> Diagnosis:
    """Cause and proof, in words that a person can act on; the same in the exception.

    :param parts: of the sentence.
    :param proof: a part of the evidence: object, field and value; empty where nothing is left that could prove it.
    """
    assert (seen.state, seen.cause) == (state, cause), seen
    told = diagnose(seen)
    for part in parts:
        assert part in told.summary
    evidence = [f"{one.object} {one.field} {one.value}" for one in told.evidence]
    assert bool(evidence) == bool(proof)
    assert any(proof in one for one in evidence) or not proof, evidence
    assert told.advice == ADVICE[cause]
    assert told.to_text() in str(build_error(seen, told))
    return told


# -- ranks that end ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "said", "code", "signal"),
    [("exit 3", "exited with code 3", 3, None), ("kill 9", "was ended by signal 9 (SIGKILL)", None, 9)],
)
def test_a_rank_that_ends_badly_is_named_with_its_last_lines(stage, command, said, code, signal) -> None:
    async def scenario(at: CauseStage) -> None:
        ref = await run(at, nodes=2)
        await at.tell(ref, "say the last thing it said", rank=1)
        await at.tell(ref, command, rank=1)
        seen = await at.see(ref, lambda o: o.state is State.FAILED and bool(o.last_lines))
        told = assert_told(seen, State.FAILED, Cause.EXITED, f"rank 1 of node {said}", proof="terminated.exitCode")
        assert told.rank is not None
        assert (told.rank.rank, told.rank.exit_code, told.rank.signal) == (1, code, signal)
        assert told.last_lines[-1] == "the last thing it said"
        await at.is_over(ref)
        at.remove_pods(ref)
        assert (await at.adapter.inspect(ref)).last_lines[-1] == "the last thing it said"

    stage.play(scenario)


def test_a_rank_that_takes_more_memory_than_it_asked_for_is_told_so(stage: CauseStage) -> None:
    async def scenario(at: CauseStage) -> None:
        ref = await run(at, nodes=2)
        await at.tell(ref, "say it grows", rank=1)
        await at.tell(ref, "grow 300", rank=1)
        seen = await at.see(ref, lambda o: o.state is State.FAILED and bool(o.last_lines))
        told = assert_told(seen, State.FAILED, Cause.OUT_OF_MEMORY, "rank 1 of node", "more memory", proof="OOMKilled")
        assert told.last_lines[-1] == "it grows"
        await at.is_over(ref)

    stage.play(scenario)


def test_a_command_that_does_not_exist_is_a_mistake_of_the_spec(stage: CauseStage) -> None:
    async def scenario(at: CauseStage) -> None:
        ref = await start(at, "missing")
        seen = await at.reach(ref, State.FAILED)
        assert_told(seen, State.FAILED, Cause.MISCONFIGURED, "missing-command-of-the-contract", proof="StartError")
        await at.is_over(ref)

    stage.play(scenario)


# -- ranks that can't start --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "reasons"),
    [("Never", ("ErrImageNeverPull",)), ("IfNotPresent", ("ErrImagePull", "ImagePullBackOff"))],
)
def test_an_image_that_cannot_be_had_is_told_while_the_job_starts(stage, policy: str, reasons: tuple[str, ...]) -> None:
    async def scenario(at: CauseStage) -> None:
        runtime = at.runtime(container={"imagePullPolicy": policy})
        ref = await start(at, image="localhost/there-is-none:1", runtime=runtime)
        seen = await at.until(ref, lambda o: o.cause is not None)
        told = assert_told(seen, State.STARTING, Cause.IMAGE, "can't get its image", proof="waiting.reason")
        assert told.evidence[0].value in reasons
        assert "localhost/there-is-none:1" in told.summary

    stage.play(scenario)


def test_pods_that_no_node_takes_are_told_with_the_schedulers_words(stage: CauseStage) -> None:
    async def scenario(at: CauseStage) -> None:
        ref = await start(at, runtime=at.runtime(nodeSelector={"example.com/zone": "moon"}))
        seen = await at.until(ref, lambda o: o.cause is not None)
        assert_told(seen, State.STARTING, Cause.NO_CAPACITY, "finds no node", "node affinity", proof="PodScheduled")

    stage.play(scenario)


def test_a_quota_of_the_namespace_that_refuses_the_pods_is_named(stage: CauseStage) -> None:
    async def scenario(at: CauseStage) -> None:
        name = {"name": "none", "namespace": at.namespace}
        at.bed.api.apply(
            {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": name, "spec": {"hard": {"pods": "0"}}}
        )
        ref = await start(at)
        seen = await at.see(ref, lambda o: o.cause is not None)
        assert_told(seen, State.STARTING, Cause.NO_CAPACITY, "exceeded quota: none", proof="FailedCreate")

    stage.play(scenario)


def test_a_job_that_its_queue_can_never_take_is_told_at_once(stage: CauseStage) -> None:
    async def scenario(at: CauseStage) -> None:
        ref = await start(at, nodes=9)
        seen = await at.until(ref, lambda o: o.cause is not None)
        assert_told(seen, State.QUEUED, Cause.NO_CAPACITY, "900m", "400m", proof="QuotaReserved")

    stage.play(scenario)


# -- ranks that are taken away -----------------------------------------------------------------------------------------


def test_a_drained_pod_ends_its_job(stage: CauseStage) -> None:
    async def scenario(at: CauseStage) -> None:
        ref = await run(at, nodes=2)
        pod = min(at.living(ref)).split()[0]
        metadata = {"name": pod, "namespace": at.namespace}
        path = f"/api/v1/namespaces/{at.namespace}/pods/{pod}/eviction"
        at.bed.api.request("POST", path, {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata})
        seen = await at.reach(ref, State.FAILED)
        told = assert_told(seen, State.FAILED, Cause.EVICTED, "was taken from node", proof="EvictionByEvictionAPI")
        assert pod in told.evidence[0].object
        await at.is_over(ref)

    stage.play(scenario)


def test_a_node_that_is_gone_for_good_takes_its_job_with_it(shaky_stage: CauseStage) -> None:
    async def scenario(at: CauseStage) -> None:
        ref = await run(at, nodes=2, runtime=at.runtime(topologySpreadConstraints=SPREAD))
        await asyncio.to_thread(at.bed.lose, LONELY)
        seen = await at.see(ref, lambda o: o.state is State.FAILED)
        assert_told(seen, State.FAILED, Cause.NODE_LOST, LONELY, proof="DisruptionTarget")
        await at.is_over(ref)

    shaky_stage.play(scenario)


def test_a_silent_node_is_told_first_and_its_pod_condemned_later_ends_the_others(shaky_stage: CauseStage) -> None:
    """Kubernetes waits for a pod that can't end, and lets the rest of the job run."""

    async def scenario(at: CauseStage) -> None:
        ref = await run(at, nodes=2, runtime=at.runtime(topologySpreadConstraints=SPREAD, tolerations=QUICK))
        await asyncio.to_thread(at.bed.pause, LONELY)
        silent = await at.until(ref, lambda o: o.cause is Cause.NODE_LOST and o.state is not State.FAILED)
        assert_told(silent, State.RUNNING, Cause.NODE_LOST, LONELY, "does not answer", proof="ContainersReady")
        seen = await at.reach(ref, State.FAILED)
        assert_told(seen, State.FAILED, Cause.NODE_LOST, LONELY, proof="DeletionByTaintManager")
        await at.is_over(ref, but_on=LONELY)

    shaky_stage.play(scenario)


# -- ends by a limit, which nothing on the cluster calls one -----------------------------------------------------------


def test_a_job_preempted_too_often_has_failed_and_keeps_no_quota(stage: CauseStage) -> None:
    async def scenario(at: CauseStage) -> None:
        ref = await run(at, nodes=2, priority="low", max_preemptions=0)
        await at.begun(ref, 1_000_001)
        other = await run(at, nodes=4, priority="high")
        seen = await at.reach(ref, State.FAILED)
        assert_told(seen, State.FAILED, Cause.PREEMPTED, "preempted 1 times", "allows 0", proof="Preempted: 1")
        await at.is_over(ref)
        for rank in range(4):
            await at.tell(other, "exit 0", rank=rank)
        await at.reach(other, State.SUCCEEDED)
        await is_given_up(at, ref)
        assert at.epochs(ref.job) == [1_000_001]

    stage.play(scenario)


async def is_given_up(at: CauseStage, ref: JobRef) -> None:
    """Its Workload is inactive, and nobody can take that for a hold."""
    await wait_until(lambda: at.workload(ref)["spec"].get("active") is False, "an inactive Workload", at.patience)
    assert not [key for key in at.workload(ref)["metadata"].get("annotations", {}) if "hold" in key]
    seen = await at.adapter.inspect(ref)
    assert (seen.state, seen.holds) == (State.FAILED, ())
    with pytest.raises(RefusedError):
        await at.hold(ref)


@pytest.mark.parametrize("mode", ["kueue", "plain"])
def test_a_role_that_ends_before_it_is_ready_fails_those_that_wait_and_ends_those_that_run(
    stage, plain_stage, mode: str
) -> None:
    async def scenario(at: CauseStage) -> None:
        leader = at.role("run", name="leader", readiness={"command": at.ready_command()}, resources=SMALL)
        worker = at.role("run", name="worker", after=[{"role": "leader", "when": "ready"}], resources=SMALL)
        server = at.role("run", name="server", resources=SMALL)
        queue = {} if at.is_plain else {"queue": "q"}
        ref = await at.start(at.roles(server, leader, worker, leading_role="leader", **queue))
        await at.adapter.open(ref, deadline=soon())
        await at.until(ref, lambda o: sum(role.running for role in o.ranks) == 2)
        await at.tell(ref, "exit 0", role="leader")
        seen = await at.reach(ref, State.FAILED)
        assert_told(seen, State.FAILED, Cause.DEPENDENCY_FAILED, "leader ended before it was ready", proof="never True")
        await at.is_over(ref)
        if not at.is_plain:
            await is_given_up(at, ref)

    (stage if mode == "kueue" else plain_stage).play(scenario)


def test_a_limit_of_kueues_own_is_told_as_a_time_out(stage: CauseStage) -> None:
    async def scenario(at: CauseStage) -> None:
        ref = await at.start(at.spec("run", queue="q", resources=SMALL))
        label = {"metadata": {"labels": {"kueue.x-k8s.io/max-exec-time-seconds": "5"}}}
        at.bed.api.patch(at.trainjob(ref), label)
        await at.adapter.open(ref, deadline=soon())
        seen = await at.reach(ref, State.FAILED)
        assert_told(
            seen, State.FAILED, Cause.TIMEOUT, "Kueue gave it up", proof="DeactivatedDueToMaximumExecutionTimeExceeded"
        )
        await at.is_over(ref)

    stage.play(scenario)


# -- removal -----------------------------------------------------------------------------------------------------------


def test_a_stopped_job_is_gone_for_the_reason_that_was_given(stage: CauseStage) -> None:
    async def scenario(at: CauseStage) -> None:
        ref = await run(at)
        await at.adapter.stop(ref.job, reason="no longer wanted", deadline=soon())
        assert_told(await at.adapter.inspect(ref), State.GONE, Cause.STOPPED, "no longer wanted")

    stage.play(scenario)


def test_a_job_deleted_by_hand_is_told_from_a_stopped_one(stage: CauseStage) -> None:
    async def scenario(at: CauseStage) -> None:
        ref = await run(at, "slow", "3", grace_period=timedelta(seconds=10))
        at.bed.api.delete(at.trainjob(ref))
        going = await at.until(ref, lambda o: o.state is not State.RUNNING)
        assert_told(going, State.STOPPING, Cause.DELETED, "by somebody else")
        seen = await at.reach(ref, State.GONE)
        assert_told(seen, State.GONE, Cause.DELETED, "nobody asked for a stop")

    stage.play(scenario)
