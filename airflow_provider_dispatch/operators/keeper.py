# SPDX-License-Identifier: Apache-2.0
"""The worker's side of looking after a job: get a submission of one's own, wait, decide, act, report.

The same code serves a deferred task, which waits a few seconds here and the rest in a trigger, and one that waits in
its worker. What to do is decided by :func:`airflow_provider_dispatch.core.decision.decide`; here it is carried out.
Before it writes, the keeper makes sure that the job is still its own: a killed worker's process may live on beside the
next try.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Never, TypeVar, assert_never

from airflow_provider_dispatch.core.decision import Action, Decision, Supervision, decide
from airflow_provider_dispatch.core.diagnosis import build_error, diagnose
from airflow_provider_dispatch.core.holds import Actor, ActorKind, HoldRequest
from airflow_provider_dispatch.core.identity import JobID, next_submission
from airflow_provider_dispatch.core.records import StartRequest
from airflow_provider_dispatch.core.recovery import Recovery, scale_resources
from airflow_provider_dispatch.exceptions import ConflictError, JobNotFoundError, UnavailableError
from airflow_provider_dispatch.operators.submission import Claim, Plan, Step, decide_submission, is_made_held
from airflow_provider_dispatch.triggers.judging import build_end_judge
from airflow_provider_dispatch.triggers.streaming import OutputPrinter
from airflow_provider_dispatch.triggers.waiting import Timing, wait_for_job

if TYPE_CHECKING:
    from airflow_provider_dispatch.adapters.protocol import DispatchAdapter
    from airflow_provider_dispatch.core.observation import Observation
    from airflow_provider_dispatch.core.owner import Owner
    from airflow_provider_dispatch.core.records import SubmissionRecord
    from airflow_provider_dispatch.operators.leg import Leg

T = TypeVar("T")

MOST_STEPS = 8
MOST_FAILURES = 3


class OwnedByAnotherTryError(ConflictError):
    """A later try of the task looks after the job; this one must leave it alone."""


@dataclass(frozen=True, slots=True)
class Kept:
    """How a leg of keeping ended.

    :param result: of a job that succeeded; None while it goes on.
    """

    record: SubmissionRecord
    result: dict[str, object] | None = None


class Keeper:
    """Looks after one job for one leg.

    :param open_gate: open the gate of the first submission; those that recovery makes are opened in any case.
    :param ranks: whose output goes into the task log.
    """

    def __init__(
        self,
        adapter: DispatchAdapter,
        job: JobID,
        leg: Leg,
        *,
        open_gate: bool = True,
        ranks: Sequence[tuple[str | None, int]] = (),
    ) -> None:
        self._adapter, self._job, self._leg = adapter, job, leg
        self._open_gate, self._ranks = open_gate, ranks

    async def begin(self, claim: Claim, supervision: Supervision) -> SubmissionRecord:
        """Find the submission of this try, take over a former try's, or start a new one.

        Each step is idempotent and looked at afresh, so a lost answer and a second process do no harm.

        :raises ConflictError: a later try looks after the job, or the former submission can't be proved gone.
        """
        failures = 0
        for _ in range(MOST_STEPS):
            try:
                record = await self._adapter.find(self._job)
                plan = decide_submission(record, await self._inspect(record.newest), claim)
                if plan.step is not Step.KEEP:
                    await self._take_step(plan, record.newest, claim, supervision)
            except (UnavailableError, ConflictError) as error:
                failures += 1
                if failures >= MOST_FAILURES or isinstance(error, OwnedByAnotherTryError):
                    raise
                await self._leg.sleeper(float(failures))
            else:
                if plan.step is Step.KEEP and record.newest is not None:
                    return record.newest
        raise ConflictError(f"job {self._job} keeps changing hands: {MOST_STEPS} steps led nowhere")

    async def keep(self) -> Kept:
        """Wait for the job as long as this leg may, and do what is to be done about it.

        :raises JobFailedError: the job has ended other than well, or was given up.
        :raises ConflictError: another try looks after the job.
        """
        while True:
            record = await self._fetch_own()
            await self.ensure_open(record)
            supervision = replace(record.supervision, deadline=self._leg.deadline)
            await self._wait(record, supervision)
            observation = await self._look(record)
            decision = decide(observation, supervision, self._leg.clock())
            kept = await self._act(record, observation, decision)
            if kept is not None:
                return kept

    # -- getting a submission ----------------------------------------------------------------------------------------

    async def _inspect(self, record: SubmissionRecord | None) -> Observation | None:
        return None if record is None else await self._adapter.inspect(record.ref)

    async def _take_step(
        self, plan: Plan, newest: SubmissionRecord | None, claim: Claim, supervision: Supervision
    ) -> None:
        match plan.step:
            case Step.START:
                self._leg.narrator(f"Starting submission {plan.submission} of job {self._job}: {plan.reason}")
                await self._start(plan.submission, claim, supervision)
            case Step.ADOPT if newest is not None:
                self._leg.narrator(f"Going on with submission {newest.ref.submission}: {plan.reason}")
                await self._adapter.adopt(
                    newest.ref, claim.owner, expected=newest.owner, deadline=self._leg.call_deadline()
                )
            case Step.REPLACE if newest is not None:
                self._leg.narrator(f"Stopping submission {newest.ref.submission} first: {plan.reason}")
                await self._ensure_gone(newest, plan.reason)
            case _:
                raise self._not_ours(plan.reason)

    async def _start(self, submission: int, claim: Claim, supervision: Supervision) -> None:
        request = StartRequest(
            self._job,
            submission,
            attempt=claim.owner.try_number,
            spec=claim.spec,
            owner=claim.owner,
            supervision=supervision,
        )
        await self._adapter.start(request, deadline=self._leg.call_deadline())

    async def _ensure_gone(self, record: SubmissionRecord, reason: str) -> None:
        deadline = self._leg.call_deadline(record.spec.grace_period)
        report = await self._adapter.stop(self._job, reason=reason, deadline=deadline, if_owner=record.owner)
        if not report.is_complete:
            left = ", ".join(found.object for found in (*report.alive, *report.unproven))
            raise ConflictError(f"submission {record.ref.submission} of job {self._job} is not proved gone: {left}")

    # -- waiting and acting ------------------------------------------------------------------------------------------

    async def _fetch_own(self) -> SubmissionRecord:
        newest = (await self._persist(lambda: self._adapter.find(self._job))).newest
        if newest is None:
            await self._report_gone()
        if not newest.owner.is_same_caller(self._leg.owner):
            raise self._not_ours(f"try {newest.owner.try_number} does")
        return newest

    async def _report_gone(self) -> Never:
        observation = await self._persist(lambda: self._adapter.inspect(self._job))
        if observation.is_over:
            raise build_error(observation, diagnose(observation))
        raise JobNotFoundError(f"nothing is known of job {self._job} here; was it started on another machine?")

    async def ensure_open(self, record: SubmissionRecord) -> None:
        """Open the gate of a submission, behind a hold where its recovery rule wants one."""
        is_wanted = self._open_gate or bool(record.supervision.used_rules)
        observation = await self._look(record)
        if not is_wanted or observation.gates.is_open or observation.is_over:
            return
        if is_made_held(record):
            await self._hold(
                record,
                "recovery",
                f"its recovery policy wants a person to look at submission {record.ref.submission} first",
            )
        await self._persist(lambda: self._write_open(record))

    async def _look(self, record: SubmissionRecord) -> Observation:
        return await self._persist(lambda: self._adapter.inspect(record.ref))

    async def _write_open(self, record: SubmissionRecord) -> None:
        await self._fetch_own()
        await self._adapter.open(record.ref, deadline=self._leg.call_deadline())

    async def _hold(self, record: SubmissionRecord, purpose: str, reason: str) -> None:
        request = build_own_hold(self._leg.owner, purpose, reason)
        await self._fetch_own()
        await self._persist(lambda: self._adapter.hold(record.ref, request, deadline=self._leg.call_deadline()))

    async def _wait(self, record: SubmissionRecord, supervision: Supervision) -> None:
        leg = self._leg
        await wait_for_job(
            self._adapter,
            self._job,
            build_end_judge(supervision, submission=record.ref.submission),
            timing=Timing(deadline=leg.patience_end, clock=leg.clock, sleeper=leg.sleeper),
            narrator=leg.narrator,
            output=self._build_printer(),
        )

    def _build_printer(self) -> OutputPrinter | None:
        if not self._ranks:
            return None
        leg = self._leg
        return OutputPrinter(self._adapter, self._ranks, write=leg.narrator, cursors=leg.cursors, sleeper=leg.sleeper)

    async def _act(self, record: SubmissionRecord, observation: Observation, decision: Decision) -> Kept | None:
        """Carry out a decision; None means look again."""
        match decision.action:
            case Action.WAIT:
                return None if self._leg.patience is None else Kept(record)
            case Action.SUCCEED:
                return Kept(record, build_result(observation))
            case Action.FAIL | Action.LEAVE:
                pass
            case Action.STOP:
                await self._give_up(record, decision.reason)
            case Action.HOLD:
                await self._hold(record, "timeout", decision.reason)
            case Action.RESUBMIT | Action.RESUBMIT_HELD:
                await self._resubmit(record, observation, decision)
                return None
            case _:
                assert_never(decision.action)
        raise _build_failure(observation, decision)

    async def _give_up(self, record: SubmissionRecord, reason: str) -> None:
        grace, owner = record.spec.grace_period, self._leg.owner
        self._leg.narrator(f"Stopping the job: {reason}")
        report = await self._persist(
            lambda: self._adapter.stop(
                self._job, reason=reason, deadline=self._leg.call_deadline(grace), if_owner=owner
            )
        )
        if not report.is_complete:
            left = ", ".join(found.object for found in (*report.alive, *report.unproven))
            self._leg.narrator(f"The stop was asked for and goes on; not proved gone yet: {left}")

    # -- recovery ----------------------------------------------------------------------------------------------------

    async def _resubmit(self, record: SubmissionRecord, observation: Observation, decision: Decision) -> None:
        leg, rule = self._leg, decision.rule
        if rule is None or (leg.deadline is not None and leg.clock() >= leg.deadline):
            raise _build_failure(observation, decision)
        await self._fetch_own()
        step = record.supervision.policy.rules[rule]
        request = StartRequest(
            self._job,
            next_submission(record.ref.submission),
            attempt=leg.owner.try_number,
            spec=scale_resources(record.spec, step.scale),
            owner=leg.owner,
            supervision=record.supervision.after_rule(rule),
            not_before=leg.clock() + decision.back_off,
        )
        held = ", held until a person releases it" if step.action is Recovery.HOLD else ""
        leg.narrator(
            f"Submission {record.ref.submission} ended: {decision.cause}: {decision.reason}. "
            f"The recovery policy makes submission {request.submission}{held}"
        )
        # Asking again after a lost answer finds what was made.
        await self._persist(lambda: self._adapter.start(request, deadline=leg.call_deadline()))

    # ----------------------------------------------------------------------------------------------------------------

    async def _persist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make an idempotent call again when its backend is away for a moment."""
        return await persist(call, self._leg.sleeper)

    def _not_ours(self, who: str) -> OwnedByAnotherTryError:
        return OwnedByAnotherTryError(f"this try doesn't look after job {self._job} any more: {who}")


