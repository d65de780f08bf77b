# SPDX-License-Identifier: Apache-2.0
"""Jobs as processes of this machine: the verbs over a store and its agent.

Made by the registry. Every verb reads or writes the store in a worker thread and, where there is work for it, wakes the
agent or starts one; it never starts, signals or waits for a process of a job itself.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from airflow_provider_dispatch.adapters.local.doorbell import is_agent_listening, ring
from airflow_provider_dispatch.adapters.local.following import OutputReader, OutputSource
from airflow_provider_dispatch.adapters.local.launching import ensure_agent
from airflow_provider_dispatch.adapters.local.lifecycle import intents as rules
from airflow_provider_dispatch.adapters.local.lifecycle.derive import derive_submission_state
from airflow_provider_dispatch.adapters.local.lifecycle.status import Status, Submission
from airflow_provider_dispatch.adapters.local.preflight import check_fit, run_preflight
from airflow_provider_dispatch.adapters.local.processes import ProcessScan
from airflow_provider_dispatch.adapters.local.queues import QueuesFile
from airflow_provider_dispatch.adapters.local.settings import LocalSettings, parse_settings
from airflow_provider_dispatch.adapters.local.shared_scan import SharedScan
from airflow_provider_dispatch.adapters.local.stopping import build_stop_report
from airflow_provider_dispatch.adapters.local.store import intents, reading
from airflow_provider_dispatch.adapters.local.store.database import Database, derive_patience
from airflow_provider_dispatch.adapters.local.store.reading import JobView
from airflow_provider_dispatch.adapters.local.watch import find_watch
from airflow_provider_dispatch.adapters.local.wording import check_text, mend_text
from airflow_provider_dispatch.adapters.protocol import DispatchAdapter, OutputRequest
from airflow_provider_dispatch.core import wire
from airflow_provider_dispatch.core.capabilities import Preflight
from airflow_provider_dispatch.core.holds import Hold, HoldRequest
from airflow_provider_dispatch.core.identity import HIGHEST_R, JobID, parse_job_id
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.core.output import Cursor, OutputLine
from airflow_provider_dispatch.core.owner import Owner
from airflow_provider_dispatch.core.records import (
    JobEvent,
    JobRecord,
    JobSelector,
    StartRequest,
    StopReport,
    SubmissionRecord,
)
from airflow_provider_dispatch.exceptions import AdapterError, ConflictError, JobNotFoundError, SpecError

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")
Target = JobRef | JobID
INSPECT_PATIENCE_SECONDS = 10.0
HIGHEST_SUBMISSION = 2**31 - 1
_log = logging.getLogger(__name__)


def build_adapter(settings: Mapping[str, object]) -> LocalAdapter:
    """What the registry calls.

    :raises SpecError: a wrong setting.
    """
    return LocalAdapter(parse_settings(settings))


class LocalAdapter(DispatchAdapter):
    """One store on this machine."""

    name = reading.BACKEND

    def __init__(self, settings: LocalSettings) -> None:
        self._settings = settings
        self._layout = settings.layout
        self._database = Database(self._layout)
        self._scan = SharedScan()

    async def preflight(self, spec: JobSpec | None = None) -> Preflight:
        """See the protocol."""
        found = await asyncio.to_thread(run_preflight, self._settings)
        if spec is not None:
            fit = await asyncio.to_thread(check_fit, self._settings, spec)
            found = replace(found, checks={**found.checks, "quota": fit})
        return replace(found, checked_at=datetime.now(UTC))

    async def start(self, request: StartRequest, *, deadline: datetime) -> JobRef:
        """See the protocol. Returns once an agent answers."""
        request = replace(request, job=parse_job_id(request.job))
        check_text(wire.dump(request.owner), "owner")
        self._check_carried(request)

        def add(connection: sqlite3.Connection) -> JobRef:
            queue, priority = QueuesFile(self._layout.queues).resolve(request.spec)
            acceptance = intents.Acceptance(queue, priority, _build_place(connection))
            return intents.add_submission(connection, request, acceptance, datetime.now(UTC))

        ref = await self._write(add, deadline)
        await self._wake(deadline)
        return ref

    async def open(self, ref: JobRef, *, deadline: datetime) -> None:
        """See the protocol."""
        await self._change(ref, lambda submission, _: rules.open_gate(submission, datetime.now(UTC)), deadline)

    async def inspect(self, ref: JobRef | JobID) -> Observation:
        """See the protocol. Starts an agent when there is work for one and none lives."""
        view, place = await asyncio.to_thread(self._read_view, ref)
        if view.needs_agent and not is_agent_listening(self._layout):
            try:
                await asyncio.to_thread(ensure_agent, self._settings, INSPECT_PATIENCE_SECONDS)
            except AdapterError as error:
                _log.warning("the state may be old: %s", error)
            view, place = await asyncio.to_thread(self._read_view, ref)
        return view.observe(_fold(ref), place, datetime.now(UTC))

    async def watch(self, refs: Sequence[JobRef | JobID]) -> AsyncIterator[Observation]:
        """See the protocol. Of a job that has ended, it also tells how its last processes end."""
        targets = dict.fromkeys(_fold(ref) for ref in refs)
        place = await asyncio.to_thread(self._read_place, targets)
        seen: dict[Target, Observation] = {}
        open_ends = set(targets)
        with find_watch(self._settings).subscribe({_job_of(target) for target in targets}) as subscription:
            while open_ends:
                views = await subscription.take()
                for target in targets:
                    view = views.get(_job_of(target))
                    if view is None:
                        continue
                    now = view.observe(target, place, datetime.now(UTC))
                    if isinstance(target, JobRef) and now.is_over and not view.has_processes(target):
                        open_ends.discard(target)
                    if target not in seen or _has_changed(seen[target], now):
                        seen[target] = now
                        yield now

    async def output(self, ref: JobRef, request: OutputRequest) -> AsyncIterator[OutputLine]:
        """See the protocol. Following looks at the size of the file four times a second while processes live."""
        view, _ = await asyncio.to_thread(self._read_view, ref)
        source, cursor = self._find_output(_fold_ref(ref), view, request)
        reader, given = OutputReader(source, cursor), 0
        with find_watch(self._settings).subscribe([source.ref.job] if request.follow else []) as subscription:
            lines = reader.follow(subscription) if request.follow else reader.read()
            async for line in lines:
                yield line
                given += 1
                if given == request.most_lines:
                    return

    async def hold(self, ref: JobRef | JobID, request: HoldRequest, *, deadline: datetime) -> Hold:
        """See the protocol."""
        check_text(wire.dump(replace(request, reason="")), "hold")
        request = replace(request, reason=mend_text(request.reason))
        placed: list[Hold] = []

        def place(submission: Submission, status: Status) -> Submission:
            changed, hold = rules.hold(submission, status, request, datetime.now(UTC))
            placed.append(hold)
            return changed

        await self._change(ref, place, deadline)
        return placed[-1]

    async def release(self, ref: JobRef | JobID, hold: Hold, *, deadline: datetime) -> tuple[Hold, ...]:
        """See the protocol."""
        changed = await self._change(ref, lambda submission, _: rules.release(submission, hold), deadline)
        return changed.holds.active

    async def stop(self, job: JobID, *, reason: str, deadline: datetime, if_owner: Owner | None = None) -> StopReport:
        """See the protocol."""
        job, said = parse_job_id(job), mend_text(reason)
        before = await self._write(
            lambda connection: intents.stop_all(connection, job, reason=said, if_owner=if_owner, now=datetime.now(UTC)),
            deadline,
        )
        if not before.pairs:
            return StopReport(job)
        try:
            await self._wake(deadline)
        except AdapterError as error:
            _log.warning("the stop of job %s is written down, but nobody carries it out yet: %s", job, error)
        after = await self._wait_until_removed(before, deadline)
        return build_stop_report(before, after, is_agent_alive=is_agent_listening(self._layout))

    async def adopt(self, ref: JobRef, owner: Owner, *, expected: Owner, deadline: datetime) -> None:
        """See the protocol."""
        check_text(wire.dump(owner), "owner")
        await self._change(ref, lambda submission, _: rules.adopt(submission, owner, expected), deadline)

    async def find(self, job: JobID) -> JobRecord:
        """See the protocol. Orphans are processes that carry the job's id and belong to no execution of an agent."""
        view, _ = await asyncio.to_thread(self._read_view, job)
        records = tuple(
            rules.build_record(submission, status, derive_submission_state(submission, status))
            for submission, status in view.pairs
        )
        return JobRecord(view.job, view.ledger, records, self._find_orphans(view, await self._scan.take()))

    def _find_orphans(self, view: JobView, scan: ProcessScan) -> tuple[str, ...]:
        own = {status.execution.identity.attempt_id for _, status in view.pairs if status.execution is not None}
        found = scan.find_attempts(view.job, folder=self._layout.job_folder(view.job))
        return tuple(
            f"process {process.pid} of attempt {process.attempt}" for process in found if process.attempt not in own
        )

    async def list(self, selector: JobSelector) -> tuple[SubmissionRecord, ...]:
        """See the protocol."""

        def read() -> tuple[SubmissionRecord, ...]:
            with self._database.read() as connection:
                newest = reading.fetch_newest(connection, selector.states)
            records = (rules.build_record(submission, status, state) for submission, status, state in newest)
            return tuple(record for record in records if selector.matches(record))

        return await asyncio.to_thread(read)

    async def events(self, ref: JobRef | JobID) -> tuple[JobEvent, ...]:
        """See the protocol."""
        target = _fold(ref)

        def read() -> tuple[JobEvent, ...]:
            with self._database.read() as connection:
                _check_place(connection, target)
                submission = target.submission if isinstance(target, JobRef) else None
                return tuple(reading.fetch_events(connection, _job_of(target), submission))

        return await asyncio.to_thread(read)

    async def close(self) -> None:
        """See the protocol."""
        await asyncio.to_thread(self._database.close)

    # ----------------------------------------------------------------------------------------------------------------

    def _check_carried(self, request: StartRequest) -> None:
        spec, deployment = request.spec, request.owner.deployment
        if self._settings.deployment is not None and deployment != self._settings.deployment:
            raise ConflictError(f"this connection serves deployment {self._settings.deployment!r}, not {deployment!r}")
        if not 1 <= request.submission <= HIGHEST_SUBMISSION:
            raise SpecError("submission", f"must lie between 1 and {HIGHEST_SUBMISSION}", request.submission)
        if spec.working_dir is not None and not Path(spec.working_dir).is_absolute():
            raise SpecError("working_dir", "must be an absolute path", spec.working_dir)
        for field, time in (("not_before", request.not_before), ("supervision.deadline", request.supervision.deadline)):
            if time is not None and time.tzinfo is None:
                raise SpecError(field, "needs a time zone", time.isoformat())
        if spec.queue is not None and not self._layout.queues.exists():
            _log_open_queues(self._layout.queues)
        if any(role.image is not None for role in spec.roles):
            _log_idle_image(self._layout.folder)

    async def _write(self, work: Callable[[sqlite3.Connection], T], deadline: datetime) -> T:
        def write() -> T:
            with self._database.write(derive_patience(deadline)) as connection:
                return work(connection)

        return await asyncio.to_thread(write)

    async def _change(self, ref: Target, change: intents.IntentChange, deadline: datetime) -> Submission:
        """Change what is wanted of a submission and wake the agent; what it is now."""
        target = _fold(ref)

        def write(connection: sqlite3.Connection) -> Submission:
            _check_place(connection, target)
            return intents.change_intent(connection, target, change)

        changed = await self._write(write, deadline)
        await self._wake(deadline)
        return changed

    async def _wake(self, deadline: datetime) -> None:
        if not await asyncio.to_thread(ring, self._layout):
            await asyncio.to_thread(ensure_agent, self._settings, derive_patience(deadline))

    def _read_view(self, ref: Target) -> tuple[JobView, str]:
        target = _fold(ref)
        with self._database.read() as connection:
            place = _check_place(connection, target)
            return reading.fetch_placed_view(connection, _job_of(target)), place

    def _read_place(self, targets: Iterable[Target]) -> str:
        with self._database.read() as connection:
            for target in targets:
                _check_place(connection, target)
            return _build_place(connection)

    def _find_output(self, ref: JobRef, view: JobView, request: OutputRequest) -> tuple[OutputSource, Cursor | None]:
        """Whose lines are meant, and where to begin."""
        pair, cursor = view.find(ref), request.cursor
        leader = pair[0].request.spec.leader.name if pair is not None else ""
        role = request.role or (cursor.role if cursor is not None else leader)
        if not role:
            raise JobNotFoundError(f"no such job: {ref.id}; name the role to read what it has left")
        only = request.epoch - ref.submission * (HIGHEST_R + 1) if request.epoch is not None else None
        source = OutputSource(self._layout, ref, role, request.rank, only)
        if cursor is None and only is None and (executions := source.find_executions()):
            cursor = Cursor(executions[-1], role, request.rank)
        return source, cursor

    async def _wait_until_removed(self, before: JobView, deadline: datetime) -> JobView:
        """The job once its submissions are gone, or at the deadline."""
        wanted = {submission.key for submission, _ in before.pairs}
        after = before
        with find_watch(self._settings).subscribe([before.job]) as subscription:
            try:
                async with asyncio.timeout(max(0.0, derive_patience(deadline))):
                    while wanted & {submission.key for submission, _ in after.pairs}:
                        after = (await subscription.take())[before.job]
            except TimeoutError:
                _log.info("the deadline of the stop of job %s is over", before.job)
        return after


