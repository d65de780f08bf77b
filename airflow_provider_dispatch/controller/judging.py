# SPDX-License-Identifier: Apache-2.0
"""All that the pure decisions say about one submission, together.

The loop asks first of what the cache shows and, unless everything is quiet, again of what it has read anew. No rule of
the protocol stands here: they are in ``adapters/kubeflow/model``.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from airflow_provider_dispatch.adapters.kubeflow.model.controller_view import ControllerSettings
from airflow_provider_dispatch.adapters.kubeflow.model.execution_record import EMPTY_RECORD, ExecutionRecord
from airflow_provider_dispatch.adapters.kubeflow.model.fence import FencePlan, decide_fence
from airflow_provider_dispatch.adapters.kubeflow.model.hold_sync import HoldAction, decide_hold_sync
from airflow_provider_dispatch.adapters.kubeflow.model.readmission import (
    CheckAction,
    RaiseAdmissions,
    Wait,
    decide_check,
)
from airflow_provider_dispatch.controller.reading import Situation


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is to be written, in this order: the hold; the record with A; its copy; the check; the lifts.

    :param ledger_record: what the ledger must say before anything is lifted; None when it says so, or when a later
        submission has it now.
    """

    hold: HoldAction | None
    plan: FencePlan
    check: tuple[CheckAction, ...] = ()
    ledger_record: ExecutionRecord | None = None

    @property
    def check_writes(self) -> tuple[CheckAction, ...]:
        """What the check has to say, waiting left out."""
        return tuple(action for action in self.check if not isinstance(action, Wait))

    @property
    def raised(self) -> RaiseAdmissions | None:
        """A for the present reservation, where the check raises it. It stands on the TrainJob, like the record."""
        return next((action for action in self.check if isinstance(action, RaiseAdmissions)), None)

    @property
    def is_quiet(self) -> bool:
        """There is nothing to write."""
        writes = (self.hold, self.plan.record, self.ledger_record)
        return all(one is None for one in writes) and not (
            self.plan.lifts or self.plan.should_suspend or self.check_writes
        )


def judge(situation: Situation, now: datetime, settings: ControllerSettings) -> Judgement:
    """Ask every decision."""
    trainjob, workload = situation.trainjob_view, situation.workload_view
    plan = decide_fence(
        trainjob,
        workload=workload,
        pods=situation.pod_views,
        nodes=situation.nodes,
        ledger=situation.ledger_view,
        now=now,
        settings=settings,
    )
    check: tuple[CheckAction, ...] = ()
    if workload is not None:
        check = decide_check(
            workload,
            trainjob=trainjob,
            pods=situation.pod_views,
            nodes=situation.nodes,
            ledger=situation.ledger_view,
            now=now,
            settings=settings,
        )
    hold = decide_hold_sync(trainjob, workload=workload, now=now)
    return Judgement(hold, plan, check, _derive_ledger_record(situation, plan))


def _derive_ledger_record(situation: Situation, plan: FencePlan) -> ExecutionRecord | None:
    record = plan.record or situation.trainjob_view.record
    is_newest = situation.trainjob_view.submission >= situation.ledger.submission
    if record == EMPTY_RECORD or not is_newest or situation.ledger.record == record.to_json():
        return None
    return record
