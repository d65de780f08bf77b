# SPDX-License-Identifier: Apache-2.0
"""The rules of a local job's life, one function an input. Each changes the turn it is given and nothing else.

Promise 1 lives here: a new execution is made only by :func:`admit` and :func:`take_gone`, and both only while
``status.execution`` is None, which it becomes only by the proof that every process of the old one is gone.
"""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_dispatch.adapters.local.lifecycle import messages
from airflow_provider_dispatch.adapters.local.lifecycle.status import Ending, Execution, RankStatus, Submission
from airflow_provider_dispatch.adapters.local.lifecycle.turn import Turn
from airflow_provider_dispatch.core.diagnosis import derive_exit_cause, describe_rank
from airflow_provider_dispatch.core.identity import HIGHEST_R, Identity, next_execution
from airflow_provider_dispatch.core.observation import Evidence, FailedRank
from airflow_provider_dispatch.core.startup_order import decide_startable
from airflow_provider_dispatch.core.state import Cause, State


def take_intent(turn: Turn, before: Submission | None) -> None:
    """Follow what callers want now.

    :param before: what they wanted so far; None for a new submission.
    """
    _note_intent(turn, before)
    submission = turn.submission
    if submission.is_wanted and turn.status.queued_since is None and turn.status.end is None:
        turn.change(queued_since=turn.now)
    if submission.stop is not None:
        turn.end_execution(Ending.STOP)
    elif submission.holds.is_held:
        turn.end_execution(Ending.HOLD)
    remove_if_stopped(turn)


def remove_if_stopped(turn: Turn) -> None:
    """Delete a submission that somebody stopped, once nothing of it can run."""
    if turn.submission.stop is not None and turn.execution is None:
        turn.is_removed = True
        turn.effects.append(messages.RemoveSubmission(turn.submission.key))
        turn.note("stopped", f"stopped: {turn.submission.stop.reason}")


def admit(turn: Turn) -> None:
    """Give it room: the next execution, under a higher A."""
    request = turn.submission.request
    last = turn.status.identity or Identity(request.job, request.submission, request.attempt, 0, 0)
    turn.change(pending=None, cause=None, detail="")
    _begin_execution(turn, next_execution(last, j=last.j, admitted=True))
    if turn.execution is not None:
        turn.note("admitted", f"admitted from {turn.submission.queue or 'the default queue'}")


def take_started(turn: Turn, started: messages.RankStarted) -> None:
    """A rank's process exists."""
    _change_rank(turn, started.role, started.rank, is_started=True, pid=started.pid)


def take_ready(turn: Turn, ready: messages.RankReady) -> None:
    """A rank can serve others; roles that waited for it may start."""
    _change_rank(turn, ready.role, ready.rank, is_ready=True)
    _spawn_startable(turn)


def take_exited(turn: Turn, exited: messages.RankExited) -> None:
    """A rank has ended: well, badly, or because we asked."""
    _change_rank(
        turn,
        exited.role,
        exited.rank,
        has_exited=True,
        exit_code=exited.exit_code,
        signal=exited.signal,
        was_signalled=exited.was_signalled,
    )
    if turn.status.end is not None or exited.was_signalled:
        return
    if exited.exit_code == 0:
        _take_good_exit(turn, exited)
    else:
        _take_bad_exit(turn, exited)


def take_not_started(turn: Turn, failed: messages.RankNotStarted) -> None:
    """A command can't be run: nothing that a restart would cure."""
    if turn.status.end is None:
        proof = Evidence(f"rank {failed.rank} of {failed.role}", "command", failed.message, turn.now)
        _fail(turn, Cause.MISCONFIGURED, failed.message, evidence=(proof,))


def take_gone(turn: Turn, lost: messages.ExecutionLost | None = None) -> None:
    """No process of the execution is left; the only place where it is forgotten.

    :param lost: nobody saw how it ended.
    """
    execution = turn.live
    turn.change(execution=None, last_ranks=execution.ranks if turn.status.end is not None else ())
    match execution.ending:
        case Ending.RESTART if lost is None:
            _restart(turn, execution.identity)
        case Ending.PREEMPTION:
            _take_preempted(turn)
        case None | Ending.RESTART:
            detail = lost.detail if lost is not None else "its processes vanished"
            proof = Evidence(f"execution {execution.identity.epoch}", "supervisor", detail, turn.now)
            _fail(turn, lost.cause if lost is not None else Cause.NODE_LOST, detail, evidence=(proof,))
        case _:
            turn.note("gone", "every process of the execution is gone")
    remove_if_stopped(turn)


def _note_intent(turn: Turn, before: Submission | None) -> None:
    now, was = turn.submission, before
    if was is None:
        turn.note("submitted", f"{now.request.spec.nodes} ranks for queue {now.queue or 'default'}")
    if now.opened_at is not None and (was is None or was.opened_at is None):
        turn.note("opened", "its gate was opened")
    held_before = was.holds.active if was is not None else ()
    for hold in now.holds.active:
        if hold not in held_before:
            turn.note("hold", f"hold {hold.instance} by {hold.actor.id}" + (f": {hold.reason}" if hold.reason else ""))
    for hold in held_before:
        if hold not in now.holds.active:
            turn.note("release", f"hold {hold.instance} by {hold.actor.id} was lifted")
    if now.stop is not None and (was is None or was.stop is None):
        turn.note("stop", f"a stop was asked for: {now.stop.reason}")


