# SPDX-License-Identifier: Apache-2.0
"""What all sensors of the provider share: naming a job, poking, waiting deferred, and failing at once when hopeless.

A concrete sensor declares its judge and its trigger; poke, reschedule and deferrable mode ask the same judge. Sensors
read and never write: they own no job.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, ClassVar, NoReturn

from airflow.sdk import BaseSensorOperator

from airflow_provider_dispatch.exceptions import (
    DispatchError,
    JobFailedError,
    JobNotFoundError,
    SpecError,
    UnavailableError,
)
from airflow_provider_dispatch.hooks import naming
from airflow_provider_dispatch.hooks.deferred_import import deferred
from airflow_provider_dispatch.hooks.dispatch import DEFAULT_CONNECTION_ID, DispatchHook, run_with_adapter
from airflow_provider_dispatch.hooks.plain_values import are_plain
from airflow_provider_dispatch.triggers import legs
from airflow_provider_dispatch.version_compat import (
    AirflowSensorTimeout,
    AirflowSkipException,
    AirflowTaskTimeout,
    conf,
)

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_dispatch.adapters.protocol import DispatchAdapter
    from airflow_provider_dispatch.core import diagnosis, goals, observation, wire
    from airflow_provider_dispatch.core.identity import JobID
    from airflow_provider_dispatch.core.job_ref import JobRef
    from airflow_provider_dispatch.core.observation import Observation
    from airflow_provider_dispatch.triggers import starter, waiting
    from airflow_provider_dispatch.triggers.base import DispatchJobTrigger
    from airflow_provider_dispatch.triggers.judging import Judge
else:
    diagnosis = deferred("airflow_provider_dispatch.core.diagnosis")
    goals = deferred("airflow_provider_dispatch.core.goals")
    observation = deferred("airflow_provider_dispatch.core.observation")
    wire = deferred("airflow_provider_dispatch.core.wire")
    starter = deferred("airflow_provider_dispatch.triggers.starter")
    waiting = deferred("airflow_provider_dispatch.triggers.waiting")

UNKNOWN_JOBS = ("wait", "fail")
KEPT_AS_GIVEN = (
    "job_task_id",
    "job_map_index",
    "job_ref",
    "job_id",
    "if_unknown",
    "dispatch_conn_id",
    "deferrable",
)


@functools.cache
def _read_timeout() -> float:
    """Airflow's default for sensors, looked up once in a process instead of for every sensor of a DAG file."""
    return conf.getfloat("sensors", "default_timeout")


