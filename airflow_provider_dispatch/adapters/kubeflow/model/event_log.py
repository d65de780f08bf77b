# SPDX-License-Identifier: Apache-2.0
"""Kubernetes events as the contract's: which belong to a job, in what order, and what they say. Pure.

Events outlive the objects they are about, so they are matched by the names that only objects of the job can have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.core.output import clean_text
from airflow_provider_dispatch.core.records import JobEvent

_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NEVER = datetime.fromtimestamp(0, UTC)


def list_events(found: Iterable[Raw], job: JobID, submission: int | None = None) -> tuple[JobEvent, ...]:
    """Those about a job, the oldest first.

    :param submission: None means every one.
    """
    pattern = re.compile(rf"(?:trainjob-)?dj-{re.escape(job.lower())}-s(\d+)(?:$|[-.])")
    events = []
    for raw in found:
        about = pattern.match(fields.text(raw, "involvedObject", "name"))
        if about is not None and submission in (None, int(about[1])):
            events.append(build_job_event(raw, int(about[1])))
    # Stamps count whole seconds or microseconds, as their writers like; versions grow with each write.
    return tuple(sorted(events, key=lambda event: (event.sequence, event.at)))


def build_job_event(raw: Raw, submission: int) -> JobEvent:
    """One event. Of one that repeats, the time and the place in the order are those of its last appearance."""
    count = fields.number(raw, "count") or fields.number(raw, "series", "count")
    about = f"{fields.text(raw, 'involvedObject', 'kind')} {fields.text(raw, 'involvedObject', 'name')}"
    said = " ".join(clean_text(line) for line in fields.text(raw, "message").splitlines())
    is_ours = fields.text(raw, "source", "component") == "dispatch" or fields.text(
        raw, "reportingComponent"
    ).startswith(words.DOMAIN)
    return JobEvent(
        sequence=fields.whole_number(fields.text(raw, "metadata", "resourceVersion")) or 0,
        at=_read_time(raw),
        submission=submission,
        kind=build_kind(fields.text(raw, "reason")),
        message=(said if is_ours else f"{about}: {said}") + (f" ({count} times)" if count > 1 else ""),
        epoch=fields.whole_number(fields.annotation(raw, words.EPOCH_ANNOTATION)),
    )


def build_kind(reason: str) -> str:
    """``EvictedDueToPreempted`` as ``evicted_due_to_preempted``."""
    return _WORD.sub("_", reason).lower()


def _read_time(raw: Raw) -> datetime:
    stamps = (("series", "lastObservedTime"), ("eventTime",), ("lastTimestamp",), ("metadata", "creationTimestamp"))
    count = fields.number(raw, "count")
    # The exact stamp is that of the first appearance.
    ordered = (stamps[0], stamps[2], stamps[3]) if count > 1 else stamps
    return next((at for path in ordered if (at := fields.moment(raw, *path)) is not None), _NEVER)
