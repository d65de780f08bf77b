# SPDX-License-Identifier: Apache-2.0
from datetime import timedelta

import pytest

from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.execution_record import ExecutionRecord
from airflow_provider_dispatch.adapters.kubeflow.model.ledger import Ledger
from airflow_provider_dispatch.controller.cache import Tombstone
from airflow_provider_dispatch.controller.views import (
    build_ledger_view,
    build_node_view,
    build_pod_view,
    build_pod_views,
    build_trainjob_view,
    build_workload_view,
)
from airflow_provider_dispatch.exceptions import ProtocolError
from tests.adapters.kubeflow.objects import (
    NOW,
    build_jobset,
    build_pod,
    build_record,
    build_trainjob,
    build_workload,
)
from tests.controller.world import build_condition


def test_trainjob_with_its_jobset():
    jobset = build_jobset()
    jobset["status"] = {"restarts": 2}
    notes = {words.ADMISSION_KEY_ANNOTATION: "key", words.RECORD_ANNOTATION: build_record(one={"node": "n1"})}
    view = build_trainjob_view(build_trainjob(notes=notes), jobset)
    assert (view.submission, view.admissions, view.admission_key) == (1, 1, "key")
    assert (view.jobset_uid, view.restart, view.record.r) == ("js-1", 2, 1)
    said = (view.is_plain, view.is_finished, view.is_stopping, view.is_gated, view.is_suspended)
    assert not any(said)


def test_jobset_that_is_being_deleted_makes_no_pods():
    jobset = build_jobset()
    jobset["metadata"]["deletionTimestamp"] = "2026-03-01T12:00:00Z"
    assert build_trainjob_view(build_trainjob(), jobset).jobset_uid is None


@pytest.mark.parametrize("noted", [True, False], ids=["noted by us", "said by Trainer"])
def test_end_counts_whoever_tells_it(noted: bool):
    trainjob = build_trainjob(notes={words.END_ANNOTATION: "{}"} if noted else {})
    if not noted:
        trainjob["status"] = {"conditions": [build_condition(words.TRAINJOB_FAILED, "True", NOW)]}
    assert build_trainjob_view(trainjob, None).is_finished


@pytest.mark.parametrize("key", [words.RECORD_ANNOTATION, words.HOLDS_ANNOTATION])
def test_unreadable_annotation_is_no_empty_one(key: str):
    with pytest.raises(ProtocolError):
        build_trainjob_view(build_trainjob(notes={key: "{"}), None)


def test_workload_is_read_by_names_not_by_places():
    workload = build_workload()
    workload["status"] = {
        "conditions": [
            build_condition(words.ADMITTED, "False", NOW),
            build_condition(words.QUOTA_RESERVED, "True", NOW),
            build_condition("PodsReady", "True", NOW),
        ],
        "admissionChecks": [
            {"name": "another", "state": "Ready"},
            {"name": "ours", "state": "Retry", "message": "m", "retryCount": 3},
        ],
        "schedulingStats": {"evictions": [{"reason": "Preempted", "count": 2}, {"reason": "Deactivated", "count": 1}]},
    }
    view = build_workload_view(workload, "ours", is_quota_wanted=True)
    assert (view.has_quota, view.reserved_at, view.is_admitted) == (True, NOW, False)
    assert (view.check_state, view.check_message, view.retries, view.evictions) == ("Retry", "m", 3, 3)


def test_workload_without_anything_is_pending():
    view = build_workload_view({"metadata": {"uid": "u"}}, "ours", is_quota_wanted=False)
    assert (view.is_active, view.has_quota, view.check_state, view.is_finished) == (True, False, None, False)


def test_pod_at_the_fence():
    pod = build_pod(3, phase="Pending", node="")
    pod["spec"] = {"schedulingGates": [{"name": "a"}, {"name": words.FENCE}], "terminationGracePeriodSeconds": 7}
    view = build_pod_view(pod)
    assert (view.has_fence, view.node, view.grace) == (True, None, timedelta(seconds=7))
    assert (view.slot.role, view.slot.job_index, view.slot.completion_index) == ("node", 0, 3)


@pytest.mark.parametrize(("reason", "is_proof"), [(words.POD_GC_REASON, False), ("EvictionByEvictionAPI", True)])
def test_failed_by_garbage_collection_is_no_end(reason: str, is_proof: bool):
    conditions = [build_condition(words.DISRUPTION_TARGET, "True", NOW, reason)]
    assert build_pod_view(build_pod(phase="Failed", status={"conditions": conditions})).is_ended is is_proof


@pytest.mark.parametrize(
    ("node", "is_final", "is_kept"),
    [("", True, True), ("n1", True, True), ("n1", False, True), ("", False, False)],
    ids=["deleted unbound", "deleted bound", "missed bound", "missed unbound"],
)
def test_only_a_deletion_tells_that_no_node_had_a_pod(node: str, is_final: bool, is_kept: bool):
    stone = Tombstone(build_pod(node=node), is_final, 0.0)
    views = build_pod_views([], {"pod-1-0": stone})
    assert [view.is_gone for view in views] == [True] * is_kept


def test_pod_that_is_there_outweighs_what_was_seen_of_it():
    stone = Tombstone(build_pod(), True, 0.0)
    (view,) = build_pod_views([build_pod()], {"pod-1-0": stone}, [build_pod()])
    assert not view.is_gone


def test_pod_that_the_cache_has_and_the_list_has_not_is_gone():
    (view,) = build_pod_views([], {}, [build_pod(node="n1")])
    assert (view.is_gone, view.node) == (True, "n1")


def test_nodes():
    ready = {"metadata": {"name": "a"}, "status": {"conditions": [build_condition("Ready", "True", NOW)]}}
    silent = {"metadata": {"name": "b"}, "status": {"conditions": [build_condition("Ready", "Unknown", NOW)]}}
    gone = {"metadata": {"name": "c"}, "spec": {"taints": [{"key": words.OUT_OF_SERVICE_TAINT, "effect": "NoExecute"}]}}
    views = [build_node_view(node) for node in (ready, silent, gone)]
    assert [(view.is_ready, view.ready_since, view.not_ready_since) for view in views] == [
        (True, NOW, None),
        (False, None, NOW),
        (False, None, None),
    ]
    assert [view.is_out_of_service for view in views] == [False, False, True]


def test_ledger_carries_what_is_not_proven_dead():
    record = ExecutionRecord.from_json(build_record(dead={"is_dead": True}, doubted={}))
    view = build_ledger_view(Ledger(2, record=record.to_json()))
    assert (view.submission, [pod.uid for pod in view.undead]) == (2, ["doubted"])
