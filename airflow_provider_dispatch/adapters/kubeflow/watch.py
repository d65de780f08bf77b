# SPDX-License-Identifier: Apache-2.0
"""One watch for all who wait in an event loop for jobs of one namespace of one cluster.

Per kind there is one reflector, whoever waits and for however many jobs; each change is told to those whose job it
concerns. So the cost for the API server is that of waiting for one job, and afterwards that of the changes. Who comes
late is told the present state at once, but for the TrainJob itself, which is read anew: a watch may lag behind, and
nobody must be told of a job that has just been started that it is gone.

The adapter's ``watch`` and ``stop`` use it. Writes nothing. It ends with its last subscriber.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import replace
from typing import Self, TypeVar
from weakref import WeakKeyDictionary

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient, open_client
from airflow_provider_dispatch.adapters.kubeflow.fetching import fetch_ledger
from airflow_provider_dispatch.adapters.kubeflow.job_cache import SELECTORS, JobCache
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.object_set import ObjectSet
from airflow_provider_dispatch.adapters.kubeflow.model.resources import TRAINJOBS
from airflow_provider_dispatch.adapters.kubeflow.reflecting import BackOff, Pace, Reflector
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings
from airflow_provider_dispatch.adapters.kubeflow.targets import Target, build_job_selector, job_of
from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.exceptions import DispatchError, UnavailableError

USER_AGENT = "airflow-provider-dispatch/watch"
REFRESH_SLICES = 10
MOST_SINGLE_LOOKS = 16
_log = logging.getLogger(__name__)

T = TypeVar("T")
ClientFactory = Callable[[], Awaitable[KubeClient]]


class Subscription:
    """One waiter: the newest objects of its targets that it has not taken yet."""

    def __init__(self, watch: ClusterWatch, targets: Iterable[Target]) -> None:
        self.targets = frozenset(targets)
        self.jobs = frozenset(map(job_of, self.targets))
        self.is_greeted = False
        self._watch = watch
        self._woken = asyncio.Event()
        self._told: dict[Target, ObjectSet] = {}
        self._failure: DispatchError | None = None

    async def take(self) -> dict[Target, ObjectSet]:
        """What has changed since the last call, waiting until something has; first, how things are.

        Every half minute the same is told again, for what time alone changes.

        :raises DispatchError: the cluster refuses to be watched; never an UnavailableError of the cluster's.
        """
        await self._woken.wait()
        self._woken.clear()
        if self._failure is not None:
            raise self._failure
        told, self._told = self._told, {}
        return told

    def close(self) -> None:
        """Wait for nothing any more."""
        self._watch.remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def tell(self, target: Target, objects: ObjectSet) -> None:
        """Called by the watch."""
        self._told[target] = objects
        self._woken.set()

    def fail(self, failure: DispatchError) -> None:
        """Called by the watch when it can't go on."""
        self._failure = failure
        self._woken.set()


class ClusterWatch:
    """The watch of one namespace in one event loop."""

    def __init__(self, open_client: ClientFactory, namespace: str, *, pace: Pace | None = None) -> None:
        self._open_client, self._namespace, self._pace = open_client, namespace, pace or Pace()
        self._subscriptions: dict[JobID, set[Subscription]] = {}
        self._session: _Session | None = None

    def subscribe(self, targets: Iterable[Target]) -> Subscription:
        """Begin to wait; for no target, nothing is looked at."""
        subscription = Subscription(self, targets)
        if not subscription.targets:
            return subscription
        for job in subscription.jobs:
            self._subscriptions.setdefault(job, set()).add(subscription)
        if self._session is None:
            self._session = _Session(self, self._open_client, self._namespace, self._pace)
        self._session.greet(subscription)
        return subscription

    def remove(self, subscription: Subscription) -> None:
        """End a subscription; the last one ends the watch."""
        for job in subscription.jobs:
            waiters = self._subscriptions.get(job, set())
            waiters.discard(subscription)
            if not waiters:
                self._subscriptions.pop(job, None)
        if not self._subscriptions and self._session is not None:
            self._session.stop()
            self._session = None

    def list_waiters(self, job: JobID) -> tuple[Subscription, ...]:
        """Who waits for a job and knows already how it is."""
        return tuple(waiter for waiter in self._subscriptions.get(job, ()) if waiter.is_greeted)

    def list_jobs(self) -> tuple[JobID, ...]:
        """All jobs that somebody waits for."""
        return tuple(self._subscriptions)

    def fail(self, session: object, failure: DispatchError) -> None:
        """Called by a session that can't go on. Whoever comes later begins another."""
        if session is self._session:
            self._session = None
            for waiter in {waiter for waiters in self._subscriptions.values() for waiter in waiters}:
                waiter.fail(failure)


