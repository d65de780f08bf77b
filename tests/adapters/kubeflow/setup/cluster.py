# SPDX-License-Identifier: Apache-2.0
"""A cluster in memory that can be set up: the API server's apply, and Kueue as long as a test wants it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_provider_dispatch.adapters.kubeflow.model.resources import ADMISSION_CHECKS, NAMESPACES, Resource
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings
from airflow_provider_dispatch.adapters.kubeflow.setup.keeper import ClusterKeeper
from airflow_provider_dispatch.adapters.kubeflow.setup.kinds import DEPLOYMENTS
from tests.adapters.kubeflow.memory_client import MemoryClient, Object

NOW = datetime(2026, 9, 1, 12, tzinfo=UTC)
SOON = NOW + timedelta(seconds=30)


class SetupClient(MemoryClient):
    """With server-side apply, as far as whole objects of one manager need it."""

    has_kueue = True
    has_images = True
    """Pods of Deployments become ready, and the check of the controller in them active."""

    async def is_served(self, resource: Resource) -> bool:
        """Kueue's kinds where there is Kueue."""
        return self.has_kueue or resource.group != "kueue.x-k8s.io"

    async def apply(
        self, resource: Resource, body: Mapping[str, Any], namespace: str | None = None, *, dry_run: bool = False
    ) -> Object:
        """The object as the body says."""
        fault = self._begin("apply", resource, body["metadata"]["name"], dry_run=dry_run)
        known = self.peek(resource, body["metadata"]["name"], namespace or "") or {"metadata": {}}
        server_set = {key: known["metadata"][key] for key in ("uid",) if key in known["metadata"]}
        after = {**body, "metadata": {**body["metadata"], **server_set}, **self._build_status(resource, body)}
        return self._end(fault, after if dry_run else self.put(resource, after, namespace or ""))

    def _build_status(self, resource: Resource, body: Mapping[str, Any]) -> Object:
        if resource == DEPLOYMENTS and self.has_images:
            ready = body["spec"]["replicas"]
            return {"status": {"updatedReplicas": ready, "availableReplicas": ready}}
        if resource == ADMISSION_CHECKS and self.has_images:
            return {"status": {"conditions": [{"type": "Active", "status": "True"}]}}
        return {}


def build_client(*namespaces: str) -> SetupClient:
    client = SetupClient()
    for name in namespaces:
        client.put(NAMESPACES, {"metadata": {"name": name}})
    return client


def keep(client: MemoryClient, *, clock: Callable[[], datetime] = lambda: NOW, **fields: Any) -> ClusterKeeper:
    """The keeper over it."""

    async def open_it(_settings: KubeflowSettings) -> MemoryClient:
        return client

    return ClusterKeeper(KubeflowSettings(**fields), open_client=open_it, clock=clock)
