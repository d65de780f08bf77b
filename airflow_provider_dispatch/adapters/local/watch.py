# SPDX-License-Identifier: Apache-2.0
"""One thread per process and store that tells all who wait here what changes in it.

Four times a second it asks SQLite for one number; only when that has moved it reads what has changed, each job once,
and wakes those who wait for it in their own event loops. So the cost is that of the changes, not of the waiters. Every
few seconds it sees that an agent lives while there is work for one, and that waiters know their place in the queue.

Used by the adapter's ``watch``, ``stop`` and ``output``. Writes nothing. The thread ends with its last subscriber.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Self

from airflow_provider_dispatch.adapters.local.doorbell import is_agent_listening, ring
from airflow_provider_dispatch.adapters.local.launching import ensure_agent
from airflow_provider_dispatch.adapters.local.queues import QueuesFile
from airflow_provider_dispatch.adapters.local.settings import LocalSettings
from airflow_provider_dispatch.adapters.local.store import reading
from airflow_provider_dispatch.adapters.local.store.database import Database
from airflow_provider_dispatch.adapters.local.store.reading import JobView
from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.exceptions import AdapterError, DispatchError, UnavailableError

LOOK_SECONDS = 0.25
PROBE_SECONDS = 1.5
POSITIONS_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 30.0
AGENT_PATIENCE_SECONDS = 10.0
_log = logging.getLogger(__name__)


class Subscription:
    """One waiter: the newest views of its jobs that it has not taken yet. Lives in one event loop."""

    def __init__(self, watch: StoreWatch, jobs: Iterable[JobID]) -> None:
        self.jobs = frozenset(jobs)
        self._watch = watch
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self._views: dict[JobID, JobView] = {}
        self._failure: DispatchError | None = None

    async def take(self) -> dict[JobID, JobView]:
        """What has changed since the last call, waiting until something has; first, how things are.

        :raises AdapterError: the store is of no use any more.
        """
        await self._woken.wait()
        self._woken.clear()
        if self._failure is not None:
            raise self._failure
        views, self._views = self._views, {}
        return views

    def close(self) -> None:
        """Wait for nothing any more."""
        self._watch.remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def tell(self, views: Mapping[JobID, JobView], failure: DispatchError | None = None) -> None:
        """Called by the watch's thread."""
        try:
            self._loop.call_soon_threadsafe(self._receive, views, failure)
        except RuntimeError:  # the loop was closed with its waiters still in it
            self._watch.remove(self)

    def _receive(self, views: Mapping[JobID, JobView], failure: DispatchError | None) -> None:
        self._views.update(views)
        self._failure = failure or self._failure
        self._woken.set()


class StoreWatch:
    """The watch of one store."""

    def __init__(self, settings: LocalSettings) -> None:
        self._settings = settings
        self._guard = threading.Lock()
        self._hurry = threading.Event()
        self._thread: threading.Thread | None = None
        self._subscriptions: dict[JobID, set[Subscription]] = {}
        self._fresh: list[Subscription] = []

    def subscribe(self, jobs: Iterable[JobID]) -> Subscription:
        """Begin to wait for *jobs* in the running event loop; for none, nothing is looked at."""
        subscription = Subscription(self, jobs)
        if not subscription.jobs:
            return subscription
        with self._guard:
            for job in subscription.jobs:
                self._subscriptions.setdefault(job, set()).add(subscription)
            self._fresh.append(subscription)
            if self._thread is None:
                looker = _Looker(self, self._settings)
                self._thread = threading.Thread(target=self._run, args=(looker,), name="dispatch-watch", daemon=True)
                self._thread.start()
        self._hurry.set()
        return subscription

    def remove(self, subscription: Subscription) -> None:
        """End a subscription; the last one ends the thread."""
        with self._guard:
            for job in subscription.jobs:
                waiters = self._subscriptions.get(job, set())
                waiters.discard(subscription)
                if not waiters:
                    self._subscriptions.pop(job, None)
            if not self._subscriptions:
                self._hurry.set()

    def take_fresh(self) -> list[Subscription]:
        """Subscriptions that have not been told anything yet."""
        with self._guard:
            fresh, self._fresh = self._fresh, []
            return fresh

    def list_jobs(self) -> set[JobID]:
        """All jobs that somebody waits for."""
        with self._guard:
            return set(self._subscriptions)

    def tell(self, views: Mapping[JobID, JobView]) -> None:
        """Hand each view to those who wait for it."""
        with self._guard:
            told: dict[Subscription, dict[JobID, JobView]] = {}
            for job, view in views.items():
                for subscription in self._subscriptions.get(job, ()):
                    told.setdefault(subscription, {})[job] = view
        for subscription, own in told.items():
            subscription.tell(own)

    def _fail(self, failure: DispatchError) -> None:
        with self._guard:
            everybody = {waiter for waiters in self._subscriptions.values() for waiter in waiters}
        for subscription in everybody:
            subscription.tell({}, failure)

    def _run(self, looker: _Looker) -> None:
        has_ended_well = False
        try:
            while self._goes_on():
                pause = self._look(looker)
                self._hurry.wait(pause)
                self._hurry.clear()
            has_ended_well = True
        finally:
            looker.close()
            if not has_ended_well:
                self._thread = None
                self._fail(UnavailableError("the watch of the store has died; the log says why"))

    def _goes_on(self) -> bool:
        with self._guard:
            if self._subscriptions:
                return True
            self._thread = None
            return False

    def _look(self, looker: _Looker) -> float:
        """Look once; seconds until the next look."""
        try:
            looker.look()
        except UnavailableError as error:
            return looker.take_pause(error)
        except DispatchError as error:
            _log.error("the store can't be watched: %s", error)
            self._fail(error)
            return looker.take_pause(error)
        looker.reset_pause()
        return LOOK_SECONDS


