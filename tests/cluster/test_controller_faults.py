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
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

import pytest

from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.state import State
from tests.cluster.controller_process import ControllerProcess
from tests.cluster.fixtures import CONTROLLER_FLAGS
from tests.cluster.faulty_proxy import NO_FAULT, Asked, Fault, FaultyProxy, is_write_to, let_pass
from tests.cluster.testbed.api import Manifest
from tests.cluster.testbed.bed import Bed
from tests.contract.stage import soon
from tests.contract.stage_kubeflow import KubeflowStage

FIRST, SECOND = 1_000_001, 1_000_002
LEASE_SECONDS = 6.0
LEASE_FLAGS = (
    *("--lease-duration-seconds", f"{LEASE_SECONDS:g}", "--lease-renew-seconds", "1", "--request-timeout-seconds", "2"),
)
QUIET_SECONDS = 4.0
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
        self._api.apply({**COMPETITORS_LEASE, "spec": spec})


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


@pytest.fixture(scope="module")
def crew(alone: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    folder = tmp_path_factory.mktemp("crew")
    with FaultyProxy(alone.kubeconfig, folder) as proxy:
        crew = Crew(alone, proxy, folder, f"dispatch-faults-{secrets.token_hex(3)}")
        yield crew
    metadata = {"name": crew.lease, "namespace": words.LEASE_NAMESPACE}
    alone.api.delete({**COMPETITORS_LEASE, "metadata": metadata})


@pytest.fixture(scope="module")
def shared_replica(crew: Crew) -> Iterator[ControllerProcess]:
    with crew.replica("mortal") as replica:
        yield replica


@pytest.fixture
def replica(crew: Crew, shared_replica: ControllerProcess) -> Iterator[ControllerProcess]:
    """Runs behind the proxy; whoever kills it starts it again."""
    yield shared_replica
    crew.proxy.script = let_pass


@pytest.fixture
def stage(alone: Bed) -> KubeflowStage:
    return KubeflowStage(alone, {"q": {"cpu": "1"}})


# -- what a job goes through -------------------------------------------------------------------------------------------


async def start(at: KubeflowStage) -> JobRef:
    """Two ranks, gate open."""
    ref = await at.start(at.spec("run", queue="q", nodes=2, resources={"cpu": "100m"}))
    await at.adapter.open(ref, deadline=soon())
    return ref


async def runs(at: KubeflowStage, ref: JobRef, *epochs: int) -> None:
    """It runs under the last of them, having run under the others and no more."""
    await at.until(ref, lambda o: o.state is State.RUNNING and o.execution is not None and o.execution.epoch == epochs[-1])
    await at.begun(ref, epochs[-1])
    assert at.epochs(ref.job) == list(epochs)


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


class Mortal:
    """A replica that is killed by a script and started again, as often as that happens.

    :ivar deaths: so far.
    """

    def __init__(self, replica: ControllerProcess) -> None:
        self.replica, self.deaths = replica, 0
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
            while not self._died.is_set():
                await asyncio.sleep(0.05)
            await asyncio.to_thread(self.replica.kill)
            self._died.clear()
            await asyncio.to_thread(self.replica.start)


async def lives(at: KubeflowStage) -> None:
    """A job that runs, is held, released and runs again, each time once."""
    ref = await start(at)
    await runs(at, ref, FIRST)
    await hold_and_release(at, ref)
    await runs(at, ref, FIRST, SECOND)


# -- killed ------------------------------------------------------------------------------------------------------------


def test_the_steps_of_an_admission_have_their_order(crew: Crew, replica: ControllerProcess, stage) -> None:
    async def scenario(at: KubeflowStage) -> None:
        await runs(at, await start(at), FIRST)
        steps = [name_step(asked) for asked in crew.proxy.asked if is_write_to(asked, at.namespace)]
        firsts = [steps.index(step) for step in (Step.A, Step.CHECK, Step.RECORD, Step.LEDGER, Step.LIFT)]
        assert firsts == sorted(firsts)
        assert steps.count(Step.LIFT) == 2

    stage.play(scenario)


@pytest.mark.parametrize("is_carried_out", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", list(Step), ids=lambda step: step.name.lower())
def test_killed_at_a_step(
    crew: Crew, replica: ControllerProcess, stage: KubeflowStage, step: Step, is_carried_out: bool
) -> None:
    async def scenario(at: KubeflowStage) -> None:
        mortal = Mortal(replica)
        crew.proxy.script = At(at.namespace, step, mortal.build_death(is_carried_out=is_carried_out))
        reviving = asyncio.create_task(mortal.revive())
        await lives(at)
        reviving.cancel()
        assert mortal.deaths == 1

    stage.play(scenario)


def test_killed_at_every_write(crew: Crew, replica: ControllerProcess, stage: KubeflowStage) -> None:
    """Each write is lost with its first writer, carried out by the second, which dies as well, and left to a third."""

    async def scenario(at: KubeflowStage) -> None:
        mortal = Mortal(replica)
        seen: Counter[tuple[str, str]] = Counter()

        def script(asked: Asked) -> Fault:
            if not is_write_to(asked, at.namespace):
                return NO_FAULT
            seen[asked.path, str(name_step(asked))] += 1
            match seen[asked.path, str(name_step(asked))]:
                case 1:
                    return mortal.build_death(is_carried_out=False)
                case 2:
                    return mortal.build_death(is_carried_out=True)
            return NO_FAULT

        crew.proxy.script = script
        reviving = asyncio.create_task(mortal.revive())
        await lives(at)
        reviving.cancel()
        assert mortal.deaths >= 2 * len(Step)

    stage.play(scenario)
