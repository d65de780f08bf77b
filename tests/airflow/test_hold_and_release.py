# SPDX-License-Identifier: Apache-2.0
"""A deferred task's job is held and released by other tasks of its run, which run beside it."""

from __future__ import annotations

import pytest

from airflow_provider_dispatch.core.state import State
from tests.airflow.scene import AFTER_RELEASE, FIRST, TRIGGER_STARTS, Scene

pytestmark = pytest.mark.airflow


def test_a_job_goes_on_under_a_higher_epoch_after_its_release(real_airflow):
    scene = Scene(real_airflow)
    run = scene.begin("held_and_released")

    scene.wait_until_watched(run)
    scene.tell_ready(run, FIRST)
    scene.wait_for_task(run, "success", "release")
    seen = scene.wait_for_job(run, State.STARTING)
    assert seen.epochs == [FIRST, AFTER_RELEASE]
    assert scene.rest.fetch_task(run, "train").state == "deferred"
    assert len(scene.find_ranks(run)) == 1
    assert seen.sequence("hold", 1) < seen.sequence("held", 1) < seen.sequence("release", 1)

    scene.tell_ready(run, AFTER_RELEASE)
    scene.wait_for_line(run, f"running: 1 of 1 ranks, epoch {AFTER_RELEASE}")
    scene.tell(run, 'result {"steps": 5}\nexit 0')
    assert real_airflow.wait_for_run(run).state == "success"
    assert {row.task_id: (row.state, row.try_number) for row in scene.rest.fetch_tasks(run)} == dict.fromkeys(
        ("train", "runs", "hold", "release"), ("success", 1)
    )
    result = scene.read_result(run)
    assert (result["epoch"], result["executions"], result["result"]) == (AFTER_RELEASE, 2, {"steps": 5})
    assert scene.read_result(run, "hold")["reason"] == "maintenance"
    assert scene.rest.fetch_xcom(run, "release") == []
    log = scene.wait_for_line(run, "held by held_and_released/hold: maintenance")
    assert f"DISPATCH_EPOCH={AFTER_RELEASE}" in log
    assert log.count(TRIGGER_STARTS) == 1
    assert scene.find_overlaps() == []
