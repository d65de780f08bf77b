# SPDX-License-Identifier: Apache-2.0
"""Can a job ever fit its queue: by the ClusterQueue's own arithmetic, and no only where it is certain."""

from __future__ import annotations

import pytest

from airflow_provider_dispatch.adapters.kubeflow.model.queue_fit import (
    RoleRequest,
    explain_misfit,
    read_role_requests,
)

MIB = 1024**2


def queue(*groups, cohort=""):
    spec = {"resourceGroups": list(groups), **({"cohortName": cohort} if cohort else {})}
    return {"metadata": {"name": "cq"}, "spec": spec}


def group(covered, **flavors):
    return {
        "coveredResources": covered,
        "flavors": [
            {"name": flavor, "resources": [{"name": name, **_quota(amount)} for name, amount in quotas.items()]}
            for flavor, quotas in flavors.items()
        ],
    }


def _quota(amount):
    if isinstance(amount, tuple):
        return {"nominalQuota": amount[0], "borrowingLimit": amount[1]}
    return {"nominalQuota": amount}


TUTORIAL = queue(group(["cpu", "memory"], default={"cpu": "250m", "memory": "256Mi"}))
TWO_FLAVORS = queue(group(["cpu"], small={"cpu": "1"}, large={"cpu": "3"}))


@pytest.mark.parametrize(
    ("cluster_queue", "requests", "said"),
    [
        (TUTORIAL, {"node": RoleRequest(2, {"cpu": 100, "memory": 32 * MIB})}, None),
        (TUTORIAL, {"node": RoleRequest(2, {"cpu": 125})}, None),
        (TUTORIAL, {"node": RoleRequest(3, {"cpu": 100})}, "250m of 300m cpu in default"),
        (TUTORIAL, {"a": RoleRequest(1, {"cpu": 200}), "b": RoleRequest(1, {"cpu": 100})}, "needs 300m cpu in all"),
        (TUTORIAL, {"node": RoleRequest(1, {"memory": 300 * MIB})}, "256Mi of 300Mi memory"),
        (TUTORIAL, {"node": RoleRequest(1, {"nvidia.com/gpu": 1})}, "has no nvidia.com/gpu, and role node asks"),
        (TUTORIAL, {"node": RoleRequest(1, {"nvidia.com/gpu": 0})}, None),
        (TWO_FLAVORS, {"node": RoleRequest(1, {"cpu": 3000})}, None),
        (TWO_FLAVORS, {"node": RoleRequest(1, {"cpu": 4000})}, "1 of 4 cpu in small, 3 of 4 cpu in large"),
        (TWO_FLAVORS, {"a": RoleRequest(1, {"cpu": 3000}), "b": RoleRequest(1, {"cpu": 1000})}, None),
        (TWO_FLAVORS, {"a": RoleRequest(1, {"cpu": 3000}), "b": RoleRequest(1, {"cpu": 1001})}, "at most 4"),
        (queue(group(["cpu"], f={"cpu": "1"}), cohort="all"), {"node": RoleRequest(9, {"cpu": 1000})}, None),
        (queue(group(["cpu"], f={"cpu": ("1", "1")}), cohort="all"), {"node": RoleRequest(2, {"cpu": 1000})}, None),
        (queue(group(["cpu"], f={"cpu": ("1", "1")}), cohort="all"), {"node": RoleRequest(3, {"cpu": 1000})}, "2 of 3"),
        (queue(group(["cpu"], f={"cpu": ("1", "1")})), {"node": RoleRequest(2, {"cpu": 1000})}, "1 of 2 cpu"),
        (queue(group(["pods"], f={"pods": 2})), {"node": RoleRequest(3, {})}, "2 of 3 pods"),
        (queue(), {"node": RoleRequest(1, {})}, None),
    ],
)
def test_never_is_said_where_it_is_certain(cluster_queue, requests, said: str | None) -> None:
    told = explain_misfit(cluster_queue, requests)
    assert (told is None) if said is None else (told is not None and said in told)


def test_a_workload_tells_what_each_of_its_roles_asks_for() -> None:
    containers = [
        {"resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "1", "memory": "1Mi"}}},
        {"resources": {"requests": {"cpu": "50m"}}},
    ]
    inits = [
        {"resources": {"requests": {"cpu": "10m"}}, "restartPolicy": "Always"},
        {"resources": {"requests": {"memory": "2Mi"}}},
    ]
    pod = {"containers": containers, "initContainers": inits, "overhead": {"cpu": "1m"}}
    workload = {"spec": {"podSets": [{"name": "node", "count": 2, "template": {"spec": pod}}, {"name": "odd"}]}}
    assert read_role_requests(workload) == {
        "node": RoleRequest(2, {"cpu": 161, "memory": 2 * MIB}),
        "odd": RoleRequest(1, {}),
    }


@pytest.mark.parametrize("amount", ["a lot", "1Zi", None, {}])
def test_an_amount_that_can_not_be_read_asks_for_nothing(amount: object) -> None:
    pod = {"containers": [{"resources": {"requests": {"cpu": amount, "memory": "1Mi"}}}]}
    workload = {"spec": {"podSets": [{"name": "node", "count": 1, "template": {"spec": pod}}]}}
    asked = read_role_requests(workload)
    assert asked == {"node": RoleRequest(1, {"cpu": 0, "memory": MIB})}
    assert explain_misfit(TUTORIAL, asked) is None
