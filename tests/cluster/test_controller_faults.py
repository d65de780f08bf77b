# SPDX-License-Identifier: Apache-2.0
"""The controller killed at each of its writes, run twice, stopped past its Lease, and misled: a job starts once all the
same, first under epoch 1000001, and after a hold under 1000002.

The proof comes from the ranks: each takes a lock, and writes its epoch down. These controllers have a Lease of their
own; whoever else looks after jobs of the cluster is kept from it meanwhile by the usual Lease, which these tests hold.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path

import pytest

from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.execution_record import ExecutionRecord
from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.state import State
from airflow_provider_dispatch.testing.waiting import Waiter
from tests.cluster.controller_process import ControllerProcess
from tests.cluster.faulty_proxy import NO_FAULT, Asked, Fault, FaultyProxy, Script, is_write_to, let_pass
from tests.cluster.fixtures import CONTROLLER_FLAGS, is_looked_after
from tests.cluster.testbed.api import MERGE, Manifest
from tests.cluster.testbed.bed import Bed
from tests.cluster.testbed.objects import TRAINER_VERSION
from tests.contract.stage import new_job, soon
from tests.contract.stage_kubeflow import KubeflowStage
from tests.contract.stage_processes import wait_until

FIRST, SECOND = 1_000_001, 1_000_002
LEASE_SECONDS = 6.0
LEASE_FLAGS = (
    *("--lease-duration-seconds", f"{LEASE_SECONDS:g}", "--lease-renew-seconds", "1", "--request-timeout-seconds", "2"),
    # A pod that ends while no controller looks is proven dead by its node, after both graces.
    *("--pod-grace-seconds", "4"),
)
QUIET_SECONDS = 3.0
matrix = pytest.mark.matrix
MANY_DEATHS = timedelta(seconds=240)
COMPETITORS_LEASE: Manifest = {
    "apiVersion": "coordination.k8s.io/v1",
    "kind": "Lease",
    "metadata": {"name": words.LEASE_NAME, "namespace": words.LEASE_NAMESPACE},
}


# -- who acts ----------------------------------------------------------------------------------------------------------


class Placeholder:
    """Holds the usual Lease, as a replica that does nothing would."""

    def __init__(self, bed: Bed) -> None:
        self._api, self._over = bed.api, threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease")

    def __enter__(self) -> None:
        self._claim()
        self._thread.start()

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()
        self._api.patch(COMPETITORS_LEASE, {"spec": {"holderIdentity": "", "leaseDurationSeconds": 1}})

    def _keep(self) -> None:
        while not self._over.wait(1.0):
            self._claim()

    def _claim(self) -> None:
        stamp = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        spec = {"holderIdentity": "nobody", "leaseDurationSeconds": 15, "renewTime": stamp}
        metadata = {**COMPETITORS_LEASE["metadata"], "annotations": {words.HOLDER_ANNOTATION: "nobody"}}
        self._api.apply({**COMPETITORS_LEASE, "metadata": metadata, "spec": spec})


@dataclass
class Crew:
    """Makes replicas that share a Lease of this module."""

    bed: Bed
    proxy: FaultyProxy
    folder: Path
    lease: str

    def replica(self, name: str, *, is_direct: bool = False) -> ControllerProcess:
        """One that isn't started yet. Of the same name they take each other for the same."""
        folder = self.folder / f"{name}-{secrets.token_hex(2)}"
        folder.mkdir()
        kubeconfig = self.bed.kubeconfig if is_direct else self.proxy.kubeconfig
        flags = (*CONTROLLER_FLAGS, *LEASE_FLAGS, "--lease-name", self.lease, "--identity", name)
        return ControllerProcess(kubeconfig, folder, flags)


@pytest.fixture(scope="module")
def alone(controlled_bed: Bed) -> Iterator[Bed]:
    """The cluster without a controller that acts."""
    with Placeholder(controlled_bed):
        # One that acted has noticed by then: it renews each five seconds, or not at all.
        threading.Event().wait(12)
        yield controlled_bed
    # Whatever comes next finds a controller at work, as before.
    Waiter().wait_for(lambda: is_looked_after(controlled_bed), timeout_seconds=60, what="a leading controller")


