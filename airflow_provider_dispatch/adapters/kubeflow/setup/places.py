# SPDX-License-Identifier: Apache-2.0
"""Reads back which namespaces of a cluster are set up for jobs, for whom, and what still lives in them.

The command asks it before it changes an installation, so that adding a namespace never takes another one away. It
writes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.resources import NAMESPACES, TRAINJOBS
from airflow_provider_dispatch.adapters.kubeflow.setup.kinds import DEPLOYMENTS, ROLE_BINDINGS
from airflow_provider_dispatch.adapters.kubeflow.setup.rendering import (
    CONTROLLER_LABEL,
    INSTANCE_LABEL,
    PART_LABEL,
)
from airflow_provider_dispatch.adapters.kubeflow.setup.terms import NAME, Account, JobsNamespace
from airflow_provider_dispatch.exceptions import CapabilityError, SpecError


async def fetch_namespaces(client: KubeClient, name: str) -> dict[str, JobsNamespace]:
    """The namespaces that an installation has, by name."""
    selector = f"{PART_LABEL}={NAME},{INSTANCE_LABEL}={name}"
    found = await client.list(ROLE_BINDINGS, labels=selector)
    bindings = [one for one in found.items if fields.name(one) == f"{name}-airflow"]
    return {one.name: one for one in (_read_binding(binding, name) for binding in bindings)}


async def fetch_controller(client: KubeClient, name: str) -> tuple[str, bool] | None:
    """The image of an installation's controller, and whether it watches all namespaces; None without one."""
    deployment = await client.get(DEPLOYMENTS, f"{name}-controller", f"{name}-system")
    containers = fields.items(deployment, "spec", "template", "spec", "containers")
    if deployment is None or not containers:
        return None
    arguments = fields.dig(containers[0], "args")
    return fields.text(containers[0], "image"), "--namespace" not in (arguments if isinstance(arguments, list) else [])


async def check_namespaces(client: KubeClient, names: Iterable[str]) -> None:
    """Refuse a namespace that isn't there.

    :raises SpecError: it names the first.
    """
    for name in names:
        if await client.get(NAMESPACES, name) is None:
            raise SpecError("namespace", f"is not there: kubectl create namespace {name}", name)


async def fetch_living_jobs(client: KubeClient, namespaces: Iterable[str]) -> list[str]:
    """TrainJobs of ours that have not ended."""
    try:
        lists = await asyncio.gather(*(client.list(TRAINJOBS, one, labels=words.JOB_LABEL) for one in namespaces))
    except CapabilityError:
        return []
    return [
        f"{fields.text(one, 'metadata', 'namespace')}/{fields.name(one)}"
        for found in lists
        for one in found.items
        if not _has_ended(one)
    ]


def _has_ended(trainjob: Raw) -> bool:
    return any(fields.is_true(trainjob, end) for end in (words.TRAINJOB_COMPLETE, words.TRAINJOB_FAILED))


def _read_binding(binding: Raw, name: str) -> JobsNamespace:
    namespace = fields.text(binding, "metadata", "namespace")
    accounts = sorted(
        Account(fields.text(subject, "namespace"), fields.text(subject, "name"))
        for subject in fields.items(binding, "subjects")
        if fields.text(subject, "kind") == "ServiceAccount"
    )
    own = [Account(namespace, f"{name}-airflow")]
    return JobsNamespace(
        namespace, () if accounts == own else tuple(accounts), fields.label(binding, CONTROLLER_LABEL) != "none"
    )
