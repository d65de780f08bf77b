# SPDX-License-Identifier: Apache-2.0
"""Which execution is the newest: what the lift wrote on the pods, and what the controller recorded before it lifted.

:mod:`.scene` asks it. The record is written first, so it knows executions whose pods have gone; a pod in plain mode may
know one that no record does.
"""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_dispatch.adapters.kubeflow.model.derive.pods import Rank
from airflow_provider_dispatch.adapters.kubeflow.model.execution_record import ExecutionRecord, RecordedPod
from airflow_provider_dispatch.adapters.kubeflow.model.fields import whole_number
from airflow_provider_dispatch.adapters.kubeflow.model.submission import Submission
from airflow_provider_dispatch.core.identity import HIGHEST_R, Identity


def derive_identity(submission: Submission, record: ExecutionRecord, ranks: Iterable[Rank]) -> Identity | None:
    """The identity with the highest R; None before the first execution."""
    found = [identity for rank in ranks if (identity := read_attempt(submission, rank.attempt)) is not None]
    if record.r > 0:
        found.append(_build(submission, submission.attempt, record.a, record.restart))
    return max((one for one in found if 0 < one.r <= HIGHEST_R), key=lambda one: (one.r, one.a), default=None)


def read_attempt(submission: Submission, stamp: str) -> Identity | None:
    """What ``<job>.<submission>.<attempt>.<A>.<J>`` says, if it is about this submission."""
    job, *rest = stamp.split(".")
    numbers = [whole_number(part) for part in rest]
    if job.upper() != submission.ref.job or len(numbers) != 4:
        return None
    known = [number for number in numbers if number is not None]
    if len(known) != 4 or known[0] != submission.ref.submission:
        return None
    return _build(submission, known[1], known[2], known[3])


def find_unproven(record: ExecutionRecord, ranks: Iterable[Rank]) -> tuple[RecordedPod, ...]:
    """Recorded pods whose ends nobody has noted; those that still run speak themselves.

    One that is seen to have ended counts until the controller has noted it. Its object may go before that, and a job
    that was called held would be holding again.
    """
    running = {rank.uid for rank in ranks if not rank.has_ended}
    return tuple(pod for pod in record.unproven if pod.uid not in running)


def _build(submission: Submission, attempt: int, a: int, j: int) -> Identity:
    return Identity(submission.ref.job, submission.ref.submission, attempt, a, j)
