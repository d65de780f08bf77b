# SPDX-License-Identifier: Apache-2.0
"""Views of a job that runs well, to be changed by tests of the controller's decisions."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_provider_dispatch.adapters.kubeflow.model.controller_view import (
    ControllerSettings,
    LedgerView,
    NodeView,
    PodView,
    TrainJobView,
    WorkloadView,
    build_admission_key,
)
from airflow_provider_dispatch.adapters.kubeflow.model.execution_record import ExecutionRecord, RecordedPod
from airflow_provider_dispatch.core.holds import Actor, ActorKind, Hold, HoldBook

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
SETTINGS = ControllerSettings(
    node_monitor_grace=50 * SECOND, pod_grace=30 * SECOND, margin=20 * SECOND, retry_after=60 * SECOND
)
PROOF = 100 * SECOND
NO_LEDGER = LedgerView()
NODE = NodeView("node-1", is_ready=True, ready_since=NOW - timedelta(days=1))
HOLD = Hold(1, "key", Actor(ActorKind.HUMAN, "ann"), "", NOW - 60 * SECOND)
HELD = HoldBook((HOLD,), 1)
RELEASED = HoldBook((), 1)

WAITING = WorkloadView("w", "7", has_quota=True, reserved_at=NOW - 30 * SECOND, check_state="Pending")
RUNNING = replace(WAITING, is_admitted=True, check_state="Ready")
TRAINJOB = TrainJobView(
    "t",
    "3",
    2,
    admissions=1,
    admission_key=build_admission_key(RUNNING),
    is_suspended=False,
    jobset_uid="js",
)
GATED = PodView("u0", "rank-0", "team", "node", 0, 0, 2, "js", 0, has_fence=True)
LIFTED = replace(GATED, has_fence=False, phase="Running", node="node-1", epoch=2000001)


def rank(number: int, pod: PodView = GATED) -> PodView:
    """The same pod in another slot."""
    return replace(pod, uid=f"u{number}", name=f"rank-{number}", completion_index=number)


def record_of(*pods: PodView, r: int = 1, **changes: Any) -> ExecutionRecord:
    """An execution in which these pods have been recorded."""
    recorded = tuple(
        RecordedPod(pod.slot, pod.uid, pod.name, recorded_at=NOW - 600 * SECOND, submission=pod.submission)
        for pod in pods
    )
    return replace(ExecutionRecord(r, r, "js", 0, recorded), **changes)
