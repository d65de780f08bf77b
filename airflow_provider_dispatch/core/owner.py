# SPDX-License-Identifier: Apache-2.0
"""The caller whose death may stop a job.

Written at start, changed only by compare-and-swap; adapters compare it and never interpret it.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_dispatch.core.identity import NOT_MAPPED


@dataclass(frozen=True, slots=True)
class Owner:
    """A task instance, or an empty owner for a program that looks after its job itself.

    :param deployment: which Airflow; a job is never started for another one.
    :param instance_id: identity of this try. ``try_number`` alone is not unique: a deleted task instance counts anew.
    """

    deployment: str = ""
    dag_id: str = ""
    run_id: str = ""
    task_id: str = ""
    map_index: int = NOT_MAPPED
    try_number: int = 1
    instance_id: str = ""

    def is_same_caller(self, other: Owner) -> bool:
        """True when both are the same try of the same task instance."""
        return (self.deployment, self.instance_id) == (other.deployment, other.instance_id)
