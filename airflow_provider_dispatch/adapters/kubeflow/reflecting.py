# SPDX-License-Identifier: Apache-2.0
"""Keeps a copy of one kind of objects true: a list, then one watch after the other from there on, for ever.

The shared watch runs one reflector for each kind, the controller one for each kind and namespace. Whatever breaks is
tried again after a pause that grows and differs from process to process; a slow list beneath mends what a watch may
have missed. It decides nothing about what it reads.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from airflow_provider_dispatch.adapters.kubeflow.client import (
    SILENCE_SECONDS,
    WATCH_SECONDS,
    KubeClient,
    ObjectList,
    WatchEvent,
)
from airflow_provider_dispatch.adapters.kubeflow.errors import ExpiredVersionError
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.resources import Resource
from airflow_provider_dispatch.exceptions import AdapterError, CapabilityError, DispatchError, UnavailableError

_log = logging.getLogger(__name__)


def _read_monotonic() -> float:
    return asyncio.get_running_loop().time()


@dataclass(frozen=True, slots=True)
class Pace:
    """How often things are done, and the clock, the sleeper and the lots that decide it.

    :param relist_seconds: between two lists of a kind, though its watch be well.
    :param missing_kind_seconds: between two looks for a kind that the cluster doesn't serve.
    :param patience_seconds: how long a refusal is borne once it has worked: credentials get renewed. None bears it for
        ever, and from the beginning.
    :param coalesce_seconds: changes within this time are told as one.
    :param refresh_seconds: how often is told again what hasn't changed.
    """

    first_pause_seconds: float = 0.5
    longest_pause_seconds: float = 30.0
    watch_seconds: int = WATCH_SECONDS
    silence_seconds: float = SILENCE_SECONDS
    relist_seconds: float = 900.0
    missing_kind_seconds: float = 120.0
    patience_seconds: float | None = 300.0
    coalesce_seconds: float = 0.1
    refresh_seconds: float = 30.0
    monotonic: Callable[[], float] = _read_monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    draw: Callable[[], float] = random.random

    def spread(self, seconds: float) -> float:
        """Between three quarters and five quarters of it, so that many processes don't come at the same time."""
        return seconds * (0.75 + self.draw() / 2)


class BackOff:
    """Pauses between tries, growing while they fail."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._failures = 0

    async def pause(self, what: str, error: DispatchError | None = None) -> None:
        """Sleep; longer the next time. The first failure of a row is worth a warning."""
        grown = min(self._pace.first_pause_seconds * 2 ** min(self._failures, 16), self._pace.longest_pause_seconds)
        seconds = self._pace.spread(grown)
        level = logging.INFO if self._failures else logging.WARNING
        _log.log(level, "%s goes on in %.1f s: %s", what, seconds, error or "it ended at once")
        self._failures += 1
        await self._pace.sleep(seconds)

    def reset(self) -> None:
        """A try has succeeded."""
        self._failures = 0


class Sink(Protocol):
    """Where objects go. A state that is older than one known must be passed over."""

    def replace(self, resource: Resource, listed: ObjectList) -> None:
        """These are all there are at that version."""
        ...

    def put(self, resource: Resource, raw: Raw) -> None:
        """It is there, or has changed."""
        ...

    def remove(self, resource: Resource, raw: Raw) -> None:
        """It is gone; *raw* is its last state."""
        ...


class Reflector:
    """One kind in one namespace.

    :param namespace: None means all.
    :param labels: selector, on the server's side.
    :ivar listed: set once *sink* has all that there is.
    """

    def __init__(
        self, client: KubeClient, resource: Resource, namespace: str | None, *, labels: str, sink: Sink, pace: Pace
    ) -> None:
        self.listed = asyncio.Event()
        self.title = f"the watch of {resource.plural} in {namespace or 'all namespaces'}"
        self._client, self._resource, self._namespace, self._labels = client, resource, namespace, labels
        self._sink, self._pace = sink, pace
        self._back_off = BackOff(pace)
        self._version = ""
        self._refused_since: float | None = None

    async def run(self) -> None:
        """Go on until cancelled.

        :raises DispatchError: refused from the beginning, or for long.
        """
        while True:
            try:
                await self.list_all()
                await self._watch(self._pace.monotonic() + self._pace.spread(self._pace.relist_seconds))
            except CapabilityError as error:
                _log.info("%s: %s", self.title, error)
                self._take(ObjectList((), ""))
                await self._pace.sleep(self._pace.spread(self._pace.missing_kind_seconds))
            except DispatchError as error:
                if not error.is_retryable and isinstance(error, AdapterError):
                    self._bear(error)
                await self._back_off.pause(self.title, error)

    async def list_all(self) -> None:
        """Show the sink all that there is."""
        self._take(await self._client.list(self._resource, self._namespace, labels=self._labels))

    def _take(self, listed: ObjectList) -> None:
        self._sink.replace(self._resource, listed)
        self._version = listed.resource_version
        self._refused_since = None
        self.listed.set()

    async def _watch(self, until: float) -> None:
        """Follow the changes until it is time to list again.

        :raises ExpiredVersionError: the changes since the last one are lost.
        """
        while (left := until - self._pace.monotonic()) > 0:
            began = self._pace.monotonic()
            try:
                await self._follow(left)
            except ExpiredVersionError:
                raise
            except UnavailableError as error:
                await self._back_off.pause(self.title, error)
            else:
                if self._pace.monotonic() - began < self._pace.first_pause_seconds:
                    await self._back_off.pause(self.title)

    async def _follow(self, left: float) -> None:
        """One watch to its end. Where it breaks, the next goes on."""
        events = self._client.watch(
            self._resource,
            self._namespace,
            labels=self._labels,
            resource_version=self._version,
            timeout_seconds=max(1, min(round(left), round(self._pace.spread(self._pace.watch_seconds)))),
            silence_seconds=self._pace.silence_seconds,
        )
        async with aclosing(events) as stream:
            async for event in stream:
                self._back_off.reset()
                self._pass_on(event)
                self._version = event.resource_version or self._version

    def _pass_on(self, event: WatchEvent) -> None:
        if event.type == "DELETED":
            self._sink.remove(self._resource, event.object)
        elif event.type in {"ADDED", "MODIFIED"}:
            self._sink.put(self._resource, event.object)

    def _bear(self, error: AdapterError) -> None:
        if self._pace.patience_seconds is None:
            return
        now = self._pace.monotonic()
        self._refused_since = now if self._refused_since is None else self._refused_since
        if not self.listed.is_set() or now - self._refused_since > self._pace.patience_seconds:
            raise error
