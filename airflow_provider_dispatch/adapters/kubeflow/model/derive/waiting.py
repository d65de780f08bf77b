# SPDX-License-Identifier: Apache-2.0
"""Why a job that may run isn't admitted: Kueue's reason, an admission check's, or its own old processes.

The ladder asks for a queued job only. Decides nothing about the state.
"""

from __future__ import annotations

from airflow_provider_dispatch.adapters.kubeflow.model import queue_fit
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.derive.causes import NOTHING, Reason
from airflow_provider_dispatch.adapters.kubeflow.model.derive.clocks import derive_queued_since
from airflow_provider_dispatch.adapters.kubeflow.model.derive.scene import Scene
from airflow_provider_dispatch.adapters.kubeflow.model.derive.workload import (
    NOT_EVALUATED,
    UNSATISFIED_CHECKS,
    derive_code,
    is_misfit,
)
from airflow_provider_dispatch.core.observation import Evidence, Pending
from airflow_provider_dispatch.core.state import Cause

ENDING = "ending"
PAUSED = "NotBefore"
_GATED = "AdmissionGated"


def derive_pending(scene: Scene) -> Pending:
    """The first reason that fits."""
    code, message = _derive_reason(scene)
    since = scene.submission.clocks.queued.since or derive_queued_since(scene)
    return Pending(code, message, scene.submission.queue, None, scene.workload.evictions, since)


def explain_misfit(scene: Scene) -> Reason:
    """Why it can never be admitted; nothing while it may be."""
    quota = scene.workload.quota
    if quota is None or quota.is_true:
        return NOTHING
    queue = scene.objects.cluster_queue
    known = (
        queue_fit.explain_misfit(queue, queue_fit.read_role_requests(scene.objects.workload or {})) if queue else None
    )
    if known is None and not is_misfit(quota):
        return NOTHING
    proof = Evidence(scene.workload.object, words.QUOTA_RESERVED, f"{quota.reason}: {quota.message}", quota.at)
    return Reason(Cause.NO_CAPACITY, known or quota.message, (proof,))


def _derive_reason(scene: Scene) -> tuple[str, str]:
    standing, not_before = scene.workload, scene.submission.not_before
    if not_before is not None and scene.now < not_before:
        return PAUSED, f"it is not to be admitted before {not_before.isoformat(timespec='seconds')}"
    if scene.is_plain:
        return (ENDING, _describe_ending(scene)) if scene.has_processes else ("Suspended", "it is about to be resumed")
    if not standing.exists:
        return NOT_EVALUATED, "Kueue has not made a Workload for it yet"
    if standing.has_quota and standing.evicted is None:
        return UNSATISFIED_CHECKS, _describe_checks(scene)
    if scene.has_processes:
        return ENDING, _describe_ending(scene)
    if standing.is_kueues_own_hold or not standing.is_active:
        return "Deactivated", "its Workload is inactive and about to be released"
    quota = standing.quota
    if quota is None or standing.has_quota:
        return NOT_EVALUATED, "Kueue has not looked at it yet"
    # Kueue takes a gate from the Workload after it was taken from the TrainJob.
    if quota.reason == _GATED and words.DOMAIN in quota.message:
        return NOT_EVALUATED, "its gate is open; Kueue has not looked at it since"
    return derive_code(quota), quota.message


def _describe_ending(scene: Scene) -> str:
    epoch = f"execution {scene.identity.epoch}" if scene.identity is not None else "an earlier execution"
    return f"processes of {epoch} are still ending"


def _describe_checks(scene: Scene) -> str:
    if not scene.workload.checks:
        return "its quota is reserved; Kueue is about to admit it"
    parts = [
        f"{name} is {state}" + (f": {message}" if message else "") for name, state, message in scene.workload.checks
    ]
    return f"its quota is reserved; admission check {'; '.join(parts)}"