@pytest.fixture(scope="module")
def crew(alone: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    folder = tmp_path_factory.mktemp("crew")
    with FaultyProxy(alone.kubeconfig, folder) as proxy:
        crew = Crew(alone, proxy, folder, f"dispatch-faults-{secrets.token_hex(3)}")
        yield crew
    metadata = {"name": crew.lease, "namespace": words.LEASE_NAMESPACE}
    alone.api.delete({**COMPETITORS_LEASE, "metadata": metadata})


@pytest.fixture(scope="class")
def lasting_replica(crew: Crew) -> Iterator[ControllerProcess]:
    with crew.replica("mortal") as replica:
        yield replica


@pytest.fixture
def replica(crew: Crew, lasting_replica: ControllerProcess) -> Iterator[ControllerProcess]:
    """The one that acts. Whoever kills it starts it again."""
    yield lasting_replica
    crew.proxy.script = let_pass


@pytest.fixture
def stage(alone: Bed) -> KubeflowStage:
    return KubeflowStage(alone, {"q": {}})


# -- what a job goes through -------------------------------------------------------------------------------------------


async def start(at: KubeflowStage, job: JobID | None = None) -> JobRef:
    """Two ranks, gate open."""
    ref = await at.start(at.spec("run", queue="q", nodes=2, resources={"cpu": "50m"}), job=job)
    await at.adapter.open(ref, deadline=soon())
    return ref


async def runs(at: KubeflowStage, ref: JobRef, *epochs: int) -> None:
    """It runs under the last of them, having run under the others and no more."""
    await at.until(
        ref, lambda o: o.state is State.RUNNING and o.execution is not None and o.execution.epoch == epochs[-1]
    )
    await at.begun(ref, epochs[-1])
    at.check_epochs(ref.job, epochs)


async def hold_and_release(at: KubeflowStage, ref: JobRef) -> None:
    hold = await at.hold(ref)
    await at.reach(ref, State.HELD)
    await at.adapter.release(ref, hold, deadline=soon())


class Step(StrEnum):
    """The writes of an admission of two ranks, in the order of the protocol."""

    A = "A for a reservation"
    CHECK = "the check"
    RECORD = "the record"
    LEDGER = "its copy"
    LIFT = "a lift"
    SECOND_LIFT = "another lift"
    CLOCKS = "the clocks"


def name_step(asked: Asked) -> Step | None:
    """What a write is about."""
    match asked.resource:
        case "trainjobs" if words.ADMISSION_KEY_ANNOTATION in _written(asked):
            return Step.A
        case "trainjobs" if words.RECORD_ANNOTATION in _written(asked):
            return Step.RECORD
        case "trainjobs" if words.CLOCKS_ANNOTATION in _written(asked):
            return Step.CLOCKS
        case "workloads/status":
            return Step.CHECK
        case "configmaps":
            return Step.LEDGER
        case "pods":
            return Step.LIFT
    return None


def _written(asked: Asked) -> str:
    """The body as it names annotations in paths."""
    return asked.body.replace("~1", "/")


@dataclass
class At:
    """A script that does something to one write of a namespace, the first one of a step."""

    namespace: str
    step: Step
    fault: Fault
    is_over: bool = False
    lifts: int = 0

    def __call__(self, asked: Asked) -> Fault:
        if self.is_over or not is_write_to(asked, self.namespace):
            return NO_FAULT
        step = name_step(asked)
        if step is Step.LIFT:
            self.lifts += 1
            step = Step.SECOND_LIFT if self.lifts == 2 else step
        if step is not self.step:
            return NO_FAULT
        self.is_over = True
        return self.fault


@dataclass
class Once:
    """A script under which each write of a namespace goes wrong the first time.

    :param build: of the fault.
    :ivar seen: what went wrong.
    """

    namespace: str
    build: Script
    seen: list[Asked] = field(default_factory=list)
    known: set[tuple[str, Step | None]] = field(default_factory=set)

    def __call__(self, asked: Asked) -> Fault:
        key = asked.path, name_step(asked)
        if not is_write_to(asked, self.namespace) or key in self.known:
            return NO_FAULT
        self.known.add(key)
        self.seen.append(asked)
        return self.build(asked)


def always(fault: Fault) -> Script:
    return lambda _: fault


class Mortal:
    """A replica that is killed by a script and started again, as often as that happens.

    :ivar deaths: so far.
    """

    def __init__(self, replica: ControllerProcess) -> None:
        self.replica, self.deaths, self.revivals = replica, 0, 0
        self._died = threading.Event()

    def build_death(self, *, is_carried_out: bool) -> Fault:
        """Killed after a write was carried out and before its answer, or before it was sent."""
        return Fault(after=self._kill, times=int(is_carried_out), is_answered=False)

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.replica.pid, signal.SIGKILL)
        self.deaths += 1
        self._died.set()

    async def revive(self) -> None:
        """Until cancelled."""
        while True:
            # In small pieces: a thread can't be cancelled.
            while not await asyncio.to_thread(self._died.wait, 0.2):
                pass
            await asyncio.to_thread(self.replica.kill)
            self._died.clear()
            await asyncio.to_thread(self.replica.start)
            self.revivals += 1


