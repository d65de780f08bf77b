# SPDX-License-Identifier: Apache-2.0
"""What went wrong, in words a person can act on, and as the exception that means it.

The Airflow face and the command call it with the last observation of a job that ended other than well.
"""

from __future__ import annotations

import signal as signals
from dataclasses import dataclass

from airflow_provider_dispatch import exceptions as errors
from airflow_provider_dispatch.core.observation import Evidence, FailedRank, Observation
from airflow_provider_dispatch.core.state import Cause

ADVICE = {
    Cause.PREEMPTED: "raise its priority, or allow more preemptions with max_preemptions",
    Cause.NODE_LOST: "submit it again; a recovery policy does that without a retry of the task",
    Cause.OUT_OF_MEMORY: "ask for more memory per node, or let a recovery rule raise it",
    Cause.EVICTED: "submit it again; look at the node's pressure if it repeats",
    Cause.TIMEOUT: "raise the time-out of the clock that ran out, or find what it waited for",
    Cause.NO_CAPACITY: "do as the reason says; else ask for less, or send it to a queue that has more",
    Cause.IMAGE: "check the image's name and the right to pull it",
    Cause.EXITED: "read the last lines of the rank that failed first",
    Cause.MISCONFIGURED: "correct what the evidence names",
    Cause.DEPENDENCY_FAILED: "look at the role that did not come up",
    Cause.STOPPED: "it was asked for; start it again if that was a mistake",
    Cause.DELETED: "find who removed its objects; start it again",
    Cause.UNKNOWN: "look at the evidence and at the backend itself",
}

ERROR_OF_CAUSE: dict[Cause, type[errors.JobFailedError]] = {
    Cause.PREEMPTED: errors.JobPreemptedError,
    Cause.NODE_LOST: errors.NodeLostError,
    Cause.OUT_OF_MEMORY: errors.JobOutOfMemoryError,
    Cause.EVICTED: errors.JobEvictedError,
    Cause.TIMEOUT: errors.JobTimeoutError,
    Cause.NO_CAPACITY: errors.NoCapacityError,
    Cause.IMAGE: errors.JobImageError,
    Cause.EXITED: errors.JobExitedError,
    Cause.MISCONFIGURED: errors.JobMisconfiguredError,
    Cause.DEPENDENCY_FAILED: errors.JobDependencyError,
    Cause.STOPPED: errors.JobStoppedError,
    Cause.DELETED: errors.JobDeletedError,
    Cause.UNKNOWN: errors.JobFailedUnknownError,
}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Cause, what shows it, and what to do.

    :param summary: one sentence: what happened to which job, and which rank was first.
    :param last_lines: of the first failing rank, oldest first.
    """

    cause: Cause
    summary: str
    advice: str
    evidence: tuple[Evidence, ...] = ()
    rank: FailedRank | None = None
    last_lines: tuple[str, ...] = ()

    def to_text(self) -> str:
        """All of it over several lines, for a log."""
        proof = [f"  {found.object} {found.field} = {errors.cut_text(found.value)}" for found in self.evidence]
        tail = [f"  | {errors.cut_text(line)}" for line in self.last_lines]
        return "\n".join([f"{self.summary}. What to do: {self.advice}.", *proof, *tail])


def describe_rank(rank: FailedRank) -> str:
    """``rank 1 of worker exited with code 3``, or the signal by name."""
    who = f"rank {rank.rank} of {rank.role}"
    if rank.signal is not None:
        return f"{who} was ended by {_signal_name(rank.signal)}"
    return who + (f" exited with code {rank.exit_code}" if rank.exit_code is not None else " failed")


def diagnose(observation: Observation, cause: Cause | None = None, reason: str = "") -> Diagnosis:
    """Put an observation into words.

    :param cause: overrides the observed one where the caller knows better (a clock of its own ran out).
    :param reason: goes with *cause*.
    """
    found = cause or observation.cause or Cause.UNKNOWN
    reason = errors.cut_text(reason or observation.detail)
    rank = observation.failed_rank
    who = describe_rank(rank) if rank is not None else ""
    parts = [part for part in (who if who not in reason else "", reason) if part]
    what = f"job {observation.ref.id}: {found.value.replace('_', ' ')}"
    summary = f"{what}: {'; '.join(parts)}" if parts else what
    return Diagnosis(found, summary, ADVICE[found], observation.evidence, rank, observation.last_lines)


def build_error(observation: Observation, diagnosis: Diagnosis) -> errors.JobFailedError:
    """The exception of the diagnosis' cause."""
    kind = ERROR_OF_CAUSE[diagnosis.cause]
    return kind(diagnosis.to_text(), observation=observation, diagnosis=diagnosis)


def derive_exit_cause(rank: FailedRank, *, out_of_memory: bool) -> Cause:
    """The cause when a rank's own end is all there is to go by."""
    if out_of_memory:
        return Cause.OUT_OF_MEMORY
    return Cause.EXITED if rank.exit_code is not None or rank.signal is not None else Cause.UNKNOWN


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signals.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
