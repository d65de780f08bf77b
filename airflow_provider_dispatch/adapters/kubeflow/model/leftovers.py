# SPDX-License-Identifier: Apache-2.0
"""Which objects of a namespace nobody needs any more: those of submissions whose TrainJob is gone, and ledgers of jobs
of which nothing else is left. Pure; `leftovers` of the adapter fetches and removes.

What may belong to somebody is kept, with the reason: what a living job may still count on, a runtime whose `start` may
be under way, a ledger that knows of a pod whose end isn't proven.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.execution_record import EMPTY_RECORD, ExecutionRecord
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.ledger import Ledger, read_ledger
from airflow_provider_dispatch.adapters.kubeflow.model.resources import (
    CONFIG_MAPS,
    TRAINING_RUNTIMES,
    TRAINJOBS,
    WORKLOADS,
    Resource,
)
from airflow_provider_dispatch.adapters.kubeflow.model.submission import (
    has_ended,
    read_job_id,
    read_submission_number,
)
from airflow_provider_dispatch.core.identity import JobID, parse_job_id
from airflow_provider_dispatch.core.records import Leftover
from airflow_provider_dispatch.exceptions import ProtocolError, SpecError

LONGEST_START = timedelta(hours=1)
"""A start makes the runtime first; no call of ours may take longer than this until its TrainJob stands."""
_WORKLOAD_NAME = re.compile(r"trainjob-dj-([0-9a-z]{26})-s([0-9]+)-[0-9a-z]+")
"""What Kueue makes for a TrainJob (pkg/controller/jobframework/workload_names.go)."""


@dataclass(frozen=True, slots=True)
class Litter:
    """One object that may be left over, and what was found about it."""

    resource: Resource
    raw: Raw
    leftover: Leftover


@dataclass(frozen=True, slots=True)
class _Job:
    """A job as its TrainJobs and its other objects tell it."""

    trainjobs: tuple[Raw, ...]
    deployments: frozenset[str]

    @property
    def living(self) -> int | None:
        """The submission that has not ended."""
        return next((read_submission_number(raw) for raw in self.trainjobs if not has_ended(raw)), None)

    def has(self, number: int) -> bool:
        """Whether the TrainJob of that submission is there."""
        return any(read_submission_number(raw) == number for raw in self.trainjobs)


def find_litter(
    objects: Mapping[Resource, Sequence[Raw]], deployment: str | None, *, with_ledgers: bool, now: datetime
) -> list[Litter]:
    """What is left over, what makes others first, ledgers last.

    :param objects: all of ours in a namespace; TrainJobs not older than the rest.
    :param deployment: whose; None means anybody's.
    """
    jobs = _read_jobs(objects)
    found = [
        Litter(resource, raw, _judge(resource, raw, job, jobs[job], now))
        for resource, raw, job, number in _list_owned(objects)
        if not jobs[job].has(number)
    ]
    if with_ledgers:
        busy = {job for job, known in jobs.items() if known.trainjobs} | {one.leftover.job for one in found}
        found += [
            Litter(CONFIG_MAPS, raw, _judge_ledger(raw, job)) for raw, job in _list_ledgers(objects) if job not in busy
        ]
    return [one for one in found if deployment is None or jobs[one.leftover.job].deployments == {deployment}]


def _read_jobs(objects: Mapping[Resource, Sequence[Raw]]) -> Mapping[JobID, _Job]:
    trainjobs: dict[JobID, list[Raw]] = {}
    deployments: dict[JobID, set[str]] = {}
    for resource, raw, job, _ in _list_owned(objects, with_trainjobs=True):
        if resource == TRAINJOBS:
            trainjobs.setdefault(job, []).append(raw)
        named = fields.label(raw, words.DEPLOYMENT_LABEL)
        deployments.setdefault(job, set()).update({named} if named else ())
    for raw, job in _list_ledgers(objects):
        ledger = _read_ledger(raw)
        deployments.setdefault(job, set()).update({ledger.deployment} if ledger and ledger.deployment else ())
    return {job: _Job(tuple(trainjobs.get(job, ())), frozenset(named)) for job, named in deployments.items()}


def _list_owned(
    objects: Mapping[Resource, Sequence[Raw]], *, with_trainjobs: bool = False
) -> Iterator[tuple[Resource, Raw, JobID, int]]:
    """Each object of a submission with its job and number."""
    for resource, found in objects.items():
        if resource == CONFIG_MAPS or (resource == TRAINJOBS and not with_trainjobs):
            continue
        for raw in found:
            is_kueues = resource == WORKLOADS
            job, number = _read_workload(raw) if is_kueues else (read_job_id(raw), read_submission_number(raw))
            if job is not None:
                yield resource, raw, job, number


def _read_workload(raw: Raw) -> tuple[JobID | None, int]:
    """Kueue copies no label of ours, and its owner may have been taken from it: its name says whose it is."""
    named = _WORKLOAD_NAME.fullmatch(fields.name(raw))
    if named is None or not fields.label(raw, words.JOB_UID_LABEL):
        return None, 0
    try:
        return parse_job_id(named[1]), int(named[2])
    except SpecError:
        return None, 0


def _list_ledgers(objects: Mapping[Resource, Sequence[Raw]]) -> Iterable[tuple[Raw, JobID]]:
    for raw in objects.get(CONFIG_MAPS, ()):
        job = read_job_id(raw)
        if job is not None and fields.label(raw, words.KIND_LABEL) == words.LEDGER_KIND:
            yield raw, job


def _judge(resource: Resource, raw: Raw, job: JobID, known: _Job, now: datetime) -> Leftover:
    node = fields.text(raw, "spec", "nodeName")
    where = f" on node {node}" if node else ""
    return Leftover(
        job,
        f"{resource.kind} {fields.name(raw)}",
        fields.uid(raw),
        detail=f"its TrainJob is gone{where}",
        kept_because=_keep(resource, raw, known, now),
    )


def _keep(resource: Resource, raw: Raw, known: _Job, now: datetime) -> str:
    if known.living is not None:
        return f"submission {known.living} of its job has not ended"
    if fields.is_deleting(raw):
        return "it is being removed"
    created = fields.moment(raw, "metadata", "creationTimestamp")
    if resource == TRAINING_RUNTIMES and (created is None or now - created < LONGEST_START):
        return "it is younger than an hour, and its start may be under way"
    return ""


def _judge_ledger(raw: Raw, job: JobID) -> Leftover:
    ledger = _read_ledger(raw)
    last = f", submission {ledger.submission} was its last" if ledger else ""
    return Leftover(
        job,
        f"{CONFIG_MAPS.kind} {fields.name(raw)}",
        fields.uid(raw),
        detail=f"ledger of job {job}{last}",
        kept_because=_keep_ledger(ledger),
    )


def _keep_ledger(ledger: Ledger | None) -> str:
    record = _read_record(ledger)
    if record is None:
        return "it can't be read, so nobody knows whether its pods are dead"
    if record.unproven:
        return f"nobody saw the end of pod {record.unproven[0].name}; see dispatch fence show"
    return ""


def _read_record(ledger: Ledger | None) -> ExecutionRecord | None:
    if ledger is None:
        return None
    try:
        return ExecutionRecord.from_json(ledger.record) if ledger.record else EMPTY_RECORD
    except ProtocolError:
        return None


def _read_ledger(raw: Raw) -> Ledger | None:
    try:
        return read_ledger(raw)
    except ProtocolError:
        return None
