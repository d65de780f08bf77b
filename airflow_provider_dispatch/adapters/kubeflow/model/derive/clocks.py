# SPDX-License-Identifier: Apache-2.0
"""The five clocks of a job, brought up to the state just derived.

The controller keeps them on the TrainJob; between two of its writes the conditions and the pods know when the present
state began. Where it never wrote (plain mode without a controller), earlier time is lost and the present is right.
"""

from __future__ import annotations

from datetime import datetime

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.derive.scene import Scene
from airflow_provider_dispatch.core.clocks import CLOCK_OF_STATE, Clock, Clocks, advance_clocks
from airflow_provider_dispatch.core.state import State

_GATE_CLEARED = "AdmissionGateCleared"
_REACTIVATED = "Reactivated"


def derive_clocks(scene: Scene, state: State, ended_at: datetime | None) -> Clocks:
    """The stored clocks, moved to *state*.

    :param ended_at: for an end: when.
    """
    stored = scene.submission.clocks
    running = CLOCK_OF_STATE.get(state)
    if running is not None and stored.reading(running).since is not None:
        return advance_clocks(stored, state, scene.now)
    since = ended_at or _derive_since(scene, state) or scene.now
    last = max((at for clock in Clock if (at := stored.reading(clock).since) is not None), default=since)
    if state is State.QUEUED and since < last:
        # What tells when it began to wait is older than the hold that has just ended.
        since = scene.now
    return advance_clocks(stored, state, min(max(since, last), max(scene.now, last)))


def derive_queued_since(scene: Scene) -> datetime | None:
    """Since when it waits for room."""
    quota, evicted = scene.workload.quota, scene.workload.evicted
    if evicted is not None:
        return _find_reactivated(scene) or evicted.at
    cleared = [
        fields.moment(event, "lastTimestamp") or fields.moment(event, "eventTime")
        for event in scene.objects.events
        if fields.text(event, "reason") == _GATE_CLEARED
    ]
    stamps = [at for at in (*cleared, quota.at if quota is not None else None) if at is not None]
    return max(stamps, default=scene.workload.created_at or scene.submission.created_at)


def _find_reactivated(scene: Scene) -> datetime | None:
    """When a hold ended: the eviction that it began with stands until there is room again."""
    requeued = scene.workload.conditions.get(words.REQUEUED)
    is_back = requeued is not None and requeued.is_true and requeued.reason == _REACTIVATED
    return requeued.at if requeued is not None and is_back else None


def _derive_since(scene: Scene, state: State) -> datetime | None:
    match state:
        case State.GATED:
            return scene.submission.created_at
        case State.QUEUED:
            return derive_queued_since(scene)
        case State.STARTING:
            return _derive_starting_since(scene)
        case State.RUNNING:
            stamps = [rank.ready_at for rank in scene.current if rank.ready_at is not None]
            return max(stamps, default=_derive_starting_since(scene))
        case State.HOLDING | State.HELD:
            return _derive_held_since(scene)
        case _:
            return None


def _derive_starting_since(scene: Scene) -> datetime | None:
    resumed = fields.conditions(scene.objects.trainjob).get(words.TRAINJOB_SUSPENDED)
    plain = (resumed.at if resumed is not None else None) or scene.submission.created_at
    begun = plain if scene.is_plain else scene.workload.admitted_at
    # A restart in place begins anew without another admission.
    made = [rank.created_at for rank in scene.current if rank.created_at is not None and rank.restart > 0]
    first = min(made, default=None)
    stamps = [at for at in (begun, scene.jobset.restarting_since, first) if at is not None]
    return max(stamps, default=None)


def _derive_held_since(scene: Scene) -> datetime | None:
    if scene.holds.active:
        return min(hold.since for hold in scene.holds.active)
    return scene.workload.evicted.at if scene.workload.evicted is not None else None
