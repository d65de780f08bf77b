# SPDX-License-Identifier: Apache-2.0
"""Which role may start now, and which role a waiting one waits for.

The job spec checks its order here; adapters ask it after every change. Leader first (Ray, Spark, Flux) is a worker
that waits for the leader to be ready; workers first (MPI) is a launcher that waits for the workers. The order starts
anew with every execution, because the progress it is asked about is that of one execution.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_dispatch.core.job_spec import RoleSpec


@dataclass(frozen=True, slots=True)
class RoleProgress:
    """How far a role has come in this execution; counts of its ranks."""

    nodes: int
    started: int = 0
    ready: int = 0
    succeeded: int = 0

    @property
    def is_ready(self) -> bool:
        """All ranks were ready at some time; one that has already ended well counts."""
        return self.ready >= self.nodes

    @property
    def is_complete(self) -> bool:
        """All ranks have exited 0."""
        return self.succeeded >= self.nodes


def check_order(waits_for: Mapping[str, Sequence[str]], role_count: int) -> None:
    """Refuse an order that can't be kept.

    :param waits_for: role → the roles it waits for.
    :param role_count: number of roles; larger than the mapping's when two share a name.
    :raises ValueError: a name twice, an unknown role, or a cycle; the text names the roles.
    """
    if role_count != len(waits_for):
        raise ValueError("two roles have the same name")
    for role, others in waits_for.items():
        for unknown in sorted(set(others) - waits_for.keys()):
            raise ValueError(f"role {role!r} waits for {unknown!r}, which is not one of {', '.join(sorted(waits_for))}")
    try:
        TopologicalSorter(waits_for).prepare()
    except CycleError as cycle:
        raise ValueError(f"the startup order has a cycle: {' → '.join(reversed(cycle.args[1]))}") from None


def derive_blockers(role: RoleSpec, progress: Mapping[str, RoleProgress]) -> tuple[str, ...]:
    """The conditions *role* still waits for, as ``<role> <when>``; empty when it may start."""
    return tuple(
        f"{after.role} {after.when}"
        for after in role.after
        if not (progress[after.role].is_ready if after.when == "ready" else progress[after.role].is_complete)
    )


def decide_startable(roles: Sequence[RoleSpec], progress: Mapping[str, RoleProgress]) -> tuple[str, ...]:
    """Names of the roles that have not started and may, in the spec's order."""
    return tuple(
        role.name for role in roles if progress[role.name].started == 0 and not derive_blockers(role, progress)
    )


def derive_waiting_role(roles: Sequence[RoleSpec], progress: Mapping[str, RoleProgress]) -> str | None:
    """The role to blame when start-up takes too long: the first that has started and is not ready."""
    for role in roles:
        if progress[role.name].started and not progress[role.name].is_ready:
            return role.name
    return next((role.name for role in roles if not progress[role.name].started), None)
