# SPDX-License-Identifier: Apache-2.0
"""Objects of a submission → Observation: one pure, total function, and the only place where their facts meet.

The watch, `inspect` and the controller call it. It never raises because of what it is shown: what can't be read is
evidence of an unknown state. It takes nothing from kubectl's columns, from ``PodsReady`` or from a place in a list.
"""

from __future__ import annotations

from datetime import datetime

from airflow_provider_dispatch.adapters.kubeflow.model.derive.causes import (
    NOTHING,
    Reason,
    explain_silence,
    explain_starting,
)
from airflow_provider_dispatch.adapters.kubeflow.model.derive.clocks import derive_clocks
from airflow_provider_dispatch.adapters.kubeflow.model.derive.ending import derive_end
from airflow_provider_dispatch.adapters.kubeflow.model.derive.roles import count_ranks, derive_progress, is_up
from airflow_provider_dispatch.adapters.kubeflow.model.derive.scene import Scene, read_scene
from airflow_provider_dispatch.adapters.kubeflow.model.derive.waiting import derive_pending, explain_misfit
from airflow_provider_dispatch.adapters.kubeflow.model.object_set import ObjectSet
from airflow_provider_dispatch.adapters.kubeflow.model.submission import End
from airflow_provider_dispatch.adapters.kubeflow.model.vocabulary import GATE
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.observation import Gates, Observation
from airflow_provider_dispatch.core.startup_order import derive_waiting_role
from airflow_provider_dispatch.core.state import ENDED, Cause, Signals, State, derive_state

__all__ = ["derive_observation"]


def derive_observation(objects: ObjectSet, now: datetime, *, ref: JobRef | None = None) -> Observation:
    """Everything known of a submission.

    :param ref: of the submission that is meant, for when its TrainJob is gone; else its leftovers tell.
    """
    scene = read_scene(objects, now, ref)
    end = derive_end(scene) if scene.has_trainjob else None
    state = derive_state(_derive_signals(scene, end))
    if state in ENDED and end is not None:
        return _build_ended(scene, end)
    reason = _derive_reason(scene, state)
    return Observation(
        state=state,
        ref=scene.submission.ref,
        cause=reason.cause,
        detail=reason.detail,
        evidence=reason.evidence,
        execution=scene.identity,
        executions=scene.identity.r if scene.identity is not None else 0,
        gates=_derive_gates(scene),
        holds=scene.holds.active,
        pending=derive_pending(scene) if state is State.QUEUED else None,
        ranks=count_ranks(scene),
        waiting_role=_derive_waiting_role(scene) if state is State.STARTING else None,
        clocks=derive_clocks(scene, state, None),
        observed_at=now,
    )


def _derive_signals(scene: Scene, end: End | None) -> Signals:
    return Signals(
        end=end.state if end is not None else None,
        has_objects=scene.has_trainjob or scene.has_leftovers,
        is_stopping=scene.is_stopping,
        is_held=scene.holds.is_held or scene.is_held_by_others,
        has_processes=scene.has_processes,
        is_gated=bool(scene.gates),
        is_admitted=scene.is_admitted,
        is_ready=is_up(scene),
        is_recognised=not scene.problems,
    )


def _build_ended(scene: Scene, end: End) -> Observation:
    return Observation(
        state=end.state,
        ref=scene.submission.ref,
        cause=end.cause,
        detail=end.detail,
        evidence=end.evidence,
        execution=scene.identity,
        executions=scene.identity.r if scene.identity is not None else 0,
        gates=_derive_gates(scene),
        ranks=count_ranks(scene),
        failed_rank=end.failed_rank,
        last_lines=end.last_lines,
        clocks=derive_clocks(scene, end.state, end.at),
        result=end.result,
        observed_at=scene.now,
    )


def _derive_reason(scene: Scene, state: State) -> Reason:
    match state:
        case State.GONE:
            return _explain_gone(scene)
        case State.STOPPING:
            return _explain_stopping(scene)
        case State.HOLDING | State.HELD:
            return _explain_held(scene, state)
        case State.UNKNOWN:
            return Reason(
                Cause.UNKNOWN, f"{scene.problems[0].object} carries what this version can't read", scene.problems
            )
        case State.GATED:
            others = [gate for gate in scene.gates if gate != GATE]
            return Reason(detail=f"gated by {', '.join(others)}") if others else NOTHING
        case State.QUEUED:
            return explain_misfit(scene)
        case State.STARTING:
            return explain_silence(scene.current) or explain_starting(scene)
        case _:
            return explain_silence(scene.current) or NOTHING


def _explain_gone(scene: Scene) -> Reason:
    ref = scene.submission.ref
    known = scene.ledger.end_of(ref.submission)
    if known is not None:
        return Reason(known.cause, known.reason)
    if 1 <= ref.submission <= scene.ledger.submission:
        return Reason(Cause.DELETED, "its objects are gone, and nobody asked for a stop")
    return NOTHING


def _explain_stopping(scene: Scene) -> Reason:
    stop, known = scene.submission.stop, scene.ledger.end_of(scene.submission.ref.submission)
    if stop is not None:
        return Reason(Cause.STOPPED, stop.reason)
    if known is not None:
        return Reason(known.cause, known.reason)
    what = "its TrainJob is being deleted" if scene.has_trainjob else "its TrainJob was deleted"
    left = sum(not rank.has_ended for rank in scene.ranks)
    return Reason(Cause.DELETED, f"{what} by somebody else; {left} of its pods are still ending")


def _explain_held(scene: Scene, state: State) -> Reason:
    if scene.is_held_by_others:
        return Reason(detail="held by somebody else: its Workload was made inactive, and no record says by whom")
    if state is State.HELD or not scene.unproven:
        return NOTHING
    names = sorted(
        f"pod {pod.name} on {f'node {pod.node}' if pod.node else 'an unknown node'}" for pod in scene.unproven
    )
    return Reason(detail=f"waits for the proof that its processes are gone: {', '.join(names)}")


def _derive_gates(scene: Scene) -> Gates:
    return Gates(GATE not in scene.gates, tuple(gate for gate in scene.gates if gate != GATE))


def _derive_waiting_role(scene: Scene) -> str | None:
    roles = scene.submission.spec.roles
    # The only role of a job is no news: everybody knows whom it waits for.
    return derive_waiting_role(roles, derive_progress(scene)) if len(roles) > 1 else None
