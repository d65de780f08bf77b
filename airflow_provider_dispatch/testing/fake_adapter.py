# SPDX-License-Identifier: Apache-2.0
"""The thirteen verbs over :class:`.fake_backend.FakeBackend`. Any number of adapters may look at one backend.

Tests give it to what they test, by the registry or as an argument. It refuses what the local adapter refuses, in the
same words, and never moves the backend's clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from airflow_provider_dispatch.adapters.local.lifecycle import intents
from airflow_provider_dispatch.adapters.local.lifecycle.derive import derive_observation, derive_submission_state
from airflow_provider_dispatch.adapters.local.lifecycle.status import Key, Status, Submission
from airflow_provider_dispatch.adapters.protocol import DispatchAdapter, OutputRequest
from airflow_provider_dispatch.core.capabilities import (
    Answer,
    Capability,
    Finding,
    Preflight,
    Source,
    check_may_start,
)
from airflow_provider_dispatch.core.holds import Hold, HoldRequest
from airflow_provider_dispatch.core.identity import JobID, build_epoch
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.core.output import OutputLine
from airflow_provider_dispatch.core.owner import Owner
from airflow_provider_dispatch.core.records import (
    JobEvent,
    JobRecord,
    JobSelector,
    ObjectReport,
    StartRequest,
    StopReport,
    SubmissionRecord,
)
from airflow_provider_dispatch.core.state import State
from airflow_provider_dispatch.exceptions import AdapterError, JobNotFoundError, UnavailableError
from airflow_provider_dispatch.testing.fake_backend import FakeBackend

YES = Finding(Answer.YES, Source.DECLARED, "the fake can")


class FakeAdapter(DispatchAdapter):
    """An adapter for tests.

    :param backend: the world; shared freely, also between threads.
    :param patience: real time that `stop` waits for processes that need the world's clock to move.
    """

    name = "fake"

    def __init__(self, backend: FakeBackend, *, patience: timedelta = timedelta(0)) -> None:
        self.backend = backend
        self.capabilities = dict.fromkeys(Capability, YES)
        self.failures: list[AdapterError] = []
        self.calls: list[str] = []
        self.judged: JobSpec | None = None
        self._patience = patience

    async def preflight(self, spec: JobSpec | None = None) -> Preflight:
        """Says what :attr:`capabilities` says; keeps a job that was to be judged as :attr:`judged`."""
        self._called("preflight")
        self.judged = spec
        return Preflight({"fake": YES}, self.capabilities, datetime.now(UTC))

    async def start(self, request: StartRequest, *, deadline: datetime) -> JobRef:
        """See the protocol."""
        self._called("start", deadline)
        check_may_start(self.capabilities)
        world = self.backend
        with world.lock:
            found = [(world.submissions[key], world.statuses[key]) for key in self._keys(request.job)]
            ledger, deployment = world.ledger.get(request.job, 0), world.deployments.get(request.job)
            same = intents.check_start(request, ledger, deployment, found)
            if same is not None:
                return same.ref
            queues = None if world.config.has_open_queues else {queue.name: queue for queue in world.config.queues}
            queue = intents.resolve_queue(request.spec.queue, queues)
            priority = intents.resolve_priority(request.spec.priority, world.priorities)
            ref = JobRef(request.job, request.submission, self.name, world.place)
            world.ledger[request.job] = request.submission
            world.deployments[request.job] = request.owner.deployment
            world.change_intent(Submission(ref, request, world.now, queue, priority))
            return ref

    async def open(self, ref: JobRef, *, deadline: datetime) -> None:
        """See the protocol."""
        self._called("open", deadline)
        self._change(ref, lambda submission, _: intents.open_gate(submission, self.backend.now))

    async def inspect(self, ref: JobRef | JobID) -> Observation:
        """See the protocol."""
        self._called("inspect")
        return self._observe(ref)

    async def watch(self, refs: Sequence[JobRef | JobID]) -> AsyncIterator[Observation]:
        """See the protocol."""
        seen: dict[JobRef | JobID, Observation] = {}
        async with aclosing(self._told({_job_of(ref) for ref in refs})) as told:
            async for _ in told:
                for ref in refs:
                    now = self._observe(ref)
                    if ref not in seen or replace(now, observed_at=None) != replace(seen[ref], observed_at=None):
                        seen[ref] = now
                        yield now
                if all(isinstance(ref, JobRef) and seen[ref].is_over for ref in refs):
                    return

    async def output(self, ref: JobRef, request: OutputRequest) -> AsyncIterator[OutputLine]:
        """See the protocol."""
        role = request.role or self._leader(ref)
        given, count = 0, request.cursor.sequence if request.cursor is not None else 0
        execution = request.cursor.execution if request.cursor is not None else None
        async with aclosing(self._told({ref.job})) as told:
            async for _ in told:
                seen = self._observe(ref)
                numbers = self._executions(ref, role, request)
                for number in (n for n in numbers if execution is None or n >= execution):
                    count = count if number == execution else 0
                    execution = number
                    for line in self.backend.output[(ref.job, ref.submission), number, role, request.rank][count:]:
                        yield line
                        count, given = count + 1, given + 1
                        if given == request.most_lines:
                            return
                if not request.follow or seen.is_over:
                    return

    async def hold(self, ref: JobRef | JobID, request: HoldRequest, *, deadline: datetime) -> Hold:
        """See the protocol."""
        self._called("hold", deadline)
        placed: list[Hold] = []

        def place(submission: Submission, status: Status) -> Submission:
            held, hold = intents.hold(submission, status, request, self.backend.now)
            placed.append(hold)
            return held

        self._change(ref, place)
        return placed[0]

    async def release(self, ref: JobRef | JobID, hold: Hold, *, deadline: datetime) -> tuple[Hold, ...]:
        """See the protocol."""
        self._called("release", deadline)
        return self._change(ref, lambda submission, _: intents.release(submission, hold)).holds.active

    async def stop(self, job: JobID, *, reason: str, deadline: datetime, if_owner: Owner | None = None) -> StopReport:
        """See the protocol. Waits in real time at most *patience*, because only tests move the world's clock."""
        self._called("stop", deadline)
        world = self.backend
        with world.lock:
            keys = self._keys(job)
            if if_owner is not None and keys:
                intents.check_owner(world.submissions[keys[-1]], if_owner)
            for key in keys:
                world.change_intent(intents.stop(world.submissions[key], reason, world.now))
        await self._wait_until_gone(job)
        left = self._keys(job)
        named = {key: ObjectReport(f"submission {key[1]}") for key in keys}
        return StopReport(
            job,
            stopped=tuple(report for key, report in named.items() if key not in left),
            alive=tuple(report for key, report in named.items() if key in left),
        )

    async def adopt(self, ref: JobRef, owner: Owner, *, expected: Owner, deadline: datetime) -> None:
        """See the protocol."""
        self._called("adopt", deadline)
        self._change(ref, lambda submission, _: intents.adopt(submission, owner, expected))

    async def find(self, job: JobID) -> JobRecord:
        """See the protocol."""
        self._called("find")
        with self.backend.lock:
            return JobRecord(job, self.backend.ledger.get(job, 0), tuple(self._record(key) for key in self._keys(job)))

    async def list(self, selector: JobSelector) -> tuple[SubmissionRecord, ...]:
        """See the protocol."""
        self._called("list")
        with self.backend.lock:
            newest = {key[0]: key for key in sorted(self.backend.submissions)}
            # The ledger has the jobs in the order of their first start.
            records = [self._record(newest[job]) for job in self.backend.ledger if job in newest]
        return tuple(record for record in records if selector.matches(record))

    async def events(self, ref: JobRef | JobID) -> tuple[JobEvent, ...]:
        """See the protocol."""
        self._called("events")
        history = self.backend.history.get(_job_of(ref), [])
        return tuple(e for e in history if not isinstance(ref, JobRef) or e.submission == ref.submission)

    async def close(self) -> None:
        """Nothing to let go of."""

    # ----------------------------------------------------------------------------------------------------------------

    async def _told(self, jobs: Collection[JobID]) -> AsyncGenerator[None]:
        """At once, and again whenever something happened to one of the jobs, be it a printed line."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def listener(of: JobID) -> None:
            if of in jobs and not loop.is_closed():
                loop.call_soon_threadsafe(changed.set)

        unlisten = self.backend.listen(listener)
        try:
            while True:
                changed.clear()
                yield
                await changed.wait()
        finally:
            unlisten()

    def _called(self, verb: str, deadline: datetime | None = None) -> None:
        self.calls.append(verb)
        if self.failures:
            raise self.failures.pop(0)
        if deadline is not None and deadline.tzinfo is None:
            raise ValueError("a deadline needs a time zone")
        if deadline is not None and deadline <= datetime.now(deadline.tzinfo):
            raise UnavailableError(f"{verb}: the call's deadline is over; nothing was written")

    def _keys(self, job: JobID) -> tuple[Key, ...]:
        return tuple(sorted(key for key in self.backend.submissions if key[0] == job))

    def _find_key(self, ref: JobRef | JobID) -> Key | None:
        intents.check_place(ref, self.name, self.backend.place)
        keys = self._keys(_job_of(ref))
        return next((key for key in reversed(keys) if not isinstance(ref, JobRef) or key[1] == ref.submission), None)

    def _change(self, ref: JobRef | JobID, change: Callable[[Submission, Status], Submission]) -> Submission:
        with self.backend.lock:
            key = self._find_key(ref)
            if key is None:
                raise JobNotFoundError(f"no such job: {ref.id if isinstance(ref, JobRef) else ref}")
            changed = change(self.backend.submissions[key], self.backend.statuses[key])
            self.backend.change_intent(changed)
            return changed

    def _observe(self, ref: JobRef | JobID) -> Observation:
        world = self.backend
        with world.lock:
            key = self._find_key(ref)
            if key is not None:
                position = world.positions().get(key)
                return derive_observation(world.submissions[key], world.statuses[key], world.now, position=position)
            known = ref if isinstance(ref, JobRef) else JobRef(ref, world.ledger.get(ref, 0), self.name, world.place)
            return intents.build_gone(known, world.stop_reasons.get(known.job), world.now)

    def _record(self, key: Key) -> SubmissionRecord:
        submission, status = self.backend.submissions[key], self.backend.statuses[key]
        return intents.build_record(submission, status, derive_submission_state(submission, status))

    def _leader(self, ref: JobRef) -> str:
        submission = self.backend.submissions.get((ref.job, ref.submission))
        return submission.request.spec.leader.name if submission is not None else ""

    def _executions(self, ref: JobRef, role: str, request: OutputRequest) -> tuple[int, ...]:
        key = (ref.job, ref.submission)
        numbers = tuple(sorted(n for k, n, r, rank in self.backend.output if (k, r, rank) == (key, role, request.rank)))
        if request.epoch is not None:
            return tuple(number for number in numbers if build_epoch(ref.submission, number) == request.epoch)
        return numbers if request.follow or request.cursor else numbers[-1:]

    async def _wait_until_gone(self, job: JobID) -> None:
        async def gone() -> None:
            async for seen in self.watch([job]):
                if seen.state is State.GONE:
                    return

        try:
            await asyncio.wait_for(gone(), self._patience.total_seconds())
        except TimeoutError:
            return


def _job_of(ref: JobRef | JobID) -> JobID:
    return ref.job if isinstance(ref, JobRef) else ref
