# SPDX-License-Identifier: Apache-2.0
"""Why a rank or a job failed, and why one that should start can't: a cause, a sentence and what proves it.

:mod:`.ending` asks about ends, the ladder about states that aren't one. The last lines of a rank are not here: they
must be fetched, and nothing here fetches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.derive.jobset import DEADLINE_EXCEEDED, find_failed_job
from airflow_provider_dispatch.adapters.kubeflow.model.derive.pods import Rank
from airflow_provider_dispatch.adapters.kubeflow.model.derive.scene import Scene
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Condition
from airflow_provider_dispatch.core.diagnosis import derive_exit_cause, describe_rank
from airflow_provider_dispatch.core.observation import Evidence, FailedRank
from airflow_provider_dispatch.core.state import Cause

RESUME_PATIENCE = timedelta(seconds=30)
"""Kueue resumes an admitted job within moments; a job it can't resume stays suspended and nobody says so."""

_OUT_OF_MEMORY = "OOMKilled"
_CAUSE_OF_DISRUPTION = {
    "DeletionByTaintManager": Cause.NODE_LOST,
    words.POD_GC_REASON: Cause.NODE_LOST,
    "TerminationByKubelet": Cause.EVICTED,
    "EvictionByEvictionAPI": Cause.EVICTED,
    "PreemptionByScheduler": Cause.PREEMPTED,
}
"""Reasons of ``DisruptionTarget`` (core/v1 types.go, 1.35)."""
_CAUSE_OF_POD_REASON = {
    "Evicted": Cause.EVICTED,
    "NodeShutdown": Cause.EVICTED,
    "Terminated": Cause.EVICTED,
    "Shutdown": Cause.EVICTED,
    "Preempting": Cause.EVICTED,
    "NodeLost": Cause.NODE_LOST,
    "DeadlineExceeded": Cause.TIMEOUT,
    "UnexpectedAdmissionError": Cause.NO_CAPACITY,
    "NodeAffinity": Cause.NO_CAPACITY,
    "NodePorts": Cause.NO_CAPACITY,
}
"""``status.reason`` of a pod that a kubelet failed (pkg/kubelet, 1.35); ``OutOf<resource>`` comes beside these."""
_CAUSE_OF_EXIT_REASON = {
    "StartError": Cause.MISCONFIGURED,
    "ContainerCannotRun": Cause.MISCONFIGURED,
    "ContainerStatusUnknown": Cause.NODE_LOST,
}
_CAUSE_OF_WAITING = {
    "ErrImagePull": Cause.IMAGE,
    "ImagePullBackOff": Cause.IMAGE,
    "ErrImageNeverPull": Cause.IMAGE,
    "InvalidImageName": Cause.IMAGE,
    "ImageInspectError": Cause.IMAGE,
    "RegistryUnavailable": Cause.IMAGE,
    "SignatureValidationFailed": Cause.IMAGE,
    "CreateContainerConfigError": Cause.MISCONFIGURED,
    "CreateContainerError": Cause.MISCONFIGURED,
    "RunContainerError": Cause.MISCONFIGURED,
}
"""Reasons of a waiting container (pkg/kubelet/images and pkg/kubelet/kuberuntime, 1.35)."""
_REFUSALS = ("FailedCreate", "TrainJobResourcesCreationFailed")
"""Events of a Job and of a TrainJob whose objects were refused; they stand on no object."""


@dataclass(frozen=True, slots=True)
class Reason:
    """A cause with its sentence and its proof. Without a cause it is no news that the state doesn't tell."""

    cause: Cause | None = None
    detail: str = ""
    evidence: tuple[Evidence, ...] = ()


NOTHING = Reason()


def derive_failed_rank(rank: Rank) -> FailedRank:
    """The rank as the contract names it; what its process said when its pod was taken away means nothing."""
    was_taken = rank.is_condemned or _find_pod_cause(rank.reason) is not None
    if was_taken or rank.exit is None or rank.exit.code == 0:
        return FailedRank(rank.role, rank.rank)
    number = rank.exit.signal
    return FailedRank(rank.role, rank.rank, None if number else rank.exit.code, number)


