# SPDX-License-Identifier: Apache-2.0
"""What becomes of a job when Airflow ends its task in the worker. Called from a signal handler, with five seconds left.

Whatever the main thread was doing stands still meanwhile, perhaps inside a call to Airflow's supervisor: so everything
here happens in threads of its own, and no answer in time is an answer too. Triggers have their own way out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from airflow_provider_dispatch.exceptions import DispatchError
from airflow_provider_dispatch.hooks.dispatch import DispatchHook, run_with_adapter
from airflow_provider_dispatch.operators.keeper import OwnedByAnotherTryError, build_own_hold
from airflow_provider_dispatch.operators.leg import derive_own_job
from airflow_provider_dispatch.operators.task_states import fetch_task_states

if TYPE_CHECKING:
    from airflow_provider_dispatch.adapters.protocol import DispatchAdapter
    from airflow_provider_dispatch.core.owner import Owner
    from airflow_provider_dispatch.operators.leg import Leg

T = TypeVar("T")
log = logging.getLogger(__name__)

ASK_SECONDS = 1.0
STOP_SECONDS = 3.0
ENDED_BY_A_PERSON = frozenset({"failed", "success", "skipped", "removed", "upstream_failed", "restarting", None})
"""States of a task that must not run any more; None when it is no longer there. `up_for_retry` and the like mean that
Airflow itself lost sight of the task: the next try goes on with the job."""


def end_killed_job(
    dispatch_conn_id: str, leg: Leg, on_timeout: str, ask: Callable[[Owner], str | None] | None = None
) -> None:
    """Stop, hold or leave the job of a task that is being ended.

    :param on_timeout: what to do when the task's time is over.
    :param ask: tells the state of the task instance; None means to ask Airflow.
    """
    if leg.deadline is not None and leg.clock() >= leg.deadline:
        action, reason = on_timeout, "the task's execution_timeout is over"
    else:
        try:
            state = run_in_thread(lambda: (ask or fetch_own_state)(leg.owner), ASK_SECONDS)
        except TimeoutError:
            state = "unknown"
        action, reason = decide_end(state), f"its task was ended: {state or 'deleted'}"
    if action == "leave":
        log.info(
            "Leaving the job alone: a retry goes on with it. Without one, stop it: dispatch stop %s",
            derive_own_job(leg),
        )
        return
    log.info("Ending the job (%s): %s", action, reason)
    try:
        run_in_thread(lambda: _end(dispatch_conn_id, leg, action, reason), STOP_SECONDS)
    except (DispatchError, TimeoutError) as error:
        log.warning("The job could not be ended in time: %s", error)


def decide_end(state: str | None) -> str:
    """Stop the job of a task that a person ended, leave that of one whose worker goes away."""
    return "stop" if state in ENDED_BY_A_PERSON else "leave"


def fetch_own_state(owner: Owner) -> str | None:
    """State of a task instance as Airflow's database has it; None when it isn't there."""
    states = fetch_task_states(owner.dag_id, owner.run_id, owner.task_id)
    return states.get(owner.map_index)


def run_in_thread(call: Callable[[], T], seconds: float) -> T:
    """The call's answer or its exception.

    :raises TimeoutError: neither came in time; the thread is left to itself.
    """
    pool = ThreadPoolExecutor(1, "dispatch-kill")
    try:
        return pool.submit(call).result(seconds)
    finally:
        pool.shutdown(wait=False)


def _end(dispatch_conn_id: str, leg: Leg, action: str, reason: str) -> None:
    deadline = leg.clock() + timedelta(seconds=STOP_SECONDS)
    job = derive_own_job(leg)

    async def end(adapter: DispatchAdapter) -> None:
        if action == "stop":
            await adapter.stop(job, reason=reason, deadline=deadline, if_owner=leg.owner)
            return
        newest = (await adapter.find(job)).newest
        if newest is None or not newest.owner.is_same_caller(leg.owner):
            raise OwnedByAnotherTryError(f"this try doesn't look after job {job} any more")
        await adapter.hold(newest.ref, build_own_hold(leg.owner, "timeout", reason), deadline=deadline)

    run_with_adapter(DispatchHook(dispatch_conn_id).build_adapter(leg.settings), end)
