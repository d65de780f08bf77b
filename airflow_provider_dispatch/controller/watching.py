# SPDX-License-Identifier: Apache-2.0
"""Which watches keep the controller's cache up to date: one of each kind in each namespace that it looks after.

They are the adapter's own. A refusal ends none of a replica's: the right may be given, and until then the replica isn't
ready. The runner starts a task for each. Reads only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient, ObjectList
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.resources import (
    JOBSETS,
    PODS,
    TRAINING_RUNTIMES,
    TRAINJOBS,
    WORKLOADS,
    Resource,
)
from airflow_provider_dispatch.adapters.kubeflow.reflecting import Pace, Reflector
from airflow_provider_dispatch.controller.cache import ObjectCache
from airflow_provider_dispatch.controller.config import ControllerConfig
from airflow_provider_dispatch.controller.metrics import Metrics

SELECTORS = {
    TRAINJOBS: words.JOB_LABEL,
    JOBSETS: words.JOB_LABEL,
    PODS: words.JOB_LABEL,
    TRAINING_RUNTIMES: words.JOB_LABEL,
    # Kueue copies no label of ours, and what others wait for matters too.
    WORKLOADS: "",
}
UNSERVED_SECONDS = 60.0
"""Between two looks for a kind that the cluster doesn't serve: Kueue may still be installed."""


@dataclass(frozen=True, slots=True)
class CachedNamespace:
    """The cache as one watch sees it.

    :param namespace: None means all.
    """

    cache: ObjectCache
    metrics: Metrics
    namespace: str | None

    def replace(self, resource: Resource, listed: ObjectList) -> None:
        """These are all there are."""
        self.metrics.watch_restarts.labels(resource.plural).inc()
        self.cache.replace(resource, self.namespace, listed)

    def put(self, resource: Resource, raw: Raw) -> None:
        """It is there, or has changed."""
        self.cache.put(resource, raw)

    def remove(self, resource: Resource, raw: Raw) -> None:
        """It is gone."""
        self.cache.remove(resource, raw)


def build_pace(
    config: ControllerConfig,
    *,
    monotonic: Callable[[], float],
    sleep: Callable[[float], Awaitable[None]],
    patience_seconds: float | None,
) -> Pace:
    """How often the watches do what.

    :param patience_seconds: how long a refusal is borne; None means for ever.
    """
    return Pace(
        relist_seconds=config.relist_seconds,
        missing_kind_seconds=UNSERVED_SECONDS,
        patience_seconds=patience_seconds,
        monotonic=monotonic,
        sleep=sleep,
    )


def build_reflectors(
    client: KubeClient, namespaces: Sequence[str], cache: ObjectCache, metrics: Metrics, *, pace: Pace
) -> list[Reflector]:
    """All watches of a replica; none has begun.

    :param namespaces: none means all.
    """
    return [
        Reflector(
            client, resource, namespace, labels=labels, sink=CachedNamespace(cache, metrics, namespace), pace=pace
        )
        for resource, labels in SELECTORS.items()
        for namespace in namespaces or (None,)
    ]
