# SPDX-License-Identifier: Apache-2.0
"""Raw API objects as the few facts that the controller's decisions look at.

The loop calls it with what it has read. Nothing here decides: it says what an object says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import cast, get_args

from airflow_provider_dispatch.adapters.kubeflow.model import fields, hold_record
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.controller_view import (
    CheckState,
    LedgerView,
    NodeView,
    PodPhase,
    PodView,
    TrainJobView,
    WorkloadView,
)
from airflow_provider_dispatch.adapters.kubeflow.model.execution_record import EMPTY_RECORD, ExecutionRecord
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.ledger import Ledger
from airflow_provider_dispatch.adapters.kubeflow.model.submission import End, load, read_submission_number
from airflow_provider_dispatch.controller.cache import Tombstone
from airflow_provider_dispatch.core.state import State
from airflow_provider_dispatch.exceptions import ProtocolError

READY_CONDITION = "Ready"


def build_trainjob_view(trainjob: Raw, jobset: Raw | None) -> TrainJobView:
    """The submission.

    :raises ProtocolError: an annotation that can't be read: believed empty it would start over living pods.
    """
    return TrainJobView(
        uid=fields.uid(trainjob),
        resource_version=fields.text(trainjob, "metadata", "resourceVersion"),
        submission=read_submission_number(trainjob),
        admissions=fields.whole_number(fields.annotation(trainjob, words.ADMISSIONS_ANNOTATION)) or 0,
        admission_key=fields.annotation(trainjob, words.ADMISSION_KEY_ANNOTATION) or None,
        holds=hold_record.read_hold_book(trainjob),
        record=read_record(fields.annotation(trainjob, words.RECORD_ANNOTATION)),
        is_suspended=fields.flag(trainjob, "spec", "suspend"),
        is_finished=has_ended(trainjob),
        is_stopping=fields.is_deleting(trainjob) or bool(fields.annotation(trainjob, words.STOP_ANNOTATION)),
        is_plain=not fields.label(trainjob, words.QUEUE_LABEL),
        is_gated=bool(fields.annotation(trainjob, words.ADMISSION_GATED_BY)),
        jobset_uid=fields.uid(jobset) or None if jobset is not None and not fields.is_deleting(jobset) else None,
        restart=fields.number(jobset, "status", "restarts"),
        given_up_at=_read_given_up_at(trainjob),
    )


def has_ended(trainjob: Raw) -> bool:
    """It says so itself, or somebody has noted its end: nothing later un-ends a job."""
    return bool(fields.annotation(trainjob, words.END_ANNOTATION)) or _says_ended(trainjob)


def read_record(stamp: str) -> ExecutionRecord:
    """The execution record out of an annotation or a ledger.

    :raises ProtocolError: it can't be read.
    """
    return ExecutionRecord.from_json(stamp) if stamp else EMPTY_RECORD


def build_workload_view(workload: Raw, check: str, *, is_quota_wanted: bool) -> WorkloadView:
    """Kueue's object.

    :param check: name of our AdmissionCheck.
    """
    conditions = fields.conditions(workload)
    reserved = conditions.get(words.QUOTA_RESERVED)
    entry = find_check(workload, check)
    return WorkloadView(
        uid=fields.uid(workload),
        resource_version=fields.text(workload, "metadata", "resourceVersion"),
        is_active=hold_record.is_active(workload),
        has_quota=reserved is not None and reserved.is_true,
        reserved_at=reserved.at if reserved is not None and reserved.is_true else None,
        is_admitted=fields.is_true(workload, words.ADMITTED),
        is_evicted=fields.is_true(workload, words.EVICTED),
        is_finished=fields.is_true(workload, words.FINISHED),
        check_state=_read_check_state(entry),
        hold_instance=fields.whole_number(fields.annotation(workload, words.HOLD_INSTANCE_ANNOTATION)),
        is_deleting=fields.is_deleting(workload),
        check_message=fields.text(entry, "message"),
        evictions=_count_evictions(workload),
        retries=fields.number(entry, "retryCount"),
        is_quota_wanted=is_quota_wanted,
        hold=hold_record.read_workload_hold(workload),
        is_deactivated_by_kueue=hold_record.is_deactivated_by_kueue(workload),
    )


def find_check(workload: Raw, check: str) -> Raw | None:
    """Our entry in the Workload's checks, by name; a list may come in any order."""
    entries = fields.items(workload, "status", "admissionChecks")
    return next((entry for entry in entries if fields.text(entry, "name") == check), None)


