# SPDX-License-Identifier: Apache-2.0
"""A namespace of a cluster to measure in: its queue, one adapter that names itself, and what it asked the API server.

The measurements use it; the command opens and closes it. What is asked of the API server is told by the audit log, by
who asked and in which namespace, so that whatever else goes on in the cluster doesn't count.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from airflow_provider_dispatch.adapters.kubeflow.adapter import KubeflowAdapter
from airflow_provider_dispatch.adapters.kubeflow.client import USER_AGENT, KubeClient, open_client
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.resources import TRAINJOBS
from airflow_provider_dispatch.adapters.kubeflow.queue_lookup import QueueMemory
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings, RuntimeSettings
from airflow_provider_dispatch.adapters.kubeflow.watch import USER_AGENT as WATCH_AGENT
from airflow_provider_dispatch.controller.running import USER_AGENT as CONTROLLER_AGENT
from airflow_provider_dispatch.core.holds import Actor, ActorKind, Hold, HoldRequest
from airflow_provider_dispatch.core.identity import build_job_id
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.core.owner import Owner
from airflow_provider_dispatch.core.records import StartRequest
from airflow_provider_dispatch.core.state import State
from airflow_provider_dispatch.exceptions import RefusedError
from tests.cluster.testbed.audit import Request
from tests.cluster.testbed.bed import Bed
from tests.cluster.testbed.objects import LOCAL_QUEUE, RUNTIME, build_namespace, build_queue

PATIENCE_SECONDS = 180.0
GONE_SECONDS = 1800.0
SMALL = {"cpu": "10m", "memory": "16Mi"}
FOREVER = ["python3", "-u", "-c", "import time, signal; signal.signal(15, lambda *_: exit(143)); time.sleep(3600)"]


@dataclass(frozen=True, slots=True)
class Asked:
    """Requests of one stretch of time.

    :param ours: of the adapter and its watch.
    :param controllers: of the admission controller, about this namespace.
    """

    ours: tuple[Request, ...]
    controllers: tuple[Request, ...]


@dataclass
class Place:
    """The namespace.

    :param client: for what the adapter doesn't do; its requests don't count.
    :param adapter: whose requests do.
    """

    bed: Bed
    settings: KubeflowSettings
    client: KubeClient
    adapter: KubeflowAdapter
    agent: str

    @property
    def namespace(self) -> str:
        return self.settings.namespace

    def build_request(self, command: Sequence[str] = FOREVER, **more: object) -> StartRequest:
        """A new job of small ranks."""
        about = {"command": list(command), "resources": SMALL, "grace_period": 2} | more
        spec = JobSpec.model_validate(about)
        return StartRequest(build_job_id(0, secrets.token_bytes(10)), 1, 1, spec, owner=Owner("benchmarks"))

    async def run(self, request: StartRequest) -> JobRef:
        """Start a job and open its gate."""
        ref = await self.adapter.start(request, deadline=soon())
        await self.adapter.open(ref, deadline=soon())
        return ref

    async def create(self, trainjob: Raw, *, dry_run: bool = False) -> Raw:
        """By hand; again while Trainer's webhook, which looks into a cache, hasn't seen the runtime."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                try:
                    return await self.client.create(TRAINJOBS, trainjob, self.namespace, dry_run=dry_run)
                except RefusedError as error:
                    if not any(said in str(error) for said in words.RUNTIME_UNSEEN):
                        raise
                await asyncio.sleep(0.1)

    async def hold(self, ref: JobRef) -> Hold:
        wish = HoldRequest(secrets.token_hex(4), Actor(ActorKind.HUMAN, "benchmarks"), "measuring")
        return await self.adapter.hold(ref, wish, deadline=soon())

    async def stop(self, ref: JobRef) -> None:
        report = await self.adapter.stop(ref.job, reason="measured", deadline=soon())
        if not report.is_complete:
            raise RuntimeError(f"a job could not be stopped: {report}")

    async def reach(self, ref: JobRef, state: State) -> Observation:
        async def look() -> Observation:
            async for seen in self.adapter.watch([ref]):
                if seen.state is state:
                    return seen
            raise RuntimeError(f"the job ended before it was {state}: {seen}")

        return await asyncio.wait_for(look(), PATIENCE_SECONDS)

    def fetch_asked(self, since: int) -> Asked:
        """What was asked since a mark of :meth:`Bed.mark_requests`."""
        requests = self.bed.fetch_requests(since=since)
        watches = (request for request in requests if request.user_agent == WATCH_AGENT)
        ours = [request for request in requests if request.user_agent == self.agent]
        return Asked(
            ours=(*ours, *(watch for watch in watches if watch.namespace == self.namespace)),
            controllers=tuple(
                request
                for request in requests
                if request.user_agent == CONTROLLER_AGENT and request.namespace == self.namespace
            ),
        )


@asynccontextmanager
async def open_place(bed: Bed, *, cpu: str = "2", runtime: str = RUNTIME) -> AsyncIterator[Place]:
    """Make it, and leave nothing of it behind."""
    name = f"bench-{secrets.token_hex(3)}"
    queue, local_queue = build_queue(name, cpu=cpu, memory="64Gi")
    bed.api.apply(build_namespace(name), queue, local_queue)
    settings = KubeflowSettings(
        namespace=name, kubeconfig=str(bed.kubeconfig), queue=LOCAL_QUEUE, runtime=RuntimeSettings(name=runtime)
    )
    agent = f"{USER_AGENT}/{name}"
    client = await open_client(settings, user_agent=f"{name}-by-hand")
    adapter = KubeflowAdapter(settings, open_client=partial(open_client, user_agent=agent), memory=QueueMemory())
    try:
        yield Place(bed, settings, client, adapter, agent)
    finally:
        await adapter.close()
        await client.close()
        bed.api.delete(build_namespace(name))
        bed.api.delete(queue)
        await until(lambda: bed.api.find("Namespace", name) is None, "the namespace to be gone", GONE_SECONDS)


async def until(is_there: Callable[[], bool], what: str, seconds: float = PATIENCE_SECONDS) -> None:
    """Look until it is so."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not is_there():
        if loop.time() > end:
            raise TimeoutError(f"waited {seconds:g} s for {what}")
        await asyncio.sleep(0.5)


def soon() -> datetime:
    """A deadline that nothing should need."""
    return datetime.now(UTC) + timedelta(seconds=PATIENCE_SECONDS)
