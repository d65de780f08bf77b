# SPDX-License-Identifier: Apache-2.0
"""The triggers: wait for a job to run, to be held, to end, or for whatever point in its life a sensor names.

Operators and sensors defer to them. Their class paths and arguments are stored in rows of Airflow's database, so they
are public for ever: arguments are only added, with a default.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from airflow_provider_dispatch.hooks.deferred_import import deferred
from airflow_provider_dispatch.triggers.base import DispatchJobTrigger

if TYPE_CHECKING:
    from airflow_provider_dispatch.adapters.protocol import DispatchAdapter
    from airflow_provider_dispatch.core import goals, state
    from airflow_provider_dispatch.triggers import judging, killing, running
    from airflow_provider_dispatch.triggers.judging import Judge
    from airflow_provider_dispatch.triggers.waiting import Output
else:
    goals = deferred("airflow_provider_dispatch.core.goals")
    state = deferred("airflow_provider_dispatch.core.state")
    judging = deferred("airflow_provider_dispatch.triggers.judging")
    killing = deferred("airflow_provider_dispatch.triggers.killing")
    running = deferred("airflow_provider_dispatch.triggers.running")


class DispatchJobGoalTrigger(DispatchJobTrigger):
    """Waits for a point in a job's life.

    :param goal: a value of :class:`airflow_provider_dispatch.core.goals.Goal`.

    For the other arguments and the event see :class:`DispatchJobTrigger`. Does not stop a job when its task is killed:
    the task does not own it.
    """

    serialized_fields: ClassVar = (*DispatchJobTrigger.serialized_fields, "goal")

    def __init__(
        self,
        *,
        goal: str,
        dispatch_conn_id: str,
        job: str,
        submission: int | None = None,
        not_before: str | None = None,
        deadline: str | None = None,
        starter: Sequence[str | int] | None = None,
    ) -> None:
        super().__init__(
            dispatch_conn_id=dispatch_conn_id,
            job=job,
            submission=submission,
            not_before=not_before,
            deadline=deadline,
            starter=starter,
        )
        self.goal = goal

    async def build_judge(self, adapter: DispatchAdapter) -> Judge:
        """The goal decides."""
        del adapter
        return judging.build_goal_judge(goals.Goal(self.goal), submission=self.submission)


class DispatchJobStatesTrigger(DispatchJobTrigger):
    """Waits until a job is in one of some states.

    :param states: values of :class:`airflow_provider_dispatch.core.state.State`.

    For the other arguments and the event see :class:`DispatchJobTrigger`. Does not stop a job when its task is killed.
    """

    serialized_fields: ClassVar = (*DispatchJobTrigger.serialized_fields, "states")

    def __init__(
        self,
        *,
        states: Sequence[str],
        dispatch_conn_id: str,
        job: str,
        submission: int | None = None,
        not_before: str | None = None,
        deadline: str | None = None,
        starter: Sequence[str | int] | None = None,
    ) -> None:
        super().__init__(
            dispatch_conn_id=dispatch_conn_id,
            job=job,
            submission=submission,
            not_before=not_before,
            deadline=deadline,
            starter=starter,
        )
        self.states = list(states)

    async def build_judge(self, adapter: DispatchAdapter) -> Judge:
        """The states decide."""
        del adapter
        wanted = frozenset(state.State(name) for name in self.states)
        return judging.build_states_judge(wanted, submission=self.submission)


class DispatchJobRunningTrigger(DispatchJobTrigger):
    """Waits until a job is admitted and all its ranks run.

    For the arguments and the event see :class:`DispatchJobTrigger`. Does not stop a job when its task is killed.
    """

    async def build_judge(self, adapter: DispatchAdapter) -> Judge:
        """Running decides."""
        del adapter
        return judging.build_goal_judge(goals.Goal.RUNNING, submission=self.submission)


class DispatchJobHeldTrigger(DispatchJobTrigger):
    """Waits until a job is held: its processes are gone and its room is free.

    For the arguments and the event see :class:`DispatchJobTrigger`. Does not stop a job when its task is killed.
    """

    async def build_judge(self, adapter: DispatchAdapter) -> Judge:
        """Held decides."""
        del adapter
        return judging.build_goal_judge(goals.Goal.HELD, submission=self.submission)


class DispatchJobFinishedTrigger(DispatchJobTrigger):
    """Waits until there is something to decide about a job that its task owns: its end, or a clock that ran out.

    The supervision stored with the submission decides, as it does in the worker, which decides again.

    :param owner_instance: id of the task instance that owns the job; empty means the one that deferred.
    :param stream_ranks: role and rank whose output goes into the task log; a role of None means the leading one.
    :param cancel_on_kill: stop the job when somebody clears, fails or succeeds the task while it is deferred.

    For the other arguments and the event see :class:`DispatchJobTrigger`. Does not stop a job that another try owns.
    """

    serialized_fields: ClassVar = (
        *DispatchJobTrigger.serialized_fields,
        "owner_instance",
        "stream_ranks",
        "cancel_on_kill",
    )

    def __init__(  # noqa: PLR0913 - a trigger's arguments are its stored form, one by one
        self,
        *,
        dispatch_conn_id: str,
        job: str,
        submission: int | None = None,
        owner_instance: str = "",
        not_before: str | None = None,
        deadline: str | None = None,
        starter: Sequence[str | int] | None = None,
        stream_ranks: Sequence[Sequence[str | int | None]] = (),
        cancel_on_kill: bool = True,
    ) -> None:
        super().__init__(
            dispatch_conn_id=dispatch_conn_id,
            job=job,
            submission=submission,
            not_before=not_before,
            deadline=deadline,
            starter=starter,
        )
        self.owner_instance = owner_instance
        self.stream_ranks = [list(pair) for pair in stream_ranks]
        self.cancel_on_kill = cancel_on_kill

    async def build_judge(self, adapter: DispatchAdapter) -> Judge:
        """The supervision of the submission decides."""
        return await running.build_supervised_judge(self, adapter)

    def build_output(self, adapter: DispatchAdapter) -> Output | None:
        """The ranks asked for."""
        return running.build_printer(self, adapter, self.stream_ranks) if self.stream_ranks else None

    async def on_kill(self) -> None:
        """Stop the job, if this task instance still owns it. Airflow cancels this about every second: it goes on."""
        if self.cancel_on_kill:
            await killing.stop_owned_job(self, self.owner_instance)
