# SPDX-License-Identifier: Apache-2.0
"""The hands of the scenes: jobs on a real cluster, made and moved by the adapter's own verbs, a controller to pause.

:mod:`.record_objects` opens it, :mod:`.scenes` plays in it. Waits by looking, every 50 ms: what is to be recorded often
lasts no longer than a second.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow_provider_dispatch.adapters.kubeflow import holding, opening, starting, stopping
from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.inventory import Inventory, fetch_inventory
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.derive import derive_observation
from airflow_provider_dispatch.adapters.kubeflow.model.ledger import Ledger, build_ledger
from airflow_provider_dispatch.adapters.kubeflow.model.manifests import build_runtime, build_trainjob
from airflow_provider_dispatch.adapters.kubeflow.model.object_set import ObjectSet
from airflow_provider_dispatch.adapters.kubeflow.model.resources import (
    CONFIG_MAPS,
    EVENTS,
    JOBS,
    JOBSETS,
    PODS,
    TRAINING_RUNTIMES,
    TRAINJOBS,
    WORKLOADS,
)
from airflow_provider_dispatch.adapters.kubeflow.model.submission import StopRequest, dump, read_ref
from airflow_provider_dispatch.adapters.kubeflow.queue_lookup import QueueMemory, fetch_runtime
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings, RuntimeSettings
from airflow_provider_dispatch.adapters.kubeflow.start_terms import build_terms
from airflow_provider_dispatch.core.holds import Actor, ActorKind, Hold, HoldRequest
from airflow_provider_dispatch.core.identity import JobID, build_job_id, build_object_name
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.core.owner import Owner
from airflow_provider_dispatch.core.records import StartRequest
from tests.cluster.testbed.api import Manifest
from tests.cluster.testbed.bed import Bed
from tests.cluster.testbed.objects import RUNTIME, build_namespace, build_quota_queue
from tests.cluster.testbed.objects import build_runtime as build_public_runtime

PATIENCE_SECONDS = 60.0
LOOK_SECONDS = 0.05
ANN = Actor(ActorKind.HUMAN, "ann")
SMALL = {"cpu": "50m", "memory": "64Mi"}
FOREVER = "import time,sys,signal; signal.signal(15, lambda *a: sys.exit(143))\nwhile True: time.sleep(0.1)"
STUBBORN = "import time,signal; signal.signal(15, signal.SIG_IGN)\nwhile True: time.sleep(0.1)"


def python(code: str) -> list[str]:
    """The command of a rank that runs this."""
    return ["python3", "-u", "-c", code]


@dataclass
class Studio:
    """A namespace with queues of its own, and a controller that looks after it."""

    bed: Bed
    client: KubeClient
    namespace: str
    settings: KubeflowSettings
    write: Callable[[str, str, list[Manifest]], None]
    scene: str = ""
    controller: asyncio.subprocess.Process | None = None
    jobs: list[JobID] = field(default_factory=list)
    cluster_objects: list[Manifest] = field(default_factory=list)
    memory: QueueMemory = field(default_factory=QueueMemory)

    # -- the cluster -------------------------------------------------------------------------------------------------

    def queue(self, name: str, *, stop: str = "", **quota: str | int) -> str:
        """A queue that preempts by priority; its name. Without a quota it has one CPU."""
        amounts = {"cpu": "1", "memory": "1Gi"} | {key.replace("_", "-"): value for key, value in quota.items()}
        cluster_queue, local_queue = build_quota_queue(self.namespace, name, amounts)
        check = {"name": self.settings.admission_check}
        cluster_queue["spec"]["admissionChecksStrategy"] = {"admissionChecks": [check]}
        if stop:
            cluster_queue["spec"]["stopPolicy"] = stop
        self.bed.api.apply(cluster_queue, local_queue)
        self.cluster_objects.append(cluster_queue)
        return name

    def runtime(self, name: str, **pod: object) -> str:
        """A runtime whose pods have these fields besides; its name."""
        manifest = build_public_runtime(f"{self.namespace}-{name}")
        job = manifest["spec"]["template"]["spec"]["replicatedJobs"][0]
        job["template"]["spec"]["template"]["spec"].update(pod)
        self.bed.api.apply(manifest)
        self.cluster_objects.append(manifest)
        return str(manifest["metadata"]["name"])

    async def start_controller(self) -> None:
        """Returns once it has the Lease, which the first start then sees."""
        self.controller = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "airflow_provider_dispatch.controller"),
            *("--kubeconfig", str(self.bed.kubeconfig), "--namespace", self.namespace),
            *("--admission-check", self.settings.admission_check),
            *("--lease-namespace", self.namespace, "--lease-name", self.settings.lease_name),
            *("--health-port", "0", "--metrics-port", "0", "--bind-address", "127.0.0.1"),
            *("--node-monitor-grace-seconds", "20", "--margin-seconds", "5"),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=None,
        )
        await self.look(self._is_check_active)

    def pause_controller(self) -> None:
        self._signal_controller(signal.SIGSTOP)

    def resume_controller(self) -> None:
        self._signal_controller(signal.SIGCONT)

    def _signal_controller(self, number: int) -> None:
        if self.controller is not None and self.controller.returncode is None:
            os.kill(self.controller.pid, number)

    def _is_check_active(self) -> bool:
        check = self.bed.api.get("AdmissionCheck", self.settings.admission_check, version=WORKLOADS.api_version)
        return fields.is_true(check, "Active")

    # -- the verbs ---------------------------------------------------------------------------------------------------

    async def start(self, command: list[str] | None = None, *, queue: str = "lq", **more: Any) -> JobRef:
        """A job behind its gate; of plain mode when the queue is empty."""
        about: dict[str, Any] = {"grace_period": 2, "runtime": RUNTIME} | more
        if command is not None:
            about = {"command": command, "resources": SMALL} | about
        spec = JobSpec(**({"queue": queue} if queue else {}), **about)
        job = build_job_id(0, secrets.token_bytes(10))
        self.jobs.append(job)
        request = StartRequest(job, 1, 1, spec, owner=Owner("recording"))
        return await starting.start(
            self.client, self._settings(queue), request, memory=self.memory, deadline=_soon(), now=_now()
        )

    async def start_raw(self, command: list[str], changes: Manifest, gates: Sequence[str] = (words.GATE,)) -> JobRef:
        """A job whose TrainJob differs from what `start` makes of it.

        :param changes: laid over its manifest, mapping by mapping.
        """
        spec = JobSpec(command=command, resources=SMALL, queue="lq", grace_period=2, runtime=RUNTIME)
        job = build_job_id(0, secrets.token_bytes(10))
        self.jobs.append(job)
        request = StartRequest(job, 1, 1, spec, owner=Owner("recording"))
        terms = build_terms(self.settings, request)
        runtime = await fetch_runtime(self.client, self.settings, RUNTIME)
        await self.client.create(TRAINING_RUNTIMES, build_runtime(request, runtime, terms), self.namespace)
        ledger = build_ledger(job, Ledger(1, "recording"))
        await self.client.create(CONFIG_MAPS, ledger, self.namespace)
        wanted = _lay_over(build_trainjob(request, runtime, terms), changes)
        wanted["metadata"]["annotations"][words.ADMISSION_GATED_BY] = ",".join(gates)
        made = await self.client.create(TRAINJOBS, wanted, self.namespace)
        ref = read_ref(made)
        await self.until(ref, lambda seen: words.QUOTA_RESERVED in fields.conditions(seen.workload))
        return ref

    async def open(self, ref: JobRef, queue: str = "lq") -> None:
        await opening.open_gate(self.client, self._settings(queue), ref, deadline=_soon(), now=_now())

    async def run(self, command: list[str] | None = None, *, queue: str = "lq", **more: Any) -> JobRef:
        """Start and open."""
        ref = await self.start(command, queue=queue, **more)
        await self.open(ref, queue)
        return ref

    async def hold(self, ref: JobRef, queue: str = "lq") -> Hold:
        request = HoldRequest("recording", ANN, "maintenance")
        return await holding.hold(self.client, self._settings(queue), ref, request, deadline=_soon(), now=_now())

    async def release(self, ref: JobRef, hold: Hold, queue: str = "lq") -> None:
        await holding.release(self.client, self._settings(queue), ref, hold, deadline=_soon(), now=_now())

    async def stop(self, ref: JobRef, seconds: float = 30.0) -> None:
        deadline = _now() + timedelta(seconds=seconds)
        await stopping.stop(
            self.client, self.settings, ref.job, reason="no longer wanted", deadline=deadline, now=_now()
        )

    def _settings(self, queue: str) -> KubeflowSettings:
        return self.settings if queue else self.settings.model_copy(update={"queue": None, "has_controller": False})

    # -- others' hands -----------------------------------------------------------------------------------------------

    def trainjob(self, ref: JobRef) -> Manifest:
        """Names it for the small client."""
        return self._name(TRAINJOBS.api_version, "TrainJob", build_object_name(ref.job, ref.submission))

    async def workload(self, ref: JobRef) -> Manifest:
        """Names it for the small client."""
        seen = await self.objects(ref)
        return self._name(WORKLOADS.api_version, "Workload", fields.name(seen.workload))

    def jobset(self, ref: JobRef) -> Manifest:
        """Names it for the small client."""
        return self._name(JOBSETS.api_version, "JobSet", build_object_name(ref.job, ref.submission))

    def evict(self, pod: str) -> None:
        """As a drain does."""
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": self.namespace}}
        self.bed.api.request("POST", f"/api/v1/namespaces/{self.namespace}/pods/{pod}/eviction", body)

    def delete_by_force(self, pod: str) -> None:
        """Its object goes at once; whether its processes do, nobody knows."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}"
        self.bed.api.request("DELETE", path, {"gracePeriodSeconds": 0})

    def refuse_pods(self, *, is_on: bool) -> None:
        """A quota of the namespace that leaves room for no pod."""
        quota = self._name("v1", "ResourceQuota", "none") | {"spec": {"hard": {"pods": "0"}}}
        if is_on:
            self.bed.api.apply(quota)
        else:
            self.bed.api.delete(quota)

    def delete_local_queue(self, name: str) -> None:
        self.bed.api.delete(self._name(WORKLOADS.api_version, "LocalQueue", name))

    def has_local_queue(self, name: str) -> bool:
        found = self.bed.api.find("LocalQueue", name, namespace=self.namespace, version=WORKLOADS.api_version)
        return found is not None

    def mark_stopping(self, ref: JobRef) -> None:
        """What `stop` writes first."""
        wish = dump(StopRequest("no longer wanted", _now()))
        self.bed.api.patch(self.trainjob(ref), {"metadata": {"annotations": {words.STOP_ANNOTATION: wish}}})

    async def has_event(self, part: str) -> bool:
        """Some event of the namespace says this."""
        found = (await self.client.list(EVENTS, self.namespace)).items
        return any(part in fields.text(event, "message") for event in found)

    def _name(self, version: str, kind: str, name: str) -> Manifest:
        return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": self.namespace}}

    # -- looking and recording ---------------------------------------------------------------------------------------

    async def objects(self, ref: JobRef) -> ObjectSet:
        return self._select(await fetch_inventory(self.client, self.namespace, ref.job, trainjob_uids=[ref.uid]))

    async def reach(
        self, ref: JobRef, is_there: Callable[[Observation], bool], seconds: float = PATIENCE_SECONDS
    ) -> Observation:
        """Wait until the derivation says so."""
        found: list[Observation] = []

        async def look() -> bool:
            found[:] = [derive_observation(await self.objects(ref), _now(), ref=ref)]
            return is_there(found[0])

        await self.look(look, lambda: f"{found[0].state} {found[0].detail} {found[0].pending}", seconds)
        return found[0]

    async def until(
        self, ref: JobRef, is_there: Callable[[ObjectSet], bool], seconds: float = PATIENCE_SECONDS
    ) -> None:
        """Wait for raw objects."""

        async def look() -> bool:
            return is_there(await self.objects(ref))

        await self.look(look, seconds=seconds)

    async def look(
        self, is_there: Callable[[], Any], told: Callable[[], str] = lambda: "", seconds: float = PATIENCE_SECONDS
    ) -> None:
        """Ask until the answer is yes."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while True:
            answer = is_there()
            if await answer if asyncio.iscoroutine(answer) else answer:
                return
            if loop.time() > deadline:
                raise TimeoutError(f"{self.scene}: not there after {seconds} s: {told()}")
            await asyncio.sleep(LOOK_SECONDS)

    async def record(self, ref: JobRef, story: str, *, suffix: str = "", with_nodes: bool = False) -> None:
        """Write down everything of the job as it is now, and what the derivation says of it."""
        inventory = await fetch_inventory(self.client, self.namespace, ref.job, trainjob_uids=[ref.uid])
        objects = [_dress(resource.api_version, resource.kind, raw) for resource, raw in inventory]
        if inventory.ledger is not None:
            objects.append(_dress("v1", "ConfigMap", inventory.ledger))
        objects += await self._fetch_events(ref)
        seen = self._select(inventory)
        objects += self._find_cluster_queue(seen)
        if with_nodes:
            names = sorted({node for pod in seen.pods if (node := fields.text(pod, "spec", "nodeName"))})
            objects += [self.bed.api.get("Node", name) for name in names]
        self.write(self.scene + suffix, story, objects)
        told = derive_observation(seen, _now(), ref=ref)
        print(f"{self.scene + suffix}: {told.state} {told.cause or ''} {told.detail} {told.pending or ''}", flush=True)

    async def _fetch_events(self, ref: JobRef) -> list[Manifest]:
        prefix = build_object_name(ref.job, ref.submission)
        kinds = (TRAINJOBS.kind, WORKLOADS.kind, JOBS.kind, PODS.kind)
        return [
            _dress("v1", "Event", event)
            for event in (await self.client.list(EVENTS, self.namespace)).items
            if prefix in fields.text(event, "involvedObject", "name")
            and fields.text(event, "involvedObject", "kind") in kinds
        ]

    def _find_cluster_queue(self, seen: ObjectSet) -> list[Manifest]:
        queue = fields.text(seen.workload, "spec", "queueName")
        if not queue:
            return []
        found = self.bed.api.find("ClusterQueue", f"{self.namespace}-{queue}", version=WORKLOADS.api_version)
        return [found] if found is not None else []

    def _select(self, inventory: Inventory) -> ObjectSet:
        trainjobs = inventory.of(TRAINJOBS)
        if trainjobs:
            return inventory.select(trainjobs[-1])
        return ObjectSet(
            self.namespace,
            workload=next(iter(inventory.of(WORKLOADS)), None),
            jobset=next(iter(inventory.of(JOBSETS)), None),
            ledger=inventory.ledger,
            jobs=inventory.of(JOBS),
            pods=inventory.of(PODS),
        )

    async def clear(self) -> None:
        """Nothing of a scene is in the way of the next."""
        self.resume_controller()
        for job in self.jobs:
            deadline = _now() + timedelta(seconds=20)
            await stopping.stop(self.client, self.settings, job, reason="recorded", deadline=deadline, now=_now())
        self.jobs.clear()

    async def close(self) -> None:
        """Take everything away again."""
        if self.controller is not None:
            self.resume_controller()
            self.controller.terminate()
            await self.controller.wait()
        self.bed.api.delete(build_namespace(self.namespace))
        for one in reversed(self.cluster_objects):
            self.bed.api.delete(one)


async def open_studio(
    bed: Bed, client: KubeClient, namespace: str, write: Callable[[str, str, list[Manifest]], None]
) -> Studio:
    """Make the namespace, its check, its controller and its first queue."""
    settings = build_settings(bed.kubeconfig, namespace)
    studio = Studio(bed, client, namespace, settings, write)
    check: Manifest = {
        "apiVersion": WORKLOADS.api_version,
        "kind": "AdmissionCheck",
        "metadata": {"name": settings.admission_check},
        "spec": {"controllerName": "dispatch.phpboyscout.uk/admission"},
    }
    bed.api.apply(build_namespace(namespace), check)
    studio.cluster_objects.append(check)
    studio.queue("lq")
    await studio.start_controller()
    return studio


def build_settings(kubeconfig: Path, namespace: str) -> KubeflowSettings:
    """A connection to the studio's namespace."""
    return KubeflowSettings(
        namespace=namespace,
        kubeconfig=str(kubeconfig),
        queue="lq",
        runtime=RuntimeSettings(name=RUNTIME),
        admission_check=namespace,
        lease_namespace=namespace,
    )


def _lay_over(below: Any, above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below) if isinstance(below, Mapping) else {}
    for key, value in above.items():
        merged[key] = _lay_over(merged.get(key), value) if isinstance(value, Mapping) else value
    return merged


def _dress(version: str, kind: str, raw: Mapping[str, Any]) -> Manifest:
    """Items of a list don't say what they are."""
    return {"apiVersion": version, "kind": kind, **raw}


def _now() -> datetime:
    return datetime.now(UTC)


def _soon() -> datetime:
    return _now() + timedelta(seconds=30)
