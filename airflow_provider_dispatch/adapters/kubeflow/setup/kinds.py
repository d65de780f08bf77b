# SPDX-License-Identifier: Apache-2.0
"""The kinds of objects that setting up writes, found by what a manifest says of itself. Pure."""

from __future__ import annotations

from typing import Any

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model.resources import (
    ADMISSION_CHECKS,
    CLUSTER_QUEUES,
    LOCAL_QUEUES,
    NAMESPACES,
    POLICIES,
    POLICY_BINDINGS,
    RESOURCE_FLAVORS,
    Resource,
)

_RBAC = ("rbac.authorization.k8s.io", "v1")
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
ROLES = Resource(*_RBAC, "roles", "Role")
ROLE_BINDINGS = Resource(*_RBAC, "rolebindings", "RoleBinding")
CLUSTER_ROLES = Resource(*_RBAC, "clusterroles", "ClusterRole", is_namespaced=False)
CLUSTER_ROLE_BINDINGS = Resource(*_RBAC, "clusterrolebindings", "ClusterRoleBinding", is_namespaced=False)

_KNOWN = {
    (resource.api_version, resource.kind): resource
    for resource in (
        *(NAMESPACES, SERVICE_ACCOUNTS, ROLES, ROLE_BINDINGS, CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS, DEPLOYMENTS),
        *(POLICIES, POLICY_BINDINGS, ADMISSION_CHECKS, RESOURCE_FLAVORS, CLUSTER_QUEUES, LOCAL_QUEUES),
    )
}


def find_resource(manifest: dict[str, Any]) -> Resource:
    """What serves the object."""
    return _KNOWN[manifest["apiVersion"], manifest["kind"]]


def find_namespace(manifest: dict[str, Any]) -> str | None:
    """Where the object lives; None for the whole cluster."""
    return fields.text(manifest, "metadata", "namespace") or None


def describe_object(manifest: dict[str, Any]) -> str:
    """Kind and name, for people."""
    place = find_namespace(manifest)
    return f"{manifest['kind']} {f'{place}/' if place else ''}{fields.name(manifest)}"
