# SPDX-License-Identifier: Apache-2.0
"""What a job would ask its queue for: read from the private runtime that `start` would make of it."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.model.manifests import build_runtime
from airflow_provider_dispatch.adapters.kubeflow.model.queue_fit import RoleRequest, read_runtime_requests
from airflow_provider_dispatch.adapters.kubeflow.queue_lookup import fetch_runtime
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings
from airflow_provider_dispatch.adapters.kubeflow.start_terms import build_terms
from airflow_provider_dispatch.core.identity import build_job_id
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.records import StartRequest

_ANY_JOB = build_job_id(0, bytes(10))


async def fetch_requests(client: KubeClient, settings: KubeflowSettings, spec: JobSpec) -> Mapping[str, RoleRequest]:
    """By role.

    :raises SpecError: the job and its runtime don't go together.
    """
    request = StartRequest(_ANY_JOB, 1, 1, spec)
    original = await fetch_runtime(client, settings, spec.runtime)
    return read_runtime_requests(build_runtime(request, original, build_terms(settings, request)))
