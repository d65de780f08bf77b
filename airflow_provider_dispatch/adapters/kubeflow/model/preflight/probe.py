# SPDX-License-Identifier: Apache-2.0
"""The job that preflight makes to watch: built like any other, but nobody's, asking for a node that no cluster has."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.manifests import build_runtime, build_trainjob
from airflow_provider_dispatch.adapters.kubeflow.model.probe_marks import build_probe_name, mark_as_probe
from airflow_provider_dispatch.adapters.kubeflow.model.resources import TRAINING_RUNTIMES
from airflow_provider_dispatch.adapters.kubeflow.model.terms import Terms
from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.records import StartRequest

NO_GATE = "no gate"
"""In the place of a gate; Kueue refuses it where it looks at gates."""
_IMAGE = "preflight.invalid/never-started"

Object = dict[str, Any]


def build_probe_runtime(job: JobID, terms: Terms, until: datetime) -> Object:
    """The private runtime of a probe; labelled as that of a job, since our policies let us make no other."""
    runtime = build_runtime(_build_request(job), _build_original(), terms)
    return mark_as_probe(runtime, build_probe_name(job), until)


def build_probe_trainjob(job: JobID, terms: Terms, until: datetime, *, gate: str = words.GATE) -> Object:
    """The probe itself: without a job's labels, so that no verb and no controller of ours takes it for one."""
    trainjob = build_trainjob(_build_request(job), _build_original(), terms)
    name, metadata = build_probe_name(job), trainjob["metadata"]
    metadata["labels"] = {words.QUEUE_LABEL: terms.queue} if terms.queue else {}
    metadata["annotations"] = {words.ADMISSION_GATED_BY: gate}
    trainjob["spec"]["runtimeRef"]["name"] = name
    return mark_as_probe(trainjob, name, until)


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
