# SPDX-License-Identifier: Apache-2.0
"""start, open, find, list, adopt: a job behind its gate, made once whatever happens to the answers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_dispatch.core.records import JobSelector
from airflow_provider_dispatch.core.state import Cause, State
from airflow_provider_dispatch.exceptions import (
    ConflictError,
    JobNotFoundError,
    SpecError,
    UnavailableError,
)
from tests.contract.stage import Difference, Stage, new_job, soon


def test_a_started_job_waits_behind_our_gate_and_runs_nothing(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        ref = await at.start(at.spec("run", nodes=2))
        seen = await at.adapter.inspect(ref)
        assert (seen.state, seen.cause, seen.detail) == (State.GATED, None, "")
        assert (seen.gates.is_open, seen.gates.others) == (False, ())
        assert seen.execution is None
        assert [(r.role, r.nodes, r.running) for r in seen.ranks] == [("node", 2, 0)]
        assert at.epochs(ref.job) == []

    stage.play(scenario)


def test_opening_twice_is_opening_once(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        ref = await at.run(at.spec("run"))
        await at.adapter.open(ref, deadline=soon())
        seen = await at.adapter.inspect(ref)
        assert seen.gates.is_open
        assert seen.execution is not None
        assert seen.execution.epoch == 1_000_001
        assert [e.kind for e in await at.adapter.events(ref)].count("opened") == 1

    stage.play(scenario)


def test_the_same_start_again_gives_the_same_ref_and_makes_nothing(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        job, spec = new_job(), at.spec("run")
        first = await at.start(spec, job=job)
        again = await at.start(at.spec("run"), job=job)
        other = await at.another_adapter()
        found = await other.find(job)
        assert again == first
        assert [record.ref for record in found.submissions] == [first]
        assert found.ledger == 1

    stage.play(scenario)


def test_another_spec_under_the_same_number_is_a_conflict(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        ref = await at.start(at.spec("run"))
        with pytest.raises(ConflictError, match="another spec"):
            await at.start(at.spec("run", nodes=2), job=ref.job)

    stage.play(scenario)


def test_a_new_submission_waits_until_the_old_one_has_ended(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        ref = await at.start(at.spec("run"))
        with pytest.raises(ConflictError, match="has not ended"):
            await at.start(at.spec("run"), job=ref.job, submission=2)

    stage.play(scenario)


def test_a_number_is_never_used_again_not_even_after_a_stop(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        ref = await at.start(at.spec("run"), submission=3)
        await at.adapter.stop(ref.job, reason="over", deadline=soon())
        assert (await at.adapter.find(ref.job)).ledger == 3
        for used in (1, 3):
            with pytest.raises(ConflictError, match="used before; the next is 4"):
                await at.start(at.spec("run"), job=ref.job, submission=used)
        again = await at.start(at.spec("run"), job=ref.job, submission=4)
        assert again.submission == 4

    stage.play(scenario)


def test_a_job_of_another_deployment_is_refused(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        ref = await at.start(at.spec("run"), owner=at.owner("i1", "blue"))
        await at.adapter.stop(ref.job, reason="over", deadline=soon())
        with pytest.raises(ConflictError, match="deployment 'blue'"):
            await at.start(at.spec("run"), job=ref.job, submission=2, owner=at.owner("i2", "green"))

    stage.play(scenario)


def test_past_its_deadline_a_call_writes_nothing(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        ref = await at.start(at.spec("run"))
        over = datetime.now(UTC) - timedelta(seconds=1)
        with pytest.raises(UnavailableError):
            await at.adapter.open(ref, deadline=over)
        with pytest.raises(UnavailableError):
            await at.adapter.stop(ref.job, reason="x", deadline=over)
        seen = await at.adapter.inspect(ref)
        assert seen.state is State.GATED

    stage.play(scenario)


def test_an_unknown_job_is_a_state_for_inspect_and_an_error_for_writes(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        job = new_job()
        seen = await at.adapter.inspect(job)
        assert (seen.state, seen.cause) == (State.GONE, None)
        assert (await at.adapter.find(job)).submissions == ()
        ref = await at.start(at.spec("run"))
        await at.adapter.stop(ref.job, reason="over", deadline=soon())
        with pytest.raises(JobNotFoundError):
            await at.adapter.open(ref, deadline=soon())
        with pytest.raises(JobNotFoundError):
            await at.hold(ref)

    stage.play(scenario)


def test_an_unknown_queue_is_told_with_the_known_ones_before_anything_is_made(make_stage) -> None:
    async def scenario(at: Stage) -> None:
        job = new_job()
        with pytest.raises(SpecError, match=r"queue = 'team-x'.*team-a, team-b") as caught:
            await at.start(at.spec("run", queue="team-x"), job=job)
        assert caught.value.field == "queue"
        assert (await at.adapter.find(job)).ledger == 0

    make_stage({"team-a": {"cpu": 1}, "team-b": {"cpu": 1}}).play(scenario)


def test_an_unknown_priority_is_told_with_the_known_ones(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        at.needs(Difference.NO_QUEUES)
        with pytest.raises(SpecError, match=r"priority = 'urgent'.*high, low, normal"):
            await at.start(at.spec("run", priority="urgent"))

    stage.play(scenario)


def test_the_owner_changes_by_compare_and_swap(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        ref = await at.start(at.spec("run"), owner=at.owner("try-1"))
        await at.adapter.adopt(ref, at.owner("try-2"), expected=at.owner("try-1"), deadline=soon())
        with pytest.raises(ConflictError, match="try-2"):
            await at.adapter.adopt(ref, at.owner("try-3"), expected=at.owner("try-1"), deadline=soon())
        newest = (await at.adapter.find(ref.job)).newest
        assert newest is not None
        assert newest.owner.instance_id == "try-2"

    stage.play(scenario)


def test_list_tells_jobs_by_queue_label_owner_and_state(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        at.needs(Difference.NO_QUEUES)
        a = await at.start(at.spec("run", queue="a", labels={"team": "blau-weiß"}), owner=at.owner("i", "blue"))
        b = await at.run(at.spec("run", queue="b"))
        c = await at.start(at.spec("run", queue="b"))

        async def listed(**wanted: object) -> list[str]:
            records = await at.adapter.list(JobSelector(**wanted))  # type: ignore[arg-type]  # table
            return [record.ref.job for record in records]

        # The oldest first; a cluster stamps whole seconds, and a and b may share one.
        assert await listed() in ([a.job, b.job, c.job], [b.job, a.job, c.job])
        assert await listed(queue="b") == [b.job, c.job]
        assert await listed(labels={"team": "blau-weiß"}) == [a.job]
        assert await listed(deployment="blue") == [a.job]
        assert await listed(states=frozenset({State.RUNNING})) == [b.job]
        assert await listed(queue="b", states=frozenset({State.GATED})) == [c.job]

    stage.play(scenario)


def test_a_command_that_does_not_exist_ends_the_job_with_its_name(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        ref = await at.start(at.spec("missing", nodes=2))
        await at.adapter.open(ref, deadline=soon())
        seen = await at.reach(ref, State.FAILED)
        assert seen.cause is Cause.MISCONFIGURED
        assert "missing" in seen.detail

    stage.play(scenario)


def test_preflight_says_yes_to_what_start_needs(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        found = await at.adapter.preflight()
        needed = ("readmission_gate", "attempt_injection", "hold", "start_gate")
        assert [found.capabilities[name].value for name in needed] == ["yes"] * 4  # type: ignore[index]  # str enum
        assert all(finding.reason for finding in found.capabilities.values())

    stage.play(scenario)
