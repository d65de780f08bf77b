# SPDX-License-Identifier: Apache-2.0
"""Plain mode, decided: when a suspended TrainJob may run again, what is in the way, and the patch that lets it.

`plain_mode` reads and writes; nothing here does.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.hold_record import read_hold_book
from airflow_provider_dispatch.adapters.kubeflow.model.json_patch import Patch, build_patch
from airflow_provider_dispatch.adapters.kubeflow.model.submission import read_ref, read_submission
from airflow_provider_dispatch.core.identity import Identity

_JOB_ENDS = ("Complete", "Failed")


def is_plain(trainjob: Raw) -> bool:
    """No queue, so nobody but us suspends and resumes it. Decided when the job is made."""
    return not fields.label(trainjob, words.QUEUE_LABEL)


def is_resume_due(trainjob: Raw, now: datetime) -> bool:
    """Nothing that is wanted of it keeps it suspended: it waits for old pods, or for somebody to resume it."""
    if not is_plain(trainjob) or not fields.flag(trainjob, "spec", "suspend") or fields.is_deleting(trainjob):
        return False
    if any(fields.is_true(trainjob, end) for end in (words.TRAINJOB_COMPLETE, words.TRAINJOB_FAILED)):
        return False
    if fields.annotation(trainjob, words.ADMISSION_GATED_BY) or read_hold_book(trainjob).is_held:
        return False
    if fields.annotation(trainjob, words.STOP_ANNOTATION) or fields.annotation(trainjob, words.END_ANNOTATION):
        return False
    not_before = fields.parse_time(fields.annotation(trainjob, words.NOT_BEFORE_ANNOTATION))
    return not_before is None or not_before <= now


def find_obstacles(jobset: Raw | None, jobs: Iterable[Raw], pods: Iterable[Raw]) -> tuple[str, ...]:
    """What may be alive or come alive under the old epoch, for people; empty when everything is gone."""
    found = [f"pod {fields.name(pod)} on {_describe_node(pod)}" for pod in pods if is_left(pod)]
    found += [f"job {fields.name(job)}" for job in jobs if _may_make_pods(job)]
    if jobset is not None and not _is_at_rest(jobset):
        found.append(f"jobset {fields.name(jobset)}")
    return tuple(sorted(found))


def is_left(pod: Raw) -> bool:
    """A process of the pod may be alive or come alive; terminating counts. Pod garbage collection asks no kubelet."""
    match fields.text(pod, "status", "phase"):
        case "Succeeded":
            return False
        case "Failed":
            disrupted = fields.conditions(pod).get(words.DISRUPTION_TARGET)
            return disrupted is not None and disrupted.reason == words.POD_GC_REASON
    return True


def list_roles(raw: Raw | None, *path: str) -> tuple[str, ...]:
    """Names of the replicated jobs of a JobSet spec."""
    return tuple(fields.text(item, "name") for item in fields.items(raw, *path, "replicatedJobs"))


def build_raise_patch(trainjob: Raw, roles: Iterable[str]) -> Patch:
    """Raises A, tells every pod of the next execution its identity, and lets it run, in one write.

    :param roles: every replicated job of the runtime.
    """
    submission = read_submission(trainjob)
    identity = Identity(
        read_ref(trainjob).job, submission.ref.submission, submission.attempt, submission.admissions + 1, 0
    )
    notes = build_pod_annotations(identity)
    pods = {"template": {"spec": {"template": {"metadata": {"annotations": notes}}}}}
    item = {
        "manager": words.RUNTIME_PATCH_MANAGER,
        "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [{"name": role, **pods} for role in roles]}}},
    }
    others = [
        other
        for other in fields.items(trainjob, "spec", "runtimePatches")
        if fields.text(other, "manager") != words.RUNTIME_PATCH_MANAGER
    ]
    return build_patch(
        trainjob,
        annotations={words.ADMISSIONS_ANNOTATION: str(identity.a)},
        spec={"runtimePatches": [*others, item], "suspend": False},
    )


def build_pod_annotations(identity: Identity) -> dict[str, str]:
    """What a pod reads its identity from when its container starts."""
    return {
        words.ADMISSIONS_ANNOTATION: str(identity.a),
        words.RESTARTS_ANNOTATION: str(identity.j),
        words.EPOCH_ANNOTATION: str(identity.epoch),
        words.ATTEMPT_ANNOTATION: identity.attempt_id,
    }


def _may_make_pods(job: Raw) -> bool:
    counts = (fields.number(job, "status", "active"), fields.number(job, "status", "terminating"))
    is_over = any(fields.is_true(job, end) for end in _JOB_ENDS)
    return any(counts) or not (is_over or fields.flag(job, "spec", "suspend"))


def _is_at_rest(jobset: Raw) -> bool:
    active = any(fields.number(role, "active") for role in fields.items(jobset, "status", "replicatedJobsStatus"))
    return fields.flag(jobset, "spec", "suspend") and not active


def _describe_node(pod: Raw) -> str:
    node = fields.text(pod, "spec", "nodeName")
    return f"node {node}" if node else "no node yet"
