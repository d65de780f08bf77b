# SPDX-License-Identifier: Apache-2.0
"""Every action of a person on tasks whose jobs are in every state: one action over all seven jobs of a run at once."""

from __future__ import annotations

import pytest

from airflow_provider_dispatch.core.state import State
from airflow_provider_dispatch.testing.airflow_rest import RestError, Run
from tests.airflow.programs import ACTIONS
from tests.airflow.scene import FIRST, RESUBMITTED, Scene

pytestmark = [pytest.mark.airflow, pytest.mark.matrix]

PREPARED = ("gated", "queued", "starting", "running", "holding", "held")
"""Names of tasks, and the states their jobs stay in; their tasks are deferred."""


@pytest.fixture(scope="module")
def scene(queues) -> Scene:
    return queues


@pytest.fixture(scope="module")
def runs(scene) -> dict[str, Run]:
    """All on their way at once: most of the time goes into waiting for Airflow."""
    return {action: scene.begin(f"states_{action}") for action in ACTIONS}


def prepare(scene: Scene, run: Run) -> None:
    """Until each job is in its state, and a trigger waits for each that has not ended."""
    for task_id in PREPARED:
        scene.wait_until_deferred(run, task_id)
        scene.wait_for_job(run, State(task_id), task_id)
    scene.wait_for_task(run, "success", "ended")
    scene.wait_for_task(run, "success", "hold")


def let_go(scene: Scene, run: Run) -> None:
    """The job that ignores being asked is asked by now, by whoever stops it; only then it ends."""
    scene.wait_for_job(run, State.STOPPING, "holding")
    scene.tell(run, "exit 0", "holding")


def assert_all_stopped(scene: Scene, run: Run) -> None:
    let_go(scene, run)
    for task_id in PREPARED:
        seen = scene.wait_for_job(run, None, task_id)
        assert (seen.events[-1].kind, seen.record.orphans) == ("stopped", ()), task_id
        assert scene.find_ranks(run, task_id) == {}, task_id
    assert scene.see(run, "ended").state is State.SUCCEEDED
    assert scene.find_overlaps() == []


@pytest.mark.parametrize("state", ["failed", "success"])
def test_marking(scene, runs, state):
    run = runs[f"mark_{state}"]
    prepare(scene, run)

    # Airflow refuses to mark a task as what it is.
    marked = PREPARED if state == "success" else (*PREPARED, "ended")
    for task_id in marked:
        scene.rest.mark_task(run, task_id, state)

    assert_all_stopped(scene, run)
    rows = {row.task_id: (row.state, row.try_number) for row in scene.rest.fetch_tasks(run)}
    assert {rows[task_id] for task_id in (*PREPARED, "ended")} == {(state, 1)}


def test_clearing(scene, runs):
    run = runs["clear"]
    prepare(scene, run)
    instances = {row.task_id: row.id for row in scene.rest.fetch_tasks(run)}

    scene.rest.clear_tasks(run, [*PREPARED, "ended"])

    let_go(scene, run)
    # Nobody holds the new submissions, and of the two in the narrow queue it may be either that waits.
    expected = {"gated": "gated", "starting": "starting", "holding": "running", "held": "running"}
    for task_id, state in expected.items():
        scene.wait_until_deferred(run, task_id, try_number=2)
        scene.wait_for_job(run, State(state), task_id, submission=2)
    scene.wait_for_task(run, "success", "ended", try_number=2)
    for task_id in ("queued", "running"):
        scene.wait_until_deferred(run, task_id, try_number=2)
    assert {scene.see(run, task_id).state for task_id in ("queued", "running")} == {State.QUEUED, State.RUNNING}
    for task_id in PREPARED:
        assert_taken_over(scene, run, task_id, instances[task_id])
    assert scene.see(run, "ended").epochs == [FIRST, RESUBMITTED]
    assert scene.find_overlaps() == []
    scene.rest.mark_run(run, "failed")


def assert_taken_over(scene: Scene, run: Run, task_id: str, former: str) -> None:
    """The new try owns the only submission left, made after the former one was proved gone."""
    seen, row = scene.see(run, task_id), scene.rest.fetch_task(run, task_id)
    assert [record.ref.submission for record in seen.record.submissions] == [2], task_id
    assert seen.newest is not None
    assert seen.newest.owner.instance_id == row.id != former, task_id
    assert seen.sequence("stopped", 1) < seen.sequence("submitted", 2), task_id
    epochs = [epoch for epoch in seen.epochs if epoch is not None]
    assert epochs == sorted(set(epochs)), task_id


def test_deleting_the_dag(scene, runs):
    run = runs["delete"]
    prepare(scene, run)
    with pytest.raises(RestError) as refusal:
        scene.rest.delete_run(run)
    assert refusal.value.status == 409

    scene.rest.delete_dag(run[0])

    assert_all_stopped(scene, run)