class _Session:
    """One client, one reflector a kind, and what tells of their changes; from the first subscriber to the last."""

    def __init__(self, watch: ClusterWatch, open_client: ClientFactory, namespace: str, pace: Pace) -> None:
        self._watch, self._open_client, self._namespace, self._pace = watch, open_client, namespace, pace
        self._cache = JobCache(namespace, self._wake)
        self._has_begun = False
        self._changed: set[JobID] = set()
        self._leaving: set[JobID] = set()
        self._newcomers: list[Subscription] = []
        self._unseen: set[JobID] = set()
        self._woken, self._visited = asyncio.Event(), asyncio.Event()
        # In a context of its own: what it logs belongs to none of its subscribers.
        self._task = asyncio.create_task(self._run(), name="dispatch-watch", context=contextvars.Context())
        self._task.add_done_callback(self._end)

    def greet(self, subscription: Subscription) -> None:
        """Tell a newcomer how things are, soon."""
        self._newcomers.append(subscription)
        if self._has_begun:
            # Otherwise the first list is still to come, and as good as a look of its own.
            self._unseen |= subscription.jobs
        self._visited.set()

    def stop(self) -> None:
        """End everything. Nobody waits for it."""
        self._task.cancel()

    def _end(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if not isinstance(error, DispatchError):
            _log.error("the watch of %s has died", self._namespace, exc_info=error)
            error = UnavailableError("the watch of the cluster has died; the log says why")
        self._watch.fail(self, error)

    async def _run(self) -> None:
        async with await self._open() as client, asyncio.TaskGroup() as tasks:
            self._has_begun = True
            reflectors = [
                Reflector(client, resource, self._namespace, labels=labels, sink=self._cache, pace=self._pace)
                for resource, labels in SELECTORS.items()
            ]
            for reflector in reflectors:
                tasks.create_task(reflector.run())
            for reflector in reflectors:
                await reflector.listed.wait()
            tasks.create_task(self._greet_newcomers(client))
            tasks.create_task(self._tell_changes(client, tasks))
            tasks.create_task(self._refresh())

    async def _open(self) -> KubeClient:
        back_off = BackOff(self._pace)
        while True:
            try:
                return await self._open_client()
            except UnavailableError as error:
                await back_off.pause(f"opening the watch of {self._namespace}", error)

    def _wake(self, job: JobID) -> None:
        self._changed.add(job)
        self._woken.set()

    async def _greet_newcomers(self, client: KubeClient) -> None:
        while True:
            await self._visited.wait()
            await self._pace.sleep(self._pace.coalesce_seconds)
            self._visited.clear()
            newcomers, self._newcomers = self._newcomers, []
            unseen, self._unseen = self._unseen, set()
            await self._look_for(client, unseen)
            for newcomer in newcomers:
                newcomer.is_greeted = True
                for job in newcomer.jobs:
                    self._wake(job)

    async def _look_for(self, client: KubeClient, jobs: Collection[JobID]) -> None:
        """Read the TrainJobs of newcomers: each by itself, or when many come at once all in one list."""
        selectors = [build_job_selector(job) for job in jobs]
        if len(selectors) > MOST_SINGLE_LOOKS:
            selectors = [SELECTORS[TRAINJOBS]]
        look, nothing = functools.partial(self._fetch_trainjobs, client, selectors), tuple[Raw, ...]()
        for trainjob in await self._persist("reading newcomers' jobs", look, default=nothing):
            self._cache.put(TRAINJOBS, trainjob)

    async def _fetch_trainjobs(self, client: KubeClient, selectors: Iterable[str]) -> tuple[Raw, ...]:
        lists = (client.list(TRAINJOBS, self._namespace, labels=selector) for selector in selectors)
        return tuple(raw for answer in await asyncio.gather(*lists) for raw in answer.items)

    async def _tell_changes(self, client: KubeClient, tasks: asyncio.TaskGroup) -> None:
        while True:
            await self._woken.wait()
            await self._pace.sleep(self._pace.coalesce_seconds)
            self._woken.clear()
            changed, self._changed = self._changed, set()
            for job in changed:
                # After a list it may be a thousand: let others have their turn.
                await asyncio.sleep(0)
                if not self._tell(job) and job not in self._leaving:
                    self._leaving.add(job)
                    tasks.create_task(self._tell_leaving(client, job))

    async def _tell_leaving(self, client: KubeClient, job: JobID) -> None:
        """Of a job without a TrainJob the ledger alone knows why."""
        read = functools.partial(fetch_ledger, client, self._namespace, job)
        ledger = await self._persist(f"reading the ledger of {job}", read, default=None)
        self._leaving.discard(job)
        self._tell(job, (ledger,))

    def _tell(self, job: JobID, ledgers: tuple[Raw | None, ...] = ()) -> bool:
        """Tell those who wait for a job; False when some could not be told, because it takes the ledger."""
        is_complete = True
        for waiter in self._watch.list_waiters(job):
            for target in waiter.targets:
                if job_of(target) != job:
                    continue
                objects = self._cache.select(target)
                if not _is_leaving(objects):
                    waiter.tell(target, objects)
                elif ledgers:
                    waiter.tell(target, replace(objects, ledger=ledgers[0]))
                else:
                    is_complete = False
        return is_complete

    async def _refresh(self) -> None:
        """Tell everybody again, spread over the time."""
        while True:
            for index in range(REFRESH_SLICES):
                await self._pace.sleep(self._pace.refresh_seconds / REFRESH_SLICES)
                for job in self._watch.list_jobs():
                    if hash(job) % REFRESH_SLICES == index:
                        self._tell(job)

    async def _persist(self, what: str, read: Callable[[], Awaitable[T]], *, default: T) -> T:
        """Read until there is an answer; *default* when there will be none."""
        back_off = BackOff(self._pace)
        while True:
            try:
                return await read()
            except UnavailableError as error:
                await back_off.pause(what, error)
            except DispatchError as error:
                _log.warning("%s: %s", what, error)
                return default


def _is_leaving(objects: ObjectSet) -> bool:
    return objects.trainjob is None or fields.is_deleting(objects.trainjob)


_watches: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str | None, ...], ClusterWatch]] = WeakKeyDictionary()


def find_watch(settings: KubeflowSettings) -> ClusterWatch:
    """The watch of a cluster's namespace in the running event loop, whatever connection names it."""

    async def open_own() -> KubeClient:
        return await open_client(settings, user_agent=USER_AGENT)

    watches = _watches.setdefault(asyncio.get_running_loop(), {})
    place = (settings.kubeconfig, settings.context, settings.namespace)
    return watches.setdefault(place, ClusterWatch(open_own, settings.namespace))
