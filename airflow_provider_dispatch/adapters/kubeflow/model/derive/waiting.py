# SPDX-License-Identifier: Apache-2.0
"""Why a job that may run isn't admitted: Kueue's reason, an admission check's, or its own old processes.

The ladder asks for a queued job only. Decides nothing about the state.
"""

from __future__ import annotations

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
_GATED = "AdmissionGated"


def derive_pending(scene: Scene) -> Pending:
    """The first reason that fits."""
    code, message = _derive_reason(scene)
    since = scene.submission.clocks.queued.since or derive_queued_since(scene)
    return Pending(code, message, scene.submission.queue, None, scene.workload.evictions, since)


def explain_misfit(scene: Scene) -> Reason:
    """Why it can never be admitted; nothing while it may be."""
    quota = scene.workload.quota
    if quota is None or quota.is_true or not is_misfit(quota):
        return NOTHING
    proof = Evidence(scene.workload.object, words.QUOTA_RESERVED, f"{quota.reason}: {quota.message}", quota.at)
    return Reason(Cause.NO_CAPACITY, quota.message, (proof,))


def _derive_reason(scene: Scene) -> tuple[str, str]:
    standing = scene.workload
    if scene.is_plain:
        return "Suspended", "its TrainJob is suspended, though nobody holds it"
    if not standing.exists:
        return NOT_EVALUATED, "Kueue has not made a Workload for it yet"
    if standing.has_quota and standing.evicted is None:
        return UNSATISFIED_CHECKS, _describe_checks(scene)
    if scene.has_processes:
        epoch = f"execution {scene.identity.epoch}" if scene.identity is not None else "an earlier execution"
        return ENDING, f"processes of {epoch} are still ending"
    if standing.is_kueues_own_hold or not standing.is_active:
        return "Deactivated", "its Workload is inactive and about to be released"
    quota = standing.quota
    if quota is None or standing.has_quota:
        return NOT_EVALUATED, "Kueue has not looked at it yet"
    # Kueue takes the gate from the Workload after we took it from the TrainJob.
    if quota.reason == _GATED and words.GATE in quota.message:
        return NOT_EVALUATED, "its gate is open; Kueue has not looked at it since"
    return derive_code(quota), quota.message


def _describe_checks(scene: Scene) -> str:
    if not scene.workload.checks:
        return "its quota is reserved; Kueue is about to admit it"
    parts = [
        f"{name} is {state}: {message}" if message else f"{name} is {state}" for name, state, message in _checks(scene)
    ]
    return f"its quota is reserved; admission check {'; '.join(parts)}"


def _checks(scene: Scene) -> tuple[tuple[str, str, str], ...]:
    return scene.workload.checks
