# SPDX-License-Identifier: Apache-2.0
"""Pods → ranks: what each process of an execution has come to, and what keeps one from starting.

:mod:`.scene` reads the pods, everything else in this package asks what was read. A pod that we or Kueue asked to end
says nothing by its exit; one that ended before says everything. Never looks at anything but pods.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.derive.jobset import Standing
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Condition, Raw

_NEVER = datetime.min.replace(tzinfo=UTC)
_LATE = datetime.max.replace(tzinfo=UTC)
_SIGNALS_FROM = 128
_LONGEST_GRACE = 31_536_000
SUCCEEDED = "Succeeded"
FAILED = "Failed"
LATEST_NOTE = timedelta(seconds=5)
"""How long after the first pods were made Trainer may note on its TrainJob that it has resumed it."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a container ended."""

    code: int
    reason: str = ""
    message: str = ""
    at: datetime | None = None
    began_at: datetime | None = None

    @property
    def signal(self) -> int | None:
        """The signal that ended it; a shell and a container runtime report it as 128 + n."""
        number = self.code - _SIGNALS_FROM
        return number if 0 < number <= 64 else None


@dataclass(frozen=True, slots=True)
class Rank:
    """A pod, read.

    :param rank: within its role.
    :param asked_at: when its deletion was asked for; None while it wasn't.
    :param gates: scheduling gates that are still on it.
    :param unschedulable: why the scheduler finds no node; empty when it has, or hasn't looked.
    :param waiting: reason and message of a container that waits.
    :param disruption: it was condemned by a node, a drain or the scheduler, not by whoever owns the job.
    :param is_silent: its node stopped answering: the cluster took Ready away while its containers stay ready.
    :param signalled_from: what ends from here on was asked to.
    """

    name: str
    uid: str
    role: str
    rank: int
    phase: str = ""
    node: str = ""
    jobset_uid: str = ""
    restart: int = 0
    attempt: str = ""
    created_at: datetime | None = None
    asked_at: datetime | None = None
    gates: tuple[str, ...] = ()
    unschedulable: str = ""
    is_ready: bool = False
    ready_at: datetime | None = None
    unready_at: datetime | None = None
    is_silent: bool = False
    is_started: bool = False
    started_at: datetime | None = None
    waiting: tuple[str, str] = ("", "")
    exit: Exit | None = None
    disruption: Condition | None = None
    reason: str = ""
    message: str = ""
    signalled_from: datetime | None = None

    @property
    def object(self) -> str:
        """For evidence."""
        return f"pod {self.name}"

    @property
    def is_deleting(self) -> bool:
        """Terminating counts as alive until a kubelet says otherwise."""
        return self.asked_at is not None

    @property
    def is_condemned(self) -> bool:
        """Something other than the job's owners ended it, and was first to do so."""
        found = self.disruption
        return found is not None and not (self.asked_at is not None and self.asked_at < (found.at or _LATE))

    @property
    def has_ended(self) -> bool:
        """A kubelet has said so; garbage collection and a drain of the object's own say nothing."""
        is_proof = self.disruption is None or self.disruption.reason != words.POD_GC_REASON
        return self.phase == SUCCEEDED or (self.phase == FAILED and is_proof)

    @property
    def was_signalled(self) -> bool:
        """We or Kueue had asked it to end before it did: its exit code means nothing then."""
        if self.is_condemned:
            return False
        asked = min((at for at in (self.asked_at, self.signalled_from) if at is not None), default=None)
        # Stamps of the cluster count whole seconds: what ended in the second of the signal was probably hit by it.
        return asked is not None and (self.ended_at or _LATE) >= asked.replace(microsecond=0)

    @property
    def ended_at(self) -> datetime | None:
        """When its process ended, or when it was condemned."""
        if self.exit is not None and self.exit.at is not None:
            return self.exit.at
        return self.disruption.at if self.disruption is not None and self.is_condemned else None

    @property
    def has_succeeded(self) -> bool:
        """It exited 0 of its own accord."""
        return self.phase == SUCCEEDED and not self.was_signalled

    @property
    def has_failed(self) -> bool:
        """It ended otherwise, and we had not asked it to."""
        return (self.phase == FAILED or (self.is_condemned and self.phase != SUCCEEDED)) and not self.was_signalled

    @property
    def was_never_ready(self) -> bool:
        """It ended, and the cluster has called it unready since before its process began."""
        began = self.exit.began_at if self.exit is not None else None
        return began is not None and self.unready_at is not None and self.unready_at <= began

    @property
    def is_running(self) -> bool:
        """Its process exists, as far as anybody knows."""
        return self.is_started and not self.has_ended


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is known of the execution that is wanted now, and of the wish to end it.

    :param admissions: A.
    :param resumed_at: when the job was last resumed; None while it is suspended.
    :param signalled_from: since when it was asked to end; None while it wasn't.
    """

    admissions: int = 0
    resumed_at: datetime | None = None
    signalled_from: datetime | None = None


def read_ranks(pods: Iterable[Raw], wanted: Wanted) -> tuple[Rank, ...]:
    """All pods, in an order that depends on nothing but themselves."""
    ranks = (_read_rank(pod, _find_signal(pod, wanted)) for pod in pods)
    return tuple(sorted(ranks, key=lambda rank: (rank.role, rank.rank, rank.uid, rank.name)))


def find_present(ranks: Iterable[Rank], jobset: Standing) -> tuple[Rank, ...]:
    """The pods that the JobSet made since its last restart; all of them where there is no JobSet to ask.

    Others are about to go, and what became of them is settled: a failure that JobSet has answered is none.
    """
    made = (jobset.uid, jobset.restarts)
    return tuple(rank for rank in ranks if not jobset.uid or (rank.jobset_uid, rank.restart) == made)


def find_current(present: Iterable[Rank]) -> tuple[Rank, ...]:
    """One pod for each place in the gang: the newest."""
    found: dict[tuple[str, int], Rank] = {}
    for rank in sorted(present, key=_rate):
        found[rank.role, rank.rank] = rank
    return tuple(sorted(found.values(), key=lambda rank: (rank.role, rank.rank)))


def find_first_failed(ranks: Iterable[Rank], roles: Iterable[str]) -> Rank | None:
    """The rank that failed first; of those of one moment the first by role and number.

    :param roles: in the order of the spec.
    """
    order = {role: place for place, role in enumerate(roles)}
    failed = (rank for rank in ranks if rank.has_failed)
    return min(
        failed, key=lambda r: (r.ended_at or _LATE, order.get(r.role, len(order)), r.role, r.rank, r.uid), default=None
    )


def _rate(rank: Rank) -> tuple[int, datetime, bool, str]:
    # One that replaces another may be made within the same second.
    return rank.restart, rank.created_at or _NEVER, not rank.is_deleting, rank.uid


def _read_rank(pod: Raw, signalled_from: datetime | None) -> Rank:
    conditions = fields.conditions(pod)
    containers = _sort_containers(pod)
    scheduled = conditions.get("PodScheduled")
    ready, containers_ready = conditions.get("Ready"), conditions.get("ContainersReady")
    is_unready = ready is not None and not ready.is_true
    disruption = conditions.get(words.DISRUPTION_TARGET)
    started = [fields.moment(one, "state", "running", "startedAt") for one in containers]
    return Rank(
        name=fields.name(pod),
        uid=fields.uid(pod),
        role=fields.label(pod, words.ROLE_LABEL) or fields.label(pod, words.REPLICATED_JOB_LABEL),
        rank=_read_number(pod, words.JOB_INDEX_LABEL) + _read_number(pod, words.COMPLETION_INDEX_LABEL),
        phase=fields.text(pod, "status", "phase"),
        node=fields.text(pod, "spec", "nodeName"),
        jobset_uid=fields.label(pod, words.JOBSET_UID_LABEL),
        restart=_read_number(pod, words.RESTART_LABEL),
        attempt=fields.annotation(pod, words.ATTEMPT_ANNOTATION),
        created_at=fields.moment(pod, "metadata", "creationTimestamp"),
        asked_at=_read_asked_at(pod),
        gates=tuple(sorted(fields.text(gate, "name") for gate in fields.items(pod, "spec", "schedulingGates"))),
        unschedulable=_read_unschedulable(scheduled),
        is_ready=ready is not None and ready.is_true,
        ready_at=ready.at if ready is not None and ready.is_true else None,
        unready_at=ready.at if ready is not None and not ready.is_true else None,
        is_silent=is_unready and containers_ready is not None and containers_ready.is_true,
        is_started=any(fields.mapping(one, "state", "running") for one in containers),
        started_at=min((at for at in started if at is not None), default=None),
        waiting=_read_waiting(containers),
        exit=_read_exit(containers),
        disruption=disruption if disruption is not None and disruption.is_true else None,
        reason=fields.text(pod, "status", "reason"),
        message=fields.text(pod, "status", "message"),
        signalled_from=signalled_from,
    )


def _find_signal(pod: Raw, wanted: Wanted) -> datetime | None:
    """Since when it was asked to end. What an earlier execution left behind was, before the present one began.

    The pod's own stamp doesn't tell: the kubelet's last delete, once the process is over, moves it behind the end.
    """
    made = fields.moment(pod, "metadata", "creationTimestamp")
    return made if fields.is_deleting(pod) and _is_of_the_past(pod, made, wanted) else wanted.signalled_from


def _is_of_the_past(pod: Raw, made: datetime | None, wanted: Wanted) -> bool:
    """A tells it best. In plain mode beside a controller it isn't raised, and the time of the resume must do."""
    a = fields.whole_number(fields.annotation(pod, words.ADMISSIONS_ANNOTATION))
    if a is not None and a < wanted.admissions:
        return True
    return made is not None and wanted.resumed_at is not None and made < wanted.resumed_at - LATEST_NOTE


