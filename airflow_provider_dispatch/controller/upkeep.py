# SPDX-License-Identifier: Apache-2.0
"""What the controller keeps in order on a TrainJob besides admission: its clocks, its end, its gates of time.

Pure: says which annotations and fields are to be written, all in one patch. The keeper writes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.derive import derive_observation
from airflow_provider_dispatch.adapters.kubeflow.model.derive.ending import derive_end
from airflow_provider_dispatch.adapters.kubeflow.model.derive.scene import read_scene
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.hold_sync import GIVEN_UP_PATIENCE
from airflow_provider_dispatch.adapters.kubeflow.model.object_set import ObjectSet
from airflow_provider_dispatch.adapters.kubeflow.model.resources import TRAINING_RUNTIMES
from airflow_provider_dispatch.adapters.kubeflow.model.resuming import is_resume_due
from airflow_provider_dispatch.adapters.kubeflow.model.submission import (
    dump,
    is_of_submission,
    read_submission,
    read_submission_number,
)
from airflow_provider_dispatch.controller.events import Decision
from airflow_provider_dispatch.controller.reading import Situation
from airflow_provider_dispatch.core.state import State

STARTERS_TIME = timedelta(seconds=10)
"""So long after a TrainJob is made, whoever made it is trusted to finish its work."""


@dataclass(slots=True)
class Upkeep:
    """One patch of the TrainJob, growing.

    :param tells: what is done by it, with a note for people.
    """

    annotations: dict[str, str | None] = field(default_factory=dict)
    spec: dict[str, object] = field(default_factory=dict)
    tells: dict[Decision, str] = field(default_factory=dict)


def derive_upkeep(situation: Situation, runtime: Raw | None, now: datetime) -> Upkeep:
    """What is out of order on the TrainJob.

    :raises ProtocolError: it carries what this version can't read.
    """
    upkeep = Upkeep()
    _keep_gates(upkeep, situation, now)
    _keep_running(upkeep, situation, runtime, now)
    _keep_clocks(upkeep, situation, runtime, now)
    return upkeep


def derive_next_moment(situation: Situation, now: datetime) -> datetime | None:
    """When time alone gives something to do."""
    trainjob = situation.trainjob
    stamps = [hold.until for hold in situation.trainjob_view.holds.active]
    if words.NOT_BEFORE_GATE in _read_gates(trainjob):
        stamps.append(fields.parse_time(fields.annotation(trainjob, words.NOT_BEFORE_ANNOTATION)))
    created = fields.moment(trainjob, "metadata", "creationTimestamp")
    if created is not None and created + STARTERS_TIME > now:
        stamps.append(created + STARTERS_TIME)
    given_up = situation.trainjob_view.given_up_at
    if given_up is not None and given_up + GIVEN_UP_PATIENCE > now:
        stamps.append(given_up + GIVEN_UP_PATIENCE)
    return min((stamp for stamp in stamps if stamp is not None), default=None)


def is_owner_missing(situation: Situation, runtime: Raw, now: datetime) -> bool:
    """The private runtime doesn't go with its TrainJob yet, and who made them has died in between."""
    is_ours = has_private_runtime(situation.trainjob) and not fields.is_deleting(runtime)
    is_owned = fields.has_controller(runtime, fields.uid(situation.trainjob))
    return is_ours and not is_owned and not is_young(situation.trainjob, now)


def has_private_runtime(trainjob: Raw) -> bool:
    """The TrainJob runs by a runtime of its own: same name, same namespace."""
    reference = fields.mapping(trainjob, "spec", "runtimeRef")
    is_named_alike = fields.text(reference, "name") == fields.name(trainjob)
    return is_named_alike and fields.text(reference, "kind") == TRAINING_RUNTIMES.kind


def is_young(trainjob: Raw, now: datetime) -> bool:
    """Made so short ago that whoever makes it may not be done."""
    created = fields.moment(trainjob, "metadata", "creationTimestamp")
    return created is not None and created + STARTERS_TIME > now


def is_fenced(runtime: Raw | None) -> bool:
    """Every pod of this runtime is born behind the fence."""
    roles = fields.items(runtime, "spec", "template", "spec", "replicatedJobs")
    return bool(roles) and all(_has_fence(role) for role in roles)


def build_object_set(situation: Situation, runtime: Raw | None) -> ObjectSet:
    """The situation as the derivation reads it: what became of another submission's pods says nothing of this one."""
    number = read_submission_number(situation.trainjob)
    return ObjectSet(
        situation.namespace,
        trainjob=situation.trainjob,
        workload=situation.workload,
        jobset=situation.jobset,
        runtime=runtime,
        ledger=situation.ledger_object,
        pods=tuple(pod for pod in situation.pods if is_of_submission(pod, number)),
    )


def _keep_gates(upkeep: Upkeep, situation: Situation, now: datetime) -> None:
    gates = _read_gates(situation.trainjob)
    stamp = fields.annotation(situation.trainjob, words.NOT_BEFORE_ANNOTATION)
    not_before = fields.parse_time(stamp)
    if words.NOT_BEFORE_GATE not in gates or (not_before is not None and not_before > now):
        return
    left = [gate for gate in gates if gate != words.NOT_BEFORE_GATE]
    upkeep.annotations[words.ADMISSION_GATED_BY] = ",".join(left) or None
    upkeep.tells[Decision.GATE_OPENED] = f"it may be admitted since {stamp}"


def _keep_running(upkeep: Upkeep, situation: Situation, runtime: Raw | None, now: datetime) -> None:
    """Plain mode: what nothing holds back runs, once the pods of the suspended execution are gone."""
    if any(pod.is_left for pod in situation.pod_views) or not is_resume_due(situation.trainjob, now):
        return
    # Without the fence the adapter itself gives the epoch, in the very patch that resumes.
    if is_fenced(runtime):
        upkeep.spec["suspend"] = False
        upkeep.tells[Decision.RESUMED] = "nothing holds it back"


def _keep_clocks(upkeep: Upkeep, situation: Situation, runtime: Raw | None, now: datetime) -> None:
    objects = build_object_set(situation, runtime)
    stored = read_submission(situation.trainjob)
    seen = derive_observation(objects, now)
    if seen.state in (State.UNKNOWN, State.STOPPING, State.GONE):
        return
    if seen.clocks != stored.clocks:
        upkeep.annotations[words.CLOCKS_ANNOTATION] = dump(seen.clocks)
        upkeep.tells[Decision.STATE_NOTED] = str(seen.state)
    end = derive_end(read_scene(objects, now, None)) if seen.has_ended and stored.end is None else None
    if end is not None:
        upkeep.annotations[words.END_ANNOTATION] = dump(end)
        upkeep.tells[Decision.ENDED] = " ".join(str(part) for part in (end.state, end.cause, end.detail) if part)


def _read_gates(trainjob: Raw) -> list[str]:
    return [gate for gate in fields.annotation(trainjob, words.ADMISSION_GATED_BY).split(",") if gate]


def _has_fence(role: Raw) -> bool:
    spec: Mapping[str, object] = fields.mapping(role, "template", "spec", "template", "spec")
    return any(fields.text(gate, "name") == words.FENCE for gate in fields.items(spec, "schedulingGates"))
