# SPDX-License-Identifier: Apache-2.0
"""What the watch remembers: the newest of everything, found by its job, in whatever order it is told, and no more."""

from __future__ import annotations

import itertools

import pytest

from airflow_provider_dispatch.adapters.kubeflow.client import ObjectList
from airflow_provider_dispatch.adapters.kubeflow.job_cache import JobCache
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.object_set import ObjectSet
from airflow_provider_dispatch.adapters.kubeflow.model.resources import JOBSETS, PODS, TRAINJOBS, WORKLOADS
from airflow_provider_dispatch.core.identity import build_job_id
from airflow_provider_dispatch.core.job_ref import JobRef

NS = "dispatch"
JOB = build_job_id(0, b"0123456789")
REF = JobRef(JOB, 1, words.BACKEND, NS, "t")
LABELS = {words.JOB_LABEL: JOB.lower(), words.SUBMISSION_LABEL: "1"}


def build(uid, version="1", labels=None, owner="", **rest):
    owners = [{"kind": "TrainJob", "uid": owner, "controller": True}] if owner else []
    metadata = {"uid": uid, "resourceVersion": version, "labels": LABELS if labels is None else labels}
    return {"metadata": metadata | {"ownerReferences": owners, "managedFields": ["long"]}, **rest}


def build_workload(uid="w", owner="t"):
    return build(uid, labels={words.JOB_UID_LABEL: owner}, owner=owner)


@pytest.fixture
def woken():
    return []


@pytest.fixture
def cache(woken):
    return JobCache(NS, woken.append)


TOLD = ((TRAINJOBS, build("t")), (WORKLOADS, build_workload()), (JOBSETS, build("j", owner="t")), (PODS, build("p")))


@pytest.mark.parametrize("order", list(itertools.permutations(TOLD)))
def test_the_order_in_which_objects_come_means_nothing(cache, woken, order):
    for resource, raw in order:
        cache.put(resource, raw)
    found = cache.select(REF)
    assert [fields.uid(one) for one in (found.trainjob, found.workload, found.jobset, *found.pods)] == list("twjp")
    assert set(woken) == {JOB}


@pytest.mark.parametrize("order", list(itertools.permutations(TOLD)))
def test_what_is_gone_leaves_nothing_behind(cache, order):
    for resource, raw in TOLD:
        cache.put(resource, raw)
    for resource, raw in order:
        cache.remove(resource, raw)
    assert cache.select(REF) == ObjectSet(NS)
    assert not any(
        (cache._by_job, cache._by_owner, cache._job_of_owner, *(cache._table.list(kind) for kind, _ in TOLD))
    )


def test_what_only_the_server_needs_is_left_out(cache):
    cache.put(TRAINJOBS, build("t"))
    assert "managedFields" not in cache.select(REF).trainjob["metadata"]


def test_an_older_state_is_passed_over(cache, woken):
    cache.put(TRAINJOBS, build("t", "10", spec="new"))
    cache.put(TRAINJOBS, build("t", "9", spec="old"))
    assert cache.select(REF).trainjob["spec"] == "new"
    assert woken == [JOB]


def test_a_list_removes_what_it_lacks_but_not_what_is_newer_than_itself(cache):
    cache.put(PODS, build("old", "5"))
    cache.put(PODS, build("new", "20"))
    cache.replace(PODS, ObjectList((build("p", "7"),), "10"))
    assert sorted(fields.uid(pod) for pod in cache.select(REF).pods) == ["new", "p"]


def test_a_cluster_that_was_restored_from_a_backup_is_believed(cache):
    cache.replace(PODS, ObjectList((build("p", "90", spec="lost"), build("q", "91")), "100"))
    cache.replace(PODS, ObjectList((build("p", "40", spec="restored"),), "50"))
    assert [pod["spec"] for pod in cache.select(REF).pods] == ["restored"]


def test_objects_of_other_jobs_and_of_none_stay_apart(cache, woken):
    other = {words.JOB_LABEL: build_job_id(0, b"abcdefghij").lower(), words.SUBMISSION_LABEL: "1"}
    cache.put(PODS, build("of-another", labels=other))
    cache.put(PODS, build("of-none", labels={words.JOB_LABEL: "nonsense"}))
    cache.put(WORKLOADS, build_workload("of-another-too", "x"))
    assert cache.select(REF) == ObjectSet(NS)
    assert JOB not in woken
