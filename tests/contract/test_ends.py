# SPDX-License-Identifier: Apache-2.0
"""How executions end, what is said of it, and what comes after: results, causes, restarts, a lost machine."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

import pytest

from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.records import SubmissionRecord
from airflow_provider_dispatch.core.state import Cause, State
from tests.contract.stage import Difference, Stage, new_job, soon


def test_all_ranks_at_zero_is_success_with_the_result_of_rank_0(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        ref = await at.run(at.spec("run", nodes=2))
        await at.tell(ref, "exit 0", rank=1)
        assert (await at.adapter.inspect(ref)).state is State.RUNNING
        await at.give_result(ref, json.dumps({"accuracy": 0.97, "name": "größe"}))
        seen = await at.reach(ref, State.SUCCEEDED)
        assert seen.result == {"accuracy": 0.97, "name": "größe"}
        assert (seen.cause, seen.failed_rank) == (None, None)

    stage.play(scenario)


@pytest.mark.parametrize(
    ("text", "said"),
    [("x" * 4001, "4001 bytes"), ("{not json", "9 bytes is not JSON"), ('{"a": NaN}', "10 bytes is not JSON")],
    ids=["too large", "not JSON", "NaN"],
)
def test_a_result_that_cannot_be_carried_is_an_error_that_says_the_size(stage: Stage, text: str, said: str) -> None:
    async def scenario(at: Stage) -> None:
        ref = await at.run(at.spec("run"))
        await at.give_result(ref, text)
        seen = await at.reach(ref, State.FAILED)
        assert seen.cause is Cause.MISCONFIGURED
        assert said in seen.detail
        assert seen.result is None

    stage.play(scenario)


def test_the_first_bad_exit_ends_the_job_and_is_named(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        ref = await at.run(at.spec("run", nodes=3))
        await at.tell(ref, "say about to break", rank=1)
        await at.tell(ref, "exit 3", rank=1)
        seen = await at.reach(ref, State.FAILED)
        assert seen.cause is Cause.EXITED
        assert seen.failed_rank is not None
        rank = seen.failed_rank
        assert (rank.role, rank.rank, rank.exit_code, rank.signal) == ("node", 1, 3, None)
        assert "rank 1 of node exited with code 3" in seen.detail
        said = [(proof.field.replace("exitCode", "exit code"), proof.value) for proof in seen.evidence]
        assert any("exit code" in field and value == "3" for field, value in said)
        gone = await at.settle(ref, lambda o: o.ranks[0].running == 0)
        assert gone.state is State.FAILED

    stage.play(scenario)


def test_a_signal_is_told_by_number_and_name(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        ref = await at.run(at.spec("run", nodes=2))
        await at.tell(ref, "kill 9", rank=1)
        seen = await at.reach(ref, State.FAILED)
        assert seen.failed_rank is not None
        assert (seen.cause, seen.failed_rank.rank, seen.failed_rank.signal) == (Cause.EXITED, 1, 9)
        assert "signal 9 (SIGKILL)" in seen.detail

    stage.play(scenario)


def test_a_record_says_when_its_submission_ended(stage: Stage) -> None:
    async def find(at: Stage, ref: JobRef) -> SubmissionRecord:
        newest = (await at.adapter.find(ref.job)).newest
        assert newest is not None
        return newest

    async def scenario(at: Stage) -> None:
        ref = await at.run(at.spec("run"))
        assert (await find(at, ref)).ended_at is None
        await at.tell(ref, "exit 0")
        await at.reach(ref, State.SUCCEEDED)
        while (record := await find(at, ref)).ended_at is None:
            await at.pass_time(at.blink / 10)
        assert record.created_at is not None
        assert record.created_at <= record.ended_at
        assert (await find(at, ref)).ended_at == record.ended_at

    stage.play(scenario)


def test_an_end_is_final(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        ref = await at.run(at.spec("run"))
        await at.tell(ref, "exit 1")
        await at.reach(ref, State.FAILED)
        await at.lose_node()
        await at.adapter.open(ref, deadline=soon())
        seen = await at.adapter.inspect(ref)
        assert (seen.state, seen.cause, seen.executions) == (State.FAILED, Cause.EXITED, 1)

    stage.play(scenario)


def test_a_restart_raises_j_and_the_epoch_and_starts_every_rank_anew(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        ref = await at.run(at.spec("run", nodes=2, max_restarts=1))
        await at.begun(ref, 1_000_001)
        await at.tell(ref, "exit 5", rank=1)
        seen = await at.until(ref, lambda o: o.state is State.RUNNING and o.executions == 2)
        await at.begun(ref, 1_000_002)
        assert seen.execution is not None
        assert (seen.execution.a, seen.execution.j, seen.execution.epoch) == (1, 1, 1_000_002)
        assert seen.execution.attempt_id == f"{ref.job}.1.1.1.1"
        await at.tell(ref, "exit 6", rank=0)
        ended = await at.reach(ref, State.FAILED)
        assert ended.failed_rank is not None
        assert (ended.cause, ended.failed_rank.exit_code) == (Cause.EXITED, 6)
        assert at.epochs(ref.job) == [1_000_001, 1_000_002]

    stage.play(scenario)


def test_a_hold_after_a_restart_keeps_the_epoch_growing(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        ref = await at.run(at.spec("run", max_restarts=2))
        await at.tell(ref, "exit 5")
        await at.until(ref, lambda o: o.state is State.RUNNING and o.executions == 2)
        await at.begun(ref, 1_000_002)
        hold = await at.hold(ref)
        await at.reach(ref, State.HELD)
        await at.adapter.release(ref, hold, deadline=soon())
        seen = await at.reach(ref, State.RUNNING)
        assert seen.execution is not None
        assert (seen.execution.a, seen.execution.j, seen.execution.r) == (2, 1, 3)
        await at.tell(ref, "exit 5")
        await at.until(ref, lambda o: o.state is State.RUNNING and o.executions == 4)
        await at.begun(ref, 1_000_004)
        assert at.epochs(ref.job) == [1_000_001, 1_000_002, 1_000_003, 1_000_004]

    stage.play(scenario)


def test_a_lost_machine_ends_the_submission_and_the_next_has_a_higher_epoch(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        ref = await at.run(at.spec("run", nodes=2, max_restarts=5))
        await at.begun(ref, 1_000_001)
        await at.lose_node()
        seen = await at.reach(ref, State.FAILED)
        assert (seen.cause, seen.executions) == (Cause.NODE_LOST, 1)
        assert seen.evidence
        again = await at.run(at.spec("run", nodes=2, max_restarts=5), job=ref.job, submission=2)
        await at.begun(again, 2_000_001)
        found = await at.adapter.find(ref.job)
        assert [record.state for record in found.submissions] == [State.FAILED, State.RUNNING]
        assert at.epochs(again.job) == [1_000_001, 2_000_001]

    stage.play(scenario)


def test_success_is_that_of_the_success_roles_and_ends_the_rest(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        launcher, worker = at.role("run", name="launcher"), at.role("run", name="worker", nodes=2)
        ref = await at.run(at.roles(launcher, worker, success_roles=["launcher"]))
        await at.tell(ref, "exit 0", role="launcher")
        seen = await at.reach(ref, State.SUCCEEDED)
        assert seen.cause is None
        gone = await at.settle(ref, lambda o: sum(role.running for role in o.ranks) == 0)
        assert (gone.state, gone.failed_rank) == (State.SUCCEEDED, None)

    stage.play(scenario)


def test_a_bad_exit_of_any_role_ends_the_job(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        launcher, worker = at.role("run", name="launcher"), at.role("run", name="worker")
        ref = await at.run(at.roles(launcher, worker, success_roles=["launcher"]))
        await at.tell(ref, "exit 9", role="worker")
        seen = await at.reach(ref, State.FAILED)
        assert seen.failed_rank is not None
        assert (seen.failed_rank.role, seen.failed_rank.exit_code) == ("worker", 9)

    stage.play(scenario)


def test_stop_works_from_every_state_and_leaves_the_ledger_alone(make_stage) -> None:
    async def gated(at: Stage):
        return await at.start(at.spec("run", queue="q", resources={"cpu": 1}))

    async def queued(at: Stage):
        await at.run(at.spec("run", queue="q", resources={"cpu": 1}))
        ref = await gated(at)
        await at.adapter.open(ref, deadline=soon())
        return ref

    async def running(at: Stage):
        return await at.run(at.spec("stubborn", queue="q", resources={"cpu": 1}))

    async def holding(at: Stage):
        ref = await running(at)
        await at.hold(ref)
        return ref

    async def held(at: Stage):
        ref = await holding(at)
        await at.reach(ref, State.HELD)
        return ref

    async def failed(at: Stage):
        ref = await running(at)
        await at.tell(ref, "exit 1")
        await at.reach(ref, State.FAILED)
        return ref

    async def unfittable(at: Stage):
        ref = await at.start(at.spec("run", nodes=2, queue="q", resources={"cpu": 1}))
        await at.adapter.open(ref, deadline=soon())
        return ref

    for make in (gated, queued, running, holding, held, failed, unfittable):

        async def scenario(at: Stage, make=make) -> None:
            ref = await make(at)
            report = await at.adapter.stop(ref.job, reason="the test is over", deadline=soon())
            assert report.is_complete, make.__name__
            assert report.stopped
            seen = await at.adapter.inspect(ref)
            assert (seen.state, seen.cause, seen.detail) == (State.GONE, Cause.STOPPED, "the test is over")
            found = await at.adapter.find(ref.job)
            assert (found.ledger, found.submissions, found.orphans) == (1, (), ())
            again = await at.adapter.stop(ref.job, reason="again", deadline=soon())
            assert (again.is_complete, again.stopped) == (True, ())

        make_stage({"q": {"cpu": 1}}).play(scenario)


def test_stop_by_owner_spares_the_job_of_a_later_try(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        from airflow_provider_dispatch.exceptions import ConflictError

        ref = await at.run(at.spec("run"), owner=at.owner("try-2"))
        with pytest.raises(ConflictError):
            await at.adapter.stop(ref.job, reason="x", deadline=soon(), if_owner=at.owner("try-1"))
        assert (await at.adapter.inspect(ref)).state is State.RUNNING
        report = await at.adapter.stop(ref.job, reason="x", deadline=soon(), if_owner=at.owner("try-2"))
        assert report.is_complete

    stage.play(scenario)


def test_stop_of_an_unknown_job_has_nothing_to_do(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        job = new_job()
        report = await at.adapter.stop(job, reason="x", deadline=soon())
        assert (report.job, report.stopped, report.is_complete) == (job, (), True)

    stage.play(scenario)


def test_hold_and_stop_at_once_end_in_a_stop(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        ref = await at.run(at.spec("slow", "0.5", grace_period=timedelta(seconds=5)))
        other = await at.another_adapter()
        held, report = await asyncio.gather(
            at.hold(ref), other.stop(ref.job, reason="over", deadline=soon()), return_exceptions=True
        )
        assert not isinstance(report, BaseException)
        assert report.is_complete
        assert (await at.adapter.inspect(ref)).state is State.GONE
        assert held is not None

    stage.play(scenario)


def test_events_tell_the_life_in_order(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        ref = await at.run(at.spec("run"))
        hold = await at.hold(ref)
        await at.reach(ref, State.HELD)
        await at.adapter.release(ref, hold, deadline=soon())
        await at.reach(ref, State.RUNNING)
        await at.tell(ref, "exit 0")
        await at.reach(ref, State.SUCCEEDED)
        events = await at.adapter.events(ref)
        assert [e.sequence for e in events] == sorted(e.sequence for e in events)
        kinds = [e.kind for e in events]
        if Difference.OWN_EVENTS in at.differences:
            asked = [kind for kind in kinds if kind in ("opened", "held", "released")]
            assert asked == ["opened", "held", "released"]
            return
        assert [kind for kind in kinds if kind not in ("queued", "waiting", "gone")] == [
            *("submitted", "gated", "opened", "admitted", "starting", "running"),
            *("hold", "holding", "held", "release", "admitted", "starting", "running", "succeeded"),
        ]
        assert {e.epoch for e in events if e.kind == "running"} == {1_000_001, 1_000_002}

    stage.play(scenario)
