# SPDX-License-Identifier: Apache-2.0
"""How much later pods are scheduled because each of them has to wait until the controller has lifted its fence.

The pods run on paper, on fake nodes: a machine has no room for two hundred. Beside each job the same one is started
without a fence, in a queue without our check; both are timed from their first pod to the last one that has a node.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.resources import PODS, TRAINING_RUNTIMES, TRAINJOBS
from tests.benchmarks.figure import Figure
from tests.cluster.benchmarks.place import PATIENCE_SECONDS, Place, open_place, soon, until
from tests.cluster.benchmarks.starting import make_runtime
from tests.cluster.testbed.api import Manifest
from tests.cluster.testbed.bed import Bed
from tests.cluster.testbed.fake_nodes import TOLERATION
from tests.cluster.testbed.objects import build_queue, build_runtime

OPEN_QUEUE = "unchecked"
FAKE = {"type": "fake"}


@dataclass
class _Log:
    """Moments, by this process' clock.

    :param lifted: last time that a fence went.
    """

    first: float = 0.0
    complete: float = 0.0
    lifted: float = 0.0
    scheduled: float = 0.0
    pods: set[str] = field(default_factory=set)
    fenced: set[str] = field(default_factory=set)
    placed: set[str] = field(default_factory=set)

    def note(self, pod: Raw) -> None:
        uid, now = fields.uid(pod), time.perf_counter()
        self.first = self.first or now
        if uid not in self.pods:
            self.pods.add(uid)
            self.complete = now
        if any(fields.text(gate, "name") == words.FENCE for gate in fields.items(pod, "spec", "schedulingGates")):
            self.fenced.add(uid)
        elif uid in self.fenced:
            self.fenced.discard(uid)
            self.lifted = now
        if fields.text(pod, "spec", "nodeName") and uid not in self.placed:
            self.placed.add(uid)
            self.scheduled = now


async def measure_fence(bed: Bed, sizes: Sequence[int]) -> list[Figure]:
    """Milliseconds for jobs of so many pods."""
    with _fake_runtime(bed) as runtime:
        async with _open_queues(bed, runtime) as place:
            return [await _measure_size(place, size) for size in sizes]


async def _measure_size(place: Place, pods: int) -> Figure:
    bare = await _time_pods(place, pods, is_fenced=False)
    ours = await _time_pods(place, pods, is_fenced=True)
    return Figure(
        name=f"fence.{pods}",
        says=f"from the first pod of a job of {pods} to the last that has a node",
        value=(ours.scheduled - ours.first) * 1000,
        unit="ms",
        peer="the same job without a fence",
        peer_value=(bare.scheduled - bare.first) * 1000,
        context={
            "added_ms": round((ours.scheduled - ours.first - bare.scheduled + bare.first) * 1000, 1),
            "from_the_last_pod_to_the_last_lift_ms": round((ours.lifted - ours.complete) * 1000, 1),
        },
    )


async def _time_pods(place: Place, count: int, *, is_fenced: bool) -> _Log:
    """Run a job until all of its pods have a node, and take it away."""
    request, log = place.build_request(nodes=count), _Log()
    watching = asyncio.create_task(_follow(place, log, count))
    if is_fenced:
        ref = await place.run(request)
        await asyncio.wait_for(watching, PATIENCE_SECONDS)
        # Not asked whether it was complete: no kubelet proves the end of a pod on paper.
        await place.adapter.stop(ref.job, reason="measured", deadline=soon())
    else:
        trainjob = await make_runtime(place, request)
        _take_fence(place, fields.name(trainjob))
        _leave_check(trainjob)
        await place.create(trainjob)
        await asyncio.wait_for(watching, PATIENCE_SECONDS)
        await place.client.delete(TRAINJOBS, fields.name(trainjob), place.namespace)
        await place.client.delete(TRAINING_RUNTIMES, fields.name(trainjob), place.namespace)
    await until(lambda: not place.bed.api.get("Pod", namespace=place.namespace)["items"], "the pods to be gone")
    return log


async def _follow(place: Place, log: _Log, count: int) -> None:
    async with aclosing(place.client.watch(PODS, place.namespace)) as events:
        async for event in events:
            if event.type in ("ADDED", "MODIFIED"):
                log.note(event.object)
            if len(log.placed) == count:
                return


def _leave_check(trainjob: Raw) -> None:
    """Let Kueue admit it at once, as somebody else's."""
    metadata = trainjob["metadata"]
    metadata["labels"][words.QUEUE_LABEL] = OPEN_QUEUE
    del metadata["annotations"][words.ADMISSION_GATED_BY]


def _take_fence(place: Place, name: str) -> None:
    runtime = place.bed.api.get(
        "TrainingRuntime", name, namespace=place.namespace, version=TRAINING_RUNTIMES.api_version
    )
    for job in runtime["spec"]["template"]["spec"]["replicatedJobs"]:
        job["template"]["spec"]["template"]["spec"].pop("schedulingGates", None)
    place.bed.api.request("PUT", place.bed.api.path_of(runtime), runtime)


@contextmanager
def _fake_runtime(bed: Bed) -> Iterator[str]:
    """A node on paper, and a runtime whose pods go there."""
    nodes = {node["metadata"]["name"] for node in bed.api.get("Node", query="labelSelector=type%3Dfake")["items"]}
    if not nodes:
        bed.add_fake_nodes(1)
    manifest = build_runtime(f"bench-fake-{secrets.token_hex(3)}")
    (job,) = manifest["spec"]["template"]["spec"]["replicatedJobs"]
    job["template"]["spec"]["template"]["spec"] |= {"tolerations": [TOLERATION], "nodeSelector": FAKE}
    bed.api.apply(manifest)
    try:
        yield manifest["metadata"]["name"]
    finally:
        bed.api.delete(manifest)
        if not nodes:
            for node in bed.api.get("Node", query="labelSelector=type%3Dfake")["items"]:
                bed.api.delete({"apiVersion": "v1", "kind": "Node"} | {"metadata": node["metadata"]})


@asynccontextmanager
async def _open_queues(bed: Bed, runtime: str) -> AsyncIterator[Place]:
    """A queue with our check, and one without."""
    async with open_place(bed, cpu="64", runtime=runtime) as place:
        unchecked, local_queue = _build_open_queue(place.namespace)
        bed.api.apply(unchecked, local_queue)
        try:
            yield place
        finally:
            bed.api.delete(unchecked)


def _build_open_queue(namespace: str) -> list[Manifest]:
    queue, local_queue = build_queue(namespace, cpu="64", memory="64Gi", checks=())
    name = f"{namespace}-{OPEN_QUEUE}"
    queue["metadata"]["name"] = name
    local_queue["metadata"]["name"] = OPEN_QUEUE
    local_queue["spec"]["clusterQueue"] = name
    return [queue, local_queue]
