# SPDX-License-Identifier: Apache-2.0
"""The end of a job whose deferred task somebody killed, by a clear or a mark in the UI.

A trigger's ``on_kill`` calls it. Airflow cancels that call again with each of its rounds, about a second apart, so the
stop runs as a task of its own. It acts only while the task instance owns the job: after a clear the next try may have
taken the job over before this one hears of it.

Before 3.4, Airflow calls it also when a triggerer was late and its triggers have moved to another: the task is still
deferred then, and its job is nobody's prey. There it asks Airflow first; a later one is asked nothing.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from airflow_provider_dispatch.core.identity import parse_job_id
from airflow_provider_dispatch.core.owner import Owner
from airflow_provider_dispatch.core.state import ENDED
from airflow_provider_dispatch.exceptions import ConflictError, DispatchError
from airflow_provider_dispatch.triggers import shared, starter
from airflow_provider_dispatch.version_compat import AIRFLOW_V_3_4_PLUS

if TYPE_CHECKING:
    from airflow_provider_dispatch.triggers.base import DispatchJobTrigger

STOP_WITHIN = timedelta(seconds=20)
"""Airflow gives ``on_kill`` 30 s unless it is told otherwise."""
ASK_WITHIN = timedelta(seconds=9)
"""The first answer of a triggerer's life takes seconds."""
DEFERRED = "deferred"


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
    if not AIRFLOW_V_3_4_PLUS and await _is_still_deferred(trigger):
        trigger.log.info("the task is still deferred: its job is left to the trigger that looks after it now")
        return
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


async def _is_still_deferred(trigger: DispatchJobTrigger) -> bool:
    """False also when Airflow gives no answer: far more triggers are killed than moved."""
    ti = trigger.task_instance
    if ti is None:
        return False
    try:
        async with asyncio.timeout(ASK_WITHIN.total_seconds()), starter.get_turn():
            ask = partial(starter.fetch_task_state, ti.dag_id, ti.run_id, ti.task_id, ti.map_index)
            state = await asyncio.to_thread(ask)
    except starter.NO_ANSWER as error:
        said = str(error) or "it takes too long"
        trigger.log.warning("Airflow does not say in what state the killed task is: %s", said)
        return False
    # After a clear it may be the next try that is deferred; that one has stopped this try's job, or goes on with it.
    return state == DEFERRED


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
