# SPDX-License-Identifier: Apache-2.0
"""Reads and changes the ledger of a job by compare-and-swap. The verbs and the controller call it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.errors import AlreadyExistsError, ObjectGoneError, StaleObjectError
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model.execution_record import ExecutionRecord, confirm_dead
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.ledger import (
    Ledger,
    build_ledger,
    build_ledger_data,
    build_ledger_name,
    read_ledger,
)
from airflow_provider_dispatch.adapters.kubeflow.model.resources import CONFIG_MAPS
from airflow_provider_dispatch.core.identity import JobID

OVERTAKEN = (AlreadyExistsError, StaleObjectError, ObjectGoneError)
"""Somebody else has made, changed or removed it since it was read."""


async def change_ledger(client: KubeClient, namespace: str, job: JobID, change: Callable[[Ledger], Ledger]) -> Ledger:
    """The ledger after the change; made when it is missing, left alone when the change changes nothing."""
    while True:
        config_map = await client.get(CONFIG_MAPS, build_ledger_name(job), namespace)
        before = read_ledger(config_map)
        after = change(before)
        if build_ledger_data(after) == build_ledger_data(before):
            return after
        try:
            await write_ledger(client, namespace, job, config_map, after)
        except OVERTAKEN:
            continue
        return after


async def write_ledger(client: KubeClient, namespace: str, job: JobID, known: Raw | None, ledger: Ledger) -> Raw:
    """Make the ledger, or change the one that was read; the object after it.

    :param known: as it was read; None where there was none.
    :raises ConflictError: it isn't as it was any more; one of :data:`OVERTAKEN`.
    """
    if known is None:
        return await client.create(CONFIG_MAPS, build_ledger(job, ledger), namespace)
    version = fields.text(known, "metadata", "resourceVersion")
    change = {"metadata": {"resourceVersion": version}, "data": build_ledger_data(ledger)}
    return await client.patch(CONFIG_MAPS, fields.name(known), change, namespace)


async def confirm_in_ledger(client: KubeClient, namespace: str, job: JobID, dead: Collection[str]) -> None:
    """Write down that these pods are dead, where the ledger doubts them.

    :param dead: UIDs.
    :raises ProtocolError: the ledger can't be read.
    """

    def confirm(ledger: Ledger) -> Ledger:
        if not ledger.record:
            return ledger
        return replace(ledger, record=confirm_dead(ExecutionRecord.from_json(ledger.record), dead).to_json())

    await change_ledger(client, namespace, job, confirm)
