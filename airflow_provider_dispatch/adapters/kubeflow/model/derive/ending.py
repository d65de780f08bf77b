# SPDX-License-Identifier: Apache-2.0
"""Has the submission ended, how, and why. What was written down on the TrainJob outweighs whatever is seen later.

The ladder asks first. Trainer can take a failure back once the JobSet that proves it is gone, so Kueue's word and our
own annotation count as well; and the ranks themselves tell an end seconds before any controller does.
"""

from __future__ import annotations

from datetime import datetime

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.derive.causes import (
    Reason,
    derive_failed_rank,
    explain_failure,
    explain_rank,
)
from airflow_provider_dispatch.adapters.kubeflow.model.derive.pods import Rank, find_first_failed
from airflow_provider_dispatch.adapters.kubeflow.model.derive.scene import Scene
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Condition
from airflow_provider_dispatch.adapters.kubeflow.model.submission import End
from airflow_provider_dispatch.core.job_spec import When
from airflow_provider_dispatch.core.observation import Evidence
from airflow_provider_dispatch.core.result import parse_result
from airflow_provider_dispatch.core.state import Cause, State
from airflow_provider_dispatch.exceptions import ProtocolError

LONGEST_MESSAGE = 4096
"""Bytes of a termination message (pkg/kubelet, 1.35)."""
LONGEST_TAIL = 2048
"""Bytes of a log's end in the place of a termination message (pkg/kubelet/container, 1.35)."""
LAST_LINES = 10
"""Of the first rank that failed, for people."""
_ENDED_BY_ITSELF = ("Error", "OOMKilled")
_SUCCEEDED = "Succeeded"
_FAILURES = ("Failed", "FailedToStart")


def derive_end(scene: Scene) -> End | None:
    """The end; None while there is none."""
    if scene.submission.end is not None:
        return scene.submission.end
    failed, completed = _find_failed(scene), _find_completed(scene)
    if failed is None and completed is not None and scene.is_suspended and not _have_all_succeeded(scene):
        return None if scene.holds.is_held else _build_misjudged(scene, *completed)
    if failed is None and (completed is not None or _have_all_succeeded(scene)):
        return _build_success(scene, completed[1].at if completed is not None else None)
    first = find_first_failed(scene.present, [role.name for role in scene.submission.spec.roles])
    if failed is not None:
        return _build_failure(scene, failed, first)
    if first is not None and not _is_restart_due(scene):
        return _build_end(scene, explain_rank(first), first.ended_at, first)
    return _find_lost_dependency(scene) or _find_limit(scene)


def _find_failed(scene: Scene) -> tuple[str, Condition] | None:
    trainjob = fields.conditions(scene.objects.trainjob).get(words.TRAINJOB_FAILED)
    if trainjob is not None and trainjob.is_true:
        return scene.name, trainjob
    finished = scene.workload.finished
    if finished is not None and finished.reason in _FAILURES:
        return scene.workload.object, finished
    if scene.jobset.failed is not None:
        return scene.jobset.object, scene.jobset.failed
    return None


def _find_completed(scene: Scene) -> tuple[str, Condition] | None:
    trainjob = fields.conditions(scene.objects.trainjob).get(words.TRAINJOB_COMPLETE)
    if trainjob is not None and trainjob.is_true:
        return scene.name, trainjob
    finished = scene.workload.finished
    if finished is not None and finished.reason == _SUCCEEDED:
        return scene.workload.object, finished
    if scene.jobset.completed is not None:
        return scene.jobset.object, scene.jobset.completed
    return None


def _have_all_succeeded(scene: Scene) -> bool:
    """Every rank whose success is needed has exited 0 before anybody asked it to end."""
    done = {(rank.role, rank.rank) for rank in scene.current if rank.has_succeeded}
    spec = scene.submission.spec
    return all((name, rank) in done for name in spec.required_roles for rank in range(spec.role(name).nodes))


def _is_restart_due(scene: Scene) -> bool:
    return not scene.jobset.uid or scene.jobset.is_restart_due


