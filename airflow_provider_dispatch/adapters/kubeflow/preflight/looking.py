# SPDX-License-Identifier: Apache-2.0
"""Reads what a preflight judges: who we are, what is served and allowed, the queue with its checks, webhooks, policies.

Everything is asked for at the same time, and what is refused leaves its own place empty. Never writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace
from datetime import datetime

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.errors import UnauthorizedError, quote_answer
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.entry import list_apis
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.sights import (
    NOT_ASKED,
    PolicySight,
    PreflightTerms,
    QueueSight,
    Seen,
    ServedGroup,
    Sights,
    Unseen,
)
from airflow_provider_dispatch.adapters.kubeflow.model.resources import (
    ADMISSION_CHECKS,
    CLUSTER_QUEUES,
    CLUSTER_TRAINING_RUNTIMES,
    LOCAL_QUEUES,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    POLICIES,
    POLICY_BINDINGS,
    RESOURCE_FLAVORS,
    TRAINING_RUNTIMES,
    USER_REVIEWS,
    VALIDATING_WEBHOOKS,
    Resource,
)
from airflow_provider_dispatch.adapters.kubeflow.preflight.guards import look
from airflow_provider_dispatch.adapters.kubeflow.preflight.permissions import fetch_denied
from airflow_provider_dispatch.adapters.kubeflow.queue_lookup import fetch_lease
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings
from airflow_provider_dispatch.adapters.kubeflow.setup.rendering import build_manifests
from airflow_provider_dispatch.adapters.kubeflow.setup.terms import NAME, JobsNamespace, SetupTerms
from airflow_provider_dispatch.exceptions import RefusedError

_SYSTEM = "-system"
"""How the namespace of an installation's controller ends; before it stands its name."""
NAMELESS = "an account without a name"


def build_preflight_terms(settings: KubeflowSettings) -> PreflightTerms:
    """What a connection says, for the pure half."""
    return PreflightTerms(
        namespace=settings.namespace,
        queue=settings.queue or "",
        check=settings.admission_check,
        lease=(settings.lease_namespace, settings.lease_name),
        has_controller=settings.has_controller,
        runtime=settings.runtime.name if settings.runtime else "",
    )


async def fetch_user(client: KubeClient, settings: KubeflowSettings, now: datetime) -> Sights:
    """The first thing seen: who the API server takes us for."""
    review = {"apiVersion": USER_REVIEWS.api_version, "kind": USER_REVIEWS.kind, "metadata": {}}
    sights = Sights(build_preflight_terms(settings), now)
    try:
        answer = await client.create(USER_REVIEWS, review)
    except UnauthorizedError as error:
        return replace(sights, user=Unseen(quote_answer(error)))
    except RefusedError:
        # It knows us well enough to forbid us this question.
        return replace(sights, user=NAMELESS)
    return replace(sights, user=fields.text(answer, "status", "userInfo", "username") or NAMELESS)


async def fetch_sights(client: KubeClient, settings: KubeflowSettings, sights: Sights) -> Sights:
    """All that can be read.

    :raises UnavailableError: the API server doesn't answer.
    """
    terms = sights.terms
    version, served, denied, namespace, runtime = await asyncio.gather(
        client.version(),
        _fetch_served(client, terms),
        look(fetch_denied(client, terms)),
        look(client.get(NAMESPACES, terms.namespace)),
        _fetch_runtime(client, settings),
    )
    queue, lease, webhooks, policies = await asyncio.gather(
        _fetch_queue(client, terms),
        look(fetch_lease(client, settings)) if terms.is_fenced else _skip(),
        look(_fetch_webhooks(client)),
        _fetch_policies(client, settings, terms),
    )
    entry = replace(sights, version=version, served=served, denied=denied, namespace=namespace, runtime=runtime)
    return replace(entry, queue=queue, lease=lease, webhooks=webhooks, policies=policies)


