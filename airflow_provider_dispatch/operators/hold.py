# SPDX-License-Identifier: Apache-2.0
"""Operators that hold jobs and release them again.

For DAG files: here are their arguments alone; :mod:`.acting` and :mod:`.verbs` do what they say when the task runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_dispatch.exceptions import SpecError
from airflow_provider_dispatch.hooks.deferred_import import deferred
from airflow_provider_dispatch.hooks.naming import read_mapping
from airflow_provider_dispatch.operators import arguments, targets
from airflow_provider_dispatch.operators.acting import RECORD_KEY, UNKNOWN_TIMEOUT, ActingOperator
from airflow_provider_dispatch.operators.base import DEFAULT_CONNECTION_ID

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_dispatch.adapters.protocol import DispatchAdapter
    from airflow_provider_dispatch.core import goals, holds, wire
    from airflow_provider_dispatch.operators import errand, keeper, verbs
    from airflow_provider_dispatch.operators.errand import Errand, Item
    from airflow_provider_dispatch.operators.leg import Leg
else:
    errand = deferred("airflow_provider_dispatch.operators.errand")
    goals = deferred("airflow_provider_dispatch.core.goals")
    holds = deferred("airflow_provider_dispatch.core.holds")
    keeper = deferred("airflow_provider_dispatch.operators.keeper")
    verbs = deferred("airflow_provider_dispatch.operators.verbs")
    wire = deferred("airflow_provider_dispatch.core.wire")

WAITS_UNTIL = ("queued", "running")
ANY_START = datetime(2000, 1, 1, tzinfo=UTC)
"""Stands for the start of a task while the DAG is parsed."""


class DispatchHoldJobOperator(ActingOperator):
    """Holds jobs: ends their processes, frees their room, and keeps them from being admitted until they are released.

    Returns the :class:`airflow_provider_dispatch.core.holds.Hold` as a dict; a task on many jobs returns a list of
    ``{"job", "name", "result", "error"}``, and fails after all of them when one failed. A retry means the same hold.

    :param reason: shown to everybody who wonders why the job doesn't run (templated).
    :param until: when the hold is lifted by itself: an aware datetime or ISO text (templated), or a timedelta from the
        start of the task. None means never.
    :param wait: until the processes are gone; False returns once the hold is durable.
    :param wait_timeout: how long to wait for that; the hold stays.

    For the ways to name jobs and for jobs nobody has heard of see :class:`.gate.DispatchOpenGateOperator`.

    Does not release the job when the task fails, is cleared or killed: a :class:`DispatchReleaseJobOperator` does.
    Does not hold a job that has ended; that fails with how it ended.
    """

    reason: str
    until: datetime | timedelta | str | None
    wait: bool
    wait_timeout: timedelta | float | None
    template_fields: Sequence[str] = ("dispatch_conn_id", "names", "reason", "until", "if_unknown", "unknown_timeout")
    ui_color = "#fbeed1"

    def __init__(  # noqa: PLR0913 - the ways to name jobs, each an argument
        self,
        *,
        job_task_id: str | None = None,
        job_map_index: int | str | None = None,
        job_ref: object = None,
        job_id: str | None = None,
        job_task_ids: Sequence[str] | str | None = None,
        select: Mapping[str, object] | None = None,
        reason: str = "",
        until: datetime | timedelta | str | None = None,
        wait: bool = True,
        wait_timeout: timedelta | float | None = None,
        if_unknown: str = "wait",
        unknown_timeout: object = UNKNOWN_TIMEOUT,
        dispatch_conn_id: str = DEFAULT_CONNECTION_ID,
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        names = arguments.keep_given(
            job_task_id=job_task_id,
            job_map_index=job_map_index,
            job_ref=job_ref,
            job_id=job_id,
            job_task_ids=job_task_ids,
            select=select,
        )
        self._keep(
            dispatch_conn_id=dispatch_conn_id,
            deferrable=deferrable,
            names=names,
            if_unknown=if_unknown,
            unknown_timeout=unknown_timeout,
            reason=reason,
            until=until,
            wait=wait,
            wait_timeout=wait_timeout,
        )
        targets.check_targets(names)
        self._check_unknown(("wait", "fail"))
        if wait_timeout is not None:
            arguments.check_duration("wait_timeout", wait_timeout)
        if isinstance(until, timedelta | datetime) or (isinstance(until, str) and arguments.is_literal(until)):
            read_until(until, ANY_START)

    def _build_errand(self, leg: Leg) -> Errand:
        actor = holds.Actor(holds.ActorKind.POLICY, f"{leg.owner.dag_id}/{leg.owner.task_id}")
        request = holds.HoldRequest(
            keeper.build_hold_key(leg.owner), actor, self.reason, read_until(self.until, leg.started)
        )
        return verbs.HoldErrand(leg, request, is_waiting=self.wait)

    def _get_time_limit(self) -> object:
        return self.wait_timeout


class DispatchReleaseJobOperator(ActingOperator):
    """Lifts holds that tasks of this DAG run placed, and no others.

    Returns the holds that remain, of people or of other DAG runs. When none does, it waits until the job is in the
    queue or further. A task on many jobs returns a list of ``{"job", "name", "result", "error"}``.

    :param hold_task_id: lift what that task of this DAG run placed. Without a name for the job, on every job that it
        held: what was held together is released together.
    :param hold: lift exactly this one, as :class:`DispatchHoldJobOperator` returns it (templated).
    :param wait_until: ``queued`` (or further), or ``running``.
    :param wait_timeout: how long to wait for that.

    For the ways to name jobs and for jobs nobody has heard of see :class:`.gate.DispatchOpenGateOperator`.

    Does not lift holds placed by a person, by another DAG run, by a job's recovery policy, or at a time-out with
    ``on_timeout="hold"``, unless named by *hold*. Does not wait while somebody else holds the job.
    """

    hold_task_id: str | None
    hold: object
    wait_until: str
    wait_timeout: timedelta | float | None
    template_fields: Sequence[str] = (
        "dispatch_conn_id",
        "names",
        "hold_task_id",
        "hold",
        "wait_until",
        "if_unknown",
        "unknown_timeout",
    )
    ui_color = "#fbeed1"

    def __init__(  # noqa: PLR0913 - the ways to name jobs, each an argument
        self,
        *,
        job_task_id: str | None = None,
        job_map_index: int | str | None = None,
        job_ref: object = None,
        job_id: str | None = None,
        job_task_ids: Sequence[str] | str | None = None,
        select: Mapping[str, object] | None = None,
        hold_task_id: str | None = None,
        hold: object = None,
        wait_until: str = "queued",
        wait_timeout: timedelta | float | None = None,
        if_unknown: str = "wait",
        unknown_timeout: object = UNKNOWN_TIMEOUT,
        dispatch_conn_id: str = DEFAULT_CONNECTION_ID,
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        names = arguments.keep_given(
            job_task_id=job_task_id,
            job_map_index=job_map_index,
            job_ref=job_ref,
            job_id=job_id,
            job_task_ids=job_task_ids,
            select=select,
        )
        self._keep(
            dispatch_conn_id=dispatch_conn_id,
            deferrable=deferrable,
            names=names,
            if_unknown=if_unknown,
            unknown_timeout=unknown_timeout,
            hold_task_id=hold_task_id,
            hold=hold,
            wait_until=wait_until,
            wait_timeout=wait_timeout,
        )
        if names or hold_task_id is None:
            targets.check_targets(names)
        if hold is not None and (hold_task_id is not None or not targets.is_single(names)):
            raise SpecError("hold", "goes with one job, and without hold_task_id")
        if wait_until not in WAITS_UNTIL and arguments.is_literal(wait_until):
            raise SpecError("wait_until", f"must be one of {', '.join(WAITS_UNTIL)}", wait_until)
        self._check_unknown(("wait", "fail"))
        if wait_timeout is not None:
            arguments.check_duration("wait_timeout", wait_timeout)

    async def _resolve(self, context: Context, leg: Leg, adapter: DispatchAdapter) -> list[Item]:
        if self.names or self.hold_task_id is None:
            return await super()._resolve(context, leg, adapter)
        held = errand.load_items(context["ti"].xcom_pull(task_ids=self.hold_task_id, key=RECORD_KEY))
        return [errand.Item(item.name, item.job, is_known=True) for item in held if item.is_acted]

    def _build_errand(self, leg: Leg) -> Errand:
        owner = leg.owner
        prefix = keeper.build_run_key(owner.dag_id, owner.run_id)
        if self.hold_task_id is not None:
            prefix += f"{self.hold_task_id}/"
        goal = goals.Goal.RUNNING if self.wait_until == "running" else goals.Goal.QUEUED
        return verbs.ReleaseErrand(leg, prefix, None if self.hold is None else read_hold(self.hold), goal)

    def _get_time_limit(self) -> object:
        return self.wait_timeout


def read_until(until: datetime | timedelta | str | None, start: datetime) -> datetime | None:
    """When a hold ends.

    :param start: from which a timedelta counts.
    :raises SpecError: no time, or one without a time zone.
    """
    match until:
        case None | "":
            return None
        case timedelta():
            if until <= timedelta(0):
                raise SpecError("until", "must be above zero", str(until))
            return start + until
        case str():
            try:
                until = datetime.fromisoformat(until)
            except ValueError:
                raise SpecError("until", "must be an ISO time with a time zone", until) from None
    if until.tzinfo is None:
        raise SpecError("until", "needs a time zone", until.isoformat())
    return until


def read_hold(value: object) -> holds.Hold:
    """A hold as XCom or a template hands it over.

    :raises SpecError: something else.
    """
    if isinstance(value, holds.Hold):
        return value
    fields = read_mapping(value)
    if fields is None:
        raise SpecError("hold", "must be a hold as DispatchHoldJobOperator returns it", str(value))
    return wire.load(holds.Hold, fields)
