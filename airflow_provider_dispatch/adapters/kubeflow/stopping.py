# SPDX-License-Identifier: Apache-2.0
"""`stop`: the wish on the TrainJob, what must be remembered in the ledger, then deletion until nothing is left.

The adapter calls it. Everything is deleted in the background and by UID, so an object that somebody makes under the
same name meanwhile is never taken for ours. It watches the pods as they go: only who sees the last state of a pod can
say that its process has ended. At the deadline it tells what is left; the wish stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.deadlines import DeadlineError, within
from airflow_provider_dispatch.adapters.kubeflow.errors import ObjectGoneError, StaleObjectError
from airflow_provider_dispatch.adapters.kubeflow.inventory import Inventory, fetch_inventory
from airflow_provider_dispatch.adapters.kubeflow.ledgers import change_ledger
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.execution_record import EMPTY_RECORD, ExecutionRecord
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.json_patch import build_patch
from airflow_provider_dispatch.adapters.kubeflow.model.ledger import Ledger, LedgerEnd
from airflow_provider_dispatch.adapters.kubeflow.model.resources import TRAINJOBS, WORKLOADS
from airflow_provider_dispatch.adapters.kubeflow.model.stop_report import (
    Witness,
    build_confirmed,
    build_left_record,
    build_stop_report,
)
from airflow_provider_dispatch.adapters.kubeflow.model.submission import StopRequest, dump, is_ours
from airflow_provider_dispatch.adapters.kubeflow.ownership import check_owner
from airflow_provider_dispatch.adapters.kubeflow.recording import record_decision
from airflow_provider_dispatch.adapters.kubeflow.runtimes import patch_trainjob
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings
from airflow_provider_dispatch.adapters.kubeflow.targets import fetch_trainjobs
from airflow_provider_dispatch.adapters.kubeflow.witnessing import watch_pods
from airflow_provider_dispatch.core.identity import JobID, parse_job_id
from airflow_provider_dispatch.core.owner import Owner
from airflow_provider_dispatch.core.records import StopReport
from airflow_provider_dispatch.core.state import Cause
from airflow_provider_dispatch.exceptions import RefusedError, UnavailableError

FIRST_PASS_SECONDS, PASS_SECONDS = 0.25, 1.0
"""Between two looks at everything, when no pod goes meanwhile; doubled from one to the other."""
PROOF_SECONDS = 5.0
"""How long a stop that has nothing left to delete waits for the controller to prove deaths that it did not see."""
REPORT_SHARE = timedelta(milliseconds=200)
"""Of the time, kept back to tell what is left."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Stop:
    """One call of :func:`stop`."""

    client: KubeClient
    settings: KubeflowSettings
    job: JobID
    reason: str
    now: datetime
    witness: Witness
    record: ExecutionRecord = EMPTY_RECORD
    is_durable: bool = False

    @property
    def namespace(self) -> str:
        return self.settings.namespace

    @property
    def has_doubts(self) -> bool:
        """The end of a pod is not proven; what the watch or the controller still brings may prove it."""
        return bool(self.record.unproven or self.witness.lost)


async def stop(
    client: KubeClient,
    settings: KubeflowSettings,
    job: JobID,
    *,
    reason: str,
    deadline: datetime,
    now: datetime,
    if_owner: Owner | None = None,
) -> StopReport:
    """Remove everything of the job and see that it is gone.

    :param if_owner: stop only while this is the newest submission's owner.
    :raises ConflictError: somebody else owns it.
    """
    call = _Stop(client, settings, parse_job_id(job), reason, now, Witness())
    try:
        async with within(deadline - REPORT_SHARE, now, "a stop"):
            inventory = await _write_wish(call, if_owner)
            call.is_durable = True
            await _remove_all(call, inventory)
    except DeadlineError:
        if not call.is_durable:
            raise
    return build_stop_report(call.job, call.witness, call.record.unproven)


async def _write_wish(call: _Stop, if_owner: Owner | None) -> Inventory:
    """The wish on the TrainJobs and what must outlive them in the ledger; nothing for a job never heard of."""
    trainjobs = await _ask(call, if_owner)
    inventory = await fetch_inventory(call.client, call.namespace, call.job)
    call.witness.note_all(inventory)
    if call.witness.seen or inventory.ledger is not None:
        await _write_ledger(call, inventory)
    for trainjob in trainjobs:
        await record_decision(call.client, trainjob, "stopped", call.reason, at=call.now)
    return inventory


