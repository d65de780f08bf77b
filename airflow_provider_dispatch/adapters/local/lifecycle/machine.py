# SPDX-License-Identifier: Apache-2.0
"""All submissions of a store on one machine: inputs in, durable changes and effects out. No I/O, no clock.

The agent and the in-memory fake each own one and serve it from one thread. Its caller makes an outcome's statuses
durable before it carries out the first effect; so A is on disk before a process exists.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import assert_never

from airflow_provider_dispatch.adapters.local.lifecycle import messages, transitions
from airflow_provider_dispatch.adapters.local.lifecycle.derive import derive_submission_state
from airflow_provider_dispatch.adapters.local.lifecycle.messages import Effect, Input, Note, Outcome
from airflow_provider_dispatch.adapters.local.lifecycle.queueing import (
    Job,
    NodeConfig,
    build_placement,
    build_shapes,
    build_state,
    derive_postponements,
    derive_waiting_changes,
)
from airflow_provider_dispatch.adapters.local.lifecycle.status import Ending, Key, Status, Submission
from airflow_provider_dispatch.adapters.local.lifecycle.turn import Turn
from airflow_provider_dispatch.adapters.local.scheduling.admission import decide_admission
from airflow_provider_dispatch.adapters.local.scheduling.model import Plan, Reservation, Shape
from airflow_provider_dispatch.adapters.local.scheduling.waiting_line import positions
from airflow_provider_dispatch.core.holds import lift_expired, next_expiry
from airflow_provider_dispatch.core.observation import Pending
from airflow_provider_dispatch.core.state import Cause


class Machine:
    """The jobs of one store and the room they share.

    :param generation: of the agent; written into every status it changes.
    """

    def __init__(self, config: NodeConfig, *, generation: int) -> None:
        self._config = config
        self._generation = generation
        self._jobs: dict[Key, Job] = {}
        self._reservations: tuple[Reservation, ...] = ()
        self._shapes: dict[str, tuple[Shape, ...]] = {}
        self._wake_at: datetime | None = None
        self._now = datetime.min.replace(tzinfo=UTC)

    def load(self, stored: Iterable[tuple[Submission, Status]]) -> None:
        """Take over what an earlier agent left. Its executions stand until they are told gone or lost."""
        for submission, status in stored:
            shapes = self._build_shapes(submission)
            placement = build_placement(shapes, self._config.node.name) if status.execution is not None else ()
            self._jobs[submission.key] = Job(submission, status, shapes, placement)

    def apply(self, message: Input, now: datetime) -> Outcome:
        """Work an input out.

        :param now: a stamp that never steps back.
        """
        self._now = now
        batch = _Batch(self._jobs, now)
        self._route(message, batch)
        # A rank that has started or is ready takes no room and gives none.
        if not isinstance(message, messages.RankStarted | messages.RankReady):
            self._admit(batch)
        return self._close(batch)

    def next_timer(self) -> datetime | None:
        """When a :class:`Tick` is due."""
        times = [self._wake_at] if self._wake_at is not None else []
        for job in self._jobs.values():
            expiry, not_before = next_expiry(job.submission.holds), job.submission.request.not_before
            if job.status.end is None and expiry is not None:
                times.append(expiry)
            if not_before is not None and not_before > self._now and job.submission.is_wanted and _is_waiting(job):
                times.append(not_before)
        return min(times, default=None)

    def is_idle(self) -> bool:
        """Nothing runs, nothing could be admitted, no timer is set."""
        return self.next_timer() is None and not any(
            job.status.execution is not None
            or (job.submission.is_wanted and _is_waiting(job) and job.status.cause is not Cause.NO_CAPACITY)
            for job in self._jobs.values()
        )

    def positions(self, now: datetime) -> dict[Key, int]:
        """Where the jobs that wait for room stand in their queues; the first has 1."""
        state = build_state(self._jobs, self._config, (), derive_postponements(self._jobs, now))
        keys = {job.admission_key: key for key, job in self._jobs.items()}
        return {keys[name]: position for name, position in positions(state).items()}

    def _build_shapes(self, submission: Submission) -> tuple[Shape, ...]:
        """One object for all jobs that ask for the same, which spares admission comparing them in every pass."""
        shapes = build_shapes(submission)
        return self._shapes.setdefault(repr(shapes), shapes)

    def _route(self, message: Input, batch: _Batch) -> None:
        match message:
            case messages.IntentChanged(submission):
                self._take_intent(submission, batch)
            case messages.Tick():
                self._lift_holds(batch)
            case (
                messages.RankStarted()
                | messages.RankReady()
                | messages.RankExited()
                | messages.RankNotStarted()
                | messages.ExecutionGone()
                | messages.ExecutionLost()
            ):
                job = self._jobs.get(message.key)
                execution = job.status.execution if job is not None else None
                if execution is not None and execution.identity == message.identity:
                    _take_process_input(batch.turn(message.key), message)
            case _:
                assert_never(message)

    def _take_intent(self, submission: Submission, batch: _Batch) -> None:
        known = self._jobs.get(submission.key)
        if known is None:
            self._jobs[submission.key] = Job(submission, Status(), self._build_shapes(submission))
        turn = batch.turn(submission.key, is_new=known is None)
        turn.submission = submission
        self._jobs[submission.key] = replace(self._jobs[submission.key], submission=submission)
        transitions.take_intent(turn, known.submission if known is not None else None)

    def _lift_holds(self, batch: _Batch) -> None:
        for key, job in self._jobs.items():
            if job.status.end is None:
                over = lift_expired(job.submission.holds, batch.now)[1]
                batch.effects.extend(messages.LiftHold(key, hold) for hold in over)

    def _admit(self, batch: _Batch) -> None:
        jobs = batch.jobs()
        postponed = derive_postponements(jobs, batch.now)
        state = build_state(jobs, self._config, self._reservations, postponed)
        plan = decide_admission(state, batch.now.timestamp())
        keys = {job.admission_key: key for key, job in self._jobs.items()}
        self._reservations = plan.reservations
        self._wake_at = datetime.fromtimestamp(plan.wake_at, UTC) if plan.wake_at is not None else None
        self._carry_out(plan, keys, batch)
        # Admission knows nothing of these jobs, and they wait, too.
        for key, pending in postponed.items():
            self._tell_waiting(key, pending, batch)

    def _carry_out(self, plan: Plan, keys: dict[str, Key], batch: _Batch) -> None:
        for name, placement in plan.admit.items():
            key = keys[name]
            self._jobs[key] = replace(self._jobs[key], placement=placement)
            transitions.admit(batch.turn(key))
        for preemption in plan.preempt:
            turn = batch.turn(keys[preemption.victim])
            turn.note("preempting", preemption.message)
            turn.end_execution(Ending.PREEMPTION)
        for name, reason in plan.reasons.items():
            self._tell_waiting(keys[name], Pending(reason.code.value, reason.message), batch)

    def _tell_waiting(self, key: Key, pending: Pending, batch: _Batch) -> None:
        changes = derive_waiting_changes(batch.status(key), pending)
        if changes:
            turn = batch.turn(key)
            turn.change(**changes)
            turn.note("waiting", pending.message)

    def _close(self, batch: _Batch) -> Outcome:
        statuses, effects, notes = batch.close(self._generation)
        for key, status in statuses.items():
            placement = self._jobs[key].placement if status.execution is not None else ()
            self._jobs[key] = replace(self._jobs[key], status=status, placement=placement)
        for effect in effects:
            if isinstance(effect, messages.RemoveSubmission):
                del self._jobs[effect.key]
                del statuses[effect.key]
        return Outcome(statuses, effects, notes)


class _Batch:
    """The turns that one input leads to."""

    def __init__(self, jobs: dict[Key, Job], now: datetime) -> None:
        self._jobs = jobs
        self._turns: dict[Key, Turn] = {}
        self.now = now
        self.effects: list[Effect] = []

    def turn(self, key: Key, *, is_new: bool = False) -> Turn:
        if key not in self._turns:
            job = self._jobs[key]
            before = None if is_new else derive_submission_state(job.submission, job.status)
            self._turns[key] = Turn(job.submission, job.status, self.now, before)
        return self._turns[key]

    def status(self, key: Key) -> Status:
        return self._turns[key].status if key in self._turns else self._jobs[key].status

    def jobs(self) -> dict[Key, Job]:
        changed = {key: replace(self._jobs[key], status=turn.status) for key, turn in self._turns.items()}
        removed = {effect.key for turn in self._turns.values() for effect in turn.effects if _is_removal(effect)}
        return {key: job for key, job in (self._jobs | changed).items() if key not in removed}

    def close(self, generation: int) -> tuple[dict[Key, Status], tuple[Effect, ...], tuple[Note, ...]]:
        statuses: dict[Key, Status] = {}
        effects, notes = self.effects, list[Note]()
        for key, turn in self._turns.items():
            turn.close()
            statuses[key] = replace(turn.status, generation=generation)
            effects.extend(turn.effects)
            notes.extend(turn.notes)
        return statuses, tuple(effects), tuple(notes)


def _is_removal(effect: Effect) -> bool:
    return isinstance(effect, messages.RemoveSubmission)


def _is_waiting(job: Job) -> bool:
    return job.status.end is None and job.status.execution is None


def _take_process_input(
    turn: Turn,
    message: messages.RankStarted
    | messages.RankReady
    | messages.RankExited
    | messages.RankNotStarted
    | messages.ExecutionGone
    | messages.ExecutionLost,
) -> None:
    match message:
        case messages.RankStarted():
            transitions.take_started(turn, message)
        case messages.RankReady():
            transitions.take_ready(turn, message)
        case messages.RankExited():
            transitions.take_exited(turn, message)
        case messages.RankNotStarted():
            transitions.take_not_started(turn, message)
        case messages.ExecutionGone():
            transitions.take_gone(turn)
        case messages.ExecutionLost():
            transitions.take_gone(turn, message)
        case _:
            assert_never(message)
