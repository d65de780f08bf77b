# SPDX-License-Identifier: Apache-2.0
"""Proves what `start` needs of a cluster: its two gates, the hold and the identity of an execution.

The adapter and "Test connection" call it; `start` asks for the capabilities of one queue alone. Nothing it does
outlives the call: what has to be tried is tried as a dry run, through the cluster's own webhooks.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.queue_guard import (
    QueueView,
    describe_lease,
    explain_unguarded,
)
from airflow_provider_dispatch.adapters.kubeflow.model.resources import ACCESS_REVIEWS, TRAINJOBS, WORKLOADS
from airflow_provider_dispatch.adapters.kubeflow.queue_lookup import (
    fetch_lease,
    fetch_queue_names,
    fetch_queue_view,
    fetch_runtime,
)
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings
from airflow_provider_dispatch.core.capabilities import Answer, Capability, Finding, Preflight, Source
from airflow_provider_dispatch.exceptions import DispatchError, RefusedError, SpecError

PROBE_NAME = "dispatch-preflight"

Findings = dict[Capability, Finding]


async def run_preflight(client: KubeClient, settings: KubeflowSettings, *, now: datetime) -> Preflight:
    """All checks, in order.

    :raises UnavailableError: the API server doesn't answer.
    """
    version = await client.version()
    served = await client.is_served(TRAINJOBS)
    checks = {
        "kubernetes": _probe(is_so=True, said=version),
        "trainer": _probe(is_so=served, said=f"{TRAINJOBS.api_version} is {'' if served else 'not '}served"),
    }
    if settings.queue is None:
        lease = await fetch_lease(client, settings) if settings.has_controller else None
        capabilities = derive_plain_capabilities(settings, lease, now)
        return Preflight(checks, capabilities)
    view = await fetch_queue_view(client, settings, settings.queue)
    checks |= derive_queue_checks(view, settings, now)
    capabilities = derive_queue_capabilities(view, settings, now)
    capabilities[Capability.HOLD] = await _probe_hold(client, settings)
    capabilities[Capability.START_GATE] = await _probe_start_gate(client, settings, settings.queue)
    return Preflight(checks, capabilities)


async def fetch_capabilities(
    client: KubeClient, settings: KubeflowSettings, queue: str, *, now: datetime
) -> Mapping[Capability, Finding]:
    """What `start` needs to know of a queue; empty means plain mode. Hold and start gate are seen on the job itself.

    :raises SpecError: no such LocalQueue in the namespace of the connection.
    """
    if not queue:
        lease = await fetch_lease(client, settings) if settings.has_controller else None
        return derive_plain_capabilities(settings, lease, now)
    view = await fetch_queue_view(client, settings, queue)
    if view.local_queue is None:
        known = await fetch_queue_names(client, settings)
        raise SpecError("queue", f"is not one of {known} in namespace {settings.namespace}", queue)
    return derive_queue_capabilities(view, settings, now)


def derive_queue_checks(view: QueueView, settings: KubeflowSettings, now: datetime) -> dict[str, Finding]:
    """What stands between a queue and us, each by name."""
    unguarded = explain_unguarded(view, settings.admission_check)
    fresh, said = describe_lease(view.lease, now)
    return {
        f"queue {view.name}": _probe(
            is_so=unguarded is None, said=unguarded or f"AdmissionCheck {settings.admission_check} guards it, alone"
        ),
        "controller": _probe(is_so=fresh, said=_describe_controller(settings, said)),
    }


def derive_queue_capabilities(view: QueueView, settings: KubeflowSettings, now: datetime) -> Findings:
    """Kueue mode, as far as reading tells."""
    unguarded = explain_unguarded(view, settings.admission_check)
    fresh, said = describe_lease(view.lease, now)
    controller = _describe_controller(settings, said)
    lists = f"ClusterQueue {fields.name(view.cluster_queue)} lists AdmissionCheck {settings.admission_check}"
    guard = unguarded or f"{lists}, whose controller is that of {controller}"
    lifts = f"the controller tells each pod when it lifts it; {controller}"
    seen = Finding(Answer.YES, Source.DECLARED, f"Kueue serves {WORKLOADS.api_version}")
    return _declare_rest() | {
        Capability.READMISSION_GATE: _probe(is_so=unguarded is None and fresh, said=guard),
        Capability.ATTEMPT_INJECTION: _probe(is_so=fresh, said=lifts),
        Capability.HOLD: seen,
        Capability.START_GATE: seen,
        Capability.POD_FENCE: _probe(is_so=fresh, said=controller),
    }


def derive_plain_capabilities(settings: KubeflowSettings, lease: fields.Raw | None, now: datetime) -> Findings:
    """Plain mode: gate and hold are one field of the TrainJob."""
    suspend = Finding(Answer.YES, Source.DECLARED, "spec.suspend of the TrainJob")
    both = {Capability.HOLD: suspend, Capability.START_GATE: suspend}
    if not settings.has_controller:
        waits = Finding(Answer.YES, Source.DECLARED, "we wait ourselves until the old pods are gone")
        tells = Finding(Answer.YES, Source.DECLARED, "we write it into the TrainJob while it is suspended")
        none = Finding(Answer.NO, Source.DECLARED, "there is no controller in this namespace")
        alone = {Capability.READMISSION_GATE: waits, Capability.ATTEMPT_INJECTION: tells, Capability.POD_FENCE: none}
        return _declare_rest() | both | alone
    fresh, said = describe_lease(lease, now)
    fence = _probe(is_so=fresh, said=_describe_controller(settings, said))
    fenced = (Capability.READMISSION_GATE, Capability.ATTEMPT_INJECTION, Capability.POD_FENCE)
    return _declare_rest() | both | dict.fromkeys(fenced, fence)


async def _probe_hold(client: KubeClient, settings: KubeflowSettings) -> Finding:
    attributes = {
        "namespace": settings.namespace,
        "verb": "patch",
        "group": WORKLOADS.group,
        "resource": WORKLOADS.plural,
    }
    review: dict[str, Any] = {
        "apiVersion": ACCESS_REVIEWS.api_version,
        "kind": ACCESS_REVIEWS.kind,
        "metadata": {},
        "spec": {"resourceAttributes": attributes},
    }
    answer = await client.create(ACCESS_REVIEWS, review)
    allowed = fields.flag(answer, "status", "allowed")
    may = "may" if allowed else "may not"
    return _probe(is_so=allowed, said=f"we {may} patch Workloads in namespace {settings.namespace}")


async def _probe_start_gate(client: KubeClient, settings: KubeflowSettings, queue: str) -> Finding:
    """A gate that Kueue honours is one whose syntax it checks."""
    try:
        runtime = await fetch_runtime(client, settings, None)
        probe = _build_probe(settings, queue, runtime, words.GATE)
        answer = await client.create(TRAINJOBS, probe, settings.namespace, dry_run=True)
    except RefusedError as error:
        return Finding(Answer.NO, Source.PROBED, str(error))
    except DispatchError as error:
        return Finding(Answer.UNKNOWN, Source.PROBED, f"nothing could be tried: {error}")
    if not is_managed_by_kueue(answer):
        return Finding(Answer.NO, Source.PROBED, EXPLAIN_UNMANAGED)
    try:
        await client.create(
            TRAINJOBS, _build_probe(settings, queue, runtime, "no gate"), settings.namespace, dry_run=True
        )
    except RefusedError:
        return Finding(Answer.YES, Source.PROBED, "Kueue takes our gate and refuses one that is none")
    return Finding(Answer.NO, Source.PROBED, "Kueue doesn't look at gates: its feature AdmissionGatedBy is off")


EXPLAIN_UNMANAGED = (
    "Kueue doesn't manage TrainJobs here: name trainer.kubeflow.org/trainjob among its integrations, "
    "and this namespace among those it manages"
)


def is_managed_by_kueue(trainjob: fields.Raw) -> bool:
    """Whether Kueue's webhook has seen a TrainJob: it adds an item of its own and suspends the job."""
    managers = {fields.text(item, "manager") for item in fields.items(trainjob, "spec", "runtimePatches")}
    return words.KUEUE_PATCH_MANAGER in managers and fields.flag(trainjob, "spec", "suspend")


