# SPDX-License-Identifier: Apache-2.0
"""JobSet and Jobs: restarts, and what they say of an end when the pods that would prove it are gone.

:mod:`.scene` and :mod:`.causes` ask it. Never looks at pods.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Condition, Raw

COMPLETED = "Completed"
FAILED = "Failed"
DEADLINE_EXCEEDED = "DeadlineExceeded"


@dataclass(frozen=True, slots=True)
class Standing:
    """A JobSet, read.

    :param restarts: J of this JobSet.
    :param is_restart_due: a failed rank makes it restart rather than fail.
    """

    uid: str = ""
    name: str = ""
    restarts: int = 0
    restarting_since: datetime | None = None
    completed: Condition | None = None
    failed: Condition | None = None
    is_restart_due: bool = False

    @property
    def object(self) -> str:
        """For evidence."""
        return f"jobset {self.name}"


def read_standing(jobset: Raw | None) -> Standing:
    """What there is to know; of a JobSet that isn't there, nothing."""
    if jobset is None:
        return Standing()
    conditions = fields.conditions(jobset)
    restarting = conditions.get("RestartingJobSet")
    return Standing(
        uid=fields.uid(jobset),
        name=fields.name(jobset),
        restarts=fields.number(jobset, "status", "restarts"),
        restarting_since=restarting.at if restarting is not None and restarting.is_true else None,
        completed=_take_true(conditions, COMPLETED),
        failed=_take_true(conditions, FAILED),
        is_restart_due=_is_restart_due(jobset),
    )


def find_failed_job(jobs: Iterable[Raw]) -> tuple[str, Condition] | None:
    """Name and condition of the Job that failed first, by time and then by name."""
    found = []
    for job in jobs:
        failed = _take_true(fields.conditions(job), FAILED)
        if failed is not None:
            found.append((fields.name(job), failed))
    return min(found, key=lambda one: (one[1].at is None, str(one[1].at), one[0]), default=None)


def _take_true(conditions: dict[str, Condition], kind: str) -> Condition | None:
    found = conditions.get(kind)
    return found if found is not None and found.is_true else None


def _is_restart_due(jobset: Raw) -> bool:
    policy = fields.mapping(jobset, "spec", "failurePolicy")
    counted = fields.number(jobset, "status", "restartsCountTowardsMax")
    # A rule may restart without counting, or fail at once: only JobSet knows, and soon says.
    return bool(fields.items(policy, "rules")) or counted < fields.number(policy, "maxRestarts")
