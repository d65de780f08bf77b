# SPDX-License-Identifier: Apache-2.0
"""A cluster in memory with replicas of the controller whose clocks a test moves by hand."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any, ParamSpec

from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.fields import format_time
from airflow_provider_dispatch.adapters.kubeflow.model.resources import (
    JOBSETS,
    PODS,
    TRAINING_RUNTIMES,
    TRAINJOBS,
    WORKLOADS,
)
from airflow_provider_dispatch.controller.config import ControllerConfig
from airflow_provider_dispatch.controller.running import Replica
from tests.adapters.kubeflow.memory_client import MemoryClient, Object
from tests.adapters.kubeflow.objects import (
    NOW,
    build_jobset,
    build_name,
    build_owner,
    build_pod,
    build_runtime,
    build_trainjob,
    build_workload,
)

P = ParamSpec("P")
UID = "tj-1"
NAME = build_name()
WORKLOAD = f"trainjob-{NAME}-abcde"
LEDGER = NAME.removesuffix("-s1")


def asynchronous(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """A test with an event loop of its own."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def scene() -> None:
            await asyncio.wait_for(test(*args, **kwargs), 20)

        asyncio.run(scene())

    return run


class World:
    """Time, a cluster, and one job in it."""

    def __init__(self) -> None:
        self.client = MemoryClient()
        self.seconds = 0.0

    # -- time and replicas

    def wall(self) -> datetime:
        return NOW + timedelta(seconds=self.seconds)

    def pass_time(self, seconds: float) -> None:
        self.seconds += seconds

    async def start_replica(self, identity: str = "first", **settings: Any) -> Replica:
        """A replica that holds the Lease, if it can be had, and has seen everything."""
        config = ControllerConfig(identity=identity, **settings)
        replica = Replica(self.client, config, monotonic=lambda: self.seconds, wall=self.wall)
        await replica.lease.attempt()
        await show(replica)
        return replica

    # -- what is in the cluster

    def place_job(self, *, admissions: str = "0", queue: str = "lq", notes: dict[str, str] | None = None) -> Object:
        """A TrainJob whose gate is open."""
        notes = {words.ADMISSIONS_ANNOTATION: admissions, **(notes or {})}
        runtime = build_runtime()
        runtime["metadata"]["ownerReferences"] = [build_owner("TrainJob", NAME, UID)]
        pods = {"spec": {"template": {"spec": {"schedulingGates": [{"name": words.FENCE}]}}}}
        runtime["spec"]["template"]["spec"]["replicatedJobs"] = [{"name": "node", "template": pods}]
        self.client.put(TRAINING_RUNTIMES, runtime)
        return self.client.put(TRAINJOBS, build_trainjob(queue=queue, suspend=True, notes=notes))

    def reserve(self, *, at: float = 0.0, state: str = "Pending") -> Object:
        """Kueue reserves quota for it."""
        workload = self.client.peek(WORKLOADS, WORKLOAD) or build_workload()
        conditions = [build_condition(words.QUOTA_RESERVED, "True", NOW + timedelta(seconds=at))]
        workload["status"] = {
            "conditions": conditions,
            "admission": {"clusterQueue": "cq"},
            "admissionChecks": [
                {"name": "other", "state": "Ready", "message": "", "lastTransitionTime": format_time(NOW)},
                {
                    "name": words.DEFAULT_CHECK,
                    "state": state,
                    "message": "",
                    "lastTransitionTime": format_time(NOW),
                    "podSetUpdates": [{"name": "node"}],
                },
            ],
        }
        return self.client.put(WORKLOADS, workload)

    def admit(self) -> None:
        """Kueue admits it, and lets it run."""
        workload = self.client.peek(WORKLOADS, WORKLOAD)
        assert workload is not None
        workload["status"]["conditions"].append(build_condition(words.ADMITTED, "True", self.wall()))
        self.client.put(WORKLOADS, workload)
        trainjob = self.trainjob()
        trainjob["spec"]["suspend"] = False
        self.client.put(TRAINJOBS, trainjob)

    def place_jobset(self) -> None:
        self.client.put(JOBSETS, build_jobset())

    def place_pod(self, index: int, *, uid: str = "", gates: tuple[str, ...] = (words.FENCE,), **more: Any) -> Object:
        """A pod at the fence."""
        pod = build_pod(index, phase="Pending", node="", uid=uid, notes={"mine": "kept"}, **more)
        pod["spec"]["schedulingGates"] = [{"name": gate} for gate in gates]
        return self.client.put(PODS, pod)

    def place_admitted_job(self, pods: int = 2) -> None:
        """A job whose first admission is granted and whose pods wait at the fence."""
        workload = self.reserve()
        key = f"{workload['metadata']['uid']}/{NOW.isoformat()}/0"
        self.place_job(admissions="1", notes={words.ADMISSION_KEY_ANNOTATION: key})
        self.admit()
        self.place_jobset()
        for index in range(pods):
            self.place_pod(index)

    # -- what became of it

    def trainjob(self) -> Object:
        found = self.client.peek(TRAINJOBS, NAME)
        assert found is not None
        return found

    def note(self, key: str) -> str | None:
        found: str | None = self.trainjob()["metadata"]["annotations"].get(key)
        return found

    def check(self) -> Object:
        """Our entry on the Workload."""
        workload = self.client.peek(WORKLOADS, WORKLOAD)
        assert workload is not None
        found: Object = workload["status"]["admissionChecks"][1]
        return found

    def epochs(self) -> list[str | None]:
        """Of all pods, in the order of their names; None at the fence."""
        pods = sorted(self.client.peek_all(PODS), key=lambda pod: str(pod["metadata"]["name"]))
        return [pod["metadata"]["annotations"].get(words.EPOCH_ANNOTATION) for pod in pods]


def build_condition(kind: str, status: str, at: datetime, reason: str = "") -> Object:
    return {
        "type": kind,
        "status": status,
        "reason": reason or kind,
        "message": "",
        "lastTransitionTime": at.isoformat(),
    }


async def show(replica: Replica) -> None:
    """Let its cache see what there is."""
    for reflector in replica.reflectors:
        await reflector.list_all()


async def settle(world: World, replica: Replica) -> float | None:
    """Look until the state has lasted long enough to be noted; what the last look said."""
    await replica.loop.look(UID)
    world.pass_time(1)
    return await replica.loop.look(UID)
