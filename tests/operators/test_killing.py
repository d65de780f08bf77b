# SPDX-License-Identifier: Apache-2.0
"""A task that is ended in its worker: by a person, by a shutdown, by its time."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from airflow.sdk import DAG

from airflow_provider_dispatch.adapters import registry
from airflow_provider_dispatch.core.state import State
from airflow_provider_dispatch.operators import killing
from airflow_provider_dispatch.operators.job import DispatchStartJobOperator
from airflow_provider_dispatch.testing.fake_adapter import FakeAdapter
from airflow_provider_dispatch.testing.fake_backend import FakeBackend
from tests.operators.stage import JOB, SECOND, Stage, run
from tests.operators.task_run import Airflow


@pytest.fixture
def stage(world: FakeBackend) -> Stage:
    """A running job."""
    registry.register_adapter("fake", lambda _: FakeAdapter(world))
    stage = Stage(world)
    stage.begin()
    stage.keep()
    return stage


def end(stage: Stage, state: str | None, on_timeout: str = "stop") -> State:
    """What became of the job."""
    killing.end_killed_job("some_connection", stage.leg, on_timeout, lambda _: state)
    stage.world.advance(timedelta(0))
    return run(stage.adapter.inspect(JOB)).state


@pytest.mark.parametrize("state", ["failed", "success", "skipped", "removed", "restarting", None])
def test_a_person_who_ends_the_task_ends_the_job(stage: Stage, state: str | None) -> None:
    assert end(stage, state) is State.GONE


@pytest.mark.parametrize("state", ["running", "queued", "up_for_retry", "scheduled", "deferred"])
def test_a_worker_that_goes_away_leaves_the_job_to_a_retry(stage: Stage, state: str) -> None:
    assert end(stage, state) is State.RUNNING


def test_no_answer_leaves_the_job(stage: Stage) -> None:
    hang = threading.Event()

    def ask(_: object) -> str | None:
        hang.wait(20)
        return None

    killing.end_killed_job("some_connection", stage.leg, "stop", ask)
    hang.set()

    assert run(stage.adapter.inspect(JOB)).state is State.RUNNING


def test_a_job_that_a_later_try_owns_is_left(stage: Stage) -> None:
    stage.retry(SECOND).begin()

    assert end(stage, "failed") is State.RUNNING


@pytest.mark.parametrize("on_timeout", ["stop", "hold"])
def test_a_job_that_a_later_try_owns_is_left_when_the_time_of_this_one_is_over(stage: Stage, on_timeout: str) -> None:
    stage.execution_timeout = timedelta(seconds=1)
    former = stage.leg
    stage.retry(SECOND).begin()
    stage.world.advance(timedelta(seconds=2))

    killing.end_killed_job("some_connection", former, on_timeout, lambda _: "running")

    stage.world.advance(timedelta(0))
    assert run(stage.adapter.inspect(JOB)).state is State.RUNNING


@pytest.mark.parametrize(
    ("on_timeout", "state"), [("stop", State.GONE), ("hold", State.HELD), ("leave", State.RUNNING)]
)
def test_a_task_whose_time_is_over_does_as_it_was_told(stage: Stage, on_timeout: str, state: State) -> None:
    stage.execution_timeout = timedelta(seconds=1)
    stage.world.advance(timedelta(seconds=2))

    assert end(stage, "running", on_timeout) is state


def test_a_thread_hands_on_what_it_found() -> None:
    def fail() -> None:
        raise LookupError("as it was")

    assert killing.run_in_thread(lambda: 7, 5) == 7
    with pytest.raises(LookupError, match="as it was"):
        killing.run_in_thread(fail, 5)


class Killed(DispatchStartJobOperator):
    """Told to end at the end of its work, as by a signal."""

    def execute(self, context):
        found = super().execute(context)
        self.on_kill()
        return found


@pytest.mark.parametrize(
    ("state", "cancel_on_kill", "is_left"), [("failed", True, False), ("running", True, True), ("failed", False, True)]
)
def test_the_operator_asks_airflow(
    airflow: Airflow, world: FakeBackend, connection: str, state: str, cancel_on_kill: bool, is_left: bool
) -> None:
    task = Killed(
        task_id="train", dag=DAG("d"), command=["run"], dispatch_conn_id=connection, cancel_on_kill=cancel_on_kill
    )
    airflow.states = {"train": state}

    airflow.run(task)

    world.advance(timedelta(0))
    assert bool(world.submissions) == is_left


def test_a_kill_before_anything_was_done_does_nothing(connection: str) -> None:
    task = DispatchStartJobOperator(task_id="train", command=["run"], dispatch_conn_id=connection)

    task.on_kill()

    assert task._leg is None
