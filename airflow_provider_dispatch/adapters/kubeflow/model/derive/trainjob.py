# SPDX-License-Identifier: Apache-2.0
"""The TrainJob: what `start` and the controller wrote on it, read so that one broken annotation hides no other.

:mod:`.scene` asks it. What Trainer says of the end is read here too; causes are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.execution_record import EMPTY_RECORD, ExecutionRecord
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.ledger import Ledger, read_ledger
from airflow_provider_dispatch.adapters.kubeflow.model.submission import (
    Submission,
    read_job_id,
    read_submission,
    read_submission_number,
)
from airflow_provider_dispatch.core.clocks import Clock
from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.observation import Evidence
from airflow_provider_dispatch.exceptions import ProtocolError

_NO_JOB = JobID("")
_UNREADABLE_SPEC = JobSpec(command=["unknown"])


@dataclass(frozen=True, slots=True)
class Reading:
    """A TrainJob, read.

    :param problems: what can't be read; the state is unknown where it would matter.
    """

    submission: Submission
    record: ExecutionRecord = EMPTY_RECORD
    problems: tuple[Evidence, ...] = ()


def read_trainjob(trainjob: Raw) -> Reading:
    """Everything readable on it."""
    name = f"trainjob {fields.name(trainjob)}"
    problems: list[Evidence] = []
    if read_job_id(trainjob) is None or read_submission_number(trainjob) < 1:
        ref = JobRef(
            read_job_id(trainjob) or _NO_JOB,
            read_submission_number(trainjob),
            words.BACKEND,
            fields.text(trainjob, "metadata", "namespace"),
            fields.uid(trainjob),
        )
        stamp = fields.label(trainjob, words.JOB_LABEL)
        return Reading(Submission(ref, _UNREADABLE_SPEC), problems=(Evidence(name, words.JOB_LABEL, stamp),))
    submission = _read_submission(trainjob, name, problems)
    record = _read_record(trainjob, name, problems)
    return Reading(submission, record, tuple(problems))


def read_known_ledger(config_map: Raw | None) -> tuple[Ledger, tuple[Evidence, ...]]:
    """The ledger, and what can't be read of it."""
    try:
        return read_ledger(config_map), ()
    except ProtocolError as error:
        return Ledger(), (Evidence(f"configmap {fields.name(config_map)}", "data", str(error)),)


def read_gates(trainjob: Raw | None) -> tuple[str, ...]:
    """Names of the gates that are closed, ours among them; a pause that the caller asked for is none."""
    stamp = fields.annotation(trainjob, words.ADMISSION_GATED_BY)
    return tuple(sorted({gate.strip() for gate in stamp.split(",")} - {"", words.NOT_BEFORE_GATE}))


def _read_submission(trainjob: Raw, name: str, problems: list[Evidence]) -> Submission:
    try:
        return _check(read_submission(trainjob))
    except ProtocolError:
        return _read_what_is_sound(trainjob, name, problems)


def _read_what_is_sound(trainjob: Raw, name: str, problems: list[Evidence]) -> Submission:
    notes = fields.texts(trainjob, "metadata", "annotations")
    placeholder = {words.SPEC_ANNOTATION: _UNREADABLE_SPEC.model_dump_json(exclude_defaults=True)}
    sound: dict[str, str] = {}
    for key in sorted(note for note in notes if note.startswith(words.DOMAIN)):
        try:
            _check(read_submission(_with_annotations(trainjob, placeholder | {key: notes[key]})))
        except ProtocolError as error:
            problems.append(Evidence(name, key, str(error)))
        else:
            sound[key] = notes[key]
    try:
        return read_submission(_with_annotations(trainjob, sound))
    except ProtocolError as error:
        problems.append(Evidence(name, "spec.trainer", str(error)))
        return read_submission(_with_annotations(trainjob, sound | placeholder))


def _check(submission: Submission) -> Submission:
    """Refuse stamps without a time zone: they can't be compared with any other.

    :raises ProtocolError: one was found.
    """
    stamps: list[datetime | None] = [submission.clocks.reading(clock).since for clock in Clock]
    stamps += [stamp for hold in submission.holds.active for stamp in (hold.since, hold.until)]
    stamps += [submission.stop.at if submission.stop else None, submission.end.at if submission.end else None]
    if any(stamp is not None and stamp.tzinfo is None for stamp in stamps):
        raise ProtocolError("a stamp has no time zone")
    return submission


def _with_annotations(trainjob: Raw, annotations: dict[str, str]) -> Raw:
    return {**trainjob, "metadata": {**fields.mapping(trainjob, "metadata"), "annotations": annotations}}


def _read_record(trainjob: Raw, name: str, problems: list[Evidence]) -> ExecutionRecord:
    stamp = fields.annotation(trainjob, words.RECORD_ANNOTATION)
    try:
        return ExecutionRecord.from_json(stamp) if stamp else EMPTY_RECORD
    except ProtocolError as error:
        problems.append(Evidence(name, words.RECORD_ANNOTATION, str(error)))
        return EMPTY_RECORD


def build_absent(ref: JobRef) -> Reading:
    """Of a TrainJob that isn't there."""
    return Reading(Submission(ref, _UNREADABLE_SPEC))
