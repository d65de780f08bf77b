# SPDX-License-Identifier: Apache-2.0
"""Whether somebody else waits for quota that a job keeps reserved.

The reader asks while old pods are in a job's way. Which LocalQueue leads to which ClusterQueue, and which of these
share a cohort, the runner lists now and then. Writes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.hold_record import is_active
from airflow_provider_dispatch.adapters.kubeflow.model.resources import CLUSTER_QUEUES, LOCAL_QUEUES
from airflow_provider_dispatch.controller.cache import ObjectCache, place
from airflow_provider_dispatch.exceptions import CapabilityError, DispatchError

_log = logging.getLogger(__name__)


class QueueMap:
    """Where Workloads queue."""

    def __init__(self, client: KubeClient, cache: ObjectCache, namespaces: Sequence[str]) -> None:
        self._client, self._cache, self._namespaces = client, cache, namespaces
        self._cluster_queues: dict[tuple[str, str], str] = {}
        self._cohorts: dict[str, str] = {}

    async def refresh(self) -> None:
        """List the queues anew; what can't be read now is read next time."""
        try:
            local = [await self._client.list(LOCAL_QUEUES, namespace) for namespace in self._namespaces or (None,)]
            cluster = await self._client.list(CLUSTER_QUEUES)
        except CapabilityError:
            return
        except DispatchError as error:
            _log.warning("can't tell who waits for quota: %s", error)
            return
        self._cluster_queues = {
            (place(queue), fields.name(queue)): fields.text(queue, "spec", "clusterQueue")
            for listed in local
            for queue in listed.items
        }
        self._cohorts = {fields.name(queue): fields.text(queue, "spec", "cohortName") for queue in cluster.items}

    def is_wanted(self, workload: Raw) -> bool:
        """Whether another Workload waits in the ClusterQueue that this one has its quota from, or in its cohort."""
        reserved = fields.text(workload, "status", "admission", "clusterQueue")
        if not reserved or fields.is_true(workload, words.ADMITTED):
            return False
        return any(
            _is_waiting(other) and self._shares(other, reserved)
            for other in self._cache.workloads()
            if fields.uid(other) != fields.uid(workload)
        )

    def _shares(self, waiting: Raw, reserved: str) -> bool:
        queue = self._cluster_queues.get((place(waiting), fields.text(waiting, "spec", "queueName")), "")
        cohort = self._cohorts.get(queue, "")
        return queue == reserved or (bool(cohort) and cohort == self._cohorts.get(reserved, ""))


def _is_waiting(workload: Raw) -> bool:
    """It could be admitted if there were room."""
    is_over = fields.is_true(workload, words.FINISHED) or fields.is_deleting(workload)
    is_gated = bool(fields.annotation(workload, words.ADMISSION_GATED_BY))
    return is_active(workload) and not (is_over or is_gated or fields.is_true(workload, words.QUOTA_RESERVED))
