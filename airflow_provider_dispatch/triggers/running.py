# SPDX-License-Identifier: Apache-2.0
"""The run-time half of the triggers: from stored arguments to one event, whatever goes wrong on the way.

:class:`.base.DispatchJobTrigger` calls it when it runs. This is the trigger loop's border: here any error becomes an
event, because a trigger that dies without one leaves its task a message that helps nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from airflow_provider_dispatch.core import wire
from airflow_provider_dispatch.core.decision import Supervision
from airflow_provider_dispatch.core.identity import parse_job_id
from airflow_provider_dispatch.exceptions import DispatchError
from airflow_provider_dispatch.triggers import shared
from airflow_provider_dispatch.triggers.cursors import CursorStore, NoCursors, XComCursors
from airflow_provider_dispatch.triggers.judging import Judge, build_end_judge
from airflow_provider_dispatch.triggers.starter import build_starter_probe
from airflow_provider_dispatch.triggers.streaming import OutputPrinter
from airflow_provider_dispatch.triggers.waiting import Outcome, Timing, sleep_until, try_again, wait_for_job
from airflow_provider_dispatch.version_compat import AIRFLOW_V_3_3_PLUS

if TYPE_CHECKING:
    from airflow_provider_dispatch.adapters.protocol import DispatchAdapter
    from airflow_provider_dispatch.triggers.base import DispatchJobTrigger

Payload = dict[str, object]


async def wait_for_event(trigger: DispatchJobTrigger) -> Payload:
    """Wait for what the trigger waits for, and not shorter than it must.

    When it is cancelled, the adapter stays borrowed for ``on_kill`` and the output goes on; ``cleanup`` ends both.
    """
    payload = await _wait_or_explain(trigger)
    if trigger.not_before is not None:
        timing = Timing(clock=trigger.clock, sleeper=trigger.sleeper)
        await sleep_until(datetime.fromisoformat(trigger.not_before), timing)
    await trigger.cleanup()
    return payload


async def _wait_or_explain(trigger: DispatchJobTrigger) -> Payload:
    try:
        trigger.lease = await shared.borrow(trigger.dispatch_conn_id)
        return dump_outcome(await _wait(trigger, trigger.lease.adapter))
    except DispatchError as error:
        return build_failure(error)
    except Exception as error:  # the trigger loop's border
        trigger.log.exception("The trigger can't go on")
        return build_failure(error)


async def _wait(trigger: DispatchJobTrigger, adapter: DispatchAdapter) -> Outcome:
    judge = await trigger.build_judge(adapter)
    trigger.output = trigger.build_output(adapter)
    outcome = await wait_for_job(
        adapter,
        parse_job_id(trigger.job),
        judge,
        narrator=trigger.log.info,
        timing=build_timing(trigger),
        output=trigger.output,
        starter=build_starter_probe(trigger.starter),
    )
    trigger.output = None
    return outcome


async def build_supervised_judge(trigger: DispatchJobTrigger, adapter: DispatchAdapter) -> Judge:
    """A judge by the supervision that is stored with the submission."""
    job = parse_job_id(trigger.job)
    record = await try_again(lambda: adapter.find(job), narrator=trigger.log.info, timing=build_timing(trigger))
    meant = [found for found in record.submissions if trigger.submission in (None, found.ref.submission)]
    supervision = meant[-1].supervision if meant else Supervision()
    return build_end_judge(supervision, submission=trigger.submission)


def build_printer(
    trigger: DispatchJobTrigger, adapter: DispatchAdapter, ranks: Sequence[Sequence[str | int | None]]
) -> OutputPrinter:
    """A printer into the trigger's own log."""
    named = [(None if role is None else str(role), int(rank or 0)) for role, rank in ranks]
    return OutputPrinter(
        adapter, named, write=trigger.log.info, cursors=_build_cursor_store(trigger), sleeper=trigger.sleeper
    )


def build_timing(trigger: DispatchJobTrigger) -> Timing:
    """The trigger's deadline and its time."""
    deadline = datetime.fromisoformat(trigger.deadline) if trigger.deadline is not None else None
    return Timing(deadline=deadline, clock=trigger.clock, sleeper=trigger.sleeper)


def dump_outcome(outcome: Outcome) -> Payload:
    """An outcome as an event's payload."""
    seen = outcome.observation
    return {
        "verdict": outcome.verdict,
        "reason": outcome.reason,
        "observation": wire.dump(seen) if seen is not None else None,
    }


def build_failure(error: Exception) -> Payload:
    """The payload of a trigger that could not go on."""
    return {"verdict": "failed", "reason": f"{type(error).__name__}: {error}", "observation": None}


def _build_cursor_store(trigger: DispatchJobTrigger) -> CursorStore:
    ti = trigger.task_instance
    # Before 3.3 a trigger can't read an XCom without blocking the loop: after a restart it prints from the beginning.
    return XComCursors(ti) if ti is not None and AIRFLOW_V_3_3_PLUS else NoCursors()
