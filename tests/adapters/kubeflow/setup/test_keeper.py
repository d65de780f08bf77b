# SPDX-License-Identifier: Apache-2.0
"""An installation over its life: made, made again, widened, compared, narrowed, taken away."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.resources import (
    ADMISSION_CHECKS,
    NAMESPACES,
    POLICIES,
    TRAINJOBS,
)
from airflow_provider_dispatch.adapters.kubeflow.setup.applying import KUEUES_FINALIZER, Result
from airflow_provider_dispatch.adapters.kubeflow.setup.kinds import (
    CLUSTER_ROLES,
    DEPLOYMENTS,
    ROLE_BINDINGS,
    SERVICE_ACCOUNTS,
)
from airflow_provider_dispatch.adapters.kubeflow.setup.terms import Account, JobsNamespace, SetupTerms
from airflow_provider_dispatch.exceptions import RefusedError, SpecError
from tests.adapters.kubeflow.memory_client import MemoryClient, Object
from tests.adapters.kubeflow.setup.cluster import SOON, SetupClient, build_client, keep

A, B = JobsNamespace("a"), JobsNamespace("b", (Account("air", "worker"),))


async def play(client: SetupClient, method: str, *given: Any, **more: Any) -> Any:
    async with keep(client) as keeper:
        return await getattr(keeper, method)(*given, **more)


def complete(client: SetupClient, *namespaces: JobsNamespace, **more: Any) -> SetupTerms:
    terms: SetupTerms = asyncio.run(play(client, "complete_terms", SetupTerms(namespaces, **more)))
    return terms


def place(client: SetupClient, *namespaces: JobsNamespace, **more: Any) -> list[Result]:
    terms = complete(client, *namespaces, **more)
    results: list[Result] = asyncio.run(play(client, "apply_setup", terms, tell=lambda _: None))
    return results


def remove(client: SetupClient, *namespaces: JobsNamespace, although_used: bool = False) -> list[Result]:
    wanted = SetupTerms(namespaces)
    more = {"although_used": although_used, "deadline": SOON, "tell": lambda _: None}
    results: list[Result] = asyncio.run(play(client, "remove_setup", wanted, **more))
    return results


def test_an_installation_made_twice_is_the_same() -> None:
    client = build_client("a")
    assert {one.outcome for one in place(client, A)} == {"created"}
    assert {one.outcome for one in place(client, A)} == {"same"}


def test_another_namespace_takes_none_away() -> None:
    client = build_client("a", "b")
    place(client, B, image="ours:2")
    place(client, A)
    terms = complete(client, A)
    assert terms.namespaces == (A, B)
    assert terms.image == "ours:2"
    deployment = client.peek(DEPLOYMENTS, "dispatch-controller", "dispatch-system")
    assert deployment is not None
    assert deployment["spec"]["template"]["spec"]["containers"][0]["args"][-4:] == [
        "--namespace",
        "a",
        "--namespace",
        "b",
    ]


def test_what_is_there_is_read_back() -> None:
    client = build_client("a", "b")
    alone = JobsNamespace("a", is_watched=False)
    place(client, alone)
    place(client, B, watches_all=True)
    assert complete(client, B) == SetupTerms((JobsNamespace("a"), B), watches_all=True)
    assert complete(build_client("a"), A) == SetupTerms((A,))


def test_a_namespace_without_a_controller_stays_so() -> None:
    client = build_client("a", "b")
    alone = JobsNamespace("a", is_watched=False)
    place(client, alone)
    assert client.peek_all(DEPLOYMENTS) == []
    assert complete(client, B).namespaces == (alone, B)


def test_without_kueue_no_check_is_asked_for() -> None:
    client = build_client("a")
    client.has_kueue = False
    place(client, A)
    assert client.peek_all(ADMISSION_CHECKS) == []


def test_a_namespace_that_is_not_there_is_refused_before_anything_is_written() -> None:
    client = build_client()
    with pytest.raises(SpecError, match="kubectl create namespace a"):
        place(client, A)
    assert client.peek_all(CLUSTER_ROLES) == []


def compare(client: SetupClient, *namespaces: JobsNamespace) -> dict[str, str]:
    terms = complete(client, *namespaces)
    results: list[Result] = asyncio.run(play(client, "compare_setup", terms))
    return {one.object: one.outcome for one in results if one.outcome != "same"}


def test_a_comparison_names_what_is_missing_and_what_differs_and_writes_nothing() -> None:
    client = build_client("a")
    place(client, A)
    assert compare(client, A) == {}
    asyncio.run(client.delete(POLICIES, "dispatch-workloads"))
    role = client.peek(CLUSTER_ROLES, "dispatch-airflow-jobs", "")
    assert role is not None
    role["rules"] = role["rules"][1:]
    client.put(CLUSTER_ROLES, role)
    client.requests.clear()
    assert compare(client, A) == {
        "ValidatingAdmissionPolicy dispatch-workloads": "missing",
        "ClusterRole dispatch-airflow-jobs": "differs",
    }
    assert [one for one in client.requests if one.verb in ("create", "patch", "delete")] == []
    assert all(one.is_dry_run for one in client.requests if one.verb == "apply")


def test_the_last_namespace_takes_all_with_it() -> None:
    client = build_client("a")
    place(client, A)
    assert {one.outcome for one in remove(client, A)} == {"removed"}
    assert [one["metadata"]["name"] for one in client.peek_all(NAMESPACES)] == ["a"]
    for resource in (CLUSTER_ROLES, POLICIES, ROLE_BINDINGS, SERVICE_ACCOUNTS, DEPLOYMENTS, ADMISSION_CHECKS):
        assert client.peek_all(resource) == []
    assert {one.outcome for one in remove(client, A)} == {"missing"}


def test_one_of_two_namespaces_leaves_the_other() -> None:
    client = build_client("a", "b")
    place(client, A, B)
    remove(client, A)
    assert complete(client, B) == SetupTerms((B,))
    assert compare(client, B) == {}


def test_while_jobs_live_nothing_goes() -> None:
    client = build_client("a")
    place(client, A)
    client.put(TRAINJOBS, {"metadata": {"name": "dj-1-s1", "labels": {words.JOB_LABEL: "1"}}}, "a")
    with pytest.raises(RefusedError, match="a/dj-1-s1"):
        remove(client, A)
    assert compare(client, A) == {}
    assert {one.outcome for one in remove(client, A, although_used=True)} == {"removed"}


def test_jobs_that_have_ended_keep_nothing() -> None:
    client = build_client("a")
    place(client, A)
    ended = {"conditions": [{"type": "Complete", "status": "True", "reason": "AllJobsCompleted"}]}
    job = {"metadata": {"name": "dj-1-s1", "labels": {words.JOB_LABEL: "1"}}, "status": ended}
    client.put(TRAINJOBS, job, "a")
    assert {one.outcome for one in remove(client, A)} == {"removed"}


def test_what_somebody_else_made_is_kept() -> None:
    client = build_client("a")
    place(client, A)
    client.put(CLUSTER_ROLES, {"metadata": {"name": "dispatch-airflow"}})
    kept = [one for one in remove(client, A) if one.outcome == "kept"]
    assert [one.object for one in kept] == ["ClusterRole dispatch-airflow"]
    assert client.peek(CLUSTER_ROLES, "dispatch-airflow", "") is not None


def test_what_goes_later_is_told_with_the_reason() -> None:
    client = build_client("a")
    place(client, A)
    check = client.peek(ADMISSION_CHECKS, words.DEFAULT_CHECK, "")
    assert check is not None
    check["metadata"]["finalizers"] = [KUEUES_FINALIZER]
    client.put(ADMISSION_CHECKS, check)

    def keep_it(at: MemoryClient, verb: str, resource: Any, body: Object) -> None:
        if verb == "delete" and resource == ADMISSION_CHECKS:
            at.put(resource, body)

    client.reactions.append(keep_it)

    async def late() -> Any:
        async with keep(client) as keeper:
            # The deadline has passed: nothing is waited for.
            return await keeper.remove_setup(
                SetupTerms((A,)), although_used=False, deadline=SOON.replace(year=2000), tell=lambda _: None
            )

    (left,) = [one for one in asyncio.run(late()) if one.outcome == "left"]
    assert (left.object, "ClusterQueues list it" in left.detail) == ("AdmissionCheck dispatch-admission", True)
