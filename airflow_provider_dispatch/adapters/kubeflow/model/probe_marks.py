# SPDX-License-Identifier: Apache-2.0
"""The marks of a probe, by which it is told from every job, and when what is left of one may go.

Preflight puts them on what it makes to watch, and removes by them what an earlier preflight has left; the controller
does so too, some time later. What lacks one mark, or carries one of a job, is none of theirs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.resources import TRAINING_RUNTIMES, TRAINJOBS
from airflow_provider_dispatch.adapters.kubeflow.model.submission import read_job_id
from airflow_provider_dispatch.core.identity import JobID

PROBE_SELECTOR = f"{words.KIND_LABEL}={words.PROBE_KIND}"
SHORTEST_LIFE = timedelta(seconds=30)
"""What a preflight needs beside watching. By the API server's own stamp too: the clock that a probe's end was read from
may be wrong."""
MARGIN = timedelta(seconds=15)
"""After the end of a probe, for the controller: clocks differ, and the next preflight may be at it."""
PROBE_NAME = re.compile(r"dispatch-preflight-[0-9a-z]{8}")
"""The policy that limits the controller has it too."""
_NAME_LENGTH = 8


@dataclass(frozen=True, slots=True)
class RemoveProbe:
    """Its preflight is over, and has left it."""

    reason: str


@dataclass(frozen=True, slots=True)
class WaitForProbe:
    """Its preflight may be running, or removing it."""

    until: datetime


def build_probe_name(job: JobID) -> str:
    """Of both objects of a probe."""
    return f"dispatch-preflight-{job[-_NAME_LENGTH:].lower()}"


def build_probe_until(now: datetime, seconds: float) -> datetime:
    """When the preflight that makes a probe now is over in any case."""
    return now + SHORTEST_LIFE + timedelta(seconds=2 * seconds)


def mark_as_probe(raw: dict[str, Any], name: str, until: datetime) -> dict[str, Any]:
    """The object under a probe's name, with its label and its end."""
    raw["metadata"]["name"] = name
    raw["metadata"]["labels"][words.KIND_LABEL] = words.PROBE_KIND
    raw["metadata"]["annotations"][words.PROBE_UNTIL_ANNOTATION] = fields.format_time(until)
    return raw


def is_probe(raw: Raw) -> bool:
    """Whether a TrainJob or a runtime is surely one that a preflight has made."""
    is_marked = fields.label(raw, words.KIND_LABEL) == words.PROBE_KIND and _read_until(raw) is not None
    if not is_marked or not PROBE_NAME.fullmatch(fields.name(raw)):
        return False
    match fields.text(raw, "kind"):
        case TRAINJOBS.kind:
            return _is_nobodys_job(raw)
        case TRAINING_RUNTIMES.kind:
            return _leads_nowhere(raw)
        case _:
            return False


def is_abandoned(raw: Raw, now: datetime) -> bool:
    """Whether it is a probe, and the preflight that made it can't be running any more."""
    until = _read_until(raw)
    return until is not None and until < now and is_probe(raw)


def decide_probe(raw: Raw, now: datetime) -> RemoveProbe | WaitForProbe | None:
    """What the controller does with a probe; None when it is none, or on its way out."""
    until = _read_until(raw)
    if until is None or not is_probe(raw) or fields.is_deleting(raw):
        return None
    created = fields.moment(raw, "metadata", "creationTimestamp") or until - SHORTEST_LIFE
    end = max(until, created + SHORTEST_LIFE) + MARGIN
    return RemoveProbe(f"its preflight was over at {fields.format_time(until)}") if end <= now else WaitForProbe(end)


def _read_until(raw: Raw) -> datetime | None:
    until = fields.parse_time(fields.annotation(raw, words.PROBE_UNTIL_ANNOTATION))
    # No preflight wrote a time at an end of the calendar, beyond which nothing can be reckoned.
    return until if until is not None and 1 < until.year < 9999 else None


def _is_nobodys_job(trainjob: Raw) -> bool:
    """Behind our gate alone, run by a probe's runtime, and without the label that each of our jobs carries."""
    reference = fields.mapping(trainjob, "spec", "runtimeRef")
    is_by_its_own = fields.text(reference, "kind") == TRAINING_RUNTIMES.kind
    return (
        not fields.label(trainjob, words.JOB_LABEL)
        and fields.annotation(trainjob, words.ADMISSION_GATED_BY) == words.GATE
        and is_by_its_own
        and fields.text(reference, "name") == fields.name(trainjob)
    )


def _leads_nowhere(runtime: Raw) -> bool:
    """Named after the job that it is labelled with, and asking for a node that no cluster has."""
    job = read_job_id(runtime)
    if job is None or fields.name(runtime) != build_probe_name(job):
        return False
    roles = fields.items(runtime, "spec", "template", "spec", "replicatedJobs")
    pods = [fields.mapping(role, "template", "spec", "template", "spec") for role in roles]
    return bool(pods) and all(fields.text(pod, "nodeSelector", words.NOWHERE) == words.PROBE_KIND for pod in pods)