def explain_rank(rank: Rank) -> Reason:
    """Why a rank failed. What was done to its pod outweighs how its process took it."""
    failed = derive_failed_rank(rank)
    who = f"rank {rank.rank} of {rank.role}"
    if rank.disruption is not None and rank.is_condemned:
        return _explain_disruption(rank, who, rank.disruption)
    cause = _find_pod_cause(rank.reason)
    if cause is not None:
        proof = Evidence(rank.object, "status.reason", rank.reason, rank.ended_at)
        return Reason(cause, _join(f"{who} was ended by {_at_node(rank)}", rank.message or rank.reason), (proof,))
    if rank.exit is None:
        return Reason(Cause.UNKNOWN, describe_rank(failed), (Evidence(rank.object, "status.phase", rank.phase),))
    proof = Evidence(rank.object, "terminated.exitCode", str(rank.exit.code), rank.exit.at)
    named = Evidence(rank.object, "terminated.reason", rank.exit.reason, rank.exit.at)
    special = _CAUSE_OF_EXIT_REASON.get(rank.exit.reason)
    if special is not None:
        return Reason(special, _join(f"{who} could not be run", rank.exit.message or rank.exit.reason), (named, proof))
    is_memory = rank.exit.reason == _OUT_OF_MEMORY
    memory = "; it used more memory than it asked for" if is_memory else ""
    cause = derive_exit_cause(failed, out_of_memory=is_memory)
    return Reason(cause, describe_rank(failed) + memory, (named, proof) if is_memory else (proof,))


def explain_failure(scene: Scene, condition: Condition, source: str) -> Reason:
    """Why a job failed that no rank of it explains.

    :param condition: with which *source*, an object, says that it has.
    """
    proof = Evidence(source, condition.type, f"{condition.reason}: {condition.message}", condition.at)
    if condition.reason == DEADLINE_EXCEEDED:
        return _explain_deadline(scene, proof)
    if condition.reason in ("TrainingRuntimeNotSupported", "FailedToStart"):
        return Reason(Cause.MISCONFIGURED, condition.message, (proof,))
    job = find_failed_job(scene.objects.jobs)
    if job is None:
        return Reason(Cause.UNKNOWN, condition.message, (proof,))
    name, failed = job
    beside = Evidence(f"job {name}", failed.type, f"{failed.reason}: {failed.message}", failed.at)
    cause = Cause.TIMEOUT if failed.reason == DEADLINE_EXCEEDED else Cause.UNKNOWN
    return Reason(cause, failed.message or condition.message, (proof, beside))


def explain_starting(scene: Scene) -> Reason:
    """What keeps an admitted job from running; the most certain first."""
    return (
        _explain_not_resumed(scene)
        or _find_waiting_trouble(scene.current)
        or _find_unschedulable(scene.current)
        or _find_refusal(scene)
        or _explain_fence(scene)
        or NOTHING
    )


def explain_silence(ranks: Sequence[Rank]) -> Reason | None:
    """A node that stopped answering while its ranks may run on; nothing has ended yet."""
    silent = next((rank for rank in ranks if rank.is_silent), None)
    if silent is None:
        return None
    proof = Evidence(silent.object, "Ready", "False while ContainersReady is True")
    detail = f"{_at_node(silent)} does not answer; nobody can say how rank {silent.rank} of {silent.role} is"
    return Reason(Cause.NODE_LOST, detail, (proof,))


def _explain_disruption(rank: Rank, who: str, disruption: Condition) -> Reason:
    cause = _CAUSE_OF_DISRUPTION.get(disruption.reason, Cause.EVICTED)
    proof = Evidence(rank.object, words.DISRUPTION_TARGET, f"{disruption.reason}: {disruption.message}", disruption.at)
    verb = f"was lost with {_at_node(rank)}" if cause is Cause.NODE_LOST else f"was taken from {_at_node(rank)}"
    return Reason(cause, _join(f"{who} {verb}", rank.message or disruption.message or disruption.reason), (proof,))


def _explain_deadline(scene: Scene, proof: Evidence) -> Reason:
    seconds = fields.number(scene.objects.trainjob, "spec", "activeDeadlineSeconds")
    limit = f" of {seconds} s" if seconds else ""
    return Reason(Cause.TIMEOUT, f"the TrainJob's activeDeadlineSeconds{limit} ran out while it was running", (proof,))