async def persist(call: Callable[[], Awaitable[T]], sleeper: Callable[[float], Awaitable[None]]) -> T:
    """Make an idempotent call, and again when its backend is away for a moment.

    :raises UnavailableError: it is away for longer.
    """
    for pause in range(1, MOST_FAILURES):
        try:
            return await call()
        except UnavailableError:
            await sleeper(float(pause))
    return await call()


def build_hold_key(owner: Owner) -> str:
    """Key of the hold that a task instance places: a retry means the same hold."""
    return f"{build_run_key(owner.dag_id, owner.run_id)}{owner.task_id}/{owner.map_index}"


def build_run_key(dag_id: str, run_id: str) -> str:
    """What the keys of all holds placed by tasks of a DAG run begin with."""
    return f"{dag_id}/{run_id}/"


def build_own_hold(owner: Owner, purpose: str, reason: str) -> HoldRequest:
    """A hold that a task places on its own job. Its key begins otherwise than those that a DAG run releases."""
    actor = Actor(ActorKind.POLICY, f"{owner.dag_id}/{owner.task_id}")
    return HoldRequest(f"{purpose}/{build_hold_key(owner)}", actor, reason)


def build_result(observation: Observation) -> dict[str, object]:
    """What the task hands on: plain JSON."""
    execution = observation.execution
    result: dict[str, object] = {
        "job": observation.ref.job,
        "submission": observation.ref.submission,
        "epoch": execution.epoch if execution is not None else None,
        "executions": observation.executions,
        "result": observation.result,
    }
    return result if observation.cause is None else result | {"cause": observation.cause.value}


def _build_failure(observation: Observation, decision: Decision) -> Exception:
    return build_error(observation, diagnose(observation, decision.cause, decision.reason))
