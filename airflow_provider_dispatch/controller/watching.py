# SPDX-License-Identifier: Apache-2.0
"""Keeps the cache up to date: for each kind and namespace one list, then one watch from there on.

A watch that ends goes on from its last version; one that breaks or whose version is too old begins anew with a list,
after a growing pause. The runner starts one task for each. Reads only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.resources import (
    JOBSETS,
    PODS,
    TRAINING_RUNTIMES,
    TRAINJOBS,
    WORKLOADS,
    Resource,
)
from airflow_provider_dispatch.controller.cache import ObjectCache
from airflow_provider_dispatch.controller.metrics import Metrics
from airflow_provider_dispatch.controller.queue import BackOff
from airflow_provider_dispatch.exceptions import CapabilityError, DispatchError

SELECTORS = {
    TRAINJOBS: words.JOB_LABEL,
    JOBSETS: words.JOB_LABEL,
    PODS: words.JOB_LABEL,
    TRAINING_RUNTIMES: words.JOB_LABEL,
    # Kueue copies no label of ours, and what others wait for matters too.
    WORKLOADS: "",
}
LONGEST_WATCH_SECONDS = 290
"""The server ends a watch after this time, and the next goes on where it ended."""
UNSERVED_SECONDS = 60.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WatchTarget:
    """One kind in one namespace; None means all namespaces."""

    resource: Resource
    namespace: str | None

    @property
    def title(self) -> str:
        """For the log."""
        return f"{self.resource.plural} in {self.namespace or 'all namespaces'}"


class CacheFeeder:
    """One watch; *listed* is set once it has seen what there is.

    :param relist_seconds: after which it begins anew with a list, whatever the watch says.
    """

    def __init__(
        self,
        client: KubeClient,
        target: WatchTarget,
        cache: ObjectCache,
        metrics: Metrics,
        *,
        relist_seconds: float,
        monotonic: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.target = target
        self.listed = asyncio.Event()
        self._client, self._cache, self._metrics = client, cache, metrics
        self._relist_seconds, self._monotonic, self._sleep = relist_seconds, monotonic, sleep
        self._back_off = BackOff(first_seconds=0.5, longest_seconds=30.0)

    async def feed(self) -> None:
        """Go on until cancelled."""
        while True:
            try:
                await self.list_and_watch()
                self._back_off.reset("")
            except CapabilityError as error:
                # A cluster without Kueue: there is nothing to see, and nothing to wait for.
                if not self.listed.is_set():
                    _log.warning("%s aren't watched: %s", self.target.title, error)
                self.listed.set()
                await self._sleep(UNSERVED_SECONDS)
            except DispatchError as error:
                pause = self._back_off.next_pause("")
                _log.warning("watching %s breaks, beginning anew in %.1f s: %s", self.target.title, pause, error)
                await self._sleep(pause)

    async def list_and_watch(self) -> None:
        """List, then follow the changes until it is time to list again."""
        version = await self.list_all()
        until = self._monotonic() + self._relist_seconds
        while self._monotonic() < until:
            version = await self._follow(version, until)
            self._back_off.reset("")

    async def list_all(self) -> str:
        """Show the cache all that is there; the version to watch from."""
        resource, namespace = self.target.resource, self.target.namespace
        self._metrics.watch_restarts.labels(resource.plural).inc()
        listed = await self._client.list(resource, namespace, labels=SELECTORS[resource])
        self._cache.replace(resource, namespace, listed.items)
        self.listed.set()
        return listed.resource_version

    async def _follow(self, version: str, until: float) -> str:
        """One watch to its end; the version to go on from."""
        resource, namespace = self.target.resource, self.target.namespace
        left = max(1, round(min(until - self._monotonic(), self._relist_seconds)))
        events = self._client.watch(
            resource,
            namespace,
            labels=SELECTORS[resource],
            resource_version=version,
            timeout_seconds=min(left, LONGEST_WATCH_SECONDS),
        )
        async with aclosing(events) as stream:
            async for event in stream:
                version = event.resource_version or version
                if event.type == "DELETED":
                    self._cache.remove(resource, event.object)
                elif event.type in ("ADDED", "MODIFIED"):
                    self._cache.put(resource, event.object)
        return version
