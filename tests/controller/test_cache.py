# SPDX-License-Identifier: Apache-2.0
import pytest

from airflow_provider_dispatch.adapters.kubeflow.client import ObjectList
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.resources import (
    JOBSETS,
    PODS,
    TRAINING_RUNTIMES,
    TRAINJOBS,
    WORKLOADS,
)
from airflow_provider_dispatch.controller.cache import TOMBSTONE_SECONDS, ObjectCache, job_key
from tests.adapters.kubeflow.memory_client import Object
from tests.adapters.kubeflow.objects import (
    build_jobset,
    build_pod,
    build_runtime,
    build_trainjob,
    build_workload,
)
from tests.controller.world import UID, World


class Watched:
    """A cache, and whom it has woken."""

    def __init__(self) -> None:
        self.world = World()
        self.woken: list[str] = []
        self.cache = ObjectCache(self.woken.append, lambda: self.world.seconds)

    def store(self, raw: Object, version: int = 1) -> Object:
        raw["metadata"] |= {"namespace": raw["metadata"].get("namespace", "default"), "resourceVersion": str(version)}
        return raw


@pytest.fixture
def watched() -> Watched:
    watched = Watched()
    watched.cache.put(TRAINJOBS, watched.store(build_trainjob()))
    watched.woken.clear()
    return watched


def relabel(raw: Object, job: str) -> Object:
    return raw | {"metadata": raw["metadata"] | {"labels": raw["metadata"]["labels"] | {words.JOB_LABEL: job}}}


def test_a_pod_that_was_given_to_another_job_and_went_is_in_nobody_s_way(watched: Watched):
    pod = watched.store(build_pod(), 2)
    moved = watched.store(relabel(pod, "another"), 3)
    watched.cache.put(PODS, pod)
    watched.cache.put(PODS, moved)
    # Until it has gone it counts for both.
    assert [watched.cache.pods(job_key(one)) for one in (pod, moved)] == [[moved], [moved]]
    watched.cache.remove(PODS, watched.store(relabel(pod, "another"), 4))
    assert [list(watched.cache.pods(job_key(one))) for one in (pod, moved)] == [[], []]


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        (WORKLOADS, build_workload()),
        (JOBSETS, build_jobset()),
        (PODS, build_pod()),
        (PODS, build_pod(submission=2)),
        (TRAINING_RUNTIMES, build_runtime()),
        (TRAINJOBS, build_trainjob() | {"spec": {}}),
    ],
    ids=["workload", "jobset", "pod", "pod of another submission", "runtime", "trainjob"],
)
def test_every_change_wakes_the_trainjob(watched: Watched, kind, raw):
    watched.cache.put(kind, watched.store(raw, 2))
    assert watched.woken == [UID]
    watched.cache.remove(kind, raw)
    assert watched.woken == [UID, UID]


def test_old_state_never_replaces_a_newer_one(watched: Watched):
    watched.cache.put(TRAINJOBS, watched.store(build_trainjob(suspend=True), 10))
    watched.cache.put(TRAINJOBS, watched.store(build_trainjob(suspend=False), 9))
    trainjob = watched.cache.trainjob(UID)
    assert trainjob is not None
    assert trainjob["spec"]["suspend"] is True


def test_list_takes_out_what_is_gone(watched: Watched):
    for index in range(2):
        watched.cache.put(PODS, watched.store(build_pod(index)))
    watched.cache.put(PODS, watched.store(build_pod(2) | {}))
    job = job_key(watched.store(build_pod()))
    watched.cache.replace(PODS, None, ObjectList((watched.store(build_pod(1)),), "7"))
    assert [pod["metadata"]["uid"] for pod in watched.cache.pods(job)] == ["pod-1-1"]
    assert {uid: stone.is_final for uid, stone in watched.cache.tombstones(job).items()} == {
        "pod-1-0": False,
        "pod-1-2": False,
    }


def test_list_of_one_namespace_leaves_the_others_alone(watched: Watched):
    watched.cache.put(PODS, watched.store(build_pod()))
    watched.cache.replace(PODS, "elsewhere", ObjectList((), "7"))
    assert len(watched.cache.pods(job_key(watched.store(build_pod())))) == 1


def test_cluster_restored_from_a_backup_is_believed(watched: Watched):
    pod = watched.store(build_pod(phase="Running"), 90)
    watched.cache.put(PODS, pod)
    watched.cache.replace(PODS, None, ObjectList((pod,), "100"))
    watched.cache.replace(PODS, None, ObjectList((watched.store(build_pod(phase="Pending"), 40),), "50"))
    (seen,) = watched.cache.pods(job_key(pod))
    assert seen["status"]["phase"] == "Pending"


def test_deleted_pod_is_remembered_for_a_while(watched: Watched):
    pod = watched.store(build_pod())
    watched.cache.put(PODS, pod)
    watched.cache.remove(PODS, pod)
    assert watched.cache.tombstones(job_key(pod))["pod-1-0"].is_final
    watched.world.pass_time(TOMBSTONE_SECONDS + 1)
    watched.cache.sweep()
    assert not watched.cache.tombstones(job_key(pod))


def test_what_was_written_is_known_at_once_but_brings_nothing_back(watched: Watched):
    watched.cache.note(TRAINJOBS, watched.store(build_trainjob(suspend=True), 5))
    trainjob = watched.cache.trainjob(UID)
    assert trainjob is not None
    assert trainjob["spec"]["suspend"] is True
    watched.cache.remove(TRAINJOBS, trainjob)
    watched.cache.note(TRAINJOBS, watched.store(build_trainjob(), 6))
    assert watched.cache.trainjob(UID) is None


def test_living_workload_comes_before_one_that_is_being_deleted(watched: Watched):
    old, new = build_workload(), build_workload()
    old["metadata"] |= {"uid": "old", "deletionTimestamp": "2026-03-01T12:00:00Z", "creationTimestamp": "2026-03-02"}
    new["metadata"] |= {"uid": "new", "creationTimestamp": "2026-03-01"}
    for raw in (old, new):
        watched.cache.put(WORKLOADS, watched.store(raw))
    found = watched.cache.workload(UID)
    assert found is not None
    assert found["metadata"]["uid"] == "new"
