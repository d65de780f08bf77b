# SPDX-License-Identifier: Apache-2.0
"""What a preflight sees on a cluster without a fault, to be changed in one place by each test."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.preflight import CHECKS
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.entry import list_apis
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.probe import build_probe_runtime, build_probe_trainjob
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.sights import (
    PolicySight,
    PreflightTerms,
    ProbeSight,
    QueueSight,
    ServedGroup,
    Sights,
    TrialSight,
    Unseen,
)
from airflow_provider_dispatch.adapters.kubeflow.model.terms import Terms
from airflow_provider_dispatch.core.capabilities import Finding
from airflow_provider_dispatch.core.identity import JobID

NOW = datetime(2026, 9, 1, 12, tzinfo=UTC)
JOB = JobID("01K0000000000000000000000A")
DENIED = Unseen("403 Forbidden")
KUEUE = PreflightTerms("team", "lq", "ours", ("dispatch-system", "dispatch-admission"), runtime="plain")
PLAIN = replace(KUEUE, queue="")
ALONE = replace(PLAIN, has_controller=False)

Raw = dict[str, Any]


def named(name: str, kind: str = "", **parts: Any) -> Raw:
    return {"kind": kind, "metadata": {"name": name}, **parts}


def condition(kind: str, *, is_true: bool = True, reason: str = "", message: str = "") -> Raw:
    listed = {"type": kind, "status": str(is_true), "reason": reason, "message": message}
    return {"conditions": [listed]}


def local_queue(**spec: Any) -> Raw:
    return named("lq", "LocalQueue", spec={"clusterQueue": "cq", **spec}, status=condition("Active"))


def cluster_queue(**spec: Any) -> Raw:
    quotas = [{"name": "cpu", "nominalQuota": 4}, {"name": "memory", "nominalQuota": "1Gi"}]
    group = {"coveredResources": ["cpu", "memory"], "flavors": [{"name": "default", "resources": quotas}]}
    own = {
        "namespaceSelector": {},
        "admissionChecksStrategy": {"admissionChecks": [{"name": "ours"}]},
        "resourceGroups": [group],
    }
    return named("cq", "ClusterQueue", spec=own | spec, status=condition("Active"))


def check(controller: str = words.CONTROLLER_NAME, *, is_active: bool = True) -> Raw:
    return named("ours", spec={"controllerName": controller}, status=condition("Active", is_true=is_active))


def configuration(name: str, *webhooks: str, bundle: str = "Q0E=", **labels: str) -> Raw:
    listed = [{"name": webhook, "clientConfig": {"caBundle": bundle}} for webhook in webhooks]
    return {"metadata": {"name": name, "labels": labels}, "webhooks": listed}


WEBHOOKS = (
    configuration("kueue", *words.KUEUE_WEBHOOKS, *words.JOBSET_WEBHOOKS),
    configuration("trainer", *words.TRAINER_WEBHOOKS),
    configuration("jobset", *words.JOBSET_WEBHOOKS),
)


def trainjob(terms: PreflightTerms = KUEUE, *, is_suspended: bool = True) -> Raw:
    built = build_probe_trainjob(JOB, Terms(terms.namespace, terms.queue), NOW)
    built["spec"]["suspend"] = is_suspended
    built["status"] = condition(words.TRAINJOB_SUSPENDED)
    if terms.queue:
        built["spec"]["runtimePatches"] = [{"manager": words.KUEUE_PATCH_MANAGER}]
    return built


def runtime(terms: PreflightTerms = KUEUE) -> Raw:
    return build_probe_runtime(JOB, Terms(terms.namespace, terms.queue, is_fenced=terms.is_fenced), NOW)


def jobset(terms: PreflightTerms = KUEUE) -> Raw:
    return {"spec": runtime(terms)["spec"]["template"]["spec"], "status": condition(words.JOBSET_SUSPENDED)}


def workload(reason: str = words.ADMISSION_GATED) -> Raw:
    return named("w", status=condition(words.QUOTA_RESERVED, is_true=False, reason=reason, message="it waits"))


def probe(terms: PreflightTerms = KUEUE, **parts: Any) -> ProbeSight:
    healthy = ProbeSight(10.0, trainjob(terms), workload() if terms.queue else None, jobset(terms))
    return replace(healthy, **parts)


def scene(terms: PreflightTerms = KUEUE, **parts: Any) -> Sights:
    """A healthy cluster, but for *parts*."""
    healthy = Sights(
        terms,
        NOW,
        user="us",
        version="v1.35.4",
        served={
            one.group: ServedGroup(
                (one.version,), frozenset(other.plural for other in list_apis(terms) if other.group == one.group)
            )
            for one in list_apis(terms)
        },
        denied=(),
        namespace=named("team"),
        runtime=named("plain", "ClusterTrainingRuntime"),
        queue=QueueSight(local_queue(), cluster_queue(), {"ours": check()}, frozenset({"default"})),
        lease=lease("pod-1"),
        webhooks=WEBHOOKS,
        policies=PolicySight(("one", "two"), ("a", "b"), frozenset({"one", "two"}), frozenset({"a", "b"})),
        trial=TrialSight(trainjob(terms), True, runtime(terms)),
        probe=probe(terms),
    )
    return replace(healthy, **parts)


def lease(holder: str, *, signed: str | None = None, renewed: str = "2026-09-01T11:59:50Z") -> Raw:
    sign = {words.HOLDER_ANNOTATION: holder if signed is None else signed}
    return {"metadata": {"annotations": sign}, "spec": {"holderIdentity": holder, "renewTime": renewed}}


def judge(name: str, sights: Sights) -> Finding:
    return CHECKS[name](sights)
