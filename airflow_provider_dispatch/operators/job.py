# SPDX-License-Identifier: Apache-2.0
"""Operators that start a job: one looks after it for its whole life, the other hands it on.

Both find the job of a former try first. What they do with it is decided in :mod:`.submission` and carried out by
:mod:`.keeper`; here are the arguments and the way into and out of a deferral.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_dispatch.hooks.deferred_import import deferred
from airflow_provider_dispatch.operators import arguments
from airflow_provider_dispatch.operators.base import DEFAULT_CONNECTION_ID, DispatchOperator
from airflow_provider_dispatch.operators.worker_queue import TwoQueues, split_queues

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg

    from airflow_provider_dispatch.adapters.protocol import DispatchAdapter
    from airflow_provider_dispatch.core import wire
    from airflow_provider_dispatch.core.job_spec import JobSpec
    from airflow_provider_dispatch.operators import keeper, killing, submission
    from airflow_provider_dispatch.operators import leg as legs
    from airflow_provider_dispatch.operators.keeper import Kept
    from airflow_provider_dispatch.operators.leg import Leg
    from airflow_provider_dispatch.triggers import job as triggers
else:
    wire = deferred("airflow_provider_dispatch.core.wire")
    keeper = deferred("airflow_provider_dispatch.operators.keeper")
    killing = deferred("airflow_provider_dispatch.operators.killing")
    legs = deferred("airflow_provider_dispatch.operators.leg")
    submission = deferred("airflow_provider_dispatch.operators.submission")
    triggers = deferred("airflow_provider_dispatch.triggers.job")

LEADING_RANK = (0,)
KEPT_AS_GIVEN = ("dispatch_conn_id", "stream_ranks", "open_gate", "deferrable", "cancel_on_kill")
SHARES_FILES = frozenset({"local"})
"""Backends whose processes see this machine's files, and so run in the DAG file's folder unless told otherwise."""


class _JobOperator(TwoQueues, DispatchOperator):
    """What both have in common. Subclasses set the attributes named here."""

    spec: Mapping[str, object]
    open_gate: bool
    cancel_on_kill: bool
    _leg: Leg | None = None

    def on_kill(self) -> None:
        """Stop the job when a person ended the task; leave it when only the worker goes away: a retry goes on with it.

        Airflow sends the same signal for both, so the task's own state is asked for: a user's action has changed it.
        Without an answer the job is left.
        """
        if self._leg is not None and self.cancel_on_kill:
            killing.end_killed_job(self.dispatch_conn_id, self._leg, self._get_on_timeout())

    def _get_on_timeout(self) -> str:
        return "stop"

    def _build_spec(self, leg: Leg) -> JobSpec:
        settings, given = leg.settings, dict(self.spec)
        given.setdefault("queue", settings.queue)
        given.setdefault("priority", settings.priority)
        dag = self.get_dag()
        if settings.backend in SHARES_FILES and dag is not None and dag.fileloc:
            given.setdefault("working_dir", str(Path(dag.fileloc).parent))
        return arguments.build_spec(arguments.keep_given(**given))

    def _begin(self, context: Context, *, is_resumed: bool = False) -> Leg:
        """From here on a kill knows which job is meant: it may be there already, or any moment."""
        self._leg = leg = self._begin_leg(context, is_resumed=is_resumed)
        return leg


class DispatchTrainJobOperator(_JobOperator):
    """Runs a multi-node job and looks after it until its end, deferred while it waits.

    The job is queued behind its gate, opened, admitted, run, held and released by others, preempted and queued again,
    resubmitted by its recovery policy: all of that is one task. It fails with an exception of the cause
    (:mod:`airflow_provider_dispatch.exceptions`), for use in a ``retry_policy``. A retry goes on with a job that is
    alive and has the same spec; clearing the task starts a new submission once the old one is proved gone.

    Returns ``{"job", "submission", "epoch", "executions", "result"}``, and ``"cause"`` where there is one. Everything
    but the connection's, the gate's and Airflow's own arguments is a template.

    :param command: words of the command; no shell reads them.
    :param num_nodes: ranks, one a node.
    :param resources_per_node: quantities as in Kubernetes, for instance ``{"cpu": "500m", "memory": "1Gi"}``.
    :param env: variables and their values, which the task's rendered fields show.
    :param secrets: variables and where their values stand, as ``name/key``; never the values themselves.
    :param runtime: training runtime by name; None means the connection's.
    :param roles: instead of the above, roles with a command, nodes and resources each, and their order.
    :param success_roles: roles whose ranks must all exit 0; None means all.
    :param leading_role: whose rank 0 speaks for the job; None means the first.
    :param readiness: how to see that a rank can serve others: ``{"command": [...]}`` or ``{"tcp_port": 29500}``.
    :param queue: of the job, not of the task's worker; None means the connection's.
    :param priority: number or name; None means the connection's.
    :param grace_period: between TERM and KILL; a timedelta or seconds, as are all lengths of time here.
    :param max_restarts: restarts inside a submission after a non-zero exit.
    :param max_preemptions: preemptions after which the job fails; None means any number.
    :param working_dir: of the processes, where the backend shares this machine's files; None means the DAG file's.
    :param gate_timeout: how long the gate may stay closed; None, as for every clock, means without limit.
    :param queue_timeout: how long it may be queued, all executions together.
    :param startup_timeout: how long ranks may take to be ready.
    :param run_timeout: how long it may run; held and queued time don't count.
    :param hold_timeout: how long it may be held.
    :param on_timeout: what becomes of the job when a clock or the ``execution_timeout`` runs out: ``stop``, ``hold``
        or ``leave``. The task fails in any case.
    :param on_unfittable: ``fail``, or ``wait`` for a queue that can never hold the job to grow.
    :param recovery: a RecoveryPolicy or a list of its rules as mappings; None means to resubmit after a lost or
        pressed node, ``[]`` never.
    :param open_gate: False leaves opening to a :class:`.gate.DispatchOpenGateOperator`.
    :param stream_ranks: ranks, or pairs of role and rank, whose output goes into the task log.
    :param cancel_on_kill: stop the job when the task is cleared, failed or marked otherwise by a person.
    :param worker_queue: Airflow's own queue of the task, which elsewhere is called ``queue``; ``default_args`` that
        name a ``queue`` mean the job's here.

    Does not cost an Airflow retry for what the recovery policy mends, and does not stop a job that another try has
    taken over. Arguments edited while the task is deferred count from the next submission on.
    """

    supervision: Mapping[str, object]
    stream_ranks: object
    template_fields: Sequence[str] = ("dispatch_conn_id", "spec", "supervision", "stream_ranks")
    template_fields_renderers: ClassVar[dict[str, str]] = {"spec": "json"}
    ui_color = "#dcebf7"

    def __init__(  # noqa: PLR0913 - whatever a job may vary in is an argument
        self,
        *,
        command: Sequence[str] | str | XComArg | None = None,
        num_nodes: int | str | XComArg | None = None,
        resources_per_node: Mapping[str, str | int | float] | XComArg | None = None,
        image: str | XComArg | None = None,
        env: Mapping[str, str] | XComArg | None = None,
        secrets: Mapping[str, str] | XComArg | None = None,
        runtime: str | XComArg | None = None,
        roles: Sequence[Mapping[str, object]] | XComArg | None = None,
        success_roles: Sequence[str] | XComArg | None = None,
        leading_role: str | XComArg | None = None,
        readiness: Mapping[str, object] | XComArg | None = None,
        queue: str | XComArg | None = None,
        priority: str | int | XComArg | None = None,
        labels: Mapping[str, str] | XComArg | None = None,
        grace_period: timedelta | float | str | XComArg | None = None,
        max_restarts: int | str | XComArg | None = None,
        max_preemptions: int | str | XComArg | None = None,
        working_dir: str | XComArg | None = None,
        gate_timeout: timedelta | float | str | XComArg | None = None,
        queue_timeout: timedelta | float | str | XComArg | None = None,
        startup_timeout: timedelta | float | str | XComArg | None = None,
        run_timeout: timedelta | float | str | XComArg | None = None,
        hold_timeout: timedelta | float | str | XComArg | None = None,
        on_timeout: str | XComArg | None = None,
        on_unfittable: str | XComArg | None = None,
        recovery: object = None,
        open_gate: bool = True,
        stream_ranks: object = LEADING_RANK,
        dispatch_conn_id: str = DEFAULT_CONNECTION_ID,
        deferrable: bool = True,
        cancel_on_kill: bool = True,
        worker_queue: str | None = None,
        **kwargs: Any,
    ) -> None:
        given = locals()
        given["queue"], airflow_queue = split_queues(queue, worker_queue)
        super().__init__(**airflow_queue, **kwargs)
        spec = arguments.pick_given(given, arguments.SPEC_ARGUMENTS)
        supervision = arguments.pick_given(given, arguments.SUPERVISION_ARGUMENTS)
        self._keep(spec=spec, supervision=supervision, **{name: given[name] for name in KEPT_AS_GIVEN})
        arguments.check_spec(spec)
        if supervision:
            arguments.check_supervision(supervision)
        if stream_ranks is not LEADING_RANK and arguments.is_literal(stream_ranks):
            arguments.read_ranks(stream_ranks)

    def execute(self, context: Context) -> dict[str, object]:
        """Start the job, or go on with a former try's, and wait for it."""
        leg = self._begin(context)
        claim = submission.Claim(leg.owner, self._build_spec(leg), leg.cleared_try)
        supervision = arguments.build_supervision(self.supervision)

        async def work(adapter: DispatchAdapter) -> Kept:
            keeping = self._build_keeper(adapter, leg)
            await keeping.begin(claim, supervision)
            return await keeping.keep()

        return self._conclude(leg, self._call(leg.settings, work))

    def resume(self, context: Context, event: Mapping[str, object] | None = None) -> dict[str, object]:
        """Look at the job with fresh eyes: the event says only that it is worth it."""
        leg = self._begin(context, is_resumed=True)
        reason = (event or {}).get("reason")
        if reason:
            self.log.info("Woken: %s", reason)

        async def work(adapter: DispatchAdapter) -> Kept:
            return await self._build_keeper(adapter, leg).keep()

        kept = self._call(leg.settings, work)
        self._tell_of_edits(leg, kept)
        return self._conclude(leg, kept)

    def _conclude(self, leg: Leg, kept: Kept) -> dict[str, object]:
        if kept.result is not None:
            return kept.result
        trigger = triggers.DispatchJobFinishedTrigger(
            dispatch_conn_id=self.dispatch_conn_id,
            job=kept.record.ref.job,
            submission=kept.record.ref.submission,
            owner_instance=leg.owner.instance_id,
            stream_ranks=[list(rank) for rank in arguments.read_ranks(self.stream_ranks)],
            cancel_on_kill=self.cancel_on_kill,
            **legs.build_trigger_times(leg),
        )
        return self._defer_until(trigger, leg)

    def _build_keeper(self, adapter: DispatchAdapter, leg: Leg) -> keeper.Keeper:
        return keeper.Keeper(
            adapter,
            legs.derive_own_job(leg),
            leg,
            open_gate=self.open_gate,
            ranks=arguments.read_ranks(self.stream_ranks),
        )

    def _tell_of_edits(self, leg: Leg, kept: Kept) -> None:
        """The job goes on as it was started, whatever the DAG file says by now."""
        if not submission.has_equal_spec(kept.record, self._build_spec(leg)):
            self.log.warning("The task's arguments were edited since; they count from the next submission on")

    def _get_on_timeout(self) -> str:
        return str(self.supervision.get("on_timeout", "stop"))


