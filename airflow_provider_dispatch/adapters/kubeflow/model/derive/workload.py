# SPDX-License-Identifier: Apache-2.0
"""Kueue's Workload: is the job admitted, why not, how often was it put back, and who made it inactive.

:mod:`.scene` reads it. Kueue 0.19 says ``Pending`` with a message where 0.20 has a reason for each case, so the
message is translated into that reason: programs see one vocabulary. Never asks ``PodsReady``, which stays True after an
eviction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Condition, Raw
from airflow_provider_dispatch.adapters.kubeflow.model.hold_record import is_active, is_deactivated_by_kueue

NOT_EVALUATED = "PendingEvaluation"
WAITING_FOR_QUOTA = "WaitingForQuota"
EXCEEDS_QUOTA = "ExceedsMaxQuota"
NO_FLAVOR = "NoMatchingFlavor"
MISCONFIGURED = "Misconfigured"
UNSATISFIED_CHECKS = "UnsatisfiedAdmissionChecks"
NEVER = frozenset({EXCEEDS_QUOTA, NO_FLAVOR, MISCONFIGURED})
"""Reasons that no end of another job removes."""

_LEGACY = frozenset({"Pending", "Inadmissible", "Waiting"})
_TRANSLATIONS = (
    ("Pending the preemption of", "WaitingForPreemptedWorkloads"),
    ("overlapping preemption targets", "WaitingForPreemptedWorkloads"),
    ("insufficient unused quota", WAITING_FOR_QUOTA),
    ("> maximum capacity", EXCEEDS_QUOTA),
    ("topology", "TopologyPlacementFailed"),
    ("unavailable in ClusterQueue", NO_FLAVOR),
    ("doesn't match node affinity", NO_FLAVOR),
    ("untolerated taint", NO_FLAVOR),
    ("doesn't exist", MISCONFIGURED),
    ("is terminating or missing", MISCONFIGURED),
    ("not found", MISCONFIGURED),
    ("doesn't match ClusterQueue selector", MISCONFIGURED),
    ("is stopped", "Suspended"),
    ("is inactive", "Suspended"),
)
"""Parts of a message of Kueue 0.19 (pkg/scheduler, pkg/controller/core) → the reason of 0.20. What can pass stands
before what can't: with several flavors, one that is only full is reason to wait."""
_NOT_PUT_BACK = ("Deactivated", "AdmissionCheck")
"""Evictions that a hold or a check caused: the job had not been taken from where it ran."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A Workload, read.

    :param admitted_at: None while it isn't.
    :param reserved_at: when it got the quota that it has; None while it has none.
    :param evictions: how often it was admitted and put back.
    :param checks: name, state and message of the admission checks that aren't ready.
    """

    conditions: dict[str, Condition] = field(default_factory=dict)
    exists: bool = False
    is_active: bool = True
    is_kueues_own_hold: bool = False
    reserved_at: datetime | None = None
    has_quota: bool = False
    is_admitted: bool = False
    evictions: int = 0
    preemptions: int = 0
    checks: tuple[tuple[str, str, str], ...] = ()
    created_at: datetime | None = None
    name: str = ""

    @property
    def object(self) -> str:
        """For evidence."""
        return f"workload {self.name}"

    @property
    def evicted(self) -> Condition | None:
        """The eviction that isn't over."""
        found = self.conditions.get(words.EVICTED)
        return found if found is not None and found.is_true else None

    @property
    def finished(self) -> Condition | None:
        """Kueue has seen the job's end."""
        found = self.conditions.get(words.FINISHED)
        return found if found is not None and found.is_true else None

    @property
    def admitted_at(self) -> datetime | None:
        """When it was admitted; None while it isn't."""
        return self.conditions[words.ADMITTED].at if self.is_admitted else None

    @property
    def quota(self) -> Condition | None:
        """What Kueue says about its quota."""
        return self.conditions.get(words.QUOTA_RESERVED)


def read_standing(workload: Raw | None) -> Standing:
    """What there is to know; of a Workload that isn't there, nothing."""
    if workload is None:
        return Standing()
    conditions = fields.conditions(workload)
    is_evicted = fields.is_true(workload, words.EVICTED)
    has_quota = fields.is_true(workload, words.QUOTA_RESERVED)
    active = is_active(workload)
    return Standing(
        conditions,
        exists=True,
        is_active=active,
        is_kueues_own_hold=is_deactivated_by_kueue(workload),
        reserved_at=conditions[words.QUOTA_RESERVED].at if has_quota else None,
        has_quota=has_quota,
        # Both conditions stay True for a while after an eviction, with the job still running or already ending.
        is_admitted=fields.is_true(workload, words.ADMITTED) and not is_evicted and active,
        evictions=_count_evictions(workload, lambda reason: not reason.startswith(_NOT_PUT_BACK)),
        preemptions=_count_evictions(workload, lambda reason: reason == words.PREEMPTED),
        checks=_read_checks(workload),
        created_at=fields.moment(workload, "metadata", "creationTimestamp"),
        name=fields.name(workload),
    )


def derive_code(quota: Condition) -> str:
    """The reason of ``QuotaReserved=False`` in the words of Kueue 0.20."""
    if quota.reason not in _LEGACY:
        return quota.reason or NOT_EVALUATED
    return next((code for part, code in _TRANSLATIONS if part in quota.message), quota.reason)


def is_misfit(quota: Condition) -> bool:
    """Kueue itself says that the request can't ever fit, or its queue doesn't exist."""
    return derive_code(quota) in NEVER


def _read_checks(workload: Raw) -> tuple[tuple[str, str, str], ...]:
    checks = (
        (fields.text(check, "name"), fields.text(check, "state"), fields.text(check, "message"))
        for check in fields.items(workload, "status", "admissionChecks")
    )
    return tuple(sorted(check for check in checks if check[1] != words.CHECK_READY))


def _count_evictions(workload: Raw, is_meant: Callable[[str], bool]) -> int:
    counts = fields.items(workload, "status", "schedulingStats", "evictions")
    return sum(max(fields.number(one, "count"), 0) for one in counts if is_meant(fields.text(one, "reason")))
