# SPDX-License-Identifier: Apache-2.0
"""Operator that opens the gate of jobs that other tasks started.

For DAG files: here are its arguments alone; :mod:`.acting` and :mod:`.verbs` do what they say when the task runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


class DispatchOpenGateOperator(ActingOperator):
    """Opens our gate, so that the scheduler may admit the job. Once it is open it can't be closed again.

    Returns the job's reference; a task on many jobs returns a list of ``{"job", "name", "result", "error"}``, and fails
    after all of them when one failed. A job is named in exactly one of these ways, all templated:

    :param job_task_id: full id of the task of this DAG run that starts the job; also before that task has run.
    :param job_map_index: of a mapped task: an index, ``"all"``, or None for the own one inside the same mapped group.
    :param job_ref: a reference as DispatchStartJobOperator returns it.
    :param job_id: the job's own id.
    :param job_task_ids: many tasks.
    :param select: the live jobs of this Airflow with some ``queue``, ``dag_id``, ``run_id``, ``labels``, ``states``.
    :param if_unknown: what to do while nobody has heard of the job: ``wait``, or ``fail``. Waiting ends with a failure
        when the task that should start it has ended without.
    :param unknown_timeout: how long to wait for that; a timedelta or seconds, None means without limit.

    Does not remove gates of others, and does not wait for the admission: a sensor does.
    """

    template_fields: Sequence[str] = ("dispatch_conn_id", "names", "if_unknown", "unknown_timeout")
    ui_color = "#e3f3e1"

    def __init__(  # noqa: PLR0913 - the ways to name jobs, each an argument
        self,
        *,
        job_task_id: str | None = None,
        job_map_index: int | str | None = None,
        job_ref: object = None,
        job_id: str | None = None,
        job_task_ids: Sequence[str] | str | None = None,
        select: Mapping[str, object] | None = None,
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
        )
        targets.check_targets(names)
        self._check_unknown(("wait", "fail"))

    def _build_errand(self, leg: Leg) -> Errand:
        return verbs.OpenErrand(leg)
