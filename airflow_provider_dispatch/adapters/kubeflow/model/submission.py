# SPDX-License-Identifier: Apache-2.0
"""What a TrainJob carries for us: labels and annotations out of a request, and back.

`start` builds them, everybody reads them: the adapter, the derivation and the controller. Each value that doesn't fit a
label is JSON in an annotation of its own, so that one writer never overwrites what another wrote.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.core import wire
from airflow_provider_dispatch.core.clocks import Clocks
from airflow_provider_dispatch.core.decision import Supervision
from airflow_provider_dispatch.core.holds import HoldBook
from airflow_provider_dispatch.core.identity import JobID, parse_job_id
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.observation import Evidence, FailedRank
from airflow_provider_dispatch.core.owner import Owner
from airflow_provider_dispatch.core.records import StartRequest
from airflow_provider_dispatch.core.state import Cause, State
from airflow_provider_dispatch.exceptions import ProtocolError, SpecError

T = TypeVar("T")

MOST_ANNOTATION_BYTES = 200_000
"""Kubernetes allows 262,144 for all annotations of an object together; the rest is for what is written later."""


@dataclass(frozen=True, slots=True)
class StopRequest:
    """A stop that was asked for and may not be over."""

    reason: str
    at: datetime


@dataclass(frozen=True, slots=True)
class End:
    """How a submission ended, kept because the objects that prove it may go before the TrainJob does.

    :param state: SUCCEEDED or FAILED.
    """

    state: State
    at: datetime
    cause: Cause | None = None
    detail: str = ""
    evidence: tuple[Evidence, ...] = ()
    failed_rank: FailedRank | None = None
    last_lines: tuple[str, ...] = ()
    result: object = None


@dataclass(frozen=True, slots=True)
class Submission:
    """A TrainJob of ours, read.

    :param admissions: A; 0 before the first admission.
    :param admission_key: the reservation that A was last raised for; empty before the first.
    :param queue: LocalQueue; empty in plain mode.
    """

    ref: JobRef
    spec: JobSpec
    owner: Owner = field(default_factory=Owner)
    supervision: Supervision = field(default_factory=Supervision)
    attempt: int = 1
    deployment: str = ""
    queue: str = ""
    holds: HoldBook = field(default_factory=HoldBook)
    admissions: int = 0
    admission_key: str = ""
    not_before: datetime | None = None
    stop: StopRequest | None = None
    end: End | None = None
    clocks: Clocks = field(default_factory=Clocks)
    created_at: datetime | None = None


def build_labels(job: JobID, submission: int, deployment: str) -> dict[str, str]:
    """Labels of every object of a submission."""
    labels = {words.JOB_LABEL: job.lower(), words.SUBMISSION_LABEL: str(submission)}
    return labels | ({words.DEPLOYMENT_LABEL: deployment} if deployment else {})


def build_annotations(request: StartRequest) -> dict[str, str]:
    """Annotations of a new TrainJob, the start gate aside.

    :raises SpecError: more than an object may carry.
    """
    built = {
        words.SPEC_ANNOTATION: request.spec.model_dump_json(exclude_defaults=True),
        words.SPEC_DIGEST_ANNOTATION: request.spec.digest,
        words.CALLER_ATTEMPT_ANNOTATION: str(request.attempt),
        words.OWNER_ANNOTATION: dump(request.owner),
        words.SUPERVISION_ANNOTATION: dump(request.supervision),
        words.ADMISSIONS_ANNOTATION: "0",
    }
    if request.not_before is not None:
        built[words.NOT_BEFORE_ANNOTATION] = fields.format_time(request.not_before)
    size = sum(len(key) + len(value.encode()) for key, value in built.items())
    if size > MOST_ANNOTATION_BYTES:
        raise SpecError("spec", f"needs {size} bytes on the cluster; at most {MOST_ANNOTATION_BYTES} fit", size)
    return built


def dump(value: object) -> str:
    """A value of the contract as the text of an annotation."""
    return json.dumps(wire.dump(value), separators=(",", ":"), sort_keys=True)


def load(kind: type[T], stamp: str) -> T | None:
    """What :func:`dump` wrote; None where there is nothing.

    :raises ProtocolError: something else is written there.
    """
    if not stamp:
        return None
    try:
        return wire.load(kind, json.loads(stamp))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not JSON where a {kind.__name__} should stand: {stamp[:60]!r}") from error


def is_ours(raw: object) -> bool:
    """Whether an object carries the label of a job."""
    return bool(fields.label(raw, words.JOB_LABEL))


def read_job_id(raw: object) -> JobID | None:
    """The job an object belongs to; None when it is none of ours."""
    try:
        return parse_job_id(fields.label(raw, words.JOB_LABEL))
    except SpecError:
        return None


def read_submission_number(raw: object) -> int:
    """The submission an object belongs to; 0 when it doesn't say."""
    return fields.whole_number(fields.label(raw, words.SUBMISSION_LABEL)) or 0


