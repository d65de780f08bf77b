# SPDX-License-Identifier: Apache-2.0
"""The rank through all roles: computed by the lift, because the downward API hands on and can't add."""

from __future__ import annotations

import pytest

from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.fence import Lift
from airflow_provider_dispatch.controller.apply import build_lift_patch

LIFT = Lift("u1", "worker-1", "team", 1, 0, 1_000_001)
PATH = f"/metadata/annotations/{words.WORLD_RANK_ANNOTATION.replace('/', '~1')}"


@pytest.mark.parametrize(("offset", "index", "rank"), [("3", "2", "5"), ("3", "0", "3"), (None, "2", None)])
def test_a_pod_is_told_its_rank_through_all_roles(offset: str | None, index: str, rank: str | None) -> None:
    notes = {words.RANK_OFFSET_ANNOTATION: offset} if offset is not None else {}
    pod = {
        "metadata": {"uid": "u1", "annotations": notes, "labels": {words.COMPLETION_INDEX_LABEL: index}},
        "spec": {"schedulingGates": [{"name": words.FENCE}]},
    }
    told = {step["path"]: step.get("value") for step in build_lift_patch(pod, LIFT, "job.1.1.1.0")}
    assert told.get(PATH) == rank