def _find_pod_cause(reason: str) -> Cause | None:
    return Cause.NO_CAPACITY if reason.startswith("OutOf") else _CAUSE_OF_POD_REASON.get(reason)


def _explain_not_resumed(scene: Scene) -> Reason | None:
    if not scene.is_suspended or scene.is_plain:
        return None
    at = scene.workload.admitted_at
    if at is None or scene.now - at < RESUME_PATIENCE:
        return Reason(detail="admitted; Kueue has not resumed its TrainJob yet")
    admitted = scene.workload.conditions[words.ADMITTED]
    proof = Evidence(scene.workload.object, words.ADMITTED, f"{admitted.reason}: {admitted.message}", at)
    waited = int((scene.now - at).total_seconds())
    detail = f"admitted {waited} s ago, and Kueue can't resume its TrainJob: it refuses or is refused its change"
    return Reason(Cause.MISCONFIGURED, detail, (proof, Evidence(scene.name, "spec.suspend", "true")))


def _find_waiting_trouble(ranks: Sequence[Rank]) -> Reason | None:
    for rank in ranks:
        reason, message = rank.waiting
        cause = _CAUSE_OF_WAITING.get(reason)
        if cause is not None:
            proof = Evidence(rank.object, "waiting.reason", reason)
            what = "can't get its image" if cause is Cause.IMAGE else "can't be run"
            return Reason(cause, _join(f"rank {rank.rank} of {rank.role} {what}", message or reason), (proof,))
    return None


def _find_unschedulable(ranks: Sequence[Rank]) -> Reason | None:
    for rank in ranks:
        if rank.unschedulable:
            proof = Evidence(rank.object, "PodScheduled", rank.unschedulable)
            detail = f"rank {rank.rank} of {rank.role} finds no node: {rank.unschedulable}"
            return Reason(Cause.NO_CAPACITY, detail, (proof,))
    return None


def _find_refusal(scene: Scene) -> Reason | None:
    """Objects that the API server refused, a ResourceQuota among others; only while ranks are missing."""
    if sum(role.nodes for role in scene.submission.spec.roles) <= len(scene.current):
        return None
    refused = [event for event in scene.objects.events if fields.text(event, "reason") in _REFUSALS]
    if not refused:
        return None
    event = max(refused, key=lambda one: (fields.text(one, "lastTimestamp"), fields.name(one)))
    message = fields.text(event, "message")
    where = f"{fields.text(event, 'involvedObject', 'kind')} {fields.text(event, 'involvedObject', 'name')}".lower()
    proof = Evidence(where, f"event {fields.text(event, 'reason')}", message, fields.moment(event, "lastTimestamp"))
    cause = Cause.NO_CAPACITY if "exceeded quota" in message else Cause.MISCONFIGURED
    return Reason(cause, f"its objects are refused: {message}", (proof,))


def _explain_fence(scene: Scene) -> Reason | None:
    fenced = [rank for rank in scene.current if words.FENCE in rank.gates]
    foreign = sorted({gate for rank in scene.current for gate in rank.gates} - {words.FENCE})
    if foreign:
        return Reason(detail=f"its pods wait for {', '.join(foreign)}")
    if not fenced:
        return None
    old = sorted(_describe_old(rank) for rank in scene.ranks if rank.is_deleting and not rank.has_ended)
    old += sorted(
        f"pod {pod.name} on {f'node {pod.node}' if pod.node else 'an unknown node'}" for pod in scene.unproven
    )
    if old:
        return Reason(detail=f"{len(fenced)} pods wait at the fence until older ones are proven gone: {', '.join(old)}")
    return Reason(detail=f"{len(fenced)} pods wait for the admission controller to lift the fence")


def _describe_old(rank: Rank) -> str:
    return f"{rank.object} on {_at_node(rank)}"


def _at_node(rank: Rank) -> str:
    return f"node {rank.node}" if rank.node else "an unknown node"


def _join(what: str, why: str) -> str:
    return f"{what}: {why}" if why else what
