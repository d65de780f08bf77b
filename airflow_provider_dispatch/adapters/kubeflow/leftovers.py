# SPDX-License-Identifier: Apache-2.0
"""Finds what nobody needs any more in a namespace and removes it one by one; the verb `gc` of the command calls it.

Each object is judged again just before it goes, by what stands there then, and deleted by its UID. Never removes a
TrainJob: a job as a whole is stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from datetime import datetime

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.deadlines import DeadlineError, within
from airflow_provider_dispatch.adapters.kubeflow.finding import fetch_ours
from airflow_provider_dispatch.adapters.kubeflow.inventory import DELETION_ORDER, Inventory, fetch_inventory
from airflow_provider_dispatch.adapters.kubeflow.ledgers import confirm_in_ledger
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.leftovers import Litter, find_litter
from airflow_provider_dispatch.adapters.kubeflow.model.resources import CONFIG_MAPS, TRAINJOBS, WORKLOADS
from airflow_provider_dispatch.adapters.kubeflow.model.stop_report import Witness
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings
from airflow_provider_dispatch.adapters.kubeflow.targets import fetch_trainjobs
from airflow_provider_dispatch.adapters.kubeflow.transport import Sleep
from airflow_provider_dispatch.adapters.kubeflow.witnessing import watch_pods
from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.core.records import Leftover
from airflow_provider_dispatch.exceptions import ProtocolError

LOOK_SECONDS = 0.5
LEDGER_SELECTOR = f"{words.JOB_LABEL},{words.KIND_LABEL}={words.LEDGER_KIND}"


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Those of one namespace.

    :param connect: gives the client, which stays the caller's.
    """

    connect: Callable[[], Awaitable[KubeClient]]
    settings: KubeflowSettings
    clock: Callable[[], datetime]
    sleep: Sleep = asyncio.sleep

    async def find(self, *, jobs: Collection[JobID], with_ledgers: bool) -> tuple[Leftover, ...]:
        """What is left over. Costs one list of each kind.

        :param jobs: only of these; empty means all.
        :param with_ledgers: also the ledgers of jobs of which nothing else is left.
        """
        client, namespace = await self.connect(), self.settings.namespace
        # What a start makes last is read last: whatever is seen before has its TrainJob among those.
        ledgers = await client.list(CONFIG_MAPS, namespace, labels=LEDGER_SELECTOR)
        kinds = tuple(resource for resource in DELETION_ORDER if resource != TRAINJOBS)
        answers = await asyncio.gather(*(fetch_ours(client, self.settings, resource) for resource in kinds))
        trainjobs = await client.list(TRAINJOBS, namespace, labels=words.JOB_LABEL)
        objects = {TRAINJOBS: trainjobs.items, **dict(zip(kinds, answers, strict=True)), CONFIG_MAPS: ledgers.items}
        found = find_litter(objects, self.settings.deployment, with_ledgers=with_ledgers, now=self.clock())
        return tuple(one.leftover for one in found if not jobs or one.leftover.job in jobs)

    async def remove(self, found: Leftover, *, deadline: datetime) -> str:
        """Remove one of them and see that it is gone. What is seen of the end of pods meanwhile goes into the ledger.

        :return: why it is still there; empty when it isn't, or belongs to somebody again.
        """
        client = await self.connect()
        try:
            async with within(deadline, self.clock(), "a removal"):
                inventory = await fetch_inventory(client, self.settings.namespace, found.job)
                litter = await self._judge_again(client, found, inventory)
                if litter is None:
                    return ""
                if litter.leftover.kept_because and not fields.is_deleting(litter.raw):
                    return litter.leftover.kept_because
                return await self._delete(client, litter, inventory)
        except DeadlineError:
            return "the time was over before it had gone; ask again"

    async def _judge_again(self, client: KubeClient, found: Leftover, inventory: Inventory) -> Litter | None:
        """The same object; None when it isn't left over any more."""
        # The inventory has the Workloads of TrainJobs that are there.
        workloads = await fetch_ours(client, self.settings, WORKLOADS)
        trainjobs = await fetch_trainjobs(client, self.settings, found.job)
        objects = {**inventory.objects, WORKLOADS: workloads, TRAINJOBS: trainjobs}
        if inventory.ledger is not None:
            objects[CONFIG_MAPS] = (inventory.ledger,)
        litter = find_litter(objects, self.settings.deployment, with_ledgers=True, now=self.clock())
        return next((one for one in litter if one.leftover.key == found.key), None)

    async def _delete(self, client: KubeClient, litter: Litter, inventory: Inventory) -> str:
        job, witness = litter.leftover.job, Witness()
        async with watch_pods(client, job, witness, inventory):
            why = await self._delete_one(client, litter)
        if witness.dead:
            with contextlib.suppress(ProtocolError):  # that ledger stays, and says why
                await confirm_in_ledger(client, self.settings.namespace, job, witness.dead)
        return why

    async def _delete_one(self, client: KubeClient, litter: Litter) -> str:
        resource, raw, namespace = litter.resource, litter.raw, self.settings.namespace
        # A start that goes on meanwhile writes its number into the ledger.
        version = fields.text(raw, "metadata", "resourceVersion") if resource == CONFIG_MAPS else ""
        # What made it has gone before, and takes it along.
        is_accepted = fields.is_deleting(raw) or await client.delete(
            resource, fields.name(raw), namespace, uid=fields.uid(raw), resource_version=version
        )
        while fields.uid(await client.get(resource, fields.name(raw), namespace)) == fields.uid(raw):
            if not is_accepted:
                return "somebody has changed it meanwhile"
            await self.sleep(LOOK_SECONDS)
        return ""
