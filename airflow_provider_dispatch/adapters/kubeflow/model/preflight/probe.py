# SPDX-License-Identifier: Apache-2.0
"""The job that preflight makes to watch: built like any other, but nobody's, asking for a node that no cluster has."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.manifests import build_runtime, build_trainjob
from airflow_provider_dispatch.adapters.kubeflow.model.resources import TRAINING_RUNTIMES
from airflow_provider_dispatch.adapters.kubeflow.model.terms import Terms
from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.records import StartRequest

PROBE_SELECTOR = f"{words.KIND_LABEL}={words.PROBE_KIND}"
NO_GATE = "no gate"
"""In the place of a gate; Kueue refuses it where it looks at gates."""
_IMAGE = "preflight.invalid/never-started"
_NAME_LENGTH = 8

Object = dict[str, Any]


def build_probe_name(job: JobID) -> str:
    """Of both objects of a probe."""
    return f"dispatch-preflight-{job[-_NAME_LENGTH:].lower()}"


def build_probe_until(now: datetime, seconds: float) -> datetime:
    """When the preflight that makes a probe now is over in any case."""
    return now + timedelta(seconds=30 + 2 * seconds)


def build_probe_runtime(job: JobID, terms: Terms, until: datetime) -> Object:
    """The private runtime of a probe; labelled as that of a job, since our policies let us make no other."""
    runtime = build_runtime(_build_request(job), _build_original(), terms)
    return _mark(runtime, build_probe_name(job), until)


def build_probe_trainjob(job: JobID, terms: Terms, until: datetime, *, gate: str = words.GATE) -> Object:
    """The probe itself: without a job's labels, so that no verb and no controller of ours takes it for one."""
    trainjob = build_trainjob(_build_request(job), _build_original(), terms)
    name, metadata = build_probe_name(job), trainjob["metadata"]
    metadata["labels"] = {words.QUEUE_LABEL: terms.queue} if terms.queue else {}
    metadata["annotations"] = {words.ADMISSION_GATED_BY: gate}
    trainjob["spec"]["runtimeRef"]["name"] = name
    return _mark(trainjob, name, until)


def is_abandoned(raw: Raw, now: datetime) -> bool:
    """Whether the preflight that made a probe can't be running any more."""
    until = fields.parse_time(fields.annotation(raw, words.PROBE_UNTIL_ANNOTATION))
    return until is not None and until < now


def _mark(raw: Object, name: str, until: datetime) -> Object:
    raw["metadata"]["name"] = name
    raw["metadata"]["labels"][words.KIND_LABEL] = words.PROBE_KIND
    raw["metadata"]["annotations"][words.PROBE_UNTIL_ANNOTATION] = fields.format_time(until)
    return raw


def _build_request(job: JobID) -> StartRequest:
    return StartRequest(job, 1, 1, JobSpec(command=["true"]))


def _build_original() -> Object:
    """The least that can be made into a job."""
    pods = {
        "nodeSelector": {words.NOWHERE: words.PROBE_KIND},
        "containers": [{"name": words.NODE_CONTAINER, "image": _IMAGE}],
    }
    job = {"name": words.NODE_CONTAINER, "template": {"spec": {"template": {"spec": pods}}}}
    return {
        "kind": TRAINING_RUNTIMES.kind,
        "metadata": {"name": words.PROBE_KIND},
        "spec": {"template": {"spec": {"replicatedJobs": [job]}}},
    }
