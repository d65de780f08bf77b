# SPDX-License-Identifier: Apache-2.0
"""Pods counted by role: how far each has come, and whether all of them are up.

The ladder asks it. Counts only the present pod of each place in the gang.
"""

from __future__ import annotations

from airflow_provider_dispatch.adapters.kubeflow.model.derive.pods import Rank
from airflow_provider_dispatch.adapters.kubeflow.model.derive.scene import Scene
from airflow_provider_dispatch.core.job_spec import RoleSpec
from airflow_provider_dispatch.core.observation import RoleRanks
from airflow_provider_dispatch.core.startup_order import RoleProgress


def count_ranks(scene: Scene) -> tuple[RoleRanks, ...]:
    """All roles of the spec, in its order."""
    return tuple(_count_role(role, _of_role(scene, role)) for role in scene.submission.spec.roles)


def derive_progress(scene: Scene) -> dict[str, RoleProgress]:
    """Role → how far it has come, for the startup order."""
    return {role.name: _measure_role(scene, role) for role in scene.submission.spec.roles}


def is_up(scene: Scene) -> bool:
    """Every rank of every role is ready, or has ended well."""
    return all(role.is_ready for role in derive_progress(scene).values())


def _of_role(scene: Scene, role: RoleSpec) -> list[Rank]:
    return [rank for rank in scene.current if rank.role == role.name and rank.rank < role.nodes]


def _measure_role(scene: Scene, role: RoleSpec) -> RoleProgress:
    ranks = _of_role(scene, role)
    return RoleProgress(
        nodes=role.nodes,
        started=sum(rank.is_started or rank.has_ended for rank in ranks),
        ready=sum(_was_ready(scene, rank) for rank in ranks),
        succeeded=sum(rank.has_succeeded for rank in ranks),
    )


def _was_ready(scene: Scene, rank: Rank) -> bool:
    """Ready now or, since readiness once reached is kept, at some time: then the job has been seen running since."""
    if rank.has_succeeded or rank.is_ready or rank.is_silent:
        return True
    running_since = scene.submission.clocks.running.since
    return (
        rank.is_running
        and not rank.is_deleting
        and running_since is not None
        and rank.started_at is not None
        and rank.started_at <= running_since
    )


def _count_role(role: RoleSpec, ranks: list[Rank]) -> RoleRanks:
    return RoleRanks(
        role=role.name,
        nodes=role.nodes,
        ready=sum(rank.is_running and (rank.is_ready or rank.is_silent) for rank in ranks),
        running=sum(rank.is_running for rank in ranks),
        succeeded=sum(rank.has_succeeded for rank in ranks),
        failed=sum(rank.has_failed for rank in ranks),
    )
