# SPDX-License-Identifier: Apache-2.0
"""How long `start` takes until Kueue has made the job's Workload, beside the bare create of the same TrainJob."""

from __future__ import annotations

import statistics
import time
from contextlib import aclosing
from dataclasses import dataclass

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.manifests import build_runtime, build_trainjob
from airflow_provider_dispatch.adapters.kubeflow.model.resources import TRAINING_RUNTIMES, TRAINJOBS, WORKLOADS
from airflow_provider_dispatch.adapters.kubeflow.queue_lookup import fetch_runtime
from airflow_provider_dispatch.adapters.kubeflow.start_terms import build_terms
from airflow_provider_dispatch.core.records import StartRequest
from tests.benchmarks.figure import Figure
from tests.cluster.benchmarks.place import Place, open_place, soon
from tests.cluster.testbed.bed import Bed

AIM = 1.5


@dataclass(frozen=True, slots=True)
class Round:
    """Seconds until the Workload is there."""

    ours: float
    bare: float


async def measure_starting(bed: Bed, rounds: int) -> list[Figure]:
    """In turn, so that both see the same load."""
    async with open_place(bed) as place:
        await _play_round(place)  # connections, caches
        played = [await _play_round(place) for _ in range(rounds)]
    return [_build_figure(played)]


def _build_figure(rounds: list[Round]) -> Figure:
    ours, bare = statistics.median(one.ours for one in rounds), statistics.median(one.bare for one in rounds)
    return Figure(
        name="start.workload",
        says=f"wall time of a `start`, which returns once the Workload is there; median of {len(rounds)}",
        value=ours * 1000,
        unit="ms",
        peer="the create of the same TrainJob, its runtime made before, until a watch shows the Workload",
        peer_value=bare * 1000,
        aim=f"at most {AIM} x the peer",
        is_met=ours <= AIM * bare,
        context={
            "ratio_of_each_round": [round(one.ours / one.bare, 2) for one in rounds],
            "least_ms": {
                "ours": round(min(one.ours for one in rounds) * 1000, 1),
                "peer": round(min(one.bare for one in rounds) * 1000, 1),
            },
        },
    )


async def _play_round(place: Place) -> Round:
    request, other = place.build_request(nodes=2), place.build_request(nodes=2)
    begun = time.perf_counter()
    ref = await place.adapter.start(request, deadline=soon())
    ours = time.perf_counter() - begun
    await place.stop(ref)
    return Round(ours, await _time_bare(place, other))


async def _time_bare(place: Place, request: StartRequest) -> float:
    trainjob = await make_runtime(place, request)
    await place.create(trainjob, dry_run=True)
    begun = time.perf_counter()
    created = await place.client.create(TRAINJOBS, trainjob, place.namespace)
    await _await_workload(place, created)
    taken = time.perf_counter() - begun
    await place.client.delete(TRAINJOBS, fields.name(created), place.namespace)
    await place.client.delete(TRAINING_RUNTIMES, fields.name(created), place.namespace)
    return taken


async def _await_workload(place: Place, trainjob: Raw) -> None:
    selector = f"{words.JOB_UID_LABEL}={fields.uid(trainjob)}"
    async with aclosing(place.client.watch(WORKLOADS, place.namespace, labels=selector)) as events:
        async for event in events:
            if event.type in ("ADDED", "MODIFIED"):
                return


async def make_runtime(place: Place, request: StartRequest) -> Raw:
    """Make the private runtime of a job; the TrainJob that would be created next, its gate closed."""
    terms = build_terms(place.settings, request)
    runtime = await fetch_runtime(place.client, place.settings, request.spec.runtime)
    await place.client.create(TRAINING_RUNTIMES, build_runtime(request, runtime, terms), place.namespace)
    return build_trainjob(request, runtime, terms)