def _begin_execution(turn: Turn, identity: Identity) -> None:
    if identity.r > HIGHEST_R:
        _fail(turn, Cause.MISCONFIGURED, f"it has had {HIGHEST_R} executions; start a new submission", evidence=())
        return
    key, spec = turn.submission.key, turn.submission.request.spec
    ranks = tuple(RankStatus(role.name, rank) for role in spec.roles for rank in range(role.nodes))
    turn.change(
        identity=identity,
        executions=turn.status.executions + 1,
        execution=Execution(identity, ranks, turn.now),
        failed_rank=None,
        last_lines=(),
        evidence=(),
    )
    turn.effects.append(messages.StartExecution(key, identity))
    _spawn_startable(turn)


def _spawn_startable(turn: Turn) -> None:
    execution = turn.live
    if execution.ending is not None:
        return
    for role in decide_startable(turn.submission.request.spec.roles, execution.progress()):
        if role not in execution.spawned:
            turn.effects.append(messages.SpawnRole(turn.submission.key, execution.identity, role))
            execution = replace(execution, spawned=(*execution.spawned, role))
    turn.change(execution=execution)


def _change_rank(turn: Turn, role: str, rank: int, **changes: object) -> None:
    execution = turn.live
    old = next(found for found in execution.ranks if (found.role, found.rank) == (role, rank))
    changed = replace(old, **changes)  # type: ignore[arg-type]  # the fields' types differ
    turn.change(execution=execution.with_rank(changed))


def _take_good_exit(turn: Turn, exited: messages.RankExited) -> None:
    spec = turn.submission.request.spec
    if exited.role == spec.leader.name and exited.rank == 0:
        turn.change(result=exited.result)
        if exited.result_error:
            proof = Evidence(f"rank 0 of {exited.role}", "result", exited.result_error, turn.now)
            _fail(turn, Cause.MISCONFIGURED, exited.result_error, evidence=(proof,))
            return
    progress = turn.live.progress()
    if all(progress[role].is_complete for role in spec.required_roles):
        _succeed(turn)
    elif _is_dependency_lost(turn):
        detail = f"{exited.role} ended before it was ready, and other roles wait for it"
        _fail_or_restart(turn, Cause.DEPENDENCY_FAILED, detail)
    else:
        _spawn_startable(turn)


def _take_bad_exit(turn: Turn, exited: messages.RankExited) -> None:
    rank = FailedRank(exited.role, exited.rank, exited.exit_code, exited.signal)
    if turn.status.failed_rank is not None:
        return
    field = "signal" if exited.signal is not None else "exit code"
    value = exited.signal if exited.signal is not None else exited.exit_code
    proof = Evidence(f"rank {exited.rank} of {exited.role}", field, str(value), turn.now)
    turn.change(failed_rank=rank, last_lines=exited.last_lines, evidence=(proof,))
    cause = derive_exit_cause(rank, out_of_memory=exited.out_of_memory)
    memory = "; it used more memory than it asked for" if exited.out_of_memory else ""
    _fail_or_restart(turn, cause, describe_rank(rank) + memory)


def _is_dependency_lost(turn: Turn) -> bool:
    dead = {rank.role for rank in turn.live.ranks if rank.has_exited and not rank.is_ready}
    roles = turn.submission.request.spec.roles
    return any(after.role in dead and after.when == "ready" for role in roles for after in role.after)


def _fail_or_restart(turn: Turn, cause: Cause, detail: str) -> None:
    if turn.status.restarts < turn.submission.request.spec.max_restarts:
        turn.note("restart", f"{detail}; all ranks start again")
        turn.end_execution(Ending.RESTART)
    else:
        _fail(turn, cause, detail, evidence=turn.status.evidence)


def _succeed(turn: Turn) -> None:
    turn.change(end=State.SUCCEEDED, ended_at=turn.now, cause=None, detail="", pending=None, failed_rank=None)
    turn.end_execution(Ending.SUCCESS)


def _fail(turn: Turn, cause: Cause, detail: str, *, evidence: tuple[Evidence, ...]) -> None:
    turn.change(end=State.FAILED, ended_at=turn.now, cause=cause, detail=detail, evidence=evidence, pending=None)
    turn.end_execution(Ending.FAILURE)


def _restart(turn: Turn, last: Identity) -> None:
    # Whoever holds or stops a job meanwhile outweighs the restart, so the job is wanted here.
    turn.change(restarts=turn.status.restarts + 1)
    _begin_execution(turn, next_execution(last, j=turn.status.restarts, admitted=False))


def _take_preempted(turn: Turn) -> None:
    turn.change(preemptions=turn.status.preemptions + 1)
    most = turn.submission.request.spec.max_preemptions
    turn.note("preempted", f"preempted, for the {turn.status.preemptions}. time")
    if most is not None and turn.status.preemptions > most:
        detail = f"preempted {turn.status.preemptions} times; its spec allows {most}"
        _fail(turn, Cause.PREEMPTED, detail, evidence=())