class _Looker:
    """What the thread keeps between two looks."""

    def __init__(self, watch: StoreWatch, settings: LocalSettings) -> None:
        self._watch, self._settings = watch, settings
        self._database = Database(settings.layout)
        self._version = self._opening = -1
        self._sequence = 0
        self._positions: dict[JobID, int] = {}
        self._positions_version = -1
        self._positions_at = self._probe_at = time.monotonic()
        self._busy: set[JobID] = set()
        self._hopeless: set[JobID] = set()
        self._queues: QueuesFile | None = None
        self._pause = LOOK_SECONDS
        self._agent_pause = PROBE_SECONDS

    def look(self) -> None:
        fresh = self._watch.take_fresh()
        jobs = {job for subscription in fresh for job in subscription.jobs}
        now = time.monotonic()
        try:
            # Before the changes: one that comes between the two is read now and once more at the next look.
            version = self._database.fetch_data_version()
            if jobs or version != self._version or self._opening != self._database.openings:
                self._read(jobs)
                self._version = version
            if now >= self._positions_at + POSITIONS_SECONDS:
                self._refresh_positions(now)
        except DispatchError:
            self._forget(fresh)
            raise
        if now >= self._probe_at:
            self._probe(now)

    def _read(self, jobs: Collection[JobID]) -> None:
        watched = self._watch.list_jobs()
        with self._database.read() as connection:
            changes = reading.fetch_changes(connection, self._sequence)
            is_resync = changes is None or self._opening != self._database.openings
            changed = watched if is_resync else {change.job for change in changes or ()}
            wanted = (changed & watched) | set(jobs)
            views = {job: reading.fetch_placed_view(connection, job) for job in wanted}
            self._sequence = reading.fetch_last_change(connection)
        self._opening = self._database.openings
        self._note(views, watched)
        self._watch.tell(views)
        if any(change.kind == reading.INTENT for change in changes or ()):
            # Whoever wrote it may have died before it rang.
            ring(self._settings.layout)

    def _note(self, views: Mapping[JobID, JobView], watched: Collection[JobID]) -> None:
        for job, view in views.items():
            (self._busy.add if view.needs_agent else self._busy.discard)(job)
            (self._hopeless.add if view.is_hopeless else self._hopeless.discard)(job)
            if view.position is not None:
                self._positions[job] = view.position
            else:
                self._positions.pop(job, None)
        self._busy &= set(watched) | views.keys()
        self._hopeless &= set(watched) | views.keys()
        for job in self._positions.keys() - set(watched) - views.keys():
            del self._positions[job]

    def _refresh_positions(self, now: float) -> None:
        """Others move up when one leaves the queue: the one thing about a job that changes without it."""
        self._positions_at = now
        if not self._positions or self._positions_version == self._version:
            return
        with self._database.read() as connection:
            positions = reading.fetch_positions(connection, self._positions)
            moved = [job for job, position in positions.items() if position != self._positions[job]]
            views = {job: replace(reading.fetch_view(connection, job), position=positions[job]) for job in moved}
        self._positions_version = self._version
        self._note(views, self._watch.list_jobs())
        self._watch.tell(views)

    def _probe(self, now: float) -> None:
        """See that an agent lives while there is something for it to do."""
        self._probe_at = now + PROBE_SECONDS
        if self._hopeless and (self._queues is None or self._queues.has_changed()):
            # Only other queues can help them, and nobody rings when a person has edited the file.
            self._queues = QueuesFile(self._settings.layout.queues)
            self._ensure_agent()
        if not self._busy or is_agent_listening(self._settings.layout):
            self._agent_pause = PROBE_SECONDS
            return
        _log.warning(
            "no agent lives for the store in %s, though there is work; starting one", self._settings.layout.folder
        )
        self._ensure_agent()
        # One that dies at once is tried again, but ever more seldom.
        self._probe_at = time.monotonic() + self._agent_pause
        self._agent_pause = min(2 * self._agent_pause, LONGEST_PAUSE_SECONDS)

    def _ensure_agent(self) -> None:
        try:
            ensure_agent(self._settings, AGENT_PATIENCE_SECONDS)
        except AdapterError as error:
            _log.error("%s", error)

    def _forget(self, fresh: list[Subscription]) -> None:
        """They have not been told how things are; the next look begins anew."""
        if fresh:
            self._opening = -1

    def take_pause(self, error: DispatchError) -> float:
        if self._pause == LOOK_SECONDS:
            _log.warning("the store can't be watched now, trying again: %s", error)
        self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)
        return self._pause

    def reset_pause(self) -> None:
        self._pause = LOOK_SECONDS

    def close(self) -> None:
        self._database.close()


_watches: dict[tuple[int, Path], StoreWatch] = {}
_watches_guard = threading.Lock()


def find_watch(settings: LocalSettings) -> StoreWatch:
    """The watch of a store in this process. A fork has none of its parent's threads, so it gets another."""
    with _watches_guard:
        return _watches.setdefault((os.getpid(), settings.layout.folder), StoreWatch(settings))
