# SPDX-License-Identifier: Apache-2.0
"""Submission + status → state and observation. What callers want shows at once, before the agent has acted on it."""

from __future__ import annotations

from datetime import datetime

from airflow_provider_dispatch.adapters.local.lifecycle.status import Ending, Execution, Status, Submission
from airflow_provider_dispatch.core.clocks import advance_clocks
from airflow_provider_dispatch.core.observation import Gates, Observation, Pending, RoleRanks
from airflow_provider_dispatch.core.startup_order import derive_waiting_role
from airflow_provider_dispatch.core.state import ENDED, Cause, Signals, State, derive_state


def derive_signals(submission: Submission, status: Status) -> Signals:
    """Reduce a submission to the questions of the state ladder."""
    execution = status.execution
    return Signals(
        end=status.end,
        is_stopping=submission.stop is not None,
        is_held=submission.holds.is_held,
        has_processes=execution is not None,
        is_gated=submission.opened_at is None,
        is_admitted=is_placed(execution),
        is_ready=execution is not None and execution.ending is None and is_up(submission, execution),
    )


def is_placed(execution: Execution | None) -> bool:
    """It has its room and keeps it: the execution stands, or will be restarted in place."""
    return execution is not None and execution.ending in (None, Ending.RESTART)


def is_up(submission: Submission, execution: Execution) -> bool:
    """Every rank of every role is ready, or has ended well."""
    progress = execution.progress()
    return all(progress[role.name].is_ready for role in submission.request.spec.roles)


def derive_submission_state(submission: Submission, status: Status) -> State:
    """The state of a submission whose objects exist."""
    return derive_state(derive_signals(submission, status))


def derive_observation(
    submission: Submission, status: Status, now: datetime, *, position: int | None = None
) -> Observation:
    """Everything known, for a caller.

    :param position: in its queue, counted from 1; None when not waiting or not known.
    """
    state = derive_submission_state(submission, status)
    execution = status.execution
    cause, detail = _derive_cause(submission, status, state)
    return Observation(
        state=state,
        ref=submission.ref,
        cause=cause,
        detail=detail,
        evidence=status.evidence,
        execution=status.identity,
        executions=status.executions,
        gates=Gates(is_open=submission.opened_at is not None),
        holds=submission.holds.active if status.end is None else (),
        pending=_derive_pending(submission, status, state, position),
        ranks=tuple(_count_ranks(role.name, role.nodes, status) for role in submission.request.spec.roles),
        waiting_role=_derive_waiting_role(submission, execution) if state is State.STARTING else None,
        failed_rank=status.failed_rank,
        last_lines=status.last_lines,
        clocks=advance_clocks(status.clocks, state, now),
        result=status.result,
        observed_at=now,
    )


def _derive_waiting_role(submission: Submission, execution: Execution | None) -> str | None:
    # The only role of a job is no news: everybody knows whom it waits for.
    roles = submission.request.spec.roles
    return derive_waiting_role(roles, execution.progress()) if execution is not None and len(roles) > 1 else None


def _derive_cause(submission: Submission, status: Status, state: State) -> tuple[Cause | None, str]:
    if submission.stop is not None and state is State.STOPPING:
        return Cause.STOPPED, submission.stop.reason
    return (status.cause, status.detail) if state in ENDED or state is State.QUEUED else (None, "")


def _derive_pending(submission: Submission, status: Status, state: State, position: int | None) -> Pending | None:
    if state is not State.QUEUED:
        return None
    if status.execution is not None:
        known = Pending("ending", f"processes of execution {status.execution.identity.epoch} are still ending")
    else:
        known = status.pending or Pending("not_evaluated", "the agent has not looked at it yet")
    return Pending(known.code, known.message, submission.queue, position, status.preemptions, status.queued_since)


def _count_ranks(role: str, nodes: int, status: Status) -> RoleRanks:
    known = status.execution.ranks if status.execution is not None else status.last_ranks
    ranks = [rank for rank in known if rank.role == role]
    return RoleRanks(
        role=role,
        nodes=nodes,
        ready=sum(rank.is_ready and not rank.has_exited for rank in ranks),
        running=sum(rank.is_started and not rank.has_exited for rank in ranks),
        succeeded=sum(rank.has_succeeded for rank in ranks),
        failed=sum(rank.has_failed for rank in ranks),
    )