async def lives(at: KubeflowStage, job: JobID | None = None) -> list[int]:
    """A job that runs, is held, released and runs again; its epochs."""
    ref = await start(at, job)
    await runs(at, ref, FIRST)
    await hold_and_release(at, ref)
    await runs(at, ref, FIRST, SECOND)
    return at.epochs(ref.job)


# -- one replica -------------------------------------------------------------------------------------------------------


class TestKilled:
    def test_the_steps_of_an_admission_have_their_order(
        self, crew: Crew, replica: ControllerProcess, stage: KubeflowStage
    ) -> None:
        async def scenario(at: KubeflowStage) -> None:
            await runs(at, await start(at), FIRST)
            steps = [name_step(asked) for asked in crew.proxy.asked if is_write_to(asked, at.namespace)]
            firsts = [steps.index(step) for step in (Step.A, Step.CHECK, Step.RECORD, Step.LEDGER, Step.LIFT)]
            assert firsts == sorted(firsts)
            assert steps.count(Step.LIFT) == 2

        stage.play(scenario)

    @pytest.mark.parametrize("is_carried_out", [pytest.param(False, marks=matrix), True], ids=["before", "after"])
    @pytest.mark.parametrize("step", list(Step), ids=lambda step: step.name.lower())
    def test_at_a_step(
        self, crew: Crew, replica: ControllerProcess, stage: KubeflowStage, step: Step, is_carried_out: bool
    ) -> None:
        async def scenario(at: KubeflowStage) -> None:
            mortal = Mortal(replica)
            crew.proxy.script = At(at.namespace, step, mortal.build_death(is_carried_out=is_carried_out))
            reviving = asyncio.create_task(mortal.revive())
            ref = await start(at)
            await runs(at, ref, FIRST)
            await wait_until(lambda: mortal.revivals == 1, "somebody who sees the pods end", at.patience)
            if is_carried_out:
                await hold_and_release(at, ref)
                await runs(at, ref, FIRST, SECOND)
            reviving.cancel()
            assert mortal.deaths == 1

        stage.play(scenario)

    @matrix
    def test_at_every_write(self, crew: Crew, replica: ControllerProcess, stage: KubeflowStage) -> None:
        """Once in each admission; every other time it was carried out."""

        async def scenario(at: KubeflowStage) -> None:
            at.patience = MANY_DEATHS
            mortal = Mortal(replica)
            script = Once(at.namespace, lambda _: mortal.build_death(is_carried_out=mortal.deaths % 2 == 1))
            crew.proxy.script = script
            reviving = asyncio.create_task(mortal.revive())
            ref = await start(at)
            await runs(at, ref, FIRST)
            script.known.clear()
            await hold_and_release(at, ref)
            await runs(at, ref, FIRST, SECOND)
            reviving.cancel()
            assert mortal.deaths >= 2 * (len(Step) - 1)

        stage.limit = 2 * MANY_DEATHS
        stage.play(scenario)

    def test_a_pod_let_through_by_hand_is_no_execution(
        self, crew: Crew, replica: ControllerProcess, stage: KubeflowStage
    ) -> None:
        """It has no epoch, nobody is let through beside it, and it is never taken for one of ours."""

        async def scenario(at: KubeflowStage) -> None:
            mortal = Mortal(replica)
            crew.proxy.script = At(at.namespace, Step.RECORD, mortal.build_death(is_carried_out=False))
            ref = await at.start(at.spec("run", queue="q", nodes=2, resources={"cpu": "50m"}, max_restarts=2))
            await at.adapter.open(ref, deadline=soon())
            await wait_until(lambda: mortal.deaths == 1, "a first write of the record", at.patience)
            first, second = await gated_pods(at, 2)
            remove_gates(at, first)
            environment = await at.environment(ref)
            assert environment["DISPATCH_EPOCH"] == environment["DISPATCH_ATTEMPT"] == ""
            await asyncio.to_thread(replica.kill)
            await asyncio.to_thread(replica.start)
            await asyncio.sleep(QUIET_SECONDS)
            at.check_epochs(ref.job, [])
            assert [name_of(pod) for pod in await gated_pods(at, 1)] == [name_of(second)]
            (trainjob,) = objects_of(at, "TrainJob", TRAINER_VERSION)
            record = ExecutionRecord.from_json(trainjob["metadata"]["annotations"][words.RECORD_ANNOTATION])
            assert record.pods == ()
            assert [pod.uid for pod in record.undead] == [first["metadata"]["uid"]]
            at.bed.api.delete(first)
            await at.until(ref, lambda o: o.state is State.RUNNING and o.execution is not None)
            await wait_until(lambda: bool(at.epochs(ref.job)), "an execution", at.patience)
            assert len(at.epochs(ref.job)) == 1

        stage.play(scenario)

    def test_released_while_it_is_dead(self, replica: ControllerProcess, stage: KubeflowStage) -> None:
        async def scenario(at: KubeflowStage) -> None:
            ref = await start(at)
            await runs(at, ref, FIRST)
            hold = await at.hold(ref)
            await at.reach(ref, State.HELD)
            replica.kill()
            await at.adapter.release(ref, hold, deadline=soon())
            await asyncio.sleep(QUIET_SECONDS)
            at.check_epochs(ref.job, [FIRST])
            await asyncio.to_thread(replica.start)
            await runs(at, ref, FIRST, SECOND)

        stage.play(scenario)


