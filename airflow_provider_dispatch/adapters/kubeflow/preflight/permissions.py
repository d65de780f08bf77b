# SPDX-License-Identifier: Apache-2.0
"""Asks the API server what we may do, one question a right, some at a time."""

from __future__ import annotations

import asyncio
from typing import Any

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.access import Right, list_rights
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.sights import PreflightTerms
from airflow_provider_dispatch.adapters.kubeflow.model.resources import ACCESS_REVIEWS, LEASES, NAMESPACES

AT_ONCE = 8
"""Others wait for the API server, too."""


async def fetch_denied(client: KubeClient, terms: PreflightTerms) -> tuple[Right, ...]:
    """What we need and may not do.

    :raises RefusedError: we may not even ask.
    """
    needed = list_rights(has_queue=bool(terms.queue), is_fenced=terms.is_fenced)
    slots = asyncio.Semaphore(AT_ONCE)

    async def ask(right: Right) -> bool:
        async with slots:
            return fields.flag(await client.create(ACCESS_REVIEWS, _build_review(right, terms)), "status", "allowed")

    allowed = await asyncio.gather(*map(ask, needed))
    return tuple(right for right, may in zip(needed, allowed, strict=True) if not may)


def _build_review(right: Right, terms: PreflightTerms) -> dict[str, Any]:
    resource = right.resource
    attributes = {"verb": right.verb, "group": resource.group, "version": resource.version, "resource": resource.plural}
    if right.subresource:
        attributes["subresource"] = right.subresource
    if resource == LEASES:
        attributes["namespace"], attributes["name"] = terms.lease
    elif resource == NAMESPACES:
        # A namespace lies within itself, as far as rights go.
        attributes["namespace"] = attributes["name"] = terms.namespace
    elif resource.is_namespaced:
        attributes["namespace"] = terms.namespace
    return {
        "apiVersion": ACCESS_REVIEWS.api_version,
        "kind": ACCESS_REVIEWS.kind,
        "metadata": {},
        "spec": {"resourceAttributes": attributes},
    }
