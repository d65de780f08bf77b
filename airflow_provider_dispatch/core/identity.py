# SPDX-License-Identifier: Apache-2.0
"""Who an execution is: job ids, submission numbers, A, J, R and the epoch made of them.

Adapters call it to name what they start; the Airflow face to name a task's job. It never reads a clock, a store or
random numbers of its own: all three are arguments.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NewType

from airflow_provider_dispatch.exceptions import SpecError

JobID = NewType("JobID", str)
"""A ULID in upper case: 26 characters of Crockford's base 32, the first at most 7."""

CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
JOB_ID_LENGTH = 26
ID_BITS = 128
RANDOM_BITS = 80
HIGHEST_R = 999_999
NOT_MAPPED = -1


def parse_job_id(text: str, *, field: str = "job_id") -> JobID:
    """Read a job id in either case.

    :raises SpecError: not 26 characters of Crockford's base 32, or more than 128 bits.
    """
    # Some letters outside ASCII become a letter of the alphabet in upper case.
    folded = text.upper() if text.isascii() else ""
    if len(folded) != JOB_ID_LENGTH or folded[0] not in CROCKFORD[:8] or any(c not in CROCKFORD for c in folded):
        raise SpecError(field, "a job id has 26 characters of Crockford's base 32 and begins with 0 to 7", text)
    return JobID(folded)


def _encode(number: int) -> JobID:
    shifts = range((JOB_ID_LENGTH - 1) * 5, -1, -5)
    return JobID("".join(CROCKFORD[number >> shift & 31] for shift in shifts))


def build_job_id(time_milliseconds: int, randomness: bytes) -> JobID:
    """Make a ULID for a job that no Airflow task owns.

    :param time_milliseconds: since 1970, below 2**48.
    :param randomness: ten bytes.
    """
    if not 0 <= time_milliseconds < 1 << (ID_BITS - RANDOM_BITS):
        raise SpecError("time_milliseconds", "must lie in 48 bits", time_milliseconds)
    if len(randomness) != RANDOM_BITS // 8:
        raise SpecError("randomness", "must be ten bytes", len(randomness))
    return _encode(time_milliseconds << RANDOM_BITS | int.from_bytes(randomness, "big"))


def build_task_job_id(deployment: str, dag_id: str, run_id: str, task_id: str, map_index: int = NOT_MAPPED) -> JobID:
    """The job of an Airflow task: the same for every try, known before the task has run.

    :param deployment: keeps two Airflows apart that share run ids.
    :param map_index: -1 when the task is not mapped.
    """
    key = ["dispatch/1", deployment, dag_id, run_id, task_id, map_index]
    canonical = json.dumps(key, separators=(",", ":"), ensure_ascii=False)
    return _encode(int.from_bytes(hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).digest()[:10], "big"))


def build_object_name(job: JobID, submission: int) -> str:
    """Name of a submission's objects, at most 63 characters in lower case."""
    return f"dj-{job.lower()}-s{submission}"


def build_epoch(submission: int, r: int) -> int:
    """Submission and R as one number that grows with every execution of the job.

    :raises SpecError: R is above 999 999, which would run into the submission's digits.
    """
    if submission < 1:
        raise SpecError("submission", "counts from 1", submission)
    if not 0 <= r <= HIGHEST_R:
        raise SpecError("R", f"must lie between 0 and {HIGHEST_R}; start a new submission", r)
    return submission * (HIGHEST_R + 1) + r


def next_submission(ledger: int, found: Iterable[int] = (), try_number: int = 1) -> int:
    """The number a new submission gets: above everything used, also by a try that left no trace.

    :param ledger: highest number ever used for the job; 0 when it is unknown.
    :param found: submissions whose objects exist.
    """
    return max(ledger, try_number - 1, *found, 0) + 1


@dataclass(frozen=True, slots=True, order=True)
class Identity:
    """One execution: the A-th admission and J-th restart of a job's submission."""

    job: JobID
    submission: int
    attempt: int
    a: int
    j: int

    @property
    def r(self) -> int:
        """A + J: strictly grows with every new execution of the submission."""
        return self.a + self.j

    @property
    def epoch(self) -> int:
        """Ordered over all executions of the job, across submissions."""
        return build_epoch(self.submission, self.r)

    @property
    def attempt_id(self) -> str:
        """``<job>.<submission>.<attempt>.<A>.<J>``, the value of ``DISPATCH_ATTEMPT``."""
        return f"{self.job}.{self.submission}.{self.attempt}.{self.a}.{self.j}"


def next_execution(last: Identity, *, j: int, admitted: bool) -> Identity:
    """The execution after *last*; A is raised as far as R needs to grow.

    :param j: restarts as the backend counts them now. It may have fallen: a recreated set of processes counts anew.
    :param admitted: the scheduler admitted the job again, rather than restarting it in place.
    """
    a = max(last.a + int(admitted), last.r + 1 - j)
    return Identity(last.job, last.submission, last.attempt, a, j)


def build_identity_environment(identity: Identity, *, role: str, rank: int, nodes: int) -> dict[str, str]:
    """The variables that tell a process which execution it belongs to.

    :param nodes: nodes of the role, not of the job.
    """
    return {
        "DISPATCH_JOB_ID": identity.job,
        "DISPATCH_SUBMISSION": str(identity.submission),
        "DISPATCH_ATTEMPT": identity.attempt_id,
        "DISPATCH_EPOCH": str(identity.epoch),
        "DISPATCH_ROLE": role,
        "DISPATCH_RANK": str(rank),
        "DISPATCH_NODES": str(nodes),
    }