@functools.cache
def _log_open_queues(path: Path) -> None:
    _log.info("there is no %s: every queue is without limit", path)


@functools.cache
def _log_idle_image(folder: Path) -> None:
    _log.info("an image means nothing to the store in %s: ranks run with what this machine has", folder)


def _fold(ref: Target) -> Target:
    """With the job's id as the store writes it."""
    return _fold_ref(ref) if isinstance(ref, JobRef) else parse_job_id(ref)


def _fold_ref(ref: JobRef) -> JobRef:
    return replace(ref, job=parse_job_id(ref.job))


def _job_of(target: Target) -> JobID:
    return target.job if isinstance(target, JobRef) else target


def _build_place(connection: sqlite3.Connection) -> str:
    return f"{reading.fetch_meta(connection)['store']}@{socket.gethostname()}"


def _check_place(connection: sqlite3.Connection, target: Target) -> str:
    """The place of this store.

    :raises ConflictError: the ref is of another store or machine.
    """
    place = _build_place(connection)
    rules.check_place(target, reading.BACKEND, place)
    return place


def _has_changed(before: Observation, now: Observation) -> bool:
    # A clock moves with a state. Until the agent has seen the job, it is read anew each time.
    return before != replace(now, observed_at=before.observed_at, clocks=before.clocks)
