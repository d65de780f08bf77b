# SPDX-License-Identifier: Apache-2.0
"""Jobs as TrainJobs of a cluster: the verbs, each handed to the module that knows it.

Made by the registry. It keeps the connection, the clock and what was lately found good about the cluster; it decides
nothing about a job.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime

from airflow_provider_dispatch.adapters.kubeflow import finding, holding, opening, ownership, starting, stopping
from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient, open_client
from airflow_provider_dispatch.adapters.kubeflow.leftovers import Leftovers
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.observing import Observer
from airflow_provider_dispatch.adapters.kubeflow.output import read_output
from airflow_provider_dispatch.adapters.kubeflow.preflight import run_preflight
from airflow_provider_dispatch.adapters.kubeflow.queue_lookup import QueueMemory
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings, parse_settings
from airflow_provider_dispatch.adapters.kubeflow.targets import Target, check_place, job_of
from airflow_provider_dispatch.adapters.kubeflow.watch import find_watch
from airflow_provider_dispatch.adapters.protocol import DispatchAdapter, OutputRequest
from airflow_provider_dispatch.core.capabilities import Preflight, describe_age, explain_unproved
from airflow_provider_dispatch.core.holds import Hold, HoldRequest
from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.core.output import OutputLine
from airflow_provider_dispatch.core.owner import Owner
from airflow_provider_dispatch.core.records import (
    JobEvent,
    JobRecord,
    JobSelector,
    StartRequest,
    StopReport,
    SubmissionRecord,
)

ClientFactory = Callable[[KubeflowSettings], Awaitable[KubeClient]]
Clock = Callable[[], datetime]

_log = logging.getLogger(__name__)
_memory = QueueMemory()
"""Shared by the adapters of this process: a hook makes one for each call."""


def _read_clock() -> datetime:
    return datetime.now(UTC)


def build_adapter(settings: Mapping[str, object]) -> KubeflowAdapter:
    """What the registry calls.

    :raises SpecError: a wrong setting.
    """
    return KubeflowAdapter(parse_settings(settings))


class KubeflowAdapter(DispatchAdapter):
    """One namespace of one cluster.

    :param open_client: makes the connection, on first use.
    """

    name = words.BACKEND

    def __init__(
        self,
        settings: KubeflowSettings,
        *,
        open_client: ClientFactory = open_client,
        memory: QueueMemory = _memory,
        clock: Clock = _read_clock,
    ) -> None:
        self._settings, self._open_client, self._memory, self._clock = settings, open_client, memory, clock
        self._opening = asyncio.Lock()
        self._client: KubeClient | None = None
        self._observer: Observer | None = None

    async def preflight(self, spec: JobSpec | None = None) -> Preflight:
        """See the protocol. Watches a job of its own for some seconds; for a minute a `start` goes by the outcome."""
        found = await run_preflight(await self._connect(), self._settings, now=self._clock(), spec=spec)
        self._memory.keep(self._settings, found)
        return found

    async def start(self, request: StartRequest, *, deadline: datetime) -> JobRef:
        """See the protocol. Returns once Kueue has made the job's Workload; in plain mode once it is created."""
        client, now = await self._connect(), self._clock()
        return await starting.start(client, self._settings, request, memory=self._memory, deadline=deadline, now=now)

    async def open(self, ref: JobRef, *, deadline: datetime) -> None:
        """See the protocol. Also on a cluster that isn't proved, which is logged: nothing new is made."""
        client, now = await self._connect(), self._clock()
        self._warn_if_unproved("opened", ref, now)
        await opening.open_gate(client, self._settings, _fold_ref(ref), deadline=deadline, now=now)

    async def inspect(self, ref: JobRef | JobID) -> Observation:
        """See the protocol."""
        target = self._check(ref)
        return await (await self._observe()).inspect(target, self._clock())

    async def watch(self, refs: Sequence[JobRef | JobID]) -> AsyncIterator[Observation]:
        """See the protocol."""
        targets = dict.fromkeys(self._check(ref) for ref in refs)
        observer = await self._observe()
        seen: dict[Target, Observation] = {}
        open_ends = set(targets)
        with find_watch(self._settings).subscribe(targets) as subscription:
            while open_ends:
                for target, objects in (await subscription.take()).items():
                    now = await observer.observe(objects, target, self._clock())
                    if isinstance(target, JobRef) and now.is_over:
                        open_ends.discard(target)
                    if target not in seen or _has_changed(seen[target], now):
                        seen[target] = now
                        yield now

    async def output(self, ref: JobRef, request: OutputRequest) -> AsyncIterator[OutputLine]:
        """See the protocol. Lines of a pod are to be had while the pod is there."""
        client, ref = await self._connect(), _fold_ref(ref)
        with find_watch(self._settings).subscribe([ref] if request.follow else []) as subscription:
            lines = read_output(client, self._settings, ref, request, changes=subscription.take)
            async with aclosing(lines) as reading:
                async for line in reading:
                    yield line

    async def hold(self, ref: JobRef | JobID, request: HoldRequest, *, deadline: datetime) -> Hold:
        """See the protocol."""
        client, now = await self._connect(), self._clock()
        return await holding.hold(client, self._settings, _fold(ref), request, deadline=deadline, now=now)

    async def release(self, ref: JobRef | JobID, hold: Hold, *, deadline: datetime) -> tuple[Hold, ...]:
        """See the protocol. Also on a cluster that isn't proved, which is logged, as for :meth:`open`."""
        client, now = await self._connect(), self._clock()
        self._warn_if_unproved("released", ref, now)
        return await holding.release(client, self._settings, _fold(ref), hold, deadline=deadline, now=now)

    async def stop(self, job: JobID, *, reason: str, deadline: datetime, if_owner: Owner | None = None) -> StopReport:
        """See the protocol."""
        client, now = await self._connect(), self._clock()
        return await stopping.stop(
            client, self._settings, job, reason=reason, deadline=deadline, now=now, if_owner=if_owner
        )

    async def adopt(self, ref: JobRef, owner: Owner, *, expected: Owner, deadline: datetime) -> None:
        """See the protocol."""
        client, now = await self._connect(), self._clock()
        await ownership.adopt(
            client, self._settings, _fold_ref(ref), owner, expected=expected, deadline=deadline, now=now
        )

    async def find(self, job: JobID) -> JobRecord:
        """See the protocol."""
        return await finding.find(await self._connect(), self._settings, job, now=self._clock())

    async def list(self, selector: JobSelector) -> tuple[SubmissionRecord, ...]:
        """See the protocol."""
        return await finding.list_jobs(await self._connect(), self._settings, selector, now=self._clock())

    async def events(self, ref: JobRef | JobID) -> tuple[JobEvent, ...]:
        """See the protocol. The cluster forgets them after about an hour."""
        return await finding.events(await self._connect(), self._settings, _fold(ref))

    @property
    def leftovers(self) -> Leftovers:
        """What nobody needs any more; the command's verb `gc` asks for it."""
        return Leftovers(self._connect, self._settings, self._clock)

    async def close(self) -> None:
        """See the protocol."""
        client, self._client, self._observer = self._client, None, None
        if client is not None:
            await client.close()

    def _warn_if_unproved(self, done: str, target: Target, now: datetime) -> None:
        """Tell what a preflight of this process has found missing lately, of what every job needs."""
        found = self._memory.recall(self._settings, now)
        if found is not None and (said := explain_unproved(found.capabilities)):
            age = describe_age(found, now)
            _log.warning("job %s is %s on a cluster that isn't proved: %s (%s)", job_of(target), done, said, age)

    async def _connect(self) -> KubeClient:
        async with self._opening:
            if self._client is None:
                self._client = await self._open_client(self._settings)
            return self._client

    async def _observe(self) -> Observer:
        client = await self._connect()
        if self._observer is None or self._observer.client is not client:
            self._observer = Observer(client, self._settings)
        return self._observer

    def _check(self, target: Target) -> Target:
        check_place(target, self._settings)
        return _fold(target)


def _fold_ref(ref: JobRef) -> JobRef:
    return replace(ref, job=job_of(ref))


def _fold(target: Target) -> Target:
    return _fold_ref(target) if isinstance(target, JobRef) else job_of(target)


def _has_changed(before: Observation, now: Observation) -> bool:
    # A clock moves with a state, and each look is read anew.
    return before != replace(now, observed_at=before.observed_at, clocks=before.clocks)
