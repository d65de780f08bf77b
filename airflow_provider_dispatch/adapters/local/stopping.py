# SPDX-License-Identifier: Apache-2.0
"""What a stop has come to, from the job as it was and as it is. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_dispatch.adapters.local.lifecycle.status import Status, Submission
from airflow_provider_dispatch.adapters.local.store.reading import JobView
from airflow_provider_dispatch.core.records import ObjectReport, StopReport


def build_stop_report(before: JobView, after: JobView, *, is_agent_alive: bool) -> StopReport:
    """Compare the job with what it was when the stop was asked for.

    :param is_agent_alive: somebody sees the processes that are left; else nothing is proved about them.
    """
    remaining = {submission.key: (submission, status) for submission, status in after.pairs}
    stopped: list[ObjectReport] = []
    left: list[ObjectReport] = []
    for submission, status in before.pairs:
        still_there = remaining.get(submission.key)
        was = dict.fromkeys(_list_objects(submission, status))
        now = dict.fromkeys(_list_objects(*still_there)) if still_there is not None else {}
        stopped.extend(ObjectReport(name) for name in was if name not in now)
        left.extend(ObjectReport(name, "its processes are still ending") for name in now)
    if is_agent_alive:
        return StopReport(before.job, tuple(stopped), alive=tuple(left))
    unproven = tuple(ObjectReport(report.object, "no agent lives that could tell") for report in left)
    return StopReport(before.job, tuple(stopped), unproven=unproven)


def _list_objects(submission: Submission, status: Status) -> Iterator[str]:
    """The submission, its execution and the ranks that may have processes."""
    yield f"submission {submission.ref.submission}"
    if status.execution is None:
        return
    epoch = status.execution.identity.epoch
    yield f"execution {epoch}"
    for rank in status.execution.ranks:
        if rank.is_started and not rank.has_exited:
            yield f"execution {epoch} rank {rank.rank} of {rank.role}"