class DispatchJobBaseSensor(BaseSensorOperator):
    """Waits for something about one job of another task.

    :param job_task_id: full id of the task of this DAG run that owns the job (templated).
    :param job_map_index: of that task when it is mapped; None means the own index inside the same mapped group
        (templated).
    :param job_ref: a job reference, for instance from XCom (templated).
    :param job_id: the job's own id (templated). Exactly one of the three names must be given.
    :param until: what to wait for; see the sensor itself.
    :param if_unknown: ``wait`` for a job that nobody has started yet, or ``fail``. Waiting ends when the task of
        *job_task_id* has ended without starting one.
    :param dispatch_conn_id: connection (templated).
    :param deferrable: wait in the triggerer. What is true within a few seconds is still seen in the worker.

    :raises SpecError: a wrong argument. In reschedule mode an interval below 10 s is one: the scheduler can fail a task
        that comes back sooner.
    """

    choices: ClassVar[tuple[str, ...]]
    until: Collection[str] | str | None
    default_until: ClassVar[str | None] = None
    job_task_id: str | None
    job_map_index: int | str | None
    job_ref: object
    job_id: str | None
    if_unknown: str
    dispatch_conn_id: str
    deferrable: bool
    template_fields: Sequence[str] = ("job_task_id", "job_map_index", "job_ref", "job_id", "dispatch_conn_id")
    ui_color = "#d7e8f2"
    wait_in_worker: ClassVar[timedelta] = legs.WAIT_IN_WORKER

    def __init__(  # noqa: PLR0913 - the ways to name a job, each an argument
        self,
        *,
        until: Collection[str] | str | None = None,
        job_task_id: str | None = None,
        job_map_index: int | str | None = None,
        job_ref: object = None,
        job_id: str | None = None,
        if_unknown: str = "wait",
        dispatch_conn_id: str = DEFAULT_CONNECTION_ID,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        timeout: timedelta | float | None = None,
        **kwargs: object,
    ) -> None:
        given = locals()
        super().__init__(timeout=_read_timeout() if timeout is None else timeout, **kwargs)  # type: ignore[arg-type]  # the arguments of Airflow's own class
        vars(self).update({name: given[name] for name in KEPT_AS_GIVEN})
        self.until = self.default_until if until is None else until
        self._check_until()
        self._build_target()
        if if_unknown not in UNKNOWN_JOBS:
            raise SpecError("if_unknown", f"must be one of {', '.join(UNKNOWN_JOBS)}", if_unknown)
        if self.mode == "reschedule" and not deferrable:
            self._check_interval()

    def _set_xcomargs_dependencies(self) -> None:
        # As in the operators: Airflow's own search, made only where it can find something.
        if not are_plain(getattr(self, name, None) for name in self.template_fields):
            super()._set_xcomargs_dependencies()

    @abstractmethod
    def _check_until(self) -> None:
        """Refuse a wrong value of ``until``.

        :raises SpecError: it is wrong.
        """

    @abstractmethod
    def build_judge(self, submission: int | None) -> Judge:
        """What the sensor waits for."""

    @abstractmethod
    def build_trigger(self, arguments: Mapping[str, object]) -> DispatchJobTrigger:
        """The trigger that waits for the same.

        :param arguments: those that all triggers have.
        """

    def execute(self, context: Context) -> None:
        """Wait in the worker, or for a moment there and then in the triggerer."""
        if not self.deferrable:
            try:
                super().execute(context)
            except JobFailedError as error:
                self._fail(error)
            return
        named = self._resolve(context)
        outcome = self._look(named)
        if outcome.verdict == "timeout":
            self._defer(context, named)
        self._conclude(outcome.verdict, outcome.reason, outcome.observation, context)

    def execute_complete(self, context: Context, event: Mapping[str, object]) -> None:
        """Conclude from the trigger's event."""
        seen = event.get("observation")
        last = wire.load(observation.Observation, seen) if seen is not None else None
        self._conclude(str(event["verdict"]), str(event["reason"]), last, context)

    def poke(self, context: Context) -> bool:
        """Look once."""
        named = self._resolve(context)
        hook, address = DispatchHook(self.dispatch_conn_id), naming.get_address(named)
        try:
            seen = hook.inspect(address)
        except UnavailableError as error:
            self.log.warning("no answer from the backend, trying again: %s", error)
            return False
        self._check_unknown(seen)
        if seen.is_unheard_of and self._has_lost_starter(context) and hook.inspect(address).is_unheard_of:
            raise JobFailedError("the task that should have started the job has ended without", observation=seen)
        assessment = self.build_judge(naming.get_submission(named))(seen, datetime.now(UTC))
        if assessment.verdict is goals.Verdict.FAIL:
            raise build_error(assessment.reason, seen)
        return assessment.verdict is goals.Verdict.DONE

    def _look(self, named: JobID | JobRef) -> waiting.Outcome:
        """Look, and wait for a moment if need be; a verdict of ``timeout`` means that it is worth deferring."""
        judge = self.build_judge(naming.get_submission(named))

        async def look(adapter: DispatchAdapter) -> waiting.Outcome:
            seen = await adapter.inspect(naming.get_address(named))
            self._check_unknown(seen)
            assessment = judge(seen, datetime.now(UTC))
            if assessment.verdict is not goals.Verdict.WAIT or not self.wait_in_worker:
                return waiting.build_outcome(assessment, seen)
            timing = waiting.Timing(deadline=datetime.now(UTC) + self.wait_in_worker)
            job = naming.get_job_id(named)
            return await waiting.wait_for_job(adapter, job, judge, narrator=self.log.info, timing=timing)

        try:
            return run_with_adapter(DispatchHook(self.dispatch_conn_id).build_adapter(), look)
        except UnavailableError as error:
            # Its trigger is more patient.
            return waiting.Outcome("timeout", f"no answer from the backend: {error}", None)

    def _defer(self, context: Context, named: JobID | JobRef) -> NoReturn:
        now, deadline = datetime.now(UTC), self._derive_deadline(context)
        arguments: dict[str, object] = {
            "dispatch_conn_id": self.dispatch_conn_id,
            "job": naming.get_job_id(named),
            "submission": naming.get_submission(named),
            "not_before": legs.build_not_before(now),
            "deadline": deadline.isoformat(),
            "starter": self._build_starter(context),
        }
        self.defer(
            trigger=self.build_trigger(arguments),
            method_name="execute_complete",
            timeout=max(deadline - now, timedelta(0)) + timedelta(seconds=60),
        )

    def _conclude(self, verdict: str, reason: str, seen: Observation | None, context: Context) -> None:
        if verdict == "done":
            self.log.info("That is what this sensor waited for.")
        elif verdict == "timeout":
            self._time_out(reason, context)
        else:
            self._fail(build_error(reason, seen))

    def _time_out(self, reason: str, context: Context) -> NoReturn:
        start = context["ti"].start_date
        if self.execution_timeout is not None and datetime.now(UTC) >= start + self.execution_timeout:
            raise AirflowTaskTimeout(f"execution_timeout: {reason}")
        if self.soft_fail or self.never_fail:
            raise AirflowSkipException(reason)
        raise AirflowSensorTimeout(reason)

    def _fail(self, error: DispatchError) -> NoReturn:
        if self.soft_fail or self.never_fail:
            raise AirflowSkipException(str(error)) from error
        raise error

    def _derive_deadline(self, context: Context) -> datetime:
        limits = [timedelta(seconds=self.timeout), *([self.execution_timeout] if self.execution_timeout else [])]
        return context["ti"].start_date + min(limits)

    def _check_unknown(self, seen: Observation) -> None:
        if seen.is_unheard_of and self.if_unknown == "fail":
            raise JobNotFoundError(f"nobody has started the job {seen.ref.job}")

    def _has_lost_starter(self, context: Context) -> bool:
        starts_it = self._build_starter(context)
        if starts_it is None:
            return False
        return starter.fetch_end(*starts_it) is not None

    def _build_starter(self, context: Context) -> tuple[str, str, str, int] | None:
        if self.job_task_id is None:
            return None
        ti = context["ti"]
        index = naming.parse_map_index(self.job_map_index)
        return ti.dag_id, ti.run_id, self.job_task_id, self._own_map_index(context) if index is None else int(index)

    def _build_target(self) -> naming.JobTarget:
        if self.job_map_index == "all":
            raise SpecError("job_map_index", "a sensor waits for one job; expand it to wait for several", "all")
        return naming.JobTarget(
            job_task_id=self.job_task_id, job_ref=self.job_ref, job_id=self.job_id, job_map_index=self.job_map_index
        )

    def _resolve(self, context: Context) -> JobID | JobRef:
        ti = context["ti"]
        return self._build_target().resolve(
            deployment=DispatchHook(self.dispatch_conn_id).settings().deployment,
            dag_id=ti.dag_id,
            run_id=ti.run_id,
            own_map_index=self._own_map_index(context),
        )

    def _own_map_index(self, context: Context) -> int:
        """What a map index of None means; nothing else asks for it."""
        if self.job_task_id is None or self.job_map_index is not None:
            return naming.NOT_MAPPED
        index = context["ti"].map_index
        return naming.derive_own_map_index(self, self.job_task_id, naming.NOT_MAPPED if index is None else index)

    def _check_interval(self) -> None:
        shortest = legs.SHORTEST_RESCHEDULE.total_seconds()
        needed = shortest * 2 if self.exponential_backoff else shortest
        if self.poke_interval < needed:
            backing_off = " with exponential_backoff, which begins with the half" if self.exponential_backoff else ""
            raise SpecError(
                "poke_interval", f"must be at least {needed:g} s in reschedule mode{backing_off}", self.poke_interval
            )
        if self.max_wait is not None and self.max_wait.total_seconds() < shortest:
            raise SpecError("max_wait", f"must be at least {shortest:g} s in reschedule mode", self.max_wait)


def build_error(reason: str, seen: Observation | None) -> DispatchError:
    """What to raise about a job that will never be what was waited for: the class of its cause, if it has one."""
    if seen is None:
        return DispatchError(reason)
    if not seen.is_over or seen.cause is None:
        return JobFailedError(f"job {seen.ref.id}: {reason}", observation=seen)
    found = diagnosis.diagnose(seen)
    kind = diagnosis.ERROR_OF_CAUSE[found.cause]
    return kind(f"{reason}\n{found.to_text()}", observation=seen, diagnosis=found)
