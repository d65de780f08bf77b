# SPDX-License-Identifier: Apache-2.0
"""When a pod is proven dead, and how to say that it isn't.

A deleted object proves nothing: the process of a force-deleted pod lives on until its kubelet is back. The fence and
the readmission check ask this module. It judges what others have seen and reads nothing itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from airflow_provider_dispatch.adapters.kubeflow.model.controller_view import (
    ControllerSettings,
    LedgerView,
    NodeView,
    PodView,
    TrainJobView,
)
from airflow_provider_dispatch.adapters.kubeflow.model.execution_record import (
    ExecutionRecord,
    RecordedPod,
    build_undead,
)

MOST_NAMED = 5
"""So many pods are named in a message; the rest is counted."""


def derive_record(
    trainjob: TrainJobView,
    *,
    pods: Sequence[PodView],
    nodes: Sequence[NodeView],
    ledger: LedgerView,
    now: datetime,
    settings: ControllerSettings,
) -> ExecutionRecord:
    """The TrainJob's record as it should be written now: with pods of earlier submissions, strangers and deaths."""
    record = trainjob.record
    carried = replace(record, undead=build_undead(record, ledger.undead, trainjob.submission))
    known = {pod.uid for pod in (*carried.pods, *carried.undead)}
    strangers = (build_recorded(pod, now) for pod in pods if pod.uid not in known and is_stranger(pod))
    carried = replace(carried, undead=(*carried.undead, *strangers))
    return derive_deaths(carried, pods, nodes, now=now, settings=settings)


def is_stranger(pod: PodView) -> bool:
    """It may run though no record knows it: somebody else removed its gate, or a record was lost.

    It never gets an epoch, but when its object goes its end must be proven too.
    """
    if pod.has_fence:
        return False
    # One of ours that is gone and in no record any more has been proven dead before it left.
    return pod.is_left or (pod.is_gone and not pod.is_ended and pod.node is not None and pod.epoch is None)


def build_recorded(pod: PodView, now: datetime) -> RecordedPod:
    """The pod as a record knows it at first."""
    return RecordedPod(
        pod.slot, pod.uid, pod.name, pod.node, recorded_at=now, submission=pod.submission, grace=pod.grace or None
    )


def derive_deaths(
    record: ExecutionRecord,
    pods: Sequence[PodView],
    nodes: Sequence[NodeView],
    *,
    now: datetime,
    settings: ControllerSettings,
) -> ExecutionRecord:
    """Note what is seen of recorded pods before the objects that show it go: node, disappearance, death.

    :param pods: see :func:`.fence.decide_fence`.
    """
    seen = {pod.uid: pod for pod in pods}

    def note(recorded: tuple[RecordedPod, ...]) -> tuple[RecordedPod, ...]:
        noted = ((_note_sight(pod, seen.get(pod.uid), now), seen.get(pod.uid)) for pod in recorded)
        return tuple(
            replace(pod, is_dead=is_proven_dead(pod, sight, nodes, now=now, settings=settings)) for pod, sight in noted
        )

    return replace(record, pods=note(record.pods), undead=note(record.undead))


def is_proven_dead(
    pod: RecordedPod, seen: PodView | None, nodes: Sequence[NodeView], *, now: datetime, settings: ControllerSettings
) -> bool:
    """No process of the pod lives or can come alive.

    :param seen: the pod's object or last state; None when there is none.
    """
    if pod.is_dead:
        return True
    if seen is not None and not seen.is_gone:
        return seen.is_ended
    # The last state of an object that no node ever had, or whose kubelet had already said that it ended.
    if seen is not None and (seen.is_ended or (pod.node or seen.node) is None):
        return True
    grace = settings.node_monitor_grace + max(settings.pod_grace, pod.grace or timedelta()) + settings.margin
    node = pod.node or (seen.node if seen else None)
    # Where nobody saw it bound, any node that could have taken it may run it. A node without an object is destroyed.
    hosts = (one for one in nodes if (_may_host(one, pod) if node is None else one.name == node))
    return all(_is_settled(one, pod, now - grace) for one in hosts)


def describe_recorded(pod: RecordedPod, seen: PodView | None) -> str:
    """An unproven pod for people: which, where, and what is missing."""
    if seen is not None and not seen.is_gone:
        return describe_pod(seen)
    return f"pod {pod.name} on {_describe_node(pod.node)} (its object is gone, its end is not proven)"


def describe_pod(pod: PodView) -> str:
    """A living pod for people: which, where, and what it does."""
    doing = "ending" if pod.is_deleting else "waiting at the fence" if pod.has_fence else pod.phase.lower()
    return f"pod {pod.name} on {_describe_node(pod.node)} ({doing})"


def describe_obstacles(obstacles: Iterable[str]) -> str:
    """All of them in one sentence that changes only when they do."""
    ordered = sorted(obstacles)
    rest = len(ordered) - MOST_NAMED
    return f"waiting for old pods: {', '.join(ordered[:MOST_NAMED])}" + (f" and {rest} more" if rest > 0 else "")


def _note_sight(pod: RecordedPod, seen: PodView | None, now: datetime) -> RecordedPod:
    if pod.is_dead:
        return pod
    if seen is None:
        return replace(pod, vanished_at=pod.vanished_at or now)
    return replace(
        pod,
        node=seen.node or pod.node,
        # A force-delete shortens it to nothing, but not for a kubelet that doesn't hear of it.
        grace=max(filter(None, (pod.grace, seen.grace)), default=None),
        vanished_at=(pod.vanished_at or now) if seen.is_gone else None,
    )


def _is_settled(node: NodeView, pod: RecordedPod, deadline: datetime) -> bool:
    """The node's kubelet had the time to end what no pod object asks for any more.

    Ready alone is no proof: a silent node is Ready for a while, and one that is back needs a moment to clear up.
    """
    if node.is_out_of_service:
        return True
    if pod.vanished_at is None or not node.is_ready or node.ready_since is None:
        return False
    return max(node.ready_since, pod.vanished_at) < deadline


def _may_host(node: NodeView, pod: RecordedPod) -> bool:
    """The node was Ready at some moment since the pod could be bound."""
    if node.is_ready or node.not_ready_since is None or pod.recorded_at is None:
        return True
    return node.not_ready_since >= pod.recorded_at


def _describe_node(node: str | None) -> str:
    return f"node {node}" if node else "an unknown node"
