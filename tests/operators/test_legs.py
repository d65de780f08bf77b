# SPDX-License-Identifier: Apache-2.0
"""The operators as Airflow runs them: legs in its own task runner, deferrals run by the triggers they name."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from airflow.sdk import DAG
from airflow.sdk.configuration import conf

from airflow_provider_dispatch.core.identity import JobID, build_task_job_id
from airflow_provider_dispatch.core.state import State
from airflow_provider_dispatch.exceptions import JobExitedError, JobStoppedError, SpecError
from airflow_provider_dispatch.operators.errand import SomeJobsFailedError
from airflow_provider_dispatch.operators.gate import DispatchOpenGateOperator
from airflow_provider_dispatch.operators.hold import DispatchHoldJobOperator, DispatchReleaseJobOperator
from airflow_provider_dispatch.operators.job import DispatchStartJobOperator, DispatchTrainJobOperator
from airflow_provider_dispatch.operators.stop import DispatchStopJobOperator
from airflow_provider_dispatch.testing.fake_backend import FakeBackend
from tests.operators.task_run import RUN_ID, Airflow, Leg

TRAIN = build_task_job_id("airflow", "d", RUN_ID, "train")
NO_PATIENCE = timedelta(0)


class Train(DispatchTrainJobOperator):
    patience = NO_PATIENCE


class OpenGate(DispatchOpenGateOperator):
    patience = NO_PATIENCE


class Hold(DispatchHoldJobOperator):
    patience = NO_PATIENCE


class Release(DispatchReleaseJobOperator):
    patience = NO_PATIENCE


class Stop(DispatchStopJobOperator):
    patience = NO_PATIENCE


@pytest.fixture
def dag() -> DAG:
    return DAG("d")


@pytest.fixture
def train(dag: DAG, connection: str) -> Train:
    return Train(
        task_id="train", dag=dag, command=["run"], num_nodes=2, dispatch_conn_id=connection, retries=2, stream_ranks=[]
    )


def returned(airflow: Airflow, task_id: str):
    return airflow.xcoms[task_id, -1, "return_value"]


def state_of(world: FakeBackend, job: JobID = TRAIN, submission: int = 1) -> State:
    from airflow_provider_dispatch.adapters.local.lifecycle.derive import derive_observation

    key = (job, submission)
    return derive_observation(world.submissions[key], world.statuses[key], world.now).state


def failed_with(leg: Leg) -> BaseException:
    assert leg.state in ("failed", "up_for_retry"), leg.done
    assert leg.done.error is not None
    return leg.done.error


# -- a job of one's own ------------------------------------------------------------------------------------------------


def test_a_job_from_start_to_end(airflow: Airflow, world: FakeBackend, train: Train) -> None:
    leg = airflow.run(train)
    world.finish((TRAIN, 1), result={"accuracy": 0.9})
    last = airflow.resume(train, leg)

    assert last.state == "success"
    assert returned(airflow, "train") == {
        "job": TRAIN,
        "submission": 1,
        "epoch": 1_000_001,
        "executions": 1,
        "result": {"accuracy": 0.9},
    }


def test_what_a_deferral_carries(airflow: Airflow, train: Train) -> None:
    train.execution_timeout = timedelta(hours=1)
    before = datetime.now(UTC)

    leg = airflow.run(train)

    kwargs = leg.trigger_kwargs
    interval = timedelta(seconds=2 * conf.getint("workers", "min_heartbeat_interval") + 1)
    assert datetime.fromisoformat(kwargs["not_before"]) >= before + interval
    assert datetime.fromisoformat(kwargs["deadline"]) - before == pytest.approx(
        timedelta(hours=1), abs=timedelta(seconds=10)
    )
    assert (kwargs["job"], kwargs["submission"], kwargs["owner_instance"]) == (TRAIN, 1, str(leg.ti.id))
    assert leg.deferral.trigger_timeout > timedelta(hours=1)


def test_no_deferral_is_limited_without_a_deadline(airflow: Airflow, train: Train) -> None:
    leg = airflow.run(train)

    assert (leg.trigger_kwargs["deadline"], leg.deferral.trigger_timeout) == (None, None)


def test_what_is_over_already_costs_no_deferral(
    airflow: Airflow, world: FakeBackend, dag: DAG, connection: str
) -> None:
    brief = Train(task_id="train", dag=dag, command=["missing"], dispatch_conn_id=connection, stream_ranks=[])

    leg = airflow.run(brief)

    assert "missing" in str(failed_with(leg))


def test_a_failure_is_typed(airflow: Airflow, world: FakeBackend, train: Train) -> None:
    leg = airflow.run(train)
    world.exit_rank((TRAIN, 1), rank=1, code=7)

    error = failed_with(airflow.resume(train, leg))

    assert isinstance(error, JobExitedError)
    assert "rank 1 of node exited with code 7" in str(error)


def test_a_preemption_or_a_hold_costs_no_retry(airflow: Airflow, world: FakeBackend, train: Train) -> None:
    leg = airflow.run(train)
    again = airflow.resume(train, leg, {"verdict": "failed", "reason": "nothing to decide after all"})

    assert again.trigger_kwargs["submission"] == 1


def test_a_retry_reattaches(airflow: Airflow, world: FakeBackend, train: Train) -> None:
    airflow.max_tries = 2
    airflow.run(train, try_number=1)

    leg = airflow.run(train, try_number=2)

    assert leg.trigger_kwargs["submission"] == 1
    assert world.submissions[TRAIN, 1].request.owner.instance_id == str(leg.ti.id)


def test_a_clear_begins_anew(airflow: Airflow, world: FakeBackend, train: Train) -> None:
    """Airflow raises max_tries by the try that was cleared."""
    airflow.max_tries = 2
    first = airflow.run(train, try_number=1)
    world.finish((TRAIN, 1))
    airflow.resume(train, first)
    airflow.max_tries = 3

    leg = airflow.run(train, try_number=2)

    assert leg.trigger_kwargs["submission"] == 2


def test_the_connection_gives_the_queue_and_templates_are_rendered(
    airflow: Airflow, world: FakeBackend, dag: DAG, connection: str
) -> None:
    task = Train(
        task_id="train",
        dag=dag,
        command=["{{ 'run' }}"],
        num_nodes="{{ 1 + 1 }}",
        labels={"run": "{{ run_id }}"},
        run_timeout="{{ 60 * 60 }}",
        priority="high",
        stream_ranks=[],
        dispatch_conn_id=connection,
    )

    airflow.run(task)

    request = world.submissions[TRAIN, 1].request
    assert (request.spec.queue, request.spec.priority, request.spec.nodes) == ("team-a", "high", 2)
    assert request.spec.labels == {"run": RUN_ID}
    assert request.supervision.budgets.running == timedelta(hours=1)


def test_a_rendered_value_that_is_wrong_names_its_argument(airflow: Airflow, dag: DAG, connection: str) -> None:
    task = Train(task_id="train", dag=dag, command=["run"], num_nodes="{{ 'many' }}", dispatch_conn_id=connection)

    error = failed_with(airflow.run(task))

    assert isinstance(error, SpecError)
    assert error.field == "num_nodes"


def test_waiting_in_the_worker_needs_no_trigger(
    airflow: Airflow, world: FakeBackend, dag: DAG, connection: str
) -> None:
    task = Train(
        task_id="train", dag=dag, command=["missing"], dispatch_conn_id=connection, deferrable=False, stream_ranks=[]
    )

    assert "missing" in str(failed_with(airflow.run(task)))


def test_a_start_returns_a_reference_with_the_gate_closed(
    airflow: Airflow, world: FakeBackend, dag: DAG, connection: str
) -> None:
    start = DispatchStartJobOperator(task_id="train", dag=dag, command=["run"], dispatch_conn_id=connection)

    leg = airflow.run(start)

    assert leg.state == "success"
    assert (returned(airflow, "train")["job"], state_of(world)) == (TRAIN, State.GATED)


def test_a_start_opens_the_gate_on_wish(airflow: Airflow, world: FakeBackend, dag: DAG, connection: str) -> None:
    start = DispatchStartJobOperator(
        task_id="train", dag=dag, command=["run"], open_gate=True, dispatch_conn_id=connection
    )

    airflow.run(start)

    assert state_of(world) is State.RUNNING


# -- jobs of others ----------------------------------------------------------------------------------------------------


def test_a_gate_is_opened_by_another_task(airflow: Airflow, world: FakeBackend, dag: DAG, connection: str) -> None:
    airflow.run(DispatchStartJobOperator(task_id="train", dag=dag, command=["run"], dispatch_conn_id=connection))
    ref = returned(airflow, "train")
    opened = OpenGate(task_id="open", dag=dag, job_ref=ref, dispatch_conn_id=connection)

    leg = airflow.run(opened)

    assert (leg.state, returned(airflow, "open")["job"], state_of(world)) == ("success", TRAIN, State.RUNNING)


def test_hold_and_release(airflow: Airflow, world: FakeBackend, dag: DAG, connection: str, train: Train) -> None:
    hold = Hold(task_id="hold", dag=dag, job_task_id="train", reason="maintenance", dispatch_conn_id=connection)
    release = Release(task_id="release", dag=dag, job_task_id="train", dispatch_conn_id=connection)
    airflow.run(train)

    holding = airflow.run(hold)
    world.advance(timedelta(0))
    held = airflow.resume(hold, holding)

    assert (held.state, state_of(world)) == ("success", State.HELD)
    assert (returned(airflow, "hold")["reason"], returned(airflow, "hold")["key"]) == (
        "maintenance",
        f"d/{RUN_ID}/hold/-1",
    )

    released = airflow.run(release)

    assert (released.state, returned(airflow, "release"), state_of(world)) == ("success", [], State.RUNNING)
    assert world.epochs[TRAIN] == [1_000_001, 1_000_002]


def test_a_retried_hold_is_the_same_hold(
    airflow: Airflow, world: FakeBackend, dag: DAG, connection: str, train: Train
) -> None:
    hold = Hold(task_id="hold", dag=dag, job_task_id="train", wait=False, dispatch_conn_id=connection)
    airflow.run(train)

    airflow.run(hold, try_number=1)
    airflow.run(hold, try_number=2)

    assert len(world.submissions[TRAIN, 1].holds.active) == 1


def test_a_hold_that_a_person_lifts_is_not_placed_again(
    airflow: Airflow, world: FakeBackend, dag: DAG, connection: str, train: Train
) -> None:
    hold = Hold(task_id="hold", dag=dag, job_task_id="train", dispatch_conn_id=connection)
    release = Release(task_id="release", dag=dag, job_task_id="train", dispatch_conn_id=connection)
    airflow.run(train)
    holding = airflow.run(hold)
    airflow.run(release)

    error = failed_with(airflow.resume(hold, holding, {"verdict": "done"}))

    assert "lifted" in str(error)
    assert not world.submissions[TRAIN, 1].holds.is_held


def test_others_holds_are_left_and_returned(
    airflow: Airflow, world: FakeBackend, dag: DAG, connection: str, train: Train
) -> None:
    mine = Hold(task_id="mine", dag=dag, job_task_id="train", wait=False, dispatch_conn_id=connection)
    theirs = Hold(task_id="theirs", dag=dag, job_task_id="train", wait=False, dispatch_conn_id=connection)
    release = Release(task_id="release", dag=dag, job_task_id="train", hold_task_id="mine", dispatch_conn_id=connection)
    airflow.run(train)
    airflow.run(mine)
    airflow.run(theirs)

    airflow.run(release)

    assert [hold["key"] for hold in returned(airflow, "release")] == [f"d/{RUN_ID}/theirs/-1"]


@pytest.mark.parametrize("render", [lambda hold: hold, json.dumps, str], ids=["dict", "JSON", "rendered dict"])
def test_exactly_one_hold_can_be_lifted(
    airflow: Airflow, world: FakeBackend, dag: DAG, connection: str, train: Train, render
) -> None:
    hold = Hold(task_id="hold", dag=dag, job_task_id="train", wait=False, dispatch_conn_id=connection)
    airflow.run(train)
    airflow.run(hold)
    lifted = render(returned(airflow, "hold"))
    exactly = Release(task_id="release", dag=dag, job_task_id="train", hold=lifted, dispatch_conn_id=connection)

    airflow.run(exactly)

    assert not world.submissions[TRAIN, 1].holds.is_held


def test_a_hold_of_an_ended_job_says_how_it_ended(
    airflow: Airflow, world: FakeBackend, dag: DAG, connection: str, train: Train
) -> None:
    hold = Hold(task_id="hold", dag=dag, job_task_id="train", dispatch_conn_id=connection)
    airflow.run(train)
    world.finish((TRAIN, 1))

    assert "succeeded" in str(failed_with(airflow.run(hold)))


def test_a_hold_waits_for_a_job_not_yet_started(
    airflow: Airflow, world: FakeBackend, dag: DAG, connection: str, train: Train
) -> None:
    hold = Hold(task_id="hold", dag=dag, job_task_id="train", wait=False, dispatch_conn_id=connection)

    early = airflow.run(hold)
    airflow.run(train)
    done = airflow.resume(hold, early)

    assert early.trigger_kwargs["starter"] == ["d", RUN_ID, "train", -1]
    assert (done.state, world.submissions[TRAIN, 1].holds.is_held) == ("success", True)


def test_a_hold_ends_with_the_task_that_never_started_a_job(
    airflow: Airflow, dag: DAG, connection: str, train: Train
) -> None:
    hold = Hold(task_id="hold", dag=dag, job_task_id="train", dispatch_conn_id=connection)

    early = airflow.run(hold)
    done = airflow.resume(hold, early, {"verdict": "failed", "reason": "task train ended (failed) without a job"})

    assert "without a job" in str(failed_with(done))


def test_an_unknown_job_can_fail_at_once(airflow: Airflow, dag: DAG, connection: str, train: Train) -> None:
    hold = Hold(task_id="hold", dag=dag, job_task_id="train", if_unknown="fail", dispatch_conn_id=connection)

    assert "nobody has heard of it" in str(failed_with(airflow.run(hold)))


def test_a_stop_proves_that_all_is_gone(
    airflow: Airflow, world: FakeBackend, dag: DAG, connection: str, train: Train
) -> None:
    stop = Stop(task_id="stop", dag=dag, job_task_id="train", reason="enough", dispatch_conn_id=connection)
    training = airflow.run(train)

    stopping = airflow.run(stop)
    world.advance(timedelta(0))
    stopped = airflow.resume(stop, stopping)
    error = failed_with(airflow.resume(train, training))

    report = returned(airflow, "stop")
    assert (stopped.state, len(report["stopped"]), report["alive"]) == ("success", 1, [])
    assert isinstance(error, JobStoppedError)
    assert "enough" in str(error)


def test_a_stop_of_nothing_is_fine(airflow: Airflow, dag: DAG, connection: str, train: Train) -> None:
    stop = Stop(task_id="stop", dag=dag, job_task_id="train", dispatch_conn_id=connection)

    assert airflow.run(stop).state == "success"


def test_many_jobs_are_held_and_released_together(
    airflow: Airflow, world: FakeBackend, dag: DAG, connection: str, train: Train
) -> None:
    other = Train(task_id="other", dag=dag, command=["run"], dispatch_conn_id=connection, stream_ranks=[])
    hold = Hold(task_id="hold", dag=dag, select={"queue": "team-a"}, wait=False, dispatch_conn_id=connection)
    release = Release(task_id="release", dag=dag, hold_task_id="hold", dispatch_conn_id=connection)
    airflow.run(train)
    airflow.run(other)

    airflow.run(hold)
    held = [submission.holds.is_held for submission in world.submissions.values()]
    late = Train(task_id="late", dag=dag, command=["run"], dispatch_conn_id=connection, stream_ranks=[])
    airflow.run(late)
    world.advance(timedelta(0))
    airflow.run(release)

    assert held == [True, True]
    assert len(returned(airflow, "hold")) == 2
    assert len(returned(airflow, "release")) == 2
    assert not any(submission.holds.is_held for submission in world.submissions.values())


def test_one_failure_does_not_stop_the_rest(
    airflow: Airflow, world: FakeBackend, dag: DAG, connection: str, train: Train
) -> None:
    other = Train(task_id="other", dag=dag, command=["run"], dispatch_conn_id=connection, stream_ranks=[])
    hold = Hold(task_id="hold", dag=dag, job_task_ids=["train", "other"], wait=False, dispatch_conn_id=connection)
    airflow.run(train)
    airflow.run(other)
    world.finish((TRAIN, 1))

    error = failed_with(airflow.run(hold))

    assert isinstance(error, SomeJobsFailedError)
    assert "1 of 2 jobs failed" in str(error)
    assert "train: RefusedError" in str(error)
    assert [submission.holds.is_held for submission in world.submissions.values()].count(True) == 1


def test_all_instances_of_a_mapped_task(airflow: Airflow, world: FakeBackend, dag: DAG, connection: str) -> None:
    mapped = Train.partial(task_id="train", dag=dag, command=["run"], dispatch_conn_id=connection, stream_ranks=[])
    mapped = mapped.expand(priority=["low", "high"])
    for index in range(2):
        airflow.run(mapped.unmap({"priority": ["low", "high"][index]}), map_index=index)
    airflow.states = {"train_0": "deferred", "train_1": "deferred"}
    stop = Hold(
        task_id="hold", dag=dag, job_task_id="train", job_map_index="all", wait=False, dispatch_conn_id=connection
    )

    leg = airflow.run(stop)

    assert leg.state == "success", leg.done.error
    assert [entry["name"] for entry in returned(airflow, "hold")] == ["train[0]", "train[1]"]
    assert all(submission.holds.is_held for submission in world.submissions.values())


def test_an_instance_of_a_mapped_task_must_be_named(airflow: Airflow, dag: DAG, connection: str) -> None:
    Train.partial(task_id="train", dag=dag, command=["run"], dispatch_conn_id=connection).expand(priority=["low"])
    hold = Hold(task_id="hold", dag=dag, job_task_id="train", dispatch_conn_id=connection)

    assert "job_map_index" in str(failed_with(airflow.run(hold)))