def _sort_containers(pod: Raw) -> list[Raw]:
    """Ours first: what it says outweighs what stands beside it."""
    found = [*fields.items(pod, "status", "containerStatuses"), *fields.items(pod, "status", "initContainerStatuses")]
    return sorted(found, key=lambda one: (fields.text(one, "name") != words.NODE_CONTAINER, fields.text(one, "name")))


def _read_exit(containers: list[Raw]) -> Exit | None:
    exits = [
        Exit(
            fields.number(ended, "exitCode"),
            fields.text(ended, "reason"),
            fields.text(ended, "message"),
            fields.moment(ended, "finishedAt"),
            fields.moment(ended, "startedAt"),
        )
        for ended in (fields.mapping(one, "state", "terminated") for one in containers)
        if ended
    ]
    bad = [found for found in exits if found.code != 0]
    return next(iter(bad or exits), None)


def _read_waiting(containers: list[Raw]) -> tuple[str, str]:
    states = (fields.mapping(one, "state", "waiting") for one in containers)
    found = [(fields.text(state, "reason"), fields.text(state, "message")) for state in states if state]
    # An ordinary wait stands in one container, the trouble that causes it in another.
    return next(
        (one for one in found if one[0] not in ("ContainerCreating", "PodInitializing")), (found or [("", "")])[0]
    )


def _read_unschedulable(scheduled: Condition | None) -> str:
    if scheduled is None or scheduled.is_true or scheduled.reason != "Unschedulable":
        return ""
    return scheduled.message or scheduled.reason


def _read_asked_at(pod: Raw) -> datetime | None:
    """The stamp on the object says when its grace ends."""
    if not fields.is_deleting(pod):
        return None
    until = fields.moment(pod, "metadata", "deletionTimestamp")
    grace = fields.number(pod, "metadata", "deletionGracePeriodSeconds")
    if until is None or until.year < 1970:
        return _NEVER
    return until - timedelta(seconds=min(max(grace, 0), _LONGEST_GRACE))


def _read_number(pod: Raw, key: str) -> int:
    # Either the replicas of a role or the completions of its one Job are its ranks; the other index stays 0.
    return fields.whole_number(fields.label(pod, key)) or 0
