# SPDX-License-Identifier: Apache-2.0
"""The end of a job whose deferred task somebody killed, by a clear or a mark in the UI.

A trigger's ``on_kill`` calls it. Airflow cancels that call again with each of its rounds, about a second apart, so the
stop runs as a task of its own. It acts only while the task instance owns the job: after a clear the next try may have
taken the job over before this one hears of it. It asks Airflow nothing: that can take longer than there is time.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from airflow_provider_dispatch.core.identity import parse_job_id
from airflow_provider_dispatch.core.owner import Owner
from airflow_provider_dispatch.core.state import ENDED
from airflow_provider_dispatch.exceptions import ConflictError, DispatchError
from airflow_provider_dispatch.triggers import shared

if TYPE_CHECKING:
    from airflow_provider_dispatch.triggers.base import DispatchJobTrigger

STOP_WITHIN = timedelta(seconds=20)
"""Airflow gives ``on_kill`` 30 s unless it is told otherwise."""


async def stop_owned_job(trigger: DispatchJobTrigger, owner_instance: str) -> None:
    """Stop the trigger's job if the task instance owns it, whatever becomes of the caller meanwhile.

    :param owner_instance: empty means the task instance that deferred; without either nothing is stopped.
    """
    ti = trigger.task_instance
    instance = owner_instance or (str(ti.id) if ti is not None else "")
    if not instance:
        return
    stopping = asyncio.create_task(_stop(trigger, instance))
    shared.keep_alive(stopping)
    while not stopping.done():
        # A cancellation is meant for the trigger, which ends anyway; the stop has to be carried through.
        with suppress(asyncio.CancelledError):
            await asyncio.shield(stopping)


async def _stop(trigger: DispatchJobTrigger, instance: str) -> None:
    try:
        # The wait that was cancelled has not given its adapter back yet, so this one is at hand.
        lease = await shared.borrow(trigger.dispatch_conn_id)
        try:
            await _stop_by(lease, trigger, instance)
        finally:
            await lease.give_back()
    except ConflictError as error:
        trigger.log.info("the job is left alone: %s", error)
    except DispatchError as error:
        trigger.log.warning("the job of the killed task could not be stopped: %s", error)


async def _stop_by(lease: shared.Lease, trigger: DispatchJobTrigger, instance: str) -> None:
    job = parse_job_id(trigger.job)
    newest = (await lease.adapter.find(job)).newest
    if newest is not None and newest.state in ENDED:
        # A trigger can be left over from a task that is done: what it waited for is no prey of its own end.
        trigger.log.info("the task was killed; its job had %s before and is left as it is", newest.state)
        return
    report = await lease.adapter.stop(
        job,
        reason="the task was killed while it was deferred",
        deadline=datetime.now(UTC) + STOP_WITHIN,
        if_owner=Owner(deployment=lease.settings.deployment, instance_id=instance),
    )
    left = len(report.alive) + len(report.unproven)
    ending = f", {left} parts of it are still ending" if left else ""
    trigger.log.info("the task was killed: its job was stopped%s", ending)
