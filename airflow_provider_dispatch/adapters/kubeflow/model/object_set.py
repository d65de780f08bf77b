# SPDX-License-Identifier: Apache-2.0
"""All API objects of one submission at one moment, as the server sent them.

Made by the watch and by the adapter's own reads; everything is found by UID and by our labels, never by name alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw


@dataclass(frozen=True, slots=True)
class ObjectSet:
    """Raw objects; the order in a tuple means nothing.

    :param trainjob: None once it is deleted.
    :param workload: of this TrainJob's UID.
    :param runtime: our private copy.
    :param ledger: the job's ConfigMap.
    :param events: Kubernetes events about any of these objects.
    :param cluster_queue: the one that the Workload waits in, where it was looked at; tells what can never fit.
    :param nodes: those that the pods are on, where they were looked at.
    """

    namespace: str
    trainjob: Raw | None = None
    workload: Raw | None = None
    jobset: Raw | None = None
    runtime: Raw | None = None
    ledger: Raw | None = None
    jobs: tuple[Raw, ...] = ()
    pods: tuple[Raw, ...] = ()
    events: tuple[Raw, ...] = ()
    cluster_queue: Raw | None = None
    nodes: tuple[Raw, ...] = ()
