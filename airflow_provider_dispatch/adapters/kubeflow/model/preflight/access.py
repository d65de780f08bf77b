# SPDX-License-Identifier: Apache-2.0
"""What Airflow's side must be allowed to do: the one list, asked for by preflight and held by a test to the roles that
`dispatch setup` makes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

from airflow_provider_dispatch.adapters.kubeflow.model.resources import (
    ADMISSION_CHECKS,
    CLUSTER_QUEUES,
    CLUSTER_TRAINING_RUNTIMES,
    CONFIG_MAPS,
    EVENTS,
    JOBS,
    JOBSETS,
    LEASES,
    LOCAL_QUEUES,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    PODS,
    POLICIES,
    POLICY_BINDINGS,
    PRIORITY_CLASSES,
    RESOURCE_FLAVORS,
    TRAINING_RUNTIMES,
    TRAINJOBS,
    VALIDATING_WEBHOOKS,
    WORKLOADS,
    Resource,
)


@dataclass(frozen=True, slots=True)
class Right:
    """One verb on one resource.

    :param subresource: empty for the resource itself.
    """

    resource: Resource
    verb: str
    subresource: str = ""

    @property
    def target(self) -> str:
        """As roles name it: ``pods/log``, ``trainjobs.trainer.kubeflow.org``."""
        plural = f"{self.resource.plural}/{self.subresource}" if self.subresource else self.resource.plural
        return f"{plural}.{self.resource.group}" if self.resource.group else plural


READ = "get list"
WATCH = f"{READ} watch"
Table: TypeAlias = tuple[tuple[str, tuple[Resource, ...]], ...]
"""Verbs of some resources, a line for those that are alike."""

_IN_THE_NAMESPACE: Table = (
    (f"{WATCH} create patch delete", (TRAINJOBS, TRAINING_RUNTIMES)),
    (f"{WATCH} patch delete", (WORKLOADS,)),
    (READ, (LOCAL_QUEUES,)),
    (f"{WATCH} delete", (JOBSETS, JOBS, PODS)),
    (f"{READ} create patch delete", (CONFIG_MAPS,)),
    (f"{WATCH} create", (EVENTS,)),
    ("get", (NAMESPACES,)),
)
_IN_THE_CLUSTER: Table = (
    (READ, (CLUSTER_QUEUES, PRIORITY_CLASSES, RESOURCE_FLAVORS, ADMISSION_CHECKS)),
    (READ, (CLUSTER_TRAINING_RUNTIMES,)),
    (READ, (POLICIES, POLICY_BINDINGS, MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS)),
    ("get", (LEASES,)),
)


def _list(table: tuple[tuple[str, tuple[Resource, ...]], ...]) -> tuple[Right, ...]:
    return tuple(
        Right(resource, verb) for verbs, resources in table for resource in resources for verb in verbs.split()
    )


LOG_RIGHT = Right(PODS, "get", "log")
RIGHTS_IN_THE_NAMESPACE = (*_list(_IN_THE_NAMESPACE), LOG_RIGHT)
RIGHTS_IN_THE_CLUSTER = _list(_IN_THE_CLUSTER)
"""Of the Lease, the one that the connection names."""


def list_rights(*, has_queue: bool, is_fenced: bool) -> tuple[Right, ...]:
    """What a connection needs.

    :param has_queue: without, nothing of Kueue is asked for.
    :param is_fenced: without, nobody looks at the controller's Lease.
    """
    return tuple(
        right
        for right in (*RIGHTS_IN_THE_NAMESPACE, *RIGHTS_IN_THE_CLUSTER)
        if (has_queue or right.resource.group != WORKLOADS.group) and (is_fenced or right.resource != LEASES)
    )


def describe_rights(rights: Iterable[Right]) -> str:
    """For instance ``get and list pods, patch workloads.kueue.x-k8s.io``."""
    grouped = groupby(rights, key=lambda right: right.target)
    return ", ".join(f"{' and '.join(right.verb for right in alike)} {target}" for target, alike in grouped)
