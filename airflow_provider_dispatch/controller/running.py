# SPDX-License-Identifier: Apache-2.0
"""One replica from its start to its end: puts the parts together, runs them side by side, and ends them in order.

``__main__`` calls it, and tests do with a cluster in memory. When a part ends by itself, all end: whoever runs the
program starts it again, and half a controller is worse than none.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient, open_client
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.controller.apply import Writer
from airflow_provider_dispatch.controller.cache import ObjectCache, job_key
from airflow_provider_dispatch.controller.check_condition import CheckKeeper
from airflow_provider_dispatch.controller.config import ControllerConfig
from airflow_provider_dispatch.controller.events import Journal
from airflow_provider_dispatch.controller.health import HealthServer
from airflow_provider_dispatch.controller.keeping import Keeper
from airflow_provider_dispatch.controller.lease import LeaseKeeper, LeaseTerms
from airflow_provider_dispatch.controller.loop import Loop, Office
from airflow_provider_dispatch.controller.metrics import Metrics
from airflow_provider_dispatch.controller.probes import ProbeRemover
from airflow_provider_dispatch.controller.queue import WorkQueue
from airflow_provider_dispatch.controller.queues import QueueMap
from airflow_provider_dispatch.controller.reading import SituationReader
from airflow_provider_dispatch.controller.watching import build_pace, build_reflectors
from airflow_provider_dispatch.exceptions import AdapterError

USER_AGENT = "dispatch-admission"
STOP_SECONDS = 10.0
"""For the steps at hand, when the program is asked to stop."""
RELEASE_SECONDS = 3.0
SWEEP_SECONDS = 60.0
_log = logging.getLogger(__name__)


def read_wall_clock() -> datetime:
    """Now, for stamps."""
    return datetime.now(UTC)


class Replica:
    """All parts of one replica, on one client.

    :param monotonic: seconds of a clock that never steps.
    :param wall: now.
    :param patience_seconds: how long a missing right is borne; None means for ever, since somebody may give it.
    """

    def __init__(
        self,
        client: KubeClient,
        config: ControllerConfig,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = read_wall_clock,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        patience_seconds: float | None = None,
    ) -> None:
        self.config, self.metrics, self._monotonic = config, Metrics(), monotonic
        self.queue = WorkQueue(monotonic)
        self.cache = ObjectCache(self.queue.add, monotonic)
        self.lease = LeaseKeeper(client, _build_terms(config), monotonic=monotonic, wall=wall)
        self.journal = Journal(client, self.metrics, reporter=config.identity, wall=wall)
        self.queues = QueueMap(client, self.cache, config.namespaces)
        self.reader = SituationReader(client, self.cache, self.queues, config.admission_check)
        self.writer = Writer(
            client,
            lease=self.lease,
            cache=self.cache,
            journal=self.journal,
            check=config.admission_check,
            wall=wall,
            lifts=config.lifts,
        )
        self.loop = self._build_loop(client, wall)
        self.metrics.queue_depth.set_function(lambda: self.queue.depth)
        self.metrics.lease_held.set_function(lambda: self.lease.is_held)
        self.metrics.jobs.set_function(lambda: len(self.cache.trainjobs()))
        self.check = CheckKeeper(client, self.lease, config.admission_check, wall=wall)
        pace = build_pace(config, monotonic=monotonic, sleep=sleep, patience_seconds=patience_seconds)
        self.reflectors = build_reflectors(client, config.namespaces, self.cache, self.metrics, pace=pace)

    def _build_loop(self, client: KubeClient, wall: Callable[[], datetime]) -> Loop:
        keeper = Keeper(client, self.cache, self.reader, self.writer, self.journal, wall=wall)
        settings = self.config.build_decision_settings()
        office = Office(
            self.cache,
            self.queue,
            self.lease,
            self.reader,
            self.writer,
            keeper,
            ProbeRemover(client, self.writer, self.journal, wall=wall),
            self.journal,
            settings,
            wall,
        )
        return Loop(office)

    @property
    def is_ready(self) -> bool:
        """Every watch has listed what there is."""
        return all(reflector.listed.is_set() for reflector in self.reflectors)

    async def run(self, stop: asyncio.Event) -> None:
        """Work until *stop*, then finish the steps at hand and give the Lease up.

        :raises ExceptionGroup: a part has ended by itself.
        """
        try:
            async with asyncio.TaskGroup() as group:
                # The Lease is renewed until the last step is finished.
                parts = [group.create_task(part, name=name) for name, part in self._build_parts().items()]
                workers = [group.create_task(self._work(), name=f"worker {n}") for n in range(self.config.workers)]
                await stop.wait()
                _log.info("stopping")
                self.queue.close()
                await self._finish(workers)
                for part in parts:
                    part.cancel()
        finally:
            await self._release()

    def _build_parts(self) -> dict[str, Coroutine[None, None, None]]:
        watches = {reflector.title: reflector.run() for reflector in self.reflectors}
        return watches | {
            "lease": self.lease.keep(),
            "events": self.journal.write(),
            "check": self.check.keep(),
            "sweep": self._sweep(),
        }

    async def see_all(self) -> None:
        """Wait until every watch has listed what there is: a job without its pods would look ready."""
        for reflector in self.reflectors:
            await reflector.listed.wait()

    async def _work(self) -> None:
        await self.see_all()
        await self.loop.work()

    async def _finish(self, workers: list[asyncio.Task[None]]) -> None:
        _done, late = await asyncio.wait(workers, timeout=STOP_SECONDS)
        for worker in late:
            _log.warning("%s has not finished in %g s and is cut off", worker.get_name(), STOP_SECONDS)
            worker.cancel()

    async def _release(self) -> None:
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                await self.lease.release()
        except (AdapterError, TimeoutError) as error:
            _log.warning("the Lease can't be given up, it will run out: %s", error)

    async def _sweep(self) -> None:
        """Forget what is old, learn what is seldom asked for, and look at every job now and then."""
        looked_at = self._monotonic()
        while True:
            await self.queues.refresh()
            await asyncio.sleep(SWEEP_SECONDS)
            trainjobs = self.cache.trainjobs()
            self.cache.sweep()
            self.reader.forget_others({job_key(trainjob) for trainjob in trainjobs})
            if self._monotonic() - looked_at >= self.config.relist_seconds:
                looked_at = self._monotonic()
                for trainjob in trainjobs:
                    self.queue.add(fields.uid(trainjob))


async def serve(config: ControllerConfig, stop: asyncio.Event) -> None:
    """Run one replica against the cluster that the settings name.

    :raises SpecError: the kubeconfig can't be used.
    """
    client = await open_client(config.build_client_settings(), user_agent=USER_AGENT)
    async with client:
        replica = Replica(client, config)
        server = HealthServer(
            replica.metrics,
            lambda: replica.is_ready,
            address=config.bind_address,
            port=config.health_port,
            metrics_port=config.metrics_port,
        )
        async with server:
            await replica.run(stop)


def _build_terms(config: ControllerConfig) -> LeaseTerms:
    return LeaseTerms(
        config.lease_namespace,
        config.lease_name,
        config.identity,
        config.lease_duration_seconds,
        config.lease_renew_seconds,
    )
