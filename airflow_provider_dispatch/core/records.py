# SPDX-License-Identifier: Apache-2.0
"""What goes into the verbs of an adapter and what comes out of them, besides the observation.

Callers make the requests and selectors, adapters the records and reports. Plain values: none asks a backend.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from airflow_provider_dispatch.core.decision import Supervision
from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.owner import Owner
from airflow_provider_dispatch.core.state import Cause, State


@dataclass(frozen=True, slots=True)
class StartRequest:
    """A submission to make.

    :param attempt: the caller's own number for this call (Airflow: the try number).
    :param supervision: kept with the submission for whoever looks after it later.
    :param not_before: the job is not admitted earlier, though its gate be open; a pause between two submissions.
    """

    job: JobID
    submission: int
    attempt: int
    spec: JobSpec
    owner: Owner = field(default_factory=Owner)
    supervision: Supervision = field(default_factory=Supervision)
    not_before: datetime | None = None


@dataclass(frozen=True, slots=True)
class SubmissionRecord:
    """One submission as `find` and `list` tell it.

    :param state: as last written; `inspect` says it now.
    :param ended_at: None while it has not ended, and where nobody wrote it down.
    """

    ref: JobRef
    state: State
    spec: JobSpec
    owner: Owner
    supervision: Supervision
    attempt: int = 1
    cause: Cause | None = None
    queue: str = ""
    created_at: datetime | None = None
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class JobRecord:
    """Everything that is left of a job.

    :param ledger: highest submission ever used; 0 when the job was never heard of.
    :param submissions: whose objects exist, oldest first.
    :param orphans: objects of the job that belong to no submission, for people.
    """

    job: JobID
    ledger: int = 0
    submissions: tuple[SubmissionRecord, ...] = ()
    orphans: tuple[str, ...] = ()

    @property
    def newest(self) -> SubmissionRecord | None:
        """The submission with the highest number."""
        return max(self.submissions, key=lambda record: record.ref.submission, default=None)


@dataclass(frozen=True, slots=True)
class JobSelector:
    """Which jobs to list; every field that is set must match.

    :param states: empty means any.
    """

    queue: str | None = None
    deployment: str | None = None
    dag_id: str | None = None
    run_id: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    states: frozenset[State] = frozenset()

    def matches(self, record: SubmissionRecord) -> bool:
        """True when *record* is one of those meant."""
        wanted = (self.queue, self.deployment, self.dag_id, self.run_id)
        found = (record.queue, record.owner.deployment, record.owner.dag_id, record.owner.run_id)
        return (
            all(want is None or want == have for want, have in zip(wanted, found, strict=True))
            and all(record.spec.labels.get(key) == value for key, value in self.labels.items())
            and (not self.states or record.state in self.states)
        )


@dataclass(frozen=True, slots=True)
class ObjectReport:
    """One object or process that a stop had to deal with, for instance ``execution 1000001 rank 0 of node``."""

    object: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class StopReport:
    """What a stop did.

    :param stopped: gone, with every process beneath.
    :param alive: seen alive when the time was over.
    :param unproven: nobody can say whether they live.
    """

    job: JobID
    stopped: tuple[ObjectReport, ...] = ()
    alive: tuple[ObjectReport, ...] = ()
    unproven: tuple[ObjectReport, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Nothing is left but the ledger."""
        return not self.alive and not self.unproven


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something of a job that nobody needs any more.

    :param key: what the backend finds it by again.
    :param kept_because: why it has to stay all the same; empty when it may go.
    """

    job: JobID
    object: str
    key: str
    detail: str = ""
    kept_because: str = ""


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One decision or change about a job.

    :param sequence: grows over all events of the backend's store.
    :param kind: short name, for instance ``admitted``; *message* is for people.
    :param epoch: of the execution it is about; None when it is about none.
    """

    sequence: int
    at: datetime
    submission: int
    kind: str
    message: str
    epoch: int | None = None