def _build_success(scene: Scene, at: datetime | None) -> End:
    leader = scene.submission.spec.leader.name
    ranks = [rank for rank in scene.current if (rank.role, rank.rank) == (leader, 0) and rank.phase == _SUCCEEDED]
    ended = at or max((rank.ended_at for rank in scene.current if rank.ended_at is not None), default=scene.now)
    if not ranks or ranks[0].exit is None:
        return End(State.SUCCEEDED, ended)
    try:
        return End(State.SUCCEEDED, ended, result=parse_result(ranks[0].exit.message.encode()))
    except ProtocolError as error:
        # What is longer than Kubernetes carries arrives cut, and its true size is lost.
        is_cut = len(ranks[0].exit.message.encode()) >= LONGEST_MESSAGE
        problem = str(error).replace("bytes;", "bytes or more;") if is_cut else str(error)
        proof = Evidence(f"rank 0 of {leader}", "result", problem, ranks[0].exit.at)
        return End(State.FAILED, ended, Cause.MISCONFIGURED, problem, (proof,))


def _build_misjudged(scene: Scene, source: str, condition: Condition) -> End:
    """Ranks that were told to end exited 0 so soon that Kubernetes took it for success: nobody can resume that job."""
    detail = "its ranks ended when they were told to, which Kubernetes took for success; submit it again"
    proof = Evidence(source, condition.type, condition.message or condition.reason, condition.at)
    return End(State.FAILED, condition.at or scene.now, Cause.EVICTED, detail, (proof,))


def _build_failure(scene: Scene, failed: tuple[str, Condition], first: Rank | None) -> End:
    source, condition = failed
    if first is None or condition.reason == "DeadlineExceeded":
        return _build_end(scene, explain_failure(scene, condition, source), condition.at, None)
    return _build_end(scene, explain_rank(first), condition.at, first)


def _build_end(scene: Scene, reason: Reason, at: datetime | None, rank: Rank | None) -> End:
    return End(
        State.FAILED,
        at or scene.now,
        reason.cause or Cause.UNKNOWN,
        reason.detail,
        reason.evidence,
        derive_failed_rank(rank) if rank is not None else None,
        derive_last_lines(rank) if rank is not None else (),
    )


def derive_last_lines(rank: Rank) -> tuple[str, ...]:
    """What a failed rank has printed last, as far as its status carries it; empty where it tells something else."""
    if rank.exit is None or rank.exit.code == 0 or rank.exit.reason not in _ENDED_BY_ITSELF:
        return ()
    lines = rank.exit.message.splitlines()
    # The kubelet cuts the beginning off, in the middle of a line.
    is_cut = len(rank.exit.message.encode()) >= LONGEST_TAIL and len(lines) > 1
    return tuple(lines[is_cut:][-LAST_LINES:])


def _find_lost_dependency(scene: Scene) -> End | None:
    """A role that others wait for has ended well and was never ready. JobSet would start them all the same."""
    roles = scene.submission.spec.roles
    awaited = {after.role for role in roles for after in role.after if after.when is When.READY}
    checked = {role.name for role in roles if role.readiness is not None} & awaited
    lost = [rank for rank in scene.current if rank.role in checked and rank.has_succeeded and rank.was_never_ready]
    if not lost:
        return None
    proof = Evidence(lost[0].object, "Ready", "never True", lost[0].unready_at)
    detail = f"{lost[0].role} ended before it was ready, and other roles wait for it"
    return End(State.FAILED, lost[0].ended_at or scene.now, Cause.DEPENDENCY_FAILED, detail, (proof,))


def _find_limit(scene: Scene) -> End | None:
    """Ends that nothing on the cluster calls one: preempted too often, and what Kueue gave up."""
    standing, most = scene.workload, scene.submission.spec.max_preemptions
    evicted = standing.evicted
    if most is not None and standing.preemptions > most:
        detail = f"preempted {standing.preemptions} times; its spec allows {most}"
        proof = Evidence(standing.object, "status.schedulingStats.evictions", f"Preempted: {standing.preemptions}")
        at = evicted.at if evicted is not None else None
        return End(State.FAILED, at or scene.now, Cause.PREEMPTED, detail, (proof,))
    if evicted is None or not standing.is_kueues_own_hold:
        return None
    proof = Evidence(standing.object, words.EVICTED, f"{evicted.reason}: {evicted.message}", evicted.at)
    is_refusal = evicted.reason == "DeactivatedDueToAdmissionCheck"
    cause = Cause.NO_CAPACITY if is_refusal else Cause.TIMEOUT
    return End(State.FAILED, evicted.at or scene.now, cause, f"Kueue gave it up: {evicted.message}", (proof,))