async def _skip() -> Unseen:
    return NOT_ASKED


async def _fetch_served(client: KubeClient, terms: PreflightTerms) -> dict[str, ServedGroup]:
    needed = list_apis(terms)

    async def fetch(group: str) -> ServedGroup:
        kinds = [one for one in needed if one.group == group]
        are_served = await asyncio.gather(*map(client.is_served, kinds))
        plurals = frozenset(one.plural for one, is_so in zip(kinds, are_served, strict=True) if is_so)
        return ServedGroup(await client.list_versions(group), plurals)

    groups = list(dict.fromkeys(one.group for one in needed))
    return dict(zip(groups, await asyncio.gather(*map(fetch, groups)), strict=True))


async def _fetch_runtime(client: KubeClient, settings: KubeflowSettings) -> Seen[Raw | None]:
    named = settings.runtime
    if named is None:
        return NOT_ASKED
    if named.kind == TRAINING_RUNTIMES.kind:
        return await look(client.get(TRAINING_RUNTIMES, named.name, settings.namespace))
    return await look(client.get(CLUSTER_TRAINING_RUNTIMES, named.name))


async def _fetch_queue(client: KubeClient, terms: PreflightTerms) -> QueueSight:
    if not terms.queue:
        return QueueSight()
    local_queue, flavors = await asyncio.gather(
        look(client.get(LOCAL_QUEUES, terms.queue, terms.namespace)), look(_fetch_names(client, RESOURCE_FLAVORS))
    )
    name = fields.text(local_queue, "spec", "clusterQueue")
    # Who may not read the LocalQueue can't know the ClusterQueue either.
    cluster_queue: Seen[Raw | None] = local_queue if isinstance(local_queue, Unseen) else None
    if name:
        cluster_queue = await look(client.get(CLUSTER_QUEUES, name))
    listed = fields.items(cluster_queue, "spec", "admissionChecksStrategy", "admissionChecks")
    names = {terms.check, *(fields.text(entry, "name") for entry in listed)}
    checks = await look(_fetch_checks(client, names))
    return QueueSight(local_queue, cluster_queue, checks, flavors)


async def _fetch_checks(client: KubeClient, names: Collection[str]) -> dict[str, Raw | None]:
    ordered = sorted(names)
    found = await asyncio.gather(*(client.get(ADMISSION_CHECKS, name) for name in ordered))
    return dict(zip(ordered, found, strict=True))


async def _fetch_webhooks(client: KubeClient) -> tuple[Raw, ...]:
    found = await asyncio.gather(client.list(MUTATING_WEBHOOKS), client.list(VALIDATING_WEBHOOKS))
    return tuple(raw for one in found for raw in one.items)


async def _fetch_policies(client: KubeClient, settings: KubeflowSettings, terms: PreflightTerms) -> PolicySight:
    system = settings.lease_namespace
    namespace = JobsNamespace(settings.namespace, is_watched=terms.is_fenced)
    installation = SetupTerms((namespace,), name=system.removesuffix(_SYSTEM) if system.endswith(_SYSTEM) else NAME)
    made = build_manifests(installation)
    policies, bindings = await asyncio.gather(
        look(_fetch_names(client, POLICIES)), look(_fetch_denying_bindings(client))
    )
    return PolicySight(
        tuple(fields.name(one) for one in made if one["kind"] == POLICIES.kind),
        tuple(fields.name(one) for one in made if one["kind"] == POLICY_BINDINGS.kind),
        policies,
        bindings,
    )


async def _fetch_denying_bindings(client: KubeClient) -> frozenset[str]:
    found = await client.list(POLICY_BINDINGS)
    return frozenset(
        fields.name(one) for one in found.items if "Deny" in (fields.dig(one, "spec", "validationActions") or ())
    )


async def _fetch_names(client: KubeClient, resource: Resource) -> frozenset[str]:
    return frozenset(map(fields.name, (await client.list(resource)).items))
