# SPDX-License-Identifier: Apache-2.0
"""What a preflight has seen of a cluster, and what the connection asks of it: raw objects, nothing judged.

The I/O half fills it in, the checks beside this module read it. What could not be looked at is kept as such, with what
was said instead, so that one missing right leaves one check unknown and not the whole preflight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias, TypeVar

from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.access import Right
from airflow_provider_dispatch.adapters.kubeflow.model.queue_fit import RoleRequest

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Unseen:
    """What could not be looked at.

    :param said: why, as the API server says it.
    :param webhook: of the cluster that didn't answer; empty when something else was in the way.
    """

    said: str
    webhook: str = ""


Seen: TypeAlias = T | Unseen
NOT_ASKED = Unseen("it was not asked for")


@dataclass(frozen=True, slots=True)
class PreflightTerms:
    """What a connection says.

    :param queue: LocalQueue; empty in plain mode.
    :param check: our AdmissionCheck.
    :param lease: namespace and name of the controller's heartbeat.
    :param has_controller: plain mode: the controller watches over this namespace too.
    :param runtime: of jobs that name none; empty when the connection names none.
    """

    namespace: str
    queue: str = ""
    check: str = ""
    lease: tuple[str, str] = ("", "")
    has_controller: bool = True
    runtime: str = ""

    @property
    def is_fenced(self) -> bool:
        """The controller lifts each pod; otherwise the adapter itself says who an execution is."""
        return bool(self.queue) or self.has_controller


@dataclass(frozen=True, slots=True)
class ServedGroup:
    """An API group as the cluster serves it.

    :param versions: none when it has no such group.
    :param plurals: kinds in the version that we speak.
    """

    versions: tuple[str, ...] = ()
    plurals: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class QueueSight:
    """A queue and what stands between it and an admission.

    :param local_queue: None when there is none of that name.
    :param cluster_queue: None when there is none, or nothing names it.
    :param checks: each AdmissionCheck that the ClusterQueue lists, and ours, by name; None for one that isn't there.
    :param flavors: names of all ResourceFlavors.
    """

    local_queue: Seen[Raw | None] = None
    cluster_queue: Seen[Raw | None] = None
    checks: Seen[Mapping[str, Raw | None]] = field(default_factory=dict)
    flavors: Seen[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True)
class PolicySight:
    """The ValidatingAdmissionPolicies.

    :param expected: names of those that an installation has; *expected_bindings* of their bindings.
    :param policies: names that are there.
    :param bindings: names of those that deny.
    """

    expected: tuple[str, ...] = ()
    expected_bindings: tuple[str, ...] = ()
    policies: Seen[frozenset[str]] = frozenset()
    bindings: Seen[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True)
class TrialSight:
    """What dry runs have answered, after the cluster's webhooks.

    :param trainjob: of a job behind our gate.
    :param is_nonsense_refused: of one behind a gate that is none.
    :param runtime: of a private runtime.
    """

    trainjob: Seen[Raw] = NOT_ASKED
    is_nonsense_refused: Seen[bool] = NOT_ASKED
    runtime: Seen[Raw] = NOT_ASKED


@dataclass(frozen=True, slots=True)
class ProbeSight:
    """A job that was made to be watched, as it was last seen before it was removed.

    :param pods: names of all that were ever seen.
    :param was_let_in: it was seen admitted or not suspended.
    :param left: objects that were still there when the preflight gave up waiting for their end.
    """

    seconds: float
    trainjob: Raw
    workload: Raw | None = None
    jobset: Raw | None = None
    pods: tuple[str, ...] = ()
    was_let_in: bool = False
    left: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sights:
    """All of it.

    :param user: who the API server takes us for.
    :param version: of Kubernetes.
    :param served: by API group.
    :param denied: what we may not do.
    :param webhooks: configurations of both kinds.
    :param probe: None when none was made.
    :param requests: by role: what a job asks for that is to be judged; None when there is none.
    """

    terms: PreflightTerms
    now: datetime
    user: Seen[str] = NOT_ASKED
    version: str = ""
    served: Mapping[str, ServedGroup] = field(default_factory=dict)
    denied: Seen[tuple[Right, ...]] = NOT_ASKED
    namespace: Seen[Raw | None] = NOT_ASKED
    runtime: Seen[Raw | None] = NOT_ASKED
    queue: QueueSight = field(default_factory=QueueSight)
    lease: Seen[Raw | None] = NOT_ASKED
    webhooks: Seen[tuple[Raw, ...]] = NOT_ASKED
    policies: PolicySight = field(default_factory=PolicySight)
    trial: TrialSight = field(default_factory=TrialSight)
    probe: Seen[ProbeSight] | None = None
    requests: Mapping[str, RoleRequest] | None = None
