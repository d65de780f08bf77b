# SPDX-License-Identifier: Apache-2.0
"""The port: thirteen verbs that every adapter has. The contract suite in ``tests/contract`` is its specification.

Everything above an adapter (the Airflow face, the command, plain programs) is written against this class and knows
no scheduler. A *state* is never an exception here; errors are those of :mod:`airflow_provider_dispatch.exceptions`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from airflow_provider_dispatch.core.capabilities import Preflight
from airflow_provider_dispatch.core.holds import Hold, HoldRequest
from airflow_provider_dispatch.core.identity import JobID
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


@dataclass(frozen=True, slots=True)
class OutputRequest:
    """Which lines to read.

    :param role: None means the leading role.
    :param epoch: of the execution; None means the newest, and with *follow* every later one in turn.
    :param cursor: where an earlier reading ended; None means from the beginning.
    :param follow: wait for more until the job is over; also before it has begun.
    :param most_lines: end after so many, one at least, and wait for no further one; None means all there are.
    """

    role: str | None = None
    rank: int = 0
    epoch: int | None = None
    cursor: Cursor | None = None
    follow: bool = False
    most_lines: int | None = None


class DispatchAdapter(ABC):
    """One backend. Made by the registry, used within one event loop, closed by :meth:`close`.

    *deadline* is absolute and aware; past it nothing is written and :class:`UnavailableError` is raised.
    A method that takes ``JobRef | JobID`` means the newest submission when given a bare id.
    """

    name: str

    @abstractmethod
    async def preflight(self, spec: JobSpec | None = None) -> Preflight:
        """Prove what the backend can do. Does not change anything that outlives the call.

        :param spec: a job that is judged, too: whether what it asks for could ever fit its queue.
        :raises SpecError: *spec* is one that this backend can't carry.
        """

    @abstractmethod
    async def start(self, request: StartRequest, *, deadline: datetime) -> JobRef:
        """Create the job's objects with the gate closed; return once the scheduler knows the job.

        Idempotent: the same job, submission and spec give the existing ref. A queue too small is not an error here.

        :raises SpecError: an unknown queue or priority, or a value this backend can't carry.
        :raises ConflictError: another spec under this submission; a submission that has not ended; a submission
            number at or below the ledger; a job of another deployment.
        :raises CapabilityError: the backend is not proved.
        """

    @abstractmethod
    async def open(self, ref: JobRef, *, deadline: datetime) -> None:
        """Remove our gate and only ours. Idempotent, also for a job that is over.

        :raises JobNotFoundError: no such submission.
        """

    @abstractmethod
    async def inspect(self, ref: JobRef | JobID) -> Observation:
        """The state now. Total: an unknown job is GONE without a cause."""

    @abstractmethod
    def watch(self, refs: Sequence[JobRef | JobID]) -> AsyncIterator[Observation]:
        """The same, pushed: at once the present state of each, then each change. Ends when all are over.

        A bare id follows the job from one submission to the next and never ends by itself. Never raises
        :class:`UnavailableError`: it tries again for ever. Close the iterator to unsubscribe.
        """

    @abstractmethod
    def output(self, ref: JobRef, request: OutputRequest) -> AsyncIterator[OutputLine]:
        """Log lines of one rank, in order, each once; :attr:`OutputLine.cursor` is where to go on."""

    @abstractmethod
    async def hold(self, ref: JobRef | JobID, request: HoldRequest, *, deadline: datetime) -> Hold:
        """End the execution and keep the job from being admitted; returns when the request is durable.

        :raises RefusedError: the job is over; the message says how it ended.
        :raises JobNotFoundError: no such job.
        :raises SpecError: an empty key, or an ``until`` in the past.
        """

    @abstractmethod
    async def release(self, ref: JobRef | JobID, hold: Hold, *, deadline: datetime) -> tuple[Hold, ...]:
        """Lift exactly that hold; returns those that remain. Idempotent.

        :raises StaleHoldError: this submission never had that hold.
        :raises JobNotFoundError: no such job.
        """

    @abstractmethod
    async def stop(self, job: JobID, *, reason: str, deadline: datetime, if_owner: Owner | None = None) -> StopReport:
        """Remove everything of the job, all submissions, and see that it is gone. Works from every state.

        At the deadline it returns what is still ``alive`` or ``unproven``; the request stays.

        :param if_owner: stop only while this is the newest submission's owner.
        :raises ConflictError: somebody else owns it.
        """

    @abstractmethod
    async def adopt(self, ref: JobRef, owner: Owner, *, expected: Owner, deadline: datetime) -> None:
        """Change the owner by compare-and-swap.

        :raises ConflictError: the owner is not *expected*.
        :raises JobNotFoundError: no such submission.
        """

    @abstractmethod
    async def find(self, job: JobID) -> JobRecord:
        """All that is left of a job, orphans and the ledger included."""

    @abstractmethod
    async def list(self, selector: JobSelector) -> tuple[SubmissionRecord, ...]:
        """The newest submission of each job that matches, oldest job first."""

    @abstractmethod
    async def events(self, ref: JobRef | JobID) -> tuple[JobEvent, ...]:
        """Decisions and changes about a job, oldest first; of every submission when given a bare id."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of connections and tasks. Never touches a job."""
