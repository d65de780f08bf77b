# SPDX-License-Identifier: Apache-2.0
"""Waits until the controller of an installation is up and answers its check; says what keeps it from that.

The command calls it once everything is applied. It writes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import datetime

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.resources import ADMISSION_CHECKS, PODS
from airflow_provider_dispatch.adapters.kubeflow.setup.kinds import DEPLOYMENTS
from airflow_provider_dispatch.adapters.kubeflow.setup.rendering import INSTANCE_LABEL, PART_LABEL
from airflow_provider_dispatch.adapters.kubeflow.setup.terms import NAME, SetupTerms
from airflow_provider_dispatch.adapters.kubeflow.transport import Sleep
from airflow_provider_dispatch.exceptions import cut_text

LOOK_SECONDS = 0.5
LONGEST_REASON = 300


async def await_controller(
    client: KubeClient,
    terms: SetupTerms,
    *,
    deadline: datetime,
    clock: Callable[[], datetime],
    sleep: Sleep = asyncio.sleep,
) -> str:
    """Stay until every replica runs what was applied last, and one of them keeps the check active.

    :return: what is missing at the deadline; empty when nothing is.
    """
    while problem := await _find_problem(client, terms):
        if clock() >= deadline:
            return problem
        await sleep(LOOK_SECONDS)
    return ""


async def _find_problem(client: KubeClient, terms: SetupTerms) -> str:
    deployment = await client.get(DEPLOYMENTS, f"{terms.name}-controller", terms.system_namespace)
    wanted, ready = fields.number(deployment, "spec", "replicas"), _count_ready(deployment)
    if deployment is None or ready < wanted:
        selector = f"{PART_LABEL}={NAME},{INSTANCE_LABEL}={terms.name}"
        pods = await client.list(PODS, terms.system_namespace, labels=selector)
        reasons = [*_explain_deployment(deployment), *(reason for pod in pods.items for reason in _explain_pod(pod))]
        return f"{ready} of {wanted} pods are ready" + (f": {cut_text(reasons[0], LONGEST_REASON)}" if reasons else "")
    if terms.has_kueue and not fields.is_true(await client.get(ADMISSION_CHECKS, terms.admission_check), "Active"):
        return f"AdmissionCheck {terms.admission_check} is not active"
    return ""


def _count_ready(deployment: Raw | None) -> int:
    """Of its pods those that are as the Deployment says now."""
    if fields.number(deployment, "status", "observedGeneration") < fields.number(deployment, "metadata", "generation"):
        return 0
    counted = (fields.number(deployment, "status", field) for field in ("updatedReplicas", "availableReplicas"))
    return min(counted)


def _explain_deployment(deployment: Raw | None) -> Iterator[str]:
    """Why there are no pods, such as a quota."""
    failure = fields.conditions(deployment).get("ReplicaFailure")
    if failure is not None and failure.is_true:
        yield failure.message


def _explain_pod(pod: Raw) -> Iterator[str]:
    scheduled = fields.conditions(pod).get("PodScheduled")
    if scheduled is not None and not scheduled.is_true:
        yield f"pod {fields.name(pod)}: {scheduled.message or scheduled.reason}"
    for container in fields.items(pod, "status", "containerStatuses"):
        waiting = fields.mapping(container, "state", "waiting")
        if waiting and fields.text(waiting, "reason") not in ("ContainerCreating", "PodInitializing"):
            said = " ".join(filter(None, (fields.text(waiting, "reason"), fields.text(waiting, "message"))))
            yield f"pod {fields.name(pod)}: {said}"
