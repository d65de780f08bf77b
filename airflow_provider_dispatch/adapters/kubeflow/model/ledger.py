# SPDX-License-Identifier: Apache-2.0
"""The ledger of a job: the one object that a stop leaves, so that no submission number and no epoch comes twice.

A labelled ConfigMap ``dj-<job>``, written by `start`, `stop` and the controller, removed by ``gc --forget`` alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.submission import dump, load
from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.core.state import Cause

BODY_KEY = "ledger"
RECORD_KEY = "execution"
"""Copy of the execution record: outlives a deleted TrainJob."""


@dataclass(frozen=True, slots=True)
class LedgerEnd:
    """Why a submission's objects are gone."""

    submission: int
    cause: Cause
    reason: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Ledger:
    """What is remembered of a job.

    :param submission: highest number ever used.
    :param ends: of the submissions that were stopped, newest last.
    :param record: the execution record of the newest submission as the controller last wrote it, or what a stop left
        of it; JSON of :class:`~.execution_record.ExecutionRecord`.
    """

    submission: int = 0
    deployment: str = ""
    ends: tuple[LedgerEnd, ...] = ()
    record: str = field(default="", compare=False)

    def end_of(self, submission: int) -> LedgerEnd | None:
        """How that submission's objects went, if somebody asked for it."""
        return next((end for end in reversed(self.ends) if end.submission == submission), None)


def build_ledger_name(job: JobID) -> str:
    """Name of the job's ledger."""
    return f"dj-{job.lower()}"


def build_ledger(job: JobID, ledger: Ledger) -> dict[str, object]:
    """The ConfigMap, without a namespace."""
    labels = {words.JOB_LABEL: job.lower(), words.KIND_LABEL: words.LEDGER_KIND}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": build_ledger_name(job), "labels": labels},
        "data": build_ledger_data(ledger),
    }


def build_ledger_data(ledger: Ledger) -> dict[str, str]:
    """``data`` of the ConfigMap."""
    body = Ledger(ledger.submission, ledger.deployment, ledger.ends)
    return {BODY_KEY: dump(body)} | ({RECORD_KEY: ledger.record} if ledger.record else {})


def read_ledger(config_map: Raw | None) -> Ledger:
    """What is remembered; nothing where there is no ledger.

    :raises ProtocolError: it can't be read.
    """
    if config_map is None:
        return Ledger()
    body = load(Ledger, fields.text(config_map, "data", BODY_KEY)) or Ledger()
    return Ledger(body.submission, body.deployment, body.ends, fields.text(config_map, "data", RECORD_KEY))
