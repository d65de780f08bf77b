# SPDX-License-Identifier: Apache-2.0
"""Whether a job can ever fit its queue, by the ClusterQueue's own arithmetic.

The derivation asks it for a job that waits, since Kueue 0.19 gives no reason of its own for "never"; preflight asks it
before a job is made. It says no only where it is certain: what else is running, taints and topology are not its matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.core.quantity import format_quantity, parse_quantity
from airflow_provider_dispatch.exceptions import SpecError

PODS = "pods"
"""A resource that Kueue counts for each pod when a queue has a quota of it."""

Amounts = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RoleRequest:
    """What a role asks for.

    :param per_node: cpu in millicores, memory in bytes, anything else counted.
    """

    nodes: int
    per_node: Amounts


@dataclass(frozen=True, slots=True)
class _Group:
    """A resource group: of one role, all its resources come from the same flavor.

    :param flavors: flavor → resource → the most it can give; None means no limit that can be seen from here.
    """

    covered: frozenset[str]
    flavors: Mapping[str, Mapping[str, int | None]]


def explain_misfit(cluster_queue: Raw, requests_by_role: Mapping[str, RoleRequest]) -> str | None:
    """Why the job can never be admitted, as a sentence; None when it might."""
    name, groups = fields.name(cluster_queue), _read_groups(cluster_queue)
    for role, request in requests_by_role.items():
        for resource, amount in request.per_node.items():
            if amount and not any(resource in group.covered for group in groups):
                return f"queue {name} has no {resource}, and role {role} asks for it"
    for group in groups:
        if said := _explain_role(name, group, requests_by_role) or _explain_total(name, group, requests_by_role):
            return said
    return None


def find_empty_resources(cluster_queue: Raw) -> list[str]:
    """Of cpu and memory, what the queue counts and can give nothing of, not even borrowed."""
    return [
        resource
        for group in _read_groups(cluster_queue)
        for resource in ("cpu", "memory")
        if resource in group.covered and all(quota.get(resource, 0) == 0 for quota in group.flavors.values())
    ]


def read_role_requests(workload: Raw) -> dict[str, RoleRequest]:
    """What a Workload asks for, by PodSet; one per role and initializer."""
    return {
        fields.text(pod_set, "name"): RoleRequest(
            fields.number(pod_set, "count") or 1, _read_pod(fields.mapping(pod_set, "template", "spec"))
        )
        for pod_set in fields.items(workload, "spec", "podSets")
    }


def read_runtime_requests(runtime: Raw) -> dict[str, RoleRequest]:
    """The same of a private runtime, before there is a Workload."""
    found = {}
    for job in fields.items(runtime, "spec", "template", "spec", "replicatedJobs"):
        spec = fields.mapping(job, "template", "spec")
        pods = _read_pod(fields.mapping(spec, "template", "spec"))
        found[fields.text(job, "name")] = RoleRequest(fields.number(spec, "parallelism") or 1, pods)
    return found


def _read_groups(cluster_queue: Raw) -> list[_Group]:
    has_cohort = bool(fields.text(cluster_queue, "spec", "cohortName"))
    return [
        _Group(
            frozenset(str(resource) for resource in fields.dig(group, "coveredResources") or ()),
            {
                fields.text(flavor, "name"): {
                    fields.text(quota, "name"): _read_most(quota, has_cohort=has_cohort)
                    for quota in fields.items(flavor, "resources")
                }
                for flavor in fields.items(group, "flavors")
            },
        )
        for group in fields.items(cluster_queue, "spec", "resourceGroups")
    ]


def _read_most(quota: Raw, *, has_cohort: bool) -> int | None:
    resource = fields.text(quota, "name")
    nominal = _read_amount(resource, fields.dig(quota, "nominalQuota"))
    limit = fields.dig(quota, "borrowingLimit")
    if not has_cohort:
        return nominal
    return None if limit is None else nominal + _read_amount(resource, limit)


def _explain_role(queue: str, group: _Group, requests: Mapping[str, RoleRequest]) -> str | None:
    """All pods of a role are of one flavor."""
    for role, request in requests.items():
        needed = _count(group, [request])
        misfits = [
            (flavor, resource, amount, most)
            for flavor, quota in group.flavors.items()
            for resource, amount in needed.items()
            if (most := quota.get(resource, 0)) is not None and amount > most
        ]
        if needed and {flavor for flavor, *_ in misfits} == set(group.flavors):
            told = (
                f"{format_quantity(resource, most)} of {format_quantity(resource, amount)} {resource} in {flavor}"
                for flavor, resource, amount, most in misfits
            )
            return f"role {role} fits no flavor of queue {queue}, which can give at most {', '.join(told)}"
    return None


def _explain_total(queue: str, group: _Group, requests: Mapping[str, RoleRequest]) -> str | None:
    for resource, amount in _count(group, requests.values()).items():
        offers = [quota.get(resource, 0) for quota in group.flavors.values()]
        if None in offers:
            continue
        most = sum(offer or 0 for offer in offers)
        if amount > most:
            asked, given = format_quantity(resource, amount), format_quantity(resource, most)
            return f"the job needs {asked} {resource} in all, and queue {queue} can give at most {given}"
    return None


def _count(group: _Group, requests: Iterable[RoleRequest]) -> dict[str, int]:
    total: dict[str, int] = {}
    for request in requests:
        for resource, amount in (*request.per_node.items(), (PODS, 1)):
            if resource in group.covered and amount:
                total[resource] = total.get(resource, 0) + amount * request.nodes
    return total


def _read_pod(spec: Raw) -> dict[str, int]:
    """What Kubernetes counts for a pod: its containers together, or its largest initializer, and the overhead."""
    containers = [_read_requests(one) for one in fields.items(spec, "containers")]
    sidecars = [one for one in fields.items(spec, "initContainers") if fields.text(one, "restartPolicy") == "Always"]
    together = _add(*containers, *(_read_requests(one) for one in sidecars))
    largest = dict(together)
    for one in fields.items(spec, "initContainers"):
        for resource, amount in _read_requests(one).items():
            largest[resource] = max(largest.get(resource, 0), amount)
    return _add(largest, _read_amounts(fields.mapping(spec, "overhead")))


def _read_requests(container: Raw) -> dict[str, int]:
    resources = fields.mapping(container, "resources")
    return _read_amounts(fields.mapping(resources, "limits")) | _read_amounts(fields.mapping(resources, "requests"))


def _read_amounts(raw: Raw) -> dict[str, int]:
    return {str(resource): _read_amount(str(resource), amount) for resource, amount in raw.items()}


def _read_amount(resource: str, amount: object) -> int:
    try:
        return parse_quantity(resource, str(amount if amount is not None else 0))
    except SpecError:
        return 0


def _add(*parts: Amounts) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for resource, amount in part.items():
            total[resource] = total.get(resource, 0) + amount
    return total
