# SPDX-License-Identifier: Apache-2.0
"""All objects of a submission, read once: the facts that state, cause and clocks are derived from.

Made by :func:`read_scene` for each derivation. It joins what no object says alone (since when an execution is being
ended, which pods are the present ones) and decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.derive import jobset, workload
from airflow_provider_dispatch.adapters.kubeflow.model.derive.execution import derive_identity, find_unproven
from airflow_provider_dispatch.adapters.kubeflow.model.derive.pods import (
    Rank,
    Wanted,
    find_current,
    find_present,
    read_ranks,
)
from airflow_provider_dispatch.adapters.kubeflow.model.derive.trainjob import (
    Reading,
    build_absent,
    read_gates,
    read_known_ledger,
    read_trainjob,
)
from airflow_provider_dispatch.adapters.kubeflow.model.execution_record import RecordedPod
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.hold_record import merge_workload_hold
from airflow_provider_dispatch.adapters.kubeflow.model.ledger import Ledger
from airflow_provider_dispatch.adapters.kubeflow.model.object_set import ObjectSet
from airflow_provider_dispatch.adapters.kubeflow.model.submission import (
    Submission,
    read_job_id,
    read_submission_number,
)
from airflow_provider_dispatch.core.holds import HoldBook
from airflow_provider_dispatch.core.identity import Identity, JobID
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.observation import Evidence


@dataclass(frozen=True, slots=True)
class Scene:
    """What was read.

    :param holds: the record, with a hold that stands on the Workload alone.
    :param is_held: also by somebody who left no record: an inactive Workload is held by whoever made it so.
    :param ranks: every pod.
    :param present: those of the present round; see :func:`.pods.find_present`.
    :param current: of these one a place in the gang, for counting.
    :param unproven: recorded pods that are gone and may be alive.
    """

    objects: ObjectSet
    now: datetime
    submission: Submission
    holds: HoldBook
    workload: workload.Standing
    jobset: jobset.Standing
    ledger: Ledger
    identity: Identity | None = None
    gates: tuple[str, ...] = ()
    ranks: tuple[Rank, ...] = ()
    present: tuple[Rank, ...] = ()
    current: tuple[Rank, ...] = ()
    unproven: tuple[RecordedPod, ...] = ()
    problems: tuple[Evidence, ...] = ()

    @property
    def name(self) -> str:
        """For evidence."""
        return f"trainjob {fields.name(self.objects.trainjob)}"

    @property
    def has_trainjob(self) -> bool:
        """The submission itself is there."""
        return self.objects.trainjob is not None

    @property
    def has_leftovers(self) -> bool:
        """Something that runs, or lets something run, is there. A runtime alone runs nothing."""
        found = self.objects
        return found.workload is not None or found.jobset is not None or bool(found.jobs) or bool(found.pods)

    @property
    def is_stopping(self) -> bool:
        """Somebody wants it gone: by a stop, by deleting its TrainJob, or it is half gone."""
        is_going = fields.is_deleting(self.objects.trainjob) or not self.has_trainjob
        return self.submission.stop is not None or is_going

    @property
    def is_plain(self) -> bool:
        """Kueue has no part in it."""
        return not self.submission.queue and not self.workload.exists

    @property
    def is_suspended(self) -> bool:
        """``spec.suspend``."""
        return fields.flag(self.objects.trainjob, "spec", "suspend")

    @property
    def is_held_by_others(self) -> bool:
        """Somebody made the Workload inactive and left no record; not Kueue, and no hold that is just being lifted."""
        standing = self.workload
        is_idle = standing.exists and not standing.is_active and standing.finished is None
        is_being_released = bool(fields.annotation(self.objects.workload, words.HOLD_INSTANCE_ANNOTATION))
        return is_idle and not standing.is_kueues_own_hold and not self.holds.is_held and not is_being_released

    @property
    def is_admitted(self) -> bool:
        """It has its room and keeps it."""
        if self.is_plain:
            return self.has_trainjob and not self.is_suspended
        return self.workload.is_admitted

    @property
    def has_processes(self) -> bool:
        """Something may still run; terminating and unproven count."""
        return bool(self.unproven) or any(not rank.has_ended for rank in self.ranks)


def read_scene(objects: ObjectSet, now: datetime, ref: JobRef | None) -> Scene:
    """Read everything.

    :param ref: of the submission asked about, where its TrainJob may be gone.
    """
    ledger, ledger_problems = read_known_ledger(objects.ledger)
    reading = _read_submission(objects, ref, ledger)
    submission = reading.submission
    standing = workload.read_standing(objects.workload)
    holds = merge_workload_hold(submission.holds, objects.workload)
    ranks = read_ranks(objects.pods, _derive_wanted(objects.trainjob, holds, submission, standing))
    jobset_standing = jobset.read_standing(objects.jobset)
    present = find_present(ranks, jobset_standing)
    return Scene(
        objects,
        now,
        submission,
        holds,
        standing,
        jobset_standing,
        ledger,
        identity=derive_identity(submission, reading.record, ranks) if submission.ref.submission > 0 else None,
        gates=read_gates(objects.trainjob),
        ranks=ranks,
        present=present,
        current=find_current(present),
        unproven=find_unproven(reading.record, ranks),
        problems=(*reading.problems, *ledger_problems),
    )


def _read_submission(objects: ObjectSet, ref: JobRef | None, ledger: Ledger) -> Reading:
    if objects.trainjob is not None:
        return read_trainjob(objects.trainjob)
    return build_absent(ref or _guess_ref(objects, ledger))


def _guess_ref(objects: ObjectSet, ledger: Ledger) -> JobRef:
    """Of a submission whose TrainJob is gone: what its leftovers say, then the ledger."""
    left = [one for one in (objects.jobset, objects.runtime, *objects.jobs, *objects.pods) if one is not None]
    found = sorted((job, read_submission_number(one)) for one in left if (job := read_job_id(one)) is not None)
    if found:
        job, number = found[-1]
    else:
        job, number = read_job_id(objects.ledger) or JobID(""), ledger.submission
    return JobRef(job, number, words.BACKEND, objects.namespace)


def _derive_wanted(
    trainjob: Raw | None, holds: HoldBook, submission: Submission, standing: workload.Standing
) -> Wanted:
    """An execution is asked to end by the first of hold, stop, eviction and suspension that still stands."""
    suspended, evicted = fields.conditions(trainjob).get(words.TRAINJOB_SUSPENDED), standing.evicted
    is_resumed = suspended is not None and not suspended.is_true
    stamps = [hold.since for hold in holds.active]
    stamps += [submission.stop.at] if submission.stop is not None else []
    conditions = (evicted, None if is_resumed else suspended)
    stamps += [condition.at for condition in conditions if condition is not None and condition.at is not None]
    return Wanted(
        submission.admissions,
        suspended.at if suspended is not None and is_resumed else None,
        min(stamps, default=None),
    )
