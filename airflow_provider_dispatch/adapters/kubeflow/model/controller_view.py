# SPDX-License-Identifier: Apache-2.0
"""What the controller's decisions see of a cluster: a few facts of each object, in plain values.

The controller's shell makes them out of API objects and reads the TrainJob, the Workload and the JobSet first, then
the pods and nodes: a decision then never rests on pods that are older than the record it goes with. No decision here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from airflow_provider_dispatch.adapters.kubeflow.model.execution_record import (
    EMPTY_RECORD,
    ExecutionRecord,
    RecordedPod,
    Slot,
)
from airflow_provider_dispatch.core.holds import Hold, HoldBook

CheckState = Literal["Pending", "Ready", "Retry", "Rejected"]
PodPhase = Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """How long the controller waits for what.

    :param node_monitor_grace: after which a silent node stops being Ready; the cluster's setting, 50 s by default.
    :param pod_grace: between TERM and KILL, for a pod that doesn't say its own.
    :param margin: for clocks that disagree and kubelets that are slow.
    :param retry_after: how long quota that somebody else wants is kept while old pods are in the way; doubled with
        each time it was given back, up to *longest_retry_after*.
    """

    node_monitor_grace: timedelta = timedelta(seconds=50)
    pod_grace: timedelta = timedelta(seconds=30)
    margin: timedelta = timedelta(seconds=40)
    retry_after: timedelta = timedelta(seconds=60)
    longest_retry_after: timedelta = timedelta(minutes=30)


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod of the job, of any submission.

    :param has_fence: our scheduling gate is still on it.
    :param failed_by_gc: the phase Failed was written by pod garbage collection, which asks no kubelet.
    :param epoch: the annotation that a lift writes; None on a pod that we never lifted.
    :param is_gone: this is the last state of a deleted object, as the watch delivered it.
    :param grace: between TERM and KILL; None when unknown.
    """

    uid: str
    name: str
    namespace: str
    role: str
    job_index: int
    completion_index: int
    submission: int
    jobset_uid: str
    restart: int
    phase: PodPhase = "Pending"
    is_deleting: bool = False
    has_fence: bool = False
    node: str | None = None
    failed_by_gc: bool = False
    epoch: int | None = None
    is_gone: bool = False
    grace: timedelta | None = None

    @property
    def slot(self) -> Slot:
        """Its place in the gang."""
        return Slot(self.role, self.job_index, self.completion_index)

    @property
    def is_ended(self) -> bool:
        """A kubelet said that all its processes have ended."""
        return self.phase == "Succeeded" or (self.phase == "Failed" and not self.failed_by_gc)

    @property
    def is_left(self) -> bool:
        """Its object is there and a process of it may be alive or come alive; a gated one counts."""
        return not self.is_gone and not self.is_ended


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node of the cluster. One without a Node object has no view.

    :param ready_since: when Ready became True last; None while it isn't.
    :param not_ready_since: when Ready stopped being True; None while it is, or when unknown.
    :param is_out_of_service: a person tainted it so, which vouches that nothing runs on it.
    """

    name: str
    is_ready: bool
    ready_since: datetime | None = None
    is_out_of_service: bool = False
    not_ready_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class WorkloadView:
    """Kueue's object for the TrainJob.

    :param reserved_at: when QuotaReserved became True; None while it isn't.
    :param check_state: of our admission check's entry; None without one.
    :param check_message: as it stands there.
    :param hold_instance: annotation: the hold that last made it inactive; None when none did.
    :param hold: that hold, as the annotations tell it; None when they don't tell enough.
    :param evictions: how often Kueue evicted it, all reasons together. Tells two reservations of one second apart.
    :param retries: how often our check gave the quota back.
    :param is_quota_wanted: another Workload waits for what this one has reserved.
    :param is_deactivated_by_kueue: Kueue itself, not a hold, made it inactive.
    """

    uid: str
    resource_version: str
    is_active: bool = True
    has_quota: bool = False
    reserved_at: datetime | None = None
    is_admitted: bool = False
    is_evicted: bool = False
    is_finished: bool = False
    check_state: CheckState | None = None
    hold_instance: int | None = None
    is_deleting: bool = False
    check_message: str = ""
    evictions: int = 0
    retries: int = 0
    is_quota_wanted: bool = False
    hold: Hold | None = None
    is_deactivated_by_kueue: bool = False


@dataclass(frozen=True, slots=True)
class TrainJobView:
    """The submission, as its TrainJob tells it.

    :param admissions: A.
    :param admission_key: the reservation that A was raised for; None before the first.
    :param is_stopping: a stop was asked for.
    :param is_plain: it has no queue: no Workload will ever stand beside it, and only ``suspend`` keeps it from running.
    :param is_gated: our start gate is closed.
    :param jobset_uid: of the JobSet there is now; None when there is none.
    :param restart: of that JobSet: J.
    :param given_up_at: since when it has failed by our word alone, as by too many preemptions: nobody but us ends
        what is left of it. None when it hasn't, or when Kubernetes says so too.
    """

    uid: str
    resource_version: str
    submission: int
    admissions: int = 0
    admission_key: str | None = None
    holds: HoldBook = field(default_factory=HoldBook)
    record: ExecutionRecord = EMPTY_RECORD
    is_suspended: bool = True
    is_finished: bool = False
    is_stopping: bool = False
    is_plain: bool = False
    is_gated: bool = False
    jobset_uid: str | None = None
    restart: int = 0
    given_up_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class LedgerView:
    """What outlives a stop.

    :param submission: highest ever used.
    :param undead: recorded pods that were not proven dead when it was last written.
    """

    submission: int = 0
    undead: tuple[RecordedPod, ...] = ()


def build_admission_key(workload: WorkloadView) -> str | None:
    """Names the present reservation; None while there is none.

    Conditions count whole seconds, and Kueue can take a quota away and give it back within one.
    """
    if not workload.has_quota or workload.reserved_at is None:
        return None
    return f"{workload.uid}/{workload.reserved_at.isoformat()}/{workload.evictions}"