def _build_probe(settings: KubeflowSettings, queue: str, runtime: fields.Raw, gate: str) -> dict[str, Any]:
    return {
        "apiVersion": TRAINJOBS.api_version,
        "kind": TRAINJOBS.kind,
        "metadata": {
            "name": PROBE_NAME,
            "namespace": settings.namespace,
            "labels": {words.QUEUE_LABEL: queue},
            "annotations": {words.ADMISSION_GATED_BY: gate},
        },
        "spec": {
            "suspend": True,
            "runtimeRef": {
                "apiGroup": TRAINJOBS.group,
                "kind": fields.text(runtime, "kind"),
                "name": fields.name(runtime),
            },
        },
    }


def _declare_rest() -> Findings:
    no = (Answer.NO, Source.DECLARED)
    return {
        Capability.LOGS: Finding(Answer.YES, Source.DECLARED, "through the API server, while the pods are there"),
        Capability.QUEUE_POSITION: Finding(*no, "Kueue tells it only by an API of its own that is not read"),
        Capability.PROGRESS: Finding(*no, "nothing here reads progress"),
        Capability.MEMORY_LIMIT: Finding(Answer.YES, Source.DECLARED, "limits of the containers"),
    }


def _describe_controller(settings: KubeflowSettings, said: str) -> str:
    return f"Lease {settings.lease_namespace}/{settings.lease_name}: {said}"


def _probe(*, is_so: bool, said: str) -> Finding:
    return Finding(Answer.YES if is_so else Answer.NO, Source.PROBED, said)
