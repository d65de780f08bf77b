# SPDX-License-Identifier: Apache-2.0
"""Queues: what is built is what preflight finds guarded, what is removed is just what was made."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.queue_guard import QueueView, explain_unguarded
from airflow_provider_dispatch.adapters.kubeflow.model.resources import (
    ADMISSION_CHECKS,
    CLUSTER_QUEUES,
    LOCAL_QUEUES,
    RESOURCE_FLAVORS,
    WORKLOADS,
    Resource,
)
from airflow_provider_dispatch.adapters.kubeflow.setup.applying import Result
from airflow_provider_dispatch.adapters.kubeflow.setup.queue_terms import (
    FlavorTerms,
    Preemption,
    QueueTerms,
    Reclaim,
    Toleration,
)
from airflow_provider_dispatch.adapters.kubeflow.setup.queues import build_queue_manifests
from airflow_provider_dispatch.exceptions import CapabilityError, ConflictError, RefusedError, SpecError
from tests.adapters.kubeflow.setup.cluster import SOON, SetupClient, build_client, keep

QUOTAS = {"cpu": "8", "memory": "64Gi"}
CHECK = {
    "metadata": {"name": words.DEFAULT_CHECK},
    "spec": {"controllerName": words.CONTROLLER_NAME},
    "status": {"conditions": [{"type": "Active", "status": "True", "reason": "Active"}]},
}


def build_terms(**more: Any) -> QueueTerms:
    given: dict[str, Any] = {"flavors": (FlavorTerms("team-a-train", QUOTAS),), "admission_check": words.DEFAULT_CHECK}
    return QueueTerms("train", "team-a", **(given | more))


def place(client: SetupClient, terms: QueueTerms) -> list[Result]:
    return asyncio.run(play(client, "create_queue", terms, tell=lambda _: None))


def remove(client: SetupClient, name: str = "train", *, although_used: bool = False) -> list[Result]:
    return asyncio.run(
        play(client, "delete_queue", name, although_used=although_used, deadline=SOON, tell=lambda _: None)
    )


def show(client: SetupClient, name: str | None = "train") -> Any:
    return asyncio.run(play(client, "fetch_queues", name))


async def play(client: SetupClient, method: str, *words_: Any, **more: Any) -> Any:
    async with keep(client, namespace="team-a") as keeper:
        return await getattr(keeper, method)(*words_, **more)


def build_guarded() -> SetupClient:
    client = build_client("team-a")
    client.put(ADMISSION_CHECKS, CHECK)
    return client


def names(client: SetupClient, resource: Resource) -> list[str]:
    return sorted(one["metadata"]["name"] for one in client.peek_all(resource))


def test_what_is_built_is_guarded() -> None:
    _, cluster_queue, local_queue = build_queue_manifests(build_terms())
    view = QueueView("train", local_queue, cluster_queue, CHECK)
    assert explain_unguarded(view, words.DEFAULT_CHECK) is None
    assert local_queue["spec"] == {"clusterQueue": "team-a-train"}
    selector = cluster_queue["spec"]["namespaceSelector"]
    assert selector == {"matchLabels": {"kubernetes.io/metadata.name": "team-a"}}


def test_all_that_can_be_said_of_a_queue_stands_in_it() -> None:
    flavors = (
        FlavorTerms(
            "a100",
            QUOTAS | {"nvidia.com/gpu": "8"},
            {"gpu": "a100"},
            (Toleration("nvidia.com/gpu"), Toleration("team", "a", "NoSchedule")),
        ),
        FlavorTerms("spot", {"nvidia.com/gpu": "1", "memory": "1Gi", "cpu": "1"}, is_given=True),
    )
    terms = build_terms(
        flavors=flavors,
        cluster_queue="big",
        cohort="all",
        weight=0.5,
        reclaim=Reclaim.ANY,
        is_strict=True,
        preemption=Preemption.LOWER_OR_NEWER,
    )
    flavor, cluster_queue, _ = build_queue_manifests(terms)
    assert flavor["spec"] == {
        "nodeLabels": {"gpu": "a100"},
        "tolerations": [
            {"key": "nvidia.com/gpu", "operator": "Exists"},
            {"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"},
        ],
    }
    spec = cluster_queue["spec"]
    assert (cluster_queue["metadata"]["name"], spec["cohortName"], spec["fairSharing"]) == (
        "big",
        "all",
        {"weight": "0.5"},
    )
    assert spec["queueingStrategy"] == "StrictFIFO"
    assert spec["preemption"] == {"withinClusterQueue": "LowerOrNewerEqualPriority", "reclaimWithinCohort": "Any"}
    (group,) = spec["resourceGroups"]
    listed = [[one["name"] for one in built["resources"]] for built in group["flavors"]]
    assert listed == [group["coveredResources"]] * 2


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"flavors": ()}, "say how much"),
        ({"flavors": (FlavorTerms("f", {"cpu": "1"}),)}, "memory"),
        ({"flavors": (FlavorTerms("f", QUOTAS), FlavorTerms("g", QUOTAS | {"x": "1"}))}, "same resources"),
        ({"flavors": (FlavorTerms("f", QUOTAS), FlavorTerms("f", QUOTAS))}, "twice"),
        ({"reclaim": Reclaim.ANY}, "cohort"),
        ({"weight": -1.0}, "weight"),
        ({"cluster_queue": "No"}, "cluster_queue"),
        ({"cohort": "No"}, "cohort"),
    ],
)
def test_wrong_terms_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        build_terms(**wrong)


def test_a_wrong_amount_is_refused_with_its_resource() -> None:
    with pytest.raises(SpecError, match=r"f\.cpu"):
        FlavorTerms("f", {"cpu": "many"})


def test_a_queue_is_made_changed_and_left_alone() -> None:
    client = build_guarded()
    assert [one.outcome for one in place(client, build_terms())] == ["created"] * 3
    assert [one.outcome for one in place(client, build_terms())] == ["same"] * 3
    larger = build_terms(flavors=(FlavorTerms("team-a-train", QUOTAS | {"cpu": "9"}),))
    assert [one.outcome for one in place(client, larger)] == ["same", "changed", "same"]


def test_nothing_is_left_of_a_deleted_queue() -> None:
    client = build_guarded()
    place(client, build_terms())
    assert {one.outcome for one in remove(client)} == {"removed"}
    assert client.peek_all(LOCAL_QUEUES) == client.peek_all(CLUSTER_QUEUES) == client.peek_all(RESOURCE_FLAVORS) == []


def test_what_an_interrupted_delete_has_left_is_deleted_by_the_next() -> None:
    client = build_guarded()
    shared, own = FlavorTerms("shared", QUOTAS), FlavorTerms("own", QUOTAS)
    place(client, build_terms(flavors=(shared, own)))
    place(client, QueueTerms("other", "team-a", (shared,), words.DEFAULT_CHECK))
    client.drop(LOCAL_QUEUES, "train", "team-a")
    assert {one.object for one in remove(client)} == {"ClusterQueue team-a-train", "ResourceFlavor own"}
    assert (names(client, CLUSTER_QUEUES), names(client, RESOURCE_FLAVORS)) == (["team-a-other"], ["shared"])
    with pytest.raises(SpecError, match="is not one of other"):
        remove(client)


def test_what_is_left_of_a_queue_and_feeds_another_stays() -> None:
    client = build_guarded()
    place(client, build_terms())
    client.drop(LOCAL_QUEUES, "train", "team-a")
    client.put(LOCAL_QUEUES, {"metadata": {"name": "second"}, "spec": {"clusterQueue": "team-a-train"}}, "team-b")
    with pytest.raises(SpecError):
        remove(client)
    assert names(client, CLUSTER_QUEUES) == names(client, RESOURCE_FLAVORS) == ["team-a-train"]


def test_a_flavor_that_another_queue_has_stays() -> None:
    client = build_guarded()
    shared = (FlavorTerms("shared", QUOTAS),)
    place(client, build_terms(flavors=shared))
    place(client, QueueTerms("other", "team-a", shared, words.DEFAULT_CHECK))
    remove(client)
    assert names(client, RESOURCE_FLAVORS) == ["shared"]
    assert names(client, CLUSTER_QUEUES) == ["team-a-other"]
    remove(client, "other")
    assert client.peek_all(RESOURCE_FLAVORS) == []


def test_a_cluster_queue_that_feeds_another_stays() -> None:
    client = build_guarded()
    place(client, build_terms())
    client.put(LOCAL_QUEUES, {"metadata": {"name": "second"}, "spec": {"clusterQueue": "team-a-train"}}, "team-b")
    remove(client)
    assert names(client, CLUSTER_QUEUES) == ["team-a-train"]
    assert names(client, LOCAL_QUEUES) == ["second"]


def test_a_flavor_of_somebody_else_is_used_and_kept() -> None:
    client = build_guarded()
    client.put(RESOURCE_FLAVORS, {"metadata": {"name": "theirs"}, "spec": {"nodeLabels": {"a": "b"}}})
    place(client, build_terms(flavors=(FlavorTerms("theirs", QUOTAS),)))
    flavor = client.peek(RESOURCE_FLAVORS, "theirs", "")
    assert flavor is not None
    assert flavor["spec"] == {"nodeLabels": {"a": "b"}}
    remove(client)
    assert names(client, RESOURCE_FLAVORS) == ["theirs"]


def test_a_flavor_of_somebody_else_gets_no_new_labels() -> None:
    client = build_guarded()
    client.put(RESOURCE_FLAVORS, {"metadata": {"name": "theirs"}})
    with pytest.raises(SpecError, match="leave out node labels"):
        place(client, build_terms(flavors=(FlavorTerms("theirs", QUOTAS, {"a": "b"}),)))


def test_a_cluster_queue_of_somebody_else_is_not_taken() -> None:
    client = build_guarded()
    client.put(CLUSTER_QUEUES, {"metadata": {"name": "team-a-train"}, "spec": {}})
    with pytest.raises(ConflictError, match="--cluster-queue"):
        place(client, build_terms())


def test_a_local_queue_that_another_feeds_is_not_taken() -> None:
    client = build_guarded()
    client.put(LOCAL_QUEUES, {"metadata": {"name": "train"}, "spec": {"clusterQueue": "else"}}, "team-a")
    with pytest.raises(ConflictError, match="fed by ClusterQueue else"):
        place(client, build_terms())


@pytest.mark.parametrize(
    ("check", "said"),
    [
        (None, "dispatch setup"),
        ({"metadata": {"name": words.DEFAULT_CHECK}, "spec": {"controllerName": "x"}}, "is not"),
    ],
)
def test_a_queue_needs_our_check(check: dict[str, Any] | None, said: str) -> None:
    client = build_client("team-a")
    if check is not None:
        client.put(ADMISSION_CHECKS, check)
    with pytest.raises(CapabilityError, match=said):
        place(client, build_terms())


def test_a_queue_needs_kueue_and_a_namespace() -> None:
    client = build_guarded()
    client.has_kueue = False
    with pytest.raises(CapabilityError, match="install Kueue"):
        place(client, build_terms())
    client = build_client()
    with pytest.raises(SpecError, match="kubectl create namespace team-a"):
        place(client, build_terms())


def put_job(client: SetupClient, **more: Any) -> None:
    job = {"metadata": {"name": "w", "ownerReferences": [{"name": "dj-1"}]}, "spec": {"queueName": "train"}}
    client.put(WORKLOADS, job | more, "team-a")


def test_a_queue_with_jobs_in_it_stays_unless_it_is_wanted() -> None:
    client = build_guarded()
    place(client, build_terms())
    put_job(client)
    with pytest.raises(RefusedError, match="dj-1"):
        remove(client)
    assert names(client, LOCAL_QUEUES) == ["train"]
    assert {one.outcome for one in remove(client, although_used=True)} == {"removed"}


def test_jobs_that_have_ended_keep_no_queue() -> None:
    client = build_guarded()
    place(client, build_terms())
    put_job(client, status={"conditions": [{"type": "Finished", "status": "True", "reason": "Succeeded"}]})
    assert {one.outcome for one in remove(client)} == {"removed"}


def test_a_queue_is_shown_with_what_it_has_and_what_is_wrong() -> None:
    client = build_guarded()
    place(client, build_terms())
    (seen,) = show(client)
    assert "not looked at it yet" in seen.problem
    stored = client.peek(LOCAL_QUEUES, "train", "team-a")
    assert stored is not None
    active = {"type": "Active", "status": "True", "reason": "Ready"}
    stored["status"] = {"pendingWorkloads": 2, "admittedWorkloads": 1, "conditions": [active]}
    client.put(LOCAL_QUEUES, stored, "team-a")
    (seen,) = show(client, None)
    assert (seen.problem, seen.pending, seen.admitted, seen.cluster_queue) == ("", 2, 1, "team-a-train")
    assert [(use.resource, use.quota, use.used) for use in seen.usage] == [("cpu", "8", "0"), ("memory", "64Gi", "0")]


def test_an_unknown_queue_is_told_with_those_that_are_there() -> None:
    client = build_guarded()
    place(client, build_terms())
    for call in (remove, show):
        with pytest.raises(SpecError, match="train"):
            call(client, "nope")