def is_of_submission(raw: Raw, number: int) -> bool:
    """Whether an object of a job is that submission's. One that another implementation made may not say whose it is."""
    return read_submission_number(raw) in (number, 0)


def read_ref(raw: object) -> JobRef:
    """The address of the submission that a TrainJob is.

    :raises ProtocolError: it is none of ours.
    """
    job = read_job_id(raw)
    if job is None:
        raise ProtocolError(f"{fields.name(raw)} carries no job id in label {words.JOB_LABEL}")
    place = fields.text(raw, "metadata", "namespace")
    return JobRef(job, read_submission_number(raw), words.BACKEND, place, fields.uid(raw))


def has_ended(trainjob: Raw) -> bool:
    """Whether nothing of a submission but dying processes can be left."""
    ends = (words.TRAINJOB_COMPLETE, words.TRAINJOB_FAILED)
    return (
        fields.is_deleting(trainjob)
        or bool(fields.annotation(trainjob, words.END_ANNOTATION))
        or any(fields.is_true(trainjob, end) for end in ends)
    )


def read_end_time(trainjob: Raw) -> datetime | None:
    """When a submission ended, as it was first written down; None while nobody has.

    :raises ProtocolError: the end that is written there can't be read.
    """
    end = load(End, fields.annotation(trainjob, words.END_ANNOTATION))
    if end is not None:
        return end.at
    told = (fields.conditions(trainjob).get(kind) for kind in (words.TRAINJOB_COMPLETE, words.TRAINJOB_FAILED))
    return next((one.at for one in told if one is not None and one.is_true), None)


def read_submission(trainjob: Raw) -> Submission:
    """A TrainJob of ours, also one that another implementation of the contract made.

    :raises ProtocolError: none of ours, or an annotation that can't be read, or without a spec the trainer; the
        message names it.
    """
    ref = read_ref(trainjob)
    notes = fields.texts(trainjob, "metadata", "annotations")
    return Submission(
        ref,
        _read_spec(trainjob, notes),
        owner=read_owner(trainjob),
        supervision=load(Supervision, notes.get(words.SUPERVISION_ANNOTATION, "")) or Supervision(),
        attempt=fields.whole_number(notes.get(words.CALLER_ATTEMPT_ANNOTATION, "")) or 1,
        deployment=fields.label(trainjob, words.DEPLOYMENT_LABEL),
        queue=fields.label(trainjob, words.QUEUE_LABEL),
        holds=load(HoldBook, notes.get(words.HOLDS_ANNOTATION, "")) or HoldBook(),
        admissions=fields.whole_number(notes.get(words.ADMISSIONS_ANNOTATION, "")) or 0,
        admission_key=notes.get(words.ADMISSION_KEY_ANNOTATION, ""),
        not_before=fields.parse_time(notes.get(words.NOT_BEFORE_ANNOTATION, "")),
        stop=load(StopRequest, notes.get(words.STOP_ANNOTATION, "")),
        end=load(End, notes.get(words.END_ANNOTATION, "")),
        clocks=load(Clocks, notes.get(words.CLOCKS_ANNOTATION, "")) or Clocks(),
        created_at=fields.moment(trainjob, "metadata", "creationTimestamp"),
    )


def read_owner(trainjob: Raw) -> Owner:
    """Whose it is, whatever becomes of the rest of it.

    :raises ProtocolError: the annotation can't be read.
    """
    return load(Owner, fields.annotation(trainjob, words.OWNER_ANNOTATION)) or Owner()


def _read_spec(trainjob: Raw, notes: Mapping[str, str]) -> JobSpec:
    stamp = notes.get(words.SPEC_ANNOTATION, "")
    if not stamp:
        return _guess_spec(trainjob)
    try:
        return JobSpec(**json.loads(stamp))
    except (ValueError, TypeError, RecursionError, SpecError) as error:
        raise ProtocolError(f"annotation {words.SPEC_ANNOTATION} of {fields.name(trainjob)}: {error}") from error


def _guess_spec(trainjob: Raw) -> JobSpec:
    """Of a TrainJob that carries no spec of ours: what its trainer says."""
    trainer = fields.mapping(trainjob, "spec", "trainer")
    parts = [part for key in ("command", "args") if isinstance(part := trainer.get(key), list)]
    try:
        return JobSpec(
            command=[str(word) for part in parts for word in part] or ["unknown"],
            nodes=fields.number(trainer, "numNodes") or 1,
            image=fields.text(trainer, "image") or None,
            queue=fields.label(trainjob, words.QUEUE_LABEL) or None,
            runtime=fields.text(trainjob, "spec", "runtimeRef", "name") or None,
        )
    except SpecError as error:
        raise ProtocolError(f"{fields.name(trainjob)} carries no spec, and its trainer is none: {error}") from error
