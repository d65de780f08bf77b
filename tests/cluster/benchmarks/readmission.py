# SPDX-License-Identifier: Apache-2.0
"""How long the controller lets a released job wait once the last pod of its old execution is gone.

The job is held and released while its ranks take their time to end, so that it has its quota again before they have.
One watch of its pods and one of its Workload tell when what happened, both read by this process. The peer is an echo:
this process itself writes something when it sees the last pod end, and waits until a watch shows it.
"""

from __future__ import annotations

import asyncio
import secrets
import statistics
import time
from contextlib import aclosing
from dataclasses import dataclass, field

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.resources import CONFIG_MAPS, PODS, WORKLOADS, Resource
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.state import State
from tests.benchmarks.figure import Figure
from tests.cluster.benchmarks.place import PATIENCE_SECONDS, Place, open_place, soon
from tests.cluster.testbed.bed import Bed

AIM_MS = 250.0
SLOW_TO_END = ["python3", "-u", "-c", "import time, signal; signal.signal(15, signal.SIG_IGN); time.sleep(3600)"]
GRACE_SECONDS = 10
TERMINAL_PHASES = ("Succeeded", "Failed")


@dataclass
class _Log:
    """Moments, by this process' clock.

    :param pods: that are there.
    :param is_released: from then on a Ready check is the one that is waited for.
    """

    pods: set[str] = field(default_factory=set)
    last_gone: float = 0.0
    pending: float = 0.0
    ready: float = 0.0
    echo: float = 0.0
    is_released: bool = False
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    all_gone: asyncio.Event = field(default_factory=asyncio.Event)

    def note_pod(self, kind: str, pod: Raw) -> None:
        """A pod is over when its phase says so, a moment before its object goes."""
        if self.ready:
            return
        if kind == "DELETED" or fields.text(pod, "status", "phase") in TERMINAL_PHASES:
            if fields.uid(pod) not in self.pods:
                return
            self.pods.discard(fields.uid(pod))
            self.last_gone = time.perf_counter()
            if not self.pods:
                self.all_gone.set()
        else:
            self.pods.add(fields.uid(pod))
            if fields.is_deleting(pod):
                self.ending.set()

    @property
    def wait(self) -> float:
        """Milliseconds."""
        return (self.ready - max(self.last_gone, self.pending)) * 1000

    def note_workload(self, _kind: str, workload: Raw) -> None:
        if not self.is_released or self.ready or not fields.is_true(workload, words.QUOTA_RESERVED):
            return
        states = [fields.text(check, "state") for check in fields.items(workload, "status", "admissionChecks")]
        if states == ["Pending"]:
            self.pending = self.pending or time.perf_counter()
        if states == ["Ready"] and self.pending:
            self.ready = time.perf_counter()


async def measure_readmission(bed: Bed, rounds: int) -> list[Figure]:
    """Milliseconds from the last pod's end to the check."""
    async with open_place(bed) as place:
        request = place.build_request(SLOW_TO_END, nodes=2, grace_period=GRACE_SECONDS)
        ref = await place.run(request)
        logs = [await _play_round(place, ref) for _ in range(rounds)]
        await place.stop(ref)
    return [_build_figure(logs)]


def _build_figure(logs: list[_Log]) -> Figure:
    value = statistics.median(log.wait for log in logs)
    return Figure(
        name="readmission",
        says=f"from the last old pod's end, quota being reserved, to the check's Ready; median of {len(logs)}",
        value=value,
        unit="ms",
        peer="a write of this process at the same moment, until its watch shows it",
        peer_value=statistics.median(log.echo for log in logs) * 1000,
        aim=f"at most {AIM_MS:g} ms",
        is_met=value <= AIM_MS,
        context={
            "ms_of_each_round": [round(log.wait, 1) for log in logs],
            # Otherwise it is the quota that was waited for.
            "rounds_that_waited_for_pods": sum(log.last_gone > log.pending for log in logs),
        },
    )


async def _play_round(place: Place, ref: JobRef) -> _Log:
    await place.reach(ref, State.RUNNING)
    log = _Log()
    watches = [
        asyncio.create_task(_follow(place, PODS, log)),
        asyncio.create_task(_follow(place, WORKLOADS, log)),
        asyncio.create_task(_echo(place, log)),
    ]
    try:
        hold = await place.hold(ref)
        # Released at once, Kueue might not have noticed the hold at all.
        await asyncio.wait_for(log.ending.wait(), PATIENCE_SECONDS)
        log.is_released = True
        await place.adapter.release(ref, hold, deadline=soon())
        await asyncio.wait_for(_await_ready(log, watches), PATIENCE_SECONDS)
    finally:
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
    return log


async def _await_ready(log: _Log, watches: list[asyncio.Task[None]]) -> None:
    while not (log.ready and log.echo):
        done, _ = await asyncio.wait(watches, timeout=0.05, return_when=asyncio.FIRST_COMPLETED)
        for watch in done:
            watch.result()
            raise RuntimeError("a watch ended early")


async def _echo(place: Place, log: _Log) -> None:
    """Write when the last pod is gone, in the same namespace, and see it come back."""
    name = f"echo-{secrets.token_hex(4)}"
    async with aclosing(place.client.watch(CONFIG_MAPS, place.namespace)) as events:
        writing = asyncio.create_task(_write_when_gone(place, log, name))
        async for event in events:
            if fields.name(event.object) == name:
                log.echo = time.perf_counter() - await writing
                await asyncio.Event().wait()


async def _write_when_gone(place: Place, log: _Log, name: str) -> float:
    await log.all_gone.wait()
    begun = time.perf_counter()
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
    await place.client.create(CONFIG_MAPS, body, place.namespace)
    return begun


async def _follow(place: Place, resource: Resource, log: _Log) -> None:
    note = log.note_pod if resource == PODS else log.note_workload
    async with aclosing(place.client.watch(resource, place.namespace)) as events:
        async for event in events:
            if event.type != "BOOKMARK":
                note(event.type, event.object)
