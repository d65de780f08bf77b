# SPDX-License-Identifier: Apache-2.0
"""Operator that stops jobs and proves that they are gone.

For DAG files: here are its arguments alone; :mod:`.acting` and :mod:`.verbs` do what they say when the task runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_dispatch.hooks.deferred_import import deferred
from airflow_provider_dispatch.operators import arguments, targets
from airflow_provider_dispatch.operators.acting import UNKNOWN_TIMEOUT, ActingOperator
from airflow_provider_dispatch.operators.base import DEFAULT_CONNECTION_ID

if TYPE_CHECKING:
    from airflow_provider_dispatch.operators import verbs
    from airflow_provider_dispatch.operators.errand import Errand
    from airflow_provider_dispatch.operators.leg import Leg
else:
    verbs = deferred("airflow_provider_dispatch.operators.verbs")

STOP_TIMEOUT = timedelta(minutes=10)


class DispatchStopJobOperator(ActingOperator):
    """Removes everything of jobs, all their submissions, and waits until nothing of them is alive.

    Returns the :class:`airflow_provider_dispatch.core.records.StopReport` as a dict; a task on many jobs returns a list
    of ``{"job", "name", "result", "error"}``, and fails after all of them when one failed.

    :param reason: shown where people wonder who stopped the job (templated).
    :param must_be_complete: fail when something is still ``alive`` or ``unproven`` in the end; False returns the report
        once the stop is asked for.
    :param stop_timeout: how long to wait until all is gone; None means without limit.
    :param if_unknown: ``ignore`` (there is nothing to stop), ``wait`` or ``fail``.

    For the ways to name jobs see :class:`.gate.DispatchOpenGateOperator`.

    Does not mark the task that looks after the job: it fails, because its job was stopped. Does not remove the ledger:
    submissions are never numbered anew.
    """

    reason: str
    must_be_complete: bool
    stop_timeout: timedelta | float | None
    template_fields: Sequence[str] = ("dispatch_conn_id", "names", "reason", "if_unknown", "unknown_timeout")
    ui_color = "#f7dddc"

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
        must_be_complete: bool = True,
        stop_timeout: timedelta | float | None = STOP_TIMEOUT,
        if_unknown: str = "ignore",
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
            must_be_complete=must_be_complete,
            stop_timeout=stop_timeout,
        )
        targets.check_targets(names)
        self._check_unknown(("ignore", "wait", "fail"))
        if stop_timeout is not STOP_TIMEOUT:
            arguments.check_duration("stop_timeout", stop_timeout)

    def _build_errand(self, leg: Leg) -> Errand:
        reason = self.reason or f"stopped by task {leg.owner.dag_id}/{leg.owner.task_id}"
        return verbs.StopErrand(leg, reason, is_waiting=self.must_be_complete)

    def _get_time_limit(self) -> object:
        return self.stop_timeout
