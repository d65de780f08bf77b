# SPDX-License-Identifier: Apache-2.0
"""What a stop has come to: dead is what was seen to end, and what has gone doesn't come back."""

from __future__ import annotations

import pytest

from airflow_provider_dispatch.adapters.kubeflow.model.resources import JOBSETS, PODS
from airflow_provider_dispatch.adapters.kubeflow.model.stop_report import Witness, build_stop_report
from airflow_provider_dispatch.core.records import ObjectReport, StopReport
from tests.adapters.kubeflow.objects import JOB, build_jobset, build_pod


def report(witness: Witness) -> StopReport:
    return build_stop_report(JOB, witness, ())


def test_an_answer_that_comes_late_revives_nothing() -> None:
    witness = Witness()
    ended = build_pod(phase="Failed", name="p")
    witness.note_deleted(PODS, ended)
    witness.note(PODS, build_pod(phase="Running", name="p"))
    assert (report(witness).stopped, report(witness).alive) == ((ObjectReport("Pod p"),), ())


@pytest.mark.parametrize(
    ("node", "phase", "is_last_state", "kind"),
    [
        ("n1", "Failed", True, "stopped"),
        ("n1", "Running", True, "unproven"),
        ("", "Pending", True, "stopped"),
        ("", "Pending", False, "unproven"),
    ],
)
def test_a_pod_is_dead_when_a_kubelet_said_so_or_none_ever_had_it(node, phase, is_last_state, kind: str) -> None:
    witness = Witness()
    pod = build_pod(phase=phase, node=node, name="p")
    witness.note(PODS, pod)
    witness.note(JOBSETS, build_jobset())
    if is_last_state:
        witness.note_deleted(PODS, pod)
    witness.note_all(())
    told = {side: getattr(report(witness), side) for side in ("stopped", "alive", "unproven")}
    # What made the pod is no more stopped than the pod is.
    assert {side: len(objects) for side, objects in told.items() if objects} == {kind: 2}