class DispatchStartJobOperator(_JobOperator):
    """Starts a job and returns its reference with the gate closed, for other tasks to open, hold, watch and stop.

    A retry finds the job that a former try started; clearing the task starts a new submission once the old one is
    proved gone. Returns the :class:`airflow_provider_dispatch.core.job_ref.JobRef` as a dict.

    :param open_gate: open the gate as well.

    The other arguments are those of :class:`DispatchTrainJobOperator`.

    Stops the job only when a person ends the task while that starts it. Does not wait for the job, limit its time or
    submit it again: nobody does unless another task is told to.
    """

    template_fields: Sequence[str] = ("dispatch_conn_id", "spec")
    template_fields_renderers: ClassVar[dict[str, str]] = {"spec": "json"}
    ui_color = "#dcebf7"

    def __init__(  # noqa: PLR0913 - whatever a job may vary in is an argument
        self,
        *,
        command: Sequence[str] | str | XComArg | None = None,
        num_nodes: int | str | XComArg | None = None,
        resources_per_node: Mapping[str, str | int | float] | XComArg | None = None,
        image: str | XComArg | None = None,
        env: Mapping[str, str] | XComArg | None = None,
        secrets: Mapping[str, str] | XComArg | None = None,
        runtime: str | XComArg | None = None,
        roles: Sequence[Mapping[str, object]] | XComArg | None = None,
        success_roles: Sequence[str] | XComArg | None = None,
        leading_role: str | XComArg | None = None,
        readiness: Mapping[str, object] | XComArg | None = None,
        queue: str | XComArg | None = None,
        priority: str | int | XComArg | None = None,
        labels: Mapping[str, str] | XComArg | None = None,
        grace_period: timedelta | float | str | XComArg | None = None,
        max_restarts: int | str | XComArg | None = None,
        max_preemptions: int | str | XComArg | None = None,
        working_dir: str | XComArg | None = None,
        open_gate: bool = False,
        dispatch_conn_id: str = DEFAULT_CONNECTION_ID,
        cancel_on_kill: bool = True,
        worker_queue: str | None = None,
        **kwargs: Any,
    ) -> None:
        given = locals()
        given["queue"], airflow_queue = split_queues(queue, worker_queue)
        super().__init__(**airflow_queue, **kwargs)
        spec = arguments.pick_given(given, arguments.SPEC_ARGUMENTS)
        self._keep(
            dispatch_conn_id=dispatch_conn_id,
            spec=spec,
            open_gate=open_gate,
            cancel_on_kill=cancel_on_kill,
            deferrable=False,
        )
        arguments.check_spec(spec)

    def execute(self, context: Context) -> dict[str, object]:
        """Start the job, or find a former try's."""
        leg = self._begin(context)
        claim = submission.Claim(leg.owner, self._build_spec(leg), leg.cleared_try)
        supervision = arguments.build_supervision({"recovery": []})

        async def work(adapter: DispatchAdapter) -> dict[str, object]:
            keeping = keeper.Keeper(adapter, legs.derive_own_job(leg), leg, open_gate=self.open_gate)
            record = await keeping.begin(claim, supervision)
            await keeping.ensure_open(record)
            return wire.dump(record.ref)

        return self._call(leg.settings, work)
