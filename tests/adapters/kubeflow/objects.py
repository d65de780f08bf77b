# SPDX-License-Identifier: Apache-2.0
"""Small objects of a job for tests of the verbs, and the reactions of what would act on them in a cluster."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.resources import (
    JOBS,
    JOBSETS,
    PODS,
    TRAINING_RUNTIMES,
    TRAINJOBS,
    WORKLOADS,
    Resource,
)
from airflow_provider_dispatch.adapters.kubeflow.model.submission import dump
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings
from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.owner import Owner
from tests.adapters.kubeflow.memory_client import MemoryClient, Object

JOB = JobID("01HZZZZZZZZZZZZZZZZZZZZZZZ")
NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
SOON = NOW + timedelta(seconds=20)
SETTINGS = KubeflowSettings(queue="lq")
PLAIN = KubeflowSettings(has_controller=False)
OWNER = Owner("blue", "dag", "run", "train", -1, 2, "try-2")


def build_ref(submission: int = 1) -> JobRef:
    return JobRef(JOB, submission, words.BACKEND, "default")


def build_name(submission: int = 1) -> str:
    return f"dj-{JOB.lower()}-s{submission}"


def build_labels(submission: int = 1) -> dict[str, str]:
    return {words.JOB_LABEL: JOB.lower(), words.SUBMISSION_LABEL: str(submission)}


def build_trainjob(
    submission: int = 1, *, queue: str = "lq", suspend: bool = False, notes: dict[str, str] | None = None, **spec: Any
) -> Object:
    annotations = {
        words.SPEC_ANNOTATION: JobSpec(command=["x"]).model_dump_json(exclude_defaults=True),
        words.OWNER_ANNOTATION: dump(OWNER),
        words.ADMISSIONS_ANNOTATION: "1",
        **(notes or {}),
    }
    labels = build_labels(submission) | ({words.QUEUE_LABEL: queue} if queue else {})
    return {
        "apiVersion": TRAINJOBS.api_version,
        "kind": "TrainJob",
        "metadata": {
            "name": build_name(submission),
            "uid": f"tj-{submission}",
            "labels": labels,
            "annotations": annotations,
            "creationTimestamp": "2026-03-01T11:00:00Z",
        },
        "spec": {"suspend": suspend, "runtimeRef": {"kind": "TrainingRuntime", "name": build_name(submission)}, **spec},
        "status": {},
    }


def build_workload(submission: int = 1, **spec: Any) -> Object:
    return {
        "metadata": {
            "name": f"trainjob-{build_name(submission)}-abcde",
            "uid": f"wl-{submission}",
            "labels": {words.JOB_UID_LABEL: f"tj-{submission}"},
            "ownerReferences": [build_owner("TrainJob", build_name(submission), f"tj-{submission}")],
        },
        "spec": spec,
        "status": {"conditions": []},
    }


def build_runtime(submission: int = 1) -> Object:
    roles = [{"name": "node", "template": {}}]
    return {
        "metadata": {"name": build_name(submission), "uid": f"rt-{submission}", "labels": build_labels(submission)},
        "spec": {"template": {"spec": {"replicatedJobs": roles}}},
    }


def build_jobset(submission: int = 1, *, suspend: bool = False) -> Object:
    return {
        "metadata": {
            "name": build_name(submission),
            "uid": f"js-{submission}",
            "labels": build_labels(submission),
            "ownerReferences": [build_owner("TrainJob", build_name(submission), f"tj-{submission}")],
        },
        "spec": {"suspend": suspend, "replicatedJobs": [{"name": "node"}]},
        "status": {},
    }


def build_pod(
    index: int = 0, submission: int = 1, *, phase: str = "Running", node: str = "n1", uid: str = "", **more: Any
) -> Object:
    labels = build_labels(submission) | {
        words.ROLE_LABEL: "node",
        words.REPLICATED_JOB_LABEL: "node",
        words.JOB_INDEX_LABEL: "0",
        words.RESTART_LABEL: "0",
        words.COMPLETION_INDEX_LABEL: str(index),
        words.JOBSET_UID_LABEL: f"js-{submission}",
    }
    uid = uid or f"pod-{submission}-{index}"
    notes = more.pop("notes", {words.EPOCH_ANNOTATION: f"{submission}000001", words.ADMISSIONS_ANNOTATION: "1"})
    meta = {"name": more.pop("name", f"{build_name(submission)}-node-0-{index}-{uid[-3:]}"), "uid": uid}
    return {
        "metadata": meta | {"labels": labels, "annotations": notes} | more,
        "spec": {"nodeName": node} if node else {},
        "status": {"phase": phase, **more.pop("status", {})},
    }


def build_owner(kind: str, name: str, uid: str) -> dict[str, object]:
    return {"kind": kind, "name": name, "uid": uid, "controller": True}


def build_record(**pods: dict[str, Any]) -> str:
    """An execution record of these pods by UID."""
    listed = [
        {"slot": {"role": "node", "job_index": 0, "completion_index": index}, "uid": uid, "name": uid, **more}
        for index, (uid, more) in enumerate(pods.items())
    ]
    return json.dumps({"r": 1, "a": 1, "jobset_uid": "js-1", "pods": listed})


def place_job(client: MemoryClient, submission: int = 1, *, pods: int = 2, **trainjob: Any) -> None:
    """A job that runs."""
    client.put(TRAINJOBS, build_trainjob(submission, **trainjob))
    client.put(TRAINING_RUNTIMES, build_runtime(submission))
    client.put(JOBSETS, build_jobset(submission))
    if trainjob.get("queue", "lq"):
        client.put(WORKLOADS, build_workload(submission))
    for index in range(pods):
        client.put(PODS, build_pod(index, submission))


def collect_garbage(client: MemoryClient, verb: str, resource: Resource, raw: Object) -> None:
    """What a deleted TrainJob owns goes with it; its pods say that they have ended."""
    if verb != "delete" or resource != TRAINJOBS:
        return
    submission = raw["metadata"]["labels"][words.SUBMISSION_LABEL]
    for kind in (WORKLOADS, TRAINING_RUNTIMES, JOBSETS, JOBS):
        for one in client.peek_all(kind):
            if one["metadata"]["name"].startswith(
                (build_name(int(submission)), f"trainjob-{build_name(int(submission))}")
            ):
                client.drop(kind, one["metadata"]["name"])
    end_pods(client)


def end_pods(client: MemoryClient) -> None:
    """Every pod ends and goes."""
    for pod in client.peek_all(PODS):
        pod["status"]["phase"] = "Failed"
        client.put(PODS, pod)
        client.drop(PODS, pod["metadata"]["name"])
