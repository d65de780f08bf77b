# SPDX-License-Identifier: Apache-2.0
"""The controller's decisions as the explorer calls them, and what its shell does with them.

By default they are the code's own and the shell keeps every promise. :mod:`.spoilt` takes single rules out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from airflow_provider_dispatch.adapters.kubeflow.model.controller_view import TrainJobView, WorkloadView
from airflow_provider_dispatch.adapters.kubeflow.model.fence import FencePlan, decide_fence, derive_refusal
from airflow_provider_dispatch.adapters.kubeflow.model.hold_sync import HoldAction, decide_hold_sync
from airflow_provider_dispatch.adapters.kubeflow.model.readmission import CheckAction, decide_check


@dataclass(frozen=True)
class Protocol:
    """Four decisions, and eight habits of the shells around them.

    :param heeds_trainjob_version: a write of the TrainJob fails when it has changed since it was judged.
    :param heeds_workload_version: the same of a write of the Workload.
    :param records_first: pods are lifted after the record is written, not before.
    :param reads_again: TrainJob and Workload are read anew between the record and the first lift.
    :param tests_gate: the lift fails when the gate is no longer there.
    :param holds_in_record_first: the adapter writes a hold or a release on the TrainJob before the Workload.
    :param copies_to_ledger: the ledger has a copy of the record before the first lift.
    :param stop_writes_ledger: a stop leaves the unproven pods in the ledger.
    """

    decide_check: Callable[..., tuple[CheckAction, ...]] = decide_check
    decide_fence: Callable[..., FencePlan] = decide_fence
    derive_refusal: Callable[[TrainJobView, WorkloadView | None], str] = derive_refusal
    decide_hold_sync: Callable[..., HoldAction | None] = decide_hold_sync
    heeds_trainjob_version: bool = True
    heeds_workload_version: bool = True
    records_first: bool = True
    reads_again: bool = True
    tests_gate: bool = True
    holds_in_record_first: bool = True
    copies_to_ledger: bool = True
    stop_writes_ledger: bool = True
