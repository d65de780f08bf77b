# SPDX-License-Identifier: Apache-2.0
"""What an administrator decides about a queue of jobs: quotas by flavor, cohort, share, preemption.

Plain values, checked; the command reads them from options. :mod:`.queues` makes objects of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from airflow_provider_dispatch.adapters.kubeflow.setup.terms import NAME, check_name
from airflow_provider_dispatch.core.quantity import parse_quantity
from airflow_provider_dispatch.exceptions import SpecError

EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


class Preemption(StrEnum):
    """Whose room a job of the queue may take within it."""

    NEVER = "never"
    LOWER = "lower"
    LOWER_OR_NEWER = "lower-or-newer"


class Reclaim(StrEnum):
    """From whom a queue takes back what others of its cohort have borrowed."""

    NEVER = "never"
    LOWER = "lower"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Toleration:
    """Of a taint.

    :param value: None tolerates any.
    :param effect: None tolerates all.
    """

    key: str
    value: str | None = None
    effect: str | None = None


@dataclass(frozen=True, slots=True)
class FlavorTerms:
    """A kind of machine and how much of it the queue has.

    :param quotas: resource → amount, as Kubernetes writes it.
    :param node_labels: which nodes are meant; none means all.
    :param is_given: it is there already and somebody else's.
    """

    name: str
    quotas: Mapping[str, str]
    node_labels: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    is_given: bool = False

    def __post_init__(self) -> None:
        check_name("flavor", self.name)
        for resource, amount in self.quotas.items():
            parse_quantity(resource, amount, field=self.name)


@dataclass(frozen=True, slots=True)
class QueueTerms:
    """A queue that preflight finds guarded.

    :param name: of the LocalQueue.
    :param flavors: at least one, all with the same resources; tried in this order.
    :param cohort: queues that lend each other what they don't use.
    :param weight: share of the cohort; None means an equal one.
    :param is_strict: nobody passes a job that doesn't fit.
    """

    name: str
    namespace: str
    flavors: tuple[FlavorTerms, ...]
    admission_check: str
    cluster_queue: str = ""
    cohort: str = ""
    weight: float | None = None
    preemption: Preemption = Preemption.LOWER
    reclaim: Reclaim = Reclaim.NEVER
    is_strict: bool = False
    instance: str = NAME

    def __post_init__(self) -> None:
        check_name("queue", self.name)
        check_name("namespace", self.namespace)
        if self.cluster_queue:
            check_name("cluster_queue", self.cluster_queue)
        if self.cohort:
            check_name("cohort", self.cohort)
        if self.weight is not None and not 0 <= self.weight <= 1_000_000:
            raise SpecError("weight", "must be between 0 and a million", self.weight)
        if self.reclaim is not Reclaim.NEVER and not self.cohort:
            raise SpecError("reclaim", "needs a cohort to take anything back from", self.reclaim.value)
        _check_flavors(self.flavors)

    @property
    def cluster_queue_name(self) -> str:
        """Of the whole cluster, so that it must not clash between namespaces."""
        return self.cluster_queue or f"{self.namespace}-{self.name}"


def _check_flavors(flavors: tuple[FlavorTerms, ...]) -> None:
    if not flavors or not flavors[0].quotas:
        raise SpecError("cpu", "say how much the queue has: --cpu 8 --memory 64Gi")
    names = [flavor.name for flavor in flavors]
    if len(set(names)) < len(names):
        raise SpecError("flavor", "is named twice", ", ".join(names))
    wanted = set(flavors[0].quotas)
    for needed in ("cpu", "memory"):
        if needed not in wanted:
            raise SpecError(needed, "is missing: a job that asks for it would never fit this queue")
    for flavor in flavors:
        if set(flavor.quotas) != wanted:
            listed = ", ".join(sorted(wanted))
            raise SpecError("flavor", f"must have the same resources as the first, which has {listed}", flavor.name)
