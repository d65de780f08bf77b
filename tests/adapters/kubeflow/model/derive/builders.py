# SPDX-License-Identifier: Apache-2.0
"""Objects by hand, as small as a derivation reads them: for what no recording shows, and for one fact at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.derive import derive_observation
from airflow_provider_dispatch.adapters.kubeflow.model.ledger import Ledger, build_ledger
from airflow_provider_dispatch.adapters.kubeflow.model.object_set import ObjectSet
from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.observation import Observation

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
JOB = JobID("0" * 26)
NAME = f"dj-{JOB.lower()}-s1"
REF = JobRef(JOB, 1, "kubeflow", "ns", "tj")
Manifest = dict[str, Any]


def ago(seconds: float) -> str:
    """A stamp as the cluster writes it."""
    return (NOW - timedelta(seconds=seconds)).isoformat(timespec="seconds").replace("+00:00", "Z")


def condition(kind: str, *, is_true: bool = True, reason: str = "", message: str = "", at: float = 60) -> Manifest:
    return {
        "type": kind,
        "status": str(is_true),
        "reason": reason or kind,
        "message": message,
        "lastTransitionTime": ago(at),
    }


def trainjob(*conditions: Manifest, suspend: bool = False, queue: str = "lq", **notes: str) -> Manifest:
    """:param notes: annotations of ours, by the last part of their names."""
    spec = JobSpec(command=["run"], nodes=2)
    annotations = {words.SPEC_ANNOTATION: spec.model_dump_json(exclude_defaults=True)}
    annotations |= {f"{words.DOMAIN}/{key.replace('_', '-')}": value for key, value in notes.items()}
    labels = {words.JOB_LABEL: JOB.lower(), words.SUBMISSION_LABEL: "1"}
    return {
        "kind": "TrainJob",
        "metadata": {
            "name": NAME,
            "namespace": "ns",
            "uid": "tj",
            "creationTimestamp": ago(600),
            "labels": labels | ({words.QUEUE_LABEL: queue} if queue else {}),
            "annotations": annotations,
        },
        "spec": {"suspend": suspend},
        "status": {"conditions": list(conditions)},
    }


def spec_note(*roles: Manifest, **about: Any) -> str:
    """Of a job of two ranks, or of these roles."""
    shape: Manifest = {"roles": roles} if roles else {"command": ["run"], "nodes": 2}
    return JobSpec(**shape, **about).model_dump_json(exclude_defaults=True)


def workload(*conditions: Manifest, active: bool = True, evictions: Mapping[str, int] | None = None) -> Manifest:
    """Admitted unless conditions say otherwise."""
    admitted = (condition("QuotaReserved", at=300), condition("Admitted", at=290))
    counts = [{"reason": reason, "count": count} for reason, count in (evictions or {}).items()]
    return {
        "kind": "Workload",
        "metadata": {"name": "wl", "uid": "wl", "creationTimestamp": ago(600), "annotations": {}},
        "spec": {"active": active, "queueName": "lq"},
        "status": {
            "conditions": list(conditions or admitted),
            "schedulingStats": {"evictions": counts},
        },
    }


def jobset(*conditions: Manifest, restarts: int = 0, max_restarts: int = 0, rules: Sequence[Manifest] = ()) -> Manifest:
    return {
        "kind": "JobSet",
        "metadata": {"name": NAME, "uid": "js"},
        "spec": {"failurePolicy": {"maxRestarts": max_restarts, "rules": list(rules)}},
        "status": {"conditions": list(conditions), "restarts": restarts, "restartsCountTowardsMax": restarts},
    }


def pod(rank: int = 0, *conditions: Manifest, role: str = "node", phase: str = "Running", **more: Any) -> Manifest:
    """One that is ready, unless told otherwise.

    :param more: ``exit``, ``began``, ``finished``, ``exit_reason``, ``message``, ``waiting``, ``deleted``, ``grace``,
        ``gates``, ``reason``, ``attempt``, ``restart``, ``jobset``, ``uid``, ``node``.
    """
    labels = {
        words.ROLE_LABEL: role,
        words.COMPLETION_INDEX_LABEL: str(rank),
        words.JOBSET_UID_LABEL: more.get("jobset", "js"),
        words.RESTART_LABEL: str(more.get("restart", 0)),
    }
    metadata: Manifest = {
        "name": more.get("uid", f"{role}-{rank}"),
        "uid": more.get("uid", f"{role}-{rank}"),
        "labels": labels,
        "creationTimestamp": ago(more.get("created", 280)),
        "annotations": _build_identity(more["attempt"]) if "attempt" in more else {},
    }
    if "deleted" in more:
        grace = more.get("grace", 30)
        metadata |= {"deletionTimestamp": ago(more["deleted"] - grace), "deletionGracePeriodSeconds": grace}
    ready = [condition("Ready", at=270), condition("ContainersReady", at=270)]
    state = _build_state(more)
    return {
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "nodeName": more.get("node", "node-1"),
            "schedulingGates": [{"name": gate} for gate in more.get("gates", ())],
        },
        "status": {
            "phase": phase,
            "reason": more.get("reason", ""),
            "conditions": list(conditions) or (ready if "running" in state else []),
            "containerStatuses": [{"name": "node", "state": state}],
        },
    }


def _build_identity(attempt: str) -> Manifest:
    """What the lift wrote: all of it, and A by itself."""
    parts = attempt.split(".")
    return {words.ATTEMPT_ANNOTATION: attempt} | ({words.ADMISSIONS_ANNOTATION: parts[3]} if len(parts) == 5 else {})


def _build_state(more: Mapping[str, Any]) -> Manifest:
    if "exit" in more:
        ended = {"exitCode": more["exit"], "finishedAt": ago(more.get("finished", 10))}
        ended["startedAt"] = ago(more.get("began", 275))
        reason = more.get("exit_reason", "Error" if more["exit"] else "Completed")
        return {"terminated": ended | {"reason": reason, "message": more.get("message", "")}}
    if "waiting" in more:
        return {"waiting": {"reason": more["waiting"], "message": more.get("message", "")}}
    return {"running": {"startedAt": ago(275)}}


def ledger(**about: Any) -> Manifest:
    return build_ledger(JOB, Ledger(**({"submission": 1} | about)))


def derive(*objects: Manifest | None, **more: Any) -> Observation:
    """The observation of these objects; a running job's others are filled in where a kind is missing.

    :param more: of :class:`ObjectSet`; None leaves a kind out.
    """
    by_kind: dict[str, list[Manifest]] = {}
    for one in objects:
        if one is not None:
            by_kind.setdefault(one["kind"], []).append(one)
    found: dict[str, Any] = {
        "trainjob": next(iter(by_kind.get("TrainJob", [trainjob()]))),
        "workload": next(iter(by_kind.get("Workload", [workload()]))),
        "jobset": next(iter(by_kind.get("JobSet", [jobset()]))),
        "ledger": next(iter(by_kind.get("ConfigMap", [ledger()]))),
        "pods": tuple(by_kind.get("Pod", ())),
        "jobs": tuple(by_kind.get("Job", ())),
        "events": tuple(by_kind.get("Event", ())),
    }
    return derive_observation(ObjectSet("ns", **(found | more)), NOW, ref=REF)
