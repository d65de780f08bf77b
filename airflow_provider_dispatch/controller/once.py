# SPDX-License-Identifier: Apache-2.0
"""Looks at one job while no controller runs: what ``dispatch fence lift`` does, under a person's rights.

The same parts as a replica's and the same rules in the same order. The Lease is taken first, so that it never acts
beside a controller that lives, and given up at the end. No other job is looked at.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

from airflow_provider_dispatch.adapters.kubeflow.client import open_client
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings, parse_settings
from airflow_provider_dispatch.adapters.kubeflow.targets import fetch_trainjob
from airflow_provider_dispatch.controller.config import ControllerConfig
from airflow_provider_dispatch.controller.events import Decision
from airflow_provider_dispatch.controller.running import USER_AGENT, Replica
from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.exceptions import ConflictError, RefusedError

PAUSE_SECONDS = 0.5
QUIET_SECONDS = 5.0
"""After pods were lifted: so long nothing more has come, as pods of a role that starts later do."""


async def look_after(settings: Mapping[str, object], job: JobID, *, limit_seconds: float) -> tuple[str, ...]:
    """Bring a job as far as the rules allow; what was decided, in the words of the controller's Events.

    :param settings: of a connection to the job's namespace.
    :param limit_seconds: for the looks; it ends sooner once pods have started and nothing more comes. Taking the Lease
        from a controller that died takes its duration more.
    :raises RefusedError: a controller holds the Lease, or a right is missing.
    :raises JobNotFoundError: no such job.
    """
    chosen = parse_settings(settings)
    async with await open_client(chosen, user_agent=USER_AGENT) as client:
        uid = fields.uid(await fetch_trainjob(client, chosen, job))
        replica = Replica(client, _build_config(chosen), patience_seconds=0.0)
        await _take_lease(replica)
        async with _running(replica) as tasks:
            await _see_all(replica, tasks)
            await _look(replica, uid, limit_seconds)
            await replica.journal.flush()
        return _list_decisions(replica)


def _build_config(settings: KubeflowSettings) -> ControllerConfig:
    return ControllerConfig(
        kubeconfig=settings.kubeconfig,
        context=settings.context,
        namespaces=(settings.namespace,),
        admission_check=settings.admission_check,
        lease_namespace=settings.lease_namespace,
        lease_name=settings.lease_name,
    )


async def _take_lease(replica: Replica) -> None:
    """Wait for the time after which one that nobody renews may be taken.

    :raises RefusedError: somebody renews it.
    """
    terms = replica.lease.terms
    for _ in range(math.ceil((terms.duration_seconds + terms.renew_seconds) / PAUSE_SECONDS)):
        if await replica.lease.attempt():
            return
        await asyncio.sleep(PAUSE_SECONDS)
    raise RefusedError(f"a controller holds Lease {terms.namespace}/{terms.name}: it looks after the job itself")


@asynccontextmanager
async def _running(replica: Replica) -> AsyncIterator[list[asyncio.Task[None]]]:
    """The parts of a replica that its loop needs, without the loop's workers."""
    parts = (replica.lease.keep(), replica.journal.write(), *(reflector.run() for reflector in replica.reflectors))
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await replica.lease.release()


async def _see_all(replica: Replica, tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait until every watch has listed what there is, or a part gives up."""
    listed = asyncio.create_task(replica.see_all())
    try:
        done, _ = await asyncio.wait([listed, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for part in done:
            part.result()
    finally:
        listed.cancel()


async def _look(replica: Replica, uid: str, limit_seconds: float) -> None:
    quiet_seconds = 0.0
    for _ in range(math.ceil(limit_seconds / PAUSE_SECONDS)):
        before = _list_decisions(replica)
        # Somebody else wrote first: judged again at the next look.
        with suppress(ConflictError):
            await replica.loop.look(uid)
        decided = _list_decisions(replica)
        quiet_seconds = quiet_seconds + PAUSE_SECONDS if decided == before else 0.0
        if Decision.STARTED in decided and quiet_seconds >= QUIET_SECONDS:
            return
        await asyncio.sleep(PAUSE_SECONDS)


def _list_decisions(replica: Replica) -> tuple[str, ...]:
    """One word for each decision."""
    counted = (sample for metric in replica.metrics.decisions.collect() for sample in metric.samples)
    totals = {sample.labels["kind"]: int(sample.value) for sample in counted if sample.name.endswith("_total")}
    return tuple(kind for kind, count in totals.items() for _ in range(count))