MISLED = {
    "answers lost": Fault(is_answered=False),
    "requests lost": Fault(times=0, is_answered=False),
    "errors": Fault(times=0, status=500),
    "conflicts": Fault(times=0, status=409),
    "sent twice": Fault(times=2),
    "late": Fault(before=lambda: time.sleep(3.0)),  # the sender has given up by then
}


class TestMisled:
    @matrix
    def test_every_write_goes_wrong_once(self, crew: Crew, replica: ControllerProcess, stage: KubeflowStage) -> None:
        """Several jobs at once, those of each one in another way."""

        async def scenario(at: KubeflowStage) -> None:
            scripts = {new_job(): Once(at.namespace, always(fault)) for fault in MISLED.values()}
            touched = new_job()
            scripts[touched] = Once(at.namespace, lambda asked: Fault(before=lambda: touch(at, asked)))

            def script(asked: Asked) -> Fault:
                mine = (one for job, one in scripts.items() if job.lower() in asked.path + asked.body)
                return next(mine, let_pass)(asked)

            crew.proxy.script = script
            await asyncio.gather(*(lives(at, job) for job in scripts))
            for one in scripts.values():
                assert {asked.resource for asked in one.seen} >= {"trainjobs", "workloads/status", "configmaps", "pods"}

        stage.play(scenario)

    def test_its_cache_is_behind(self, crew: Crew, replica: ControllerProcess, stage: KubeflowStage) -> None:
        async def scenario(at: KubeflowStage) -> None:
            crew.proxy.script = always(Fault(delays_watches_seconds=1.0))
            replica.kill(signal.SIGTERM)
            await asyncio.to_thread(replica.start)
            assert await asyncio.gather(*(lives(at) for _ in range(2))) == [[FIRST, SECOND]] * 2

        stage.play(scenario)


def touch(at: KubeflowStage, asked: Asked) -> None:
    """Write what is about to be changed, as Kueue does."""
    if asked.method == "PATCH":
        annotations = {"example.com/touched": secrets.token_hex(4)}
        path = asked.path.removesuffix("/status")
        at.bed.api.request("PATCH", path, {"metadata": {"annotations": annotations}}, content_type=MERGE)


def objects_of(at: KubeflowStage, kind: str, version: str) -> list[Manifest]:
    found: list[Manifest] = at.bed.api.get(kind, namespace=at.namespace, version=version)["items"]
    return [{"apiVersion": version, "kind": kind, **raw} for raw in found]


async def gated_pods(at: KubeflowStage, count: int) -> list[Manifest]:
    """Those behind the fence, by rank, as soon as there are so many."""

    def look() -> list[Manifest]:
        return [pod for pod in objects_of(at, "Pod", "v1") if pod["spec"].get("schedulingGates")]

    await wait_until(lambda: len(look()) == count, f"{count} pods behind the fence", at.patience, look_seconds=0.2)
    return sorted(look(), key=lambda pod: pod["metadata"]["labels"][words.COMPLETION_INDEX_LABEL])


