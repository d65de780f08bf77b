# SPDX-License-Identifier: Apache-2.0
"""Looking after a job from the worker: the same decisions whether the rest of the waiting is done here or elsewhere."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_provider_dispatch.core.clocks import Budgets
from airflow_provider_dispatch.core.decision import OnTimeout, OnUnfittable, Supervision
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.recovery import Recovery, RecoveryPolicy, RecoveryRule
from airflow_provider_dispatch.core.state import Cause, State
from airflow_provider_dispatch.exceptions import (
    ConflictError,
    JobExitedError,
    JobNotFoundError,
    JobStoppedError,
    JobTimeoutError,
    NoCapacityError,
    NodeLostError,
    UnavailableError,
)
from airflow_provider_dispatch.operators.keeper import OwnedByAnotherTryError
from airflow_provider_dispatch.testing.fake_adapter import FakeAdapter
from tests.operators.stage import FIRST, FOREVER, JOB, SECOND, Stage, run

IN_WORKER_AND_DEFERRED = pytest.mark.parametrize("patience", [None, timedelta(seconds=3)])
SHORT = JobSpec(command=["run", "2"])
FAILING = JobSpec(command=["run", "1", "3"])


def state_of(stage: Stage) -> State:
    return run(stage.adapter.inspect(JOB)).state


def newest(stage: Stage):
    return run(stage.adapter.find(JOB)).newest


def test_a_first_try_starts_with_the_gate_closed() -> None:
    stage = Stage()

    record = stage.begin()

    assert (record.ref.submission, record.owner, state_of(stage)) == (1, FIRST, State.GATED)


@IN_WORKER_AND_DEFERRED
def test_a_short_job_ends_within_the_leg(patience: timedelta | None) -> None:
    stage = Stage(patience=patience)
    stage.begin(SHORT)

    kept = stage.keep()

    assert kept.result == {"job": JOB, "submission": 1, "epoch": 1_000_001, "executions": 1, "result": None}


def test_a_long_job_is_left_to_a_trigger() -> None:
    stage = Stage()
    stage.begin()

    kept = stage.keep()

    assert (kept.result, kept.record.ref.submission, state_of(stage)) == (None, 1, State.RUNNING)


def test_a_task_that_waits_in_its_worker_waits_for_long() -> None:
    stage = Stage(patience=None)
    stage.begin(JobSpec(command=["run", "7200"]))

    assert stage.keep().result is not None
    assert stage.now() - stage.started >= timedelta(hours=2)


def test_the_gate_stays_closed_on_wish() -> None:
    stage = Stage()
    stage.begin()

    stage.keep(open_gate=False)

    assert state_of(stage) is State.GATED


@IN_WORKER_AND_DEFERRED
def test_a_failed_job_raises_its_cause(patience: timedelta | None) -> None:
    stage = Stage(patience=patience)
    stage.begin(FAILING)

    with pytest.raises(JobExitedError, match="exited with code 3") as caught:
        stage.keep()

    found, seen = caught.value.diagnosis, caught.value.observation
    assert found is not None
    assert seen is not None
    assert (found.cause, seen.state) == (Cause.EXITED, State.FAILED)


@IN_WORKER_AND_DEFERRED
@pytest.mark.parametrize(
    ("on_timeout", "state"),
    [(OnTimeout.STOP, State.GONE), (OnTimeout.HOLD, State.HELD), (OnTimeout.LEAVE, State.RUNNING)],
)
def test_a_clock_that_runs_out_ends_the_task(patience: timedelta | None, on_timeout: OnTimeout, state: State) -> None:
    stage = Stage(patience=patience)
    stage.begin(supervision=Supervision(Budgets(running=timedelta(seconds=2)), on_timeout=on_timeout))

    with pytest.raises(JobTimeoutError, match="the running clock ran out"):
        stage.keep()

    stage.world.advance(timedelta(0))
    assert state_of(stage) is state


def test_the_execution_timeout_is_absolute_and_of_this_try() -> None:
    stage = Stage(execution_timeout=timedelta(seconds=2), patience=None)
    record = stage.begin()

    with pytest.raises(JobTimeoutError, match="execution_timeout"):
        stage.keep()

    assert record.supervision.deadline is None


def test_a_hold_at_a_time_out_is_not_one_that_the_dag_run_releases() -> None:
    stage = Stage(patience=None)
    stage.begin(supervision=Supervision(Budgets(running=timedelta(seconds=2)), on_timeout=OnTimeout.HOLD))

    with pytest.raises(JobTimeoutError):
        stage.keep()

    (hold,) = run(stage.adapter.inspect(JOB)).holds
    assert hold.key == "timeout/d/r/train/-1"


@pytest.mark.parametrize("on_unfittable", list(OnUnfittable))
def test_a_job_that_can_never_fit(on_unfittable: OnUnfittable) -> None:
    stage = Stage()
    stage.begin(JobSpec(command=["run"], resources={"cpu": "1000"}), Supervision(on_unfittable=on_unfittable))

    if on_unfittable is OnUnfittable.WAIT:
        assert stage.keep().result is None
    else:
        with pytest.raises(NoCapacityError):
            stage.keep()
    assert (state_of(stage) is State.QUEUED) == (on_unfittable is OnUnfittable.WAIT)


def test_a_lost_node_is_mended_without_an_airflow_retry() -> None:
    stage = Stage()
    stage.begin()
    stage.keep()
    stage.world.kill_agent()

    stage.keep()
    record = newest(stage)

    assert (record.ref.submission, record.supervision.used_rules, record.owner) == (2, (0,), FIRST)
    assert stage.world.epochs[JOB] == [1_000_001, 2_000_001]
    assert any("recovery policy makes submission 2" in line for line in stage.lines)


def test_recovery_gives_more_of_a_resource() -> None:
    stage = Stage()
    policy = RecoveryPolicy((RecoveryRule((Cause.OUT_OF_MEMORY,), scale={"memory": 1.5}),))
    stage.begin(supervision=Supervision(policy=policy))
    stage.keep()
    stage.world.exit_rank((JOB, 1), signal=9, out_of_memory=True)

    stage.keep()

    assert newest(stage).spec.roles[0].requests["memory"] == 3 * 2**29


def test_recovery_ends_with_its_budget() -> None:
    stage = Stage(patience=None)
    stage.begin(FAILING, Supervision(policy=RecoveryPolicy((RecoveryRule((Cause.EXITED,), limit=2),))))

    with pytest.raises(JobExitedError):
        stage.keep()

    assert stage.world.epochs[JOB] == [1_000_001, 2_000_001, 3_000_001]


def test_recovery_pauses_in_the_queue() -> None:
    stage = Stage(patience=None)
    rule = RecoveryRule((Cause.EXITED,), back_off=timedelta(minutes=10))
    stage.begin(FAILING, Supervision(policy=RecoveryPolicy((rule,))))

    with pytest.raises(JobExitedError):
        stage.keep()

    admitted = [event.at for event in run(stage.adapter.events(JOB)) if event.kind == "admitted"]
    assert admitted[1] - admitted[0] >= timedelta(minutes=10)


def test_recovery_can_want_a_person() -> None:
    stage = Stage()
    policy = RecoveryPolicy((RecoveryRule((Cause.EXITED,), Recovery.HOLD),))
    stage.begin(FAILING, Supervision(policy=policy))

    kept = stage.keep()
    seen = run(stage.adapter.inspect(JOB))

    assert (kept.record.ref.submission, seen.state, seen.gates.is_open) == (2, State.HELD, True)
    assert seen.holds[0].key == "recovery/d/r/train/-1"
    assert stage.world.epochs[JOB] == [1_000_001], "it never ran before somebody looked"


def test_recovery_interrupted_before_its_hold_still_holds() -> None:
    """The worker died between the start of the new submission and its hold: the retry must not just open the gate."""
    stage = Stage()
    policy = RecoveryPolicy((RecoveryRule((Cause.EXITED,), Recovery.HOLD),))
    stage.begin(FOREVER, Supervision(policy=policy, used_rules=(0,)))
    retry = stage.retry()
    retry.begin()

    retry.keep()

    assert state_of(stage) is State.HELD


def test_no_recovery_after_the_deadline() -> None:
    stage = Stage(execution_timeout=timedelta(seconds=10))
    stage.begin()
    stage.keep()
    stage.world.advance(timedelta(seconds=20))
    stage.world.kill_agent()

    with pytest.raises(NodeLostError):
        stage.keep()


def test_a_retry_goes_on_with_the_live_job() -> None:
    stage = Stage()
    stage.begin()
    stage.keep()
    retry = stage.retry()

    record = retry.begin()

    assert (record.ref.submission, record.owner) == (1, SECOND)
    assert stage.world.epochs[JOB] == [1_000_001]


def test_a_retry_with_another_spec_stops_the_old_job_first() -> None:
    stage = Stage()
    stage.begin()
    stage.keep()
    retry = stage.retry()

    record = retry.begin(SHORT)

    assert (record.ref.submission, record.spec) == (2, SHORT)
    assert stage.world.overlaps == []


def test_a_cleared_task_begins_anew() -> None:
    stage = Stage()
    stage.begin()
    stage.keep()
    retry = stage.retry(cleared_try=1)

    assert retry.begin().ref.submission == 2
    assert stage.world.overlaps == []


def test_nothing_is_started_while_the_old_job_is_not_proved_gone() -> None:
    stage = Stage()
    stage.begin(JobSpec(command=["stubborn"], grace_period=timedelta(hours=1)))
    stage.keep()
    retry = stage.retry(cleared_try=1)

    with pytest.raises(ConflictError, match="not proved gone"):
        retry.begin()

    assert newest(stage).ref.submission == 1


def test_a_lost_answer_does_not_double_a_job() -> None:
    stage = Stage()
    stage.adapter.failures.append(UnavailableError("no answer"))

    record = stage.begin()

    assert record.ref.submission == 1


def test_a_backend_that_stays_away_is_an_error() -> None:
    stage = Stage()
    stage.adapter.failures.extend([UnavailableError("no answer")] * 9)

    with pytest.raises(UnavailableError):
        stage.begin()


def test_an_old_process_touches_nothing_once_a_later_try_owns_the_job() -> None:
    stage = Stage()
    stage.begin()
    stage.keep()
    stage.retry().begin()
    before = len(stage.adapter.calls)

    with pytest.raises(OwnedByAnotherTryError):
        stage.keep()
    with pytest.raises(OwnedByAnotherTryError):
        stage.begin()

    assert set(stage.adapter.calls[before:]) <= {"find", "inspect"}


def test_a_job_that_somebody_stopped_fails_its_task() -> None:
    stage = Stage()
    stage.begin()
    stage.keep()
    run(stage.adapter.stop(JOB, reason="by hand", deadline=stage.leg.call_deadline()))
    stage.world.advance(timedelta(0))

    with pytest.raises(JobStoppedError, match="by hand"):
        stage.keep()


def test_a_job_that_nobody_knows_is_not_waited_for() -> None:
    with pytest.raises(JobNotFoundError, match="another machine"):
        Stage().keep()


def test_what_was_persisted_decides_after_an_edit() -> None:
    stage = Stage()
    stage.begin(supervision=Supervision(Budgets(running=timedelta(seconds=2))))
    retry = stage.retry(replace(SECOND, map_index=-1))
    retry.begin(supervision=Supervision(Budgets(running=timedelta(hours=2))))

    with pytest.raises(JobTimeoutError):
        retry.keep()


class Handed(FakeAdapter):
    """Another try takes the job over the moment somebody looks at it."""

    async def inspect(self, ref):
        seen = await super().inspect(ref)
        self.backend.set_owner((JOB, 1), SECOND)
        return seen


def test_the_owner_is_looked_at_right_before_a_write() -> None:
    stage = Stage()
    stage.begin()
    stage.adapter = Handed(stage.world)

    with pytest.raises(OwnedByAnotherTryError):
        stage.keep()

    assert not {"open", "hold", "stop", "start"} & set(stage.adapter.calls)