async def _ask(call: _Stop, if_owner: Owner | None) -> tuple[Raw, ...]:
    """Write the wish on every TrainJob, the newest first: its owner decides. The first reason stays."""
    request = dump(StopRequest(call.reason, call.now))
    while True:
        trainjobs = await fetch_trainjobs(call.client, call.settings, call.job)
        if if_owner is not None and trainjobs:
            check_owner(trainjobs[-1], if_owner)
        try:
            for trainjob in reversed(trainjobs):
                if not fields.annotation(trainjob, words.STOP_ANNOTATION):
                    await _patch_if_possible(call.client, trainjob, request)
        except (StaleObjectError, ObjectGoneError):
            continue
        return trainjobs


async def _patch_if_possible(client: KubeClient, trainjob: Raw, request: str) -> None:
    # A TrainJob that no webhook lets us change can still be deleted.
    with contextlib.suppress(RefusedError):
        await patch_trainjob(client, trainjob, build_patch(trainjob, annotations={words.STOP_ANNOTATION: request}))


async def _write_ledger(call: _Stop, inventory: Inventory) -> None:
    """Who may live and why the objects go, before they do."""
    numbers, trainjobs = inventory.submissions, inventory.of(TRAINJOBS)

    def change(ledger: Ledger) -> Ledger:
        known = ExecutionRecord.from_json(ledger.record) if ledger.record else EMPTY_RECORD
        call.record = build_confirmed(build_left_record(trainjobs, known), call.witness)
        new = tuple(
            LedgerEnd(number, Cause.STOPPED, call.reason, call.now)
            for number in numbers
            if ledger.end_of(number) is None
        )
        return replace(
            ledger,
            submission=max([ledger.submission, *numbers]),
            ends=(*ledger.ends, *new),
            record=call.record.to_json() if call.record != EMPTY_RECORD else ledger.record,
        )

    await change_ledger(call.client, call.namespace, call.job, change)


async def _remove_all(call: _Stop, inventory: Inventory) -> None:
    """Find and delete until only the ledger is left, then wait a moment for what is unproven."""
    waited, pause = 0.0, FIRST_PASS_SECONDS
    async with watch_pods(call.client, call.job, call.witness, inventory) as has_changed:
        while list(inventory) or (call.has_doubts and waited < PROOF_SECONDS):
            has_changed.clear()
            try:
                await _delete(call, inventory)
                inventory = await _look_again(call)
            except UnavailableError as error:
                _log.warning("the stop of job %s goes on: %s", call.job, error)
            if list(inventory) or call.has_doubts:
                waited += 0.0 if list(inventory) else pause
                await _pause(has_changed, pause)
                pause = min(2 * pause, PASS_SECONDS)


async def _look_again(call: _Stop) -> Inventory:
    uids = {uid for uid, (resource, _) in call.witness.seen.items() if resource == TRAINJOBS}
    inventory = await fetch_inventory(call.client, call.namespace, call.job, trainjob_uids=uids)
    await _find_unlabelled(call, inventory)
    call.witness.note_all(inventory)
    await _write_ledger(call, inventory)
    return inventory


async def _find_unlabelled(call: _Stop, inventory: Inventory) -> None:
    """What another implementation made without our labels can't be listed any more once its TrainJob is gone."""
    found = {fields.uid(raw) for _, raw in inventory}
    for uid, (resource, raw) in call.witness.seen.items():
        if uid in found or uid in call.witness.gone or is_ours(raw) or resource == WORKLOADS:
            continue
        latest = await call.client.get(resource, fields.name(raw), call.namespace)
        if latest is not None and fields.uid(latest) == uid:
            inventory.objects[resource] += (latest,)


async def _delete(call: _Stop, inventory: Inventory) -> None:
    """What the garbage collector doesn't take with its owner by the next look is deleted then."""
    is_owned_yet = any(not fields.is_deleting(raw) for raw in inventory.of(TRAINJOBS))
    for resource, raw in inventory:
        if not fields.is_deleting(raw) and (resource == TRAINJOBS or not is_owned_yet):
            await call.client.delete(resource, fields.name(raw), call.namespace, uid=fields.uid(raw))


async def _pause(has_changed: asyncio.Event, seconds: float) -> None:
    """Until a pod has gone, or a moment has passed."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await has_changed.wait()