def name_of(raw: Manifest) -> str:
    name: str = raw["metadata"]["name"]
    return name


def remove_gates(at: KubeflowStage, pod: Manifest) -> None:
    """As an administrator does who wants to see it run."""
    path = f"/api/v1/namespaces/{at.namespace}/pods/{name_of(pod)}"
    at.bed.api.request("PATCH", path, {"spec": {"schedulingGates": None}}, content_type=MERGE)


# -- two replicas ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="class")
def pair(crew: Crew) -> Iterator[tuple[ControllerProcess, ControllerProcess]]:
    """The first one acts, behind the proxy; the second one is ready to."""
    with crew.replica("first") as first:
        wait_for_lease(first)
        with crew.replica("second", is_direct=True) as second:
            yield first, second


def wait_for_lease(replica: ControllerProcess) -> None:
    Waiter().wait_for(
        lambda: "dispatch_lease_held 1.0" in replica.fetch("/metrics"), timeout_seconds=30, what="the Lease"
    )


class TestTwoAtOnce:
    def test_both_take_the_lease_for_theirs(self, crew: Crew, stage: KubeflowStage) -> None:
        """What one of them reads of a job lies apart in time, so that the other one writes in between."""

        def read_apart(asked: Asked) -> Fault:
            is_late = asked.method == "GET" and asked.resource == "workloads"
            return Fault(before=lambda: time.sleep(0.5)) if is_late else NO_FAULT

        async def scenario(at: KubeflowStage) -> None:
            crew.proxy.script = read_apart
            with crew.replica("twin") as one, crew.replica("twin", is_direct=True) as other:
                for twin in (one, other):
                    await asyncio.to_thread(wait_for_lease, twin)
                assert await asyncio.gather(*(lives(at) for _ in range(3))) == [[FIRST, SECOND]] * 3

        try:
            stage.play(scenario)
        finally:
            crew.proxy.script = let_pass


class TestStopped:
    """The one that acts stands still past its Lease with a write on its way, which arrives afterwards."""

    @pytest.mark.parametrize(
        ("step", "is_held"),
        [
            pytest.param(Step.A, False, marks=matrix),
            pytest.param(Step.CHECK, False, marks=matrix),
            (Step.CHECK, True),
            pytest.param(Step.RECORD, False, marks=matrix),
            pytest.param(Step.RECORD, True, marks=matrix),
            (Step.LIFT, False),
            pytest.param(Step.LIFT, True, marks=matrix),
        ],
        ids=lambda value: value.name.lower() if isinstance(value, Step) else "held" if value else "running",
    )
    def test_its_late_write_does_no_harm(
        self,
        crew: Crew,
        pair: tuple[ControllerProcess, ControllerProcess],
        stage: KubeflowStage,
        step: Step,
        is_held: bool,
    ) -> None:
        first, second = pair
        stopped, may_go = threading.Event(), threading.Event()

        def stop() -> None:
            os.kill(first.pid, signal.SIGSTOP)
            stopped.set()
            may_go.wait(120)

        async def scenario(at: KubeflowStage) -> None:
            crew.proxy.script = At(at.namespace, step, Fault(before=stop))
            ref = await start(at)
            await wait_until(stopped.is_set, "a write", at.patience)
            hold = await at.hold(ref) if is_held else None
            if hold is None:
                await runs(at, ref, FIRST)
            else:
                await asyncio.to_thread(wait_for_lease, second)
                await at.reach(ref, State.HELD)
            before = at.epochs(ref.job)
            may_go.set()
            await asyncio.sleep(0.5)
            os.kill(first.pid, signal.SIGCONT)
            await asyncio.sleep(QUIET_SECONDS)
            at.check_epochs(ref.job, before)
            if hold is None:
                await hold_and_release(at, ref)
                await runs(at, ref, FIRST, SECOND)
            else:
                await at.adapter.release(ref, hold, deadline=soon())
                await at.until(ref, lambda o: o.state is State.RUNNING)
                await wait_until(lambda: bool(at.epochs(ref.job)), "a first execution", at.patience)
                assert len(at.epochs(ref.job)) == 1

        try:
            stage.play(scenario)
        finally:
            may_go.set()
            os.kill(first.pid, signal.SIGCONT)
            second.kill(signal.SIGTERM)
            second.start()
            wait_for_lease(first)