def build_pod_views(
    present: Iterable[Raw], tombstones: Mapping[str, Tombstone], missing: Iterable[Raw] = ()
) -> tuple[PodView, ...]:
    """Pods that are there, and the last states of those that are not.

    :param missing: pods that the cache knows; those that are not among *present* have gone since.
    """
    there = {fields.uid(pod): build_pod_view(pod) for pod in present}
    gone = {
        uid: build_pod_view(stone.pod, is_gone=True)
        for uid, stone in tombstones.items()
        if stone.is_final or _is_telling(stone.pod)
    }
    lost = {fields.uid(pod): build_pod_view(pod, is_gone=True) for pod in missing if _is_telling(pod)}
    return tuple((lost | gone | there).values())


def build_pod_view(pod: Raw, *, is_gone: bool = False) -> PodView:
    """A pod of ours."""
    phase = fields.text(pod, "status", "phase")
    grace = fields.dig(pod, "metadata", "deletionGracePeriodSeconds")
    grace = grace if grace is not None else fields.dig(pod, "spec", "terminationGracePeriodSeconds")
    return PodView(
        uid=fields.uid(pod),
        name=fields.name(pod),
        namespace=fields.text(pod, "metadata", "namespace"),
        role=fields.label(pod, words.REPLICATED_JOB_LABEL),
        job_index=fields.whole_number(fields.label(pod, words.JOB_INDEX_LABEL)) or 0,
        completion_index=fields.whole_number(fields.label(pod, words.COMPLETION_INDEX_LABEL)) or 0,
        submission=read_submission_number(pod),
        jobset_uid=fields.label(pod, words.JOBSET_UID_LABEL),
        restart=fields.whole_number(fields.label(pod, words.RESTART_LABEL)) or 0,
        phase=cast("PodPhase", phase) if phase in get_args(PodPhase) else "Unknown",
        is_deleting=fields.is_deleting(pod),
        has_fence=find_fence(pod) is not None,
        node=fields.text(pod, "spec", "nodeName") or None,
        failed_by_gc=phase == "Failed" and _was_collected(pod),
        epoch=fields.whole_number(fields.annotation(pod, words.EPOCH_ANNOTATION)),
        is_gone=is_gone,
        grace=timedelta(seconds=grace) if isinstance(grace, int) else None,
    )


def find_fence(pod: Raw) -> int | None:
    """Where our gate stands among the pod's scheduling gates; None without it."""
    for index, gate in enumerate(fields.items(pod, "spec", "schedulingGates")):
        if fields.text(gate, "name") == words.FENCE:
            return index
    return None


def build_node_view(node: Raw) -> NodeView:
    """A node."""
    ready = fields.conditions(node).get(READY_CONDITION)
    is_ready = ready is not None and ready.is_true
    at = ready.at if ready is not None else None
    taints = fields.items(node, "spec", "taints")
    return NodeView(
        name=fields.name(node),
        is_ready=is_ready,
        ready_since=at if is_ready else None,
        is_out_of_service=any(fields.text(taint, "key") == words.OUT_OF_SERVICE_TAINT for taint in taints),
        not_ready_since=None if is_ready else at,
    )


def build_ledger_view(ledger: Ledger) -> LedgerView:
    """What outlived earlier submissions.

    :raises ProtocolError: its record can't be read.
    """
    return LedgerView(ledger.submission, read_record(ledger.record).unproven)


def _says_ended(trainjob: Raw) -> bool:
    return any(fields.is_true(trainjob, kind) for kind in (words.TRAINJOB_COMPLETE, words.TRAINJOB_FAILED))


def _read_given_up_at(trainjob: Raw) -> datetime | None:
    if _says_ended(trainjob):
        return None
    try:
        end = load(End, fields.annotation(trainjob, words.END_ANNOTATION))
    except ProtocolError:
        # An end all the same, which starts nothing: it isn't ours to end by.
        return None
    return end.at if end is not None and end.state is State.FAILED else None


def _read_check_state(entry: Raw | None) -> CheckState | None:
    state = fields.text(entry, "state")
    return cast("CheckState", state) if state in get_args(CheckState) else None


def _count_evictions(workload: Raw) -> int:
    return sum(fields.number(row, "count") for row in fields.items(workload, "status", "schedulingStats", "evictions"))


def _was_collected(pod: Raw) -> bool:
    disruption = fields.conditions(pod).get(words.DISRUPTION_TARGET)
    return disruption is not None and disruption.is_true and disruption.reason == words.POD_GC_REASON


def _is_telling(pod: Raw) -> bool:
    """Whether an old state of a pod that is gone now still proves something.

    That a node had it does, and that it had ended. That no node had it does not: one may have got it afterwards.
    """
    return bool(fields.text(pod, "spec", "nodeName"))
