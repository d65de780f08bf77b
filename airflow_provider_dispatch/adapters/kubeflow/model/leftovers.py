# SPDX-License-Identifier: Apache-2.0
"""Which objects of a namespace nobody needs any more: those of submissions whose TrainJob is gone, and ledgers of jobs
of which nothing else is left. Pure; `leftovers` of the adapter fetches and removes.

What may belong to somebody is kept, with the reason: what a living job may still count on, a runtime whose `start` may
be under way, a ledger that knows of a pod whose end isn't proven.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

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


class _Object(NamedTuple):
    """One object of a submission."""

    resource: Resource
    raw: Raw
    job: JobID
    number: int


@dataclass(slots=True)
class _Job:
    """A job as its TrainJobs and its other objects tell it.

    :ivar begun: submissions whose TrainJob was there once.
    """

    trainjobs: list[Raw] = field(default_factory=list)
    deployments: set[str] = field(default_factory=set)
    begun: set[int] = field(default_factory=set)

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
        Litter(one.resource, one.raw, _judge(one, jobs[one.job], now))
        for one in _list_owned(objects)
        if one.resource != TRAINJOBS and not jobs[one.job].has(one.number)
    ]
    if with_ledgers:
        busy = {job for job, known in jobs.items() if known.trainjobs} | {one.leftover.job for one in found}
        found += [
            Litter(CONFIG_MAPS, raw, _judge_ledger(raw, job)) for raw, job in _list_ledgers(objects) if job not in busy
        ]
    return [one for one in found if deployment is None or jobs[one.leftover.job].deployments == {deployment}]


def _read_jobs(objects: Mapping[Resource, Sequence[Raw]]) -> Mapping[JobID, _Job]:
    jobs: dict[JobID, _Job] = defaultdict(_Job)
    for one in _list_owned(objects):
        known = jobs[one.job]
        if one.resource == TRAINJOBS:
            known.trainjobs.append(one.raw)
        elif one.resource != TRAINING_RUNTIMES:
            known.begun.add(one.number)
        if named := fields.label(one.raw, words.DEPLOYMENT_LABEL):
            known.deployments.add(named)
    for raw, job in _list_ledgers(objects):
        ledger = _read_ledger(raw) or Ledger()
        jobs[job].begun.update(end.submission for end in ledger.ends)
        if ledger.deployment:
            jobs[job].deployments.add(ledger.deployment)
    return jobs


def _list_owned(objects: Mapping[Resource, Sequence[Raw]]) -> Iterator[_Object]:
    for resource, found in objects.items():
        for raw in found if resource != CONFIG_MAPS else ():
            is_kueues = resource == WORKLOADS
            job, number = _read_workload(raw) if is_kueues else (read_job_id(raw), read_submission_number(raw))
            if job is not None:
                yield _Object(resource, raw, job, number)


def _read_workload(raw: Raw) -> tuple[JobID | None, int]:
    """Kueue copies no label of ours, and its owner may have been taken from it: its name says whose it is."""
    named = _WORKLOAD_NAME.fullmatch(fields.name(raw))
    if named is None or not fields.label(raw, words.JOB_UID_LABEL):
        return None, 0
    try:
        return parse_job_id(named[1]), int(named[2])
    except SpecError:
        return None, 0


def _list_ledgers(objects: Mapping[Resource, Sequence[Raw]]) -> Iterator[tuple[Raw, JobID]]:
    for raw in objects.get(CONFIG_MAPS, ()):
        job = read_job_id(raw)
        if job is not None and fields.label(raw, words.KIND_LABEL) == words.LEDGER_KIND:
            yield raw, job


def _judge(found: _Object, known: _Job, now: datetime) -> Leftover:
    return Leftover(
        found.job,
        f"{found.resource.kind} {fields.name(found.raw)}",
        fields.uid(found.raw),
        detail=_describe(found, known),
        kept_because=_keep(found, known, now),
    )


def _describe(found: _Object, known: _Job) -> str:
    if found.number not in known.begun:
        return "it has no TrainJob"
    node = fields.text(found.raw, "spec", "nodeName")
    return f"its TrainJob is gone; on node {node}" if node else "its TrainJob is gone"


def _keep(found: _Object, known: _Job, now: datetime) -> str:
    if known.living is not None:
        return f"submission {known.living} of its job has not ended"
    if fields.is_deleting(found.raw):
        return "it is being removed"
    created = fields.moment(found.raw, "metadata", "creationTimestamp")
    if found.number not in known.begun and (created is None or now - created < LONGEST_START):
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
