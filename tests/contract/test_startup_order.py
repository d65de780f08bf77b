# SPDX-License-Identifier: Apache-2.0
"""Startup order between roles, both ways, kept after a restart and after a release."""

from __future__ import annotations

from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.state import Cause, State
from tests.contract.stage import Stage, soon


def leader_first(at: Stage, **more: object) -> JobSpec:
    leader = at.role("run", name="leader", readiness={"command": at.ready_command(), "period": 0.05})
    worker = at.role("run", name="worker", nodes=2, after=[{"role": "leader", "when": "ready"}])
    return at.roles(leader, worker, **more)


def counts(seen, role: str) -> tuple[int, int]:
    found = next(ranks for ranks in seen.ranks if ranks.role == role)
    return found.running, found.ready


async def bring_up(at: Stage, ref, executions: int) -> None:
    waiting = await at.until(ref, lambda o: o.executions == executions and counts(o, "leader")[0] == 1)
    assert (waiting.state, waiting.waiting_role) == (State.STARTING, "leader")
    assert counts(waiting, "worker") == (0, 0)
    await at.tell(ref, "ready", role="leader")
    up = await at.reach(ref, State.RUNNING)
    assert counts(up, "worker") == (2, 2)


def test_the_leader_is_ready_before_a_worker_exists_also_after_a_restart_and_a_release(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        ref = await at.start(leader_first(at, max_restarts=1))
        await at.adapter.open(ref, deadline=soon())
        await bring_up(at, ref, 1)
        await at.tell(ref, "exit 1", role="worker", rank=1)
        await bring_up(at, ref, 2)
        hold = await at.hold(ref)
        await at.reach(ref, State.HELD)
        await at.adapter.release(ref, hold, deadline=soon())
        await bring_up(at, ref, 3)
        seen = await at.adapter.inspect(ref)
        assert seen.execution is not None
        assert (seen.execution.a, seen.execution.j, seen.execution.r) == (2, 1, 3)

    stage.play(scenario)


def test_workers_first_the_launcher_waits_for_all_of_them(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        worker = at.role("run", name="worker", nodes=2, readiness={"command": at.ready_command(), "period": 0.05})
        launcher = at.role("run", name="launcher", after=[{"role": "worker"}])
        ref = await at.start(at.roles(launcher, worker, success_roles=["launcher"]))
        await at.adapter.open(ref, deadline=soon())
        await at.until(ref, lambda o: counts(o, "worker")[0] == 2)
        await at.tell(ref, "ready", role="worker", rank=0)
        half = await at.until(ref, lambda o: counts(o, "worker") == (2, 1))
        assert counts(half, "launcher") == (0, 0)
        await at.tell(ref, "ready", role="worker", rank=1)
        up = await at.reach(ref, State.RUNNING)
        assert counts(up, "launcher") == (1, 1)
        await at.tell(ref, "exit 0", role="launcher")
        await at.reach(ref, State.SUCCEEDED)

    stage.play(scenario)


def test_complete_waits_for_the_end_and_not_for_the_start(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        fetch = at.role("run", name="fetch")
        train = at.role("run", name="train", after=[{"role": "fetch", "when": "complete"}])
        ref = await at.start(at.roles(fetch, train, leading_role="train"))
        await at.adapter.open(ref, deadline=soon())
        waiting = await at.until(ref, lambda o: counts(o, "fetch")[0] == 1)
        assert (waiting.state, counts(waiting, "train")) == (State.STARTING, (0, 0))
        await at.tell(ref, "exit 0", role="fetch")
        up = await at.reach(ref, State.RUNNING)
        assert counts(up, "train") == (1, 1)
        await at.tell(ref, "exit 0", role="train")
        await at.reach(ref, State.SUCCEEDED)

    stage.play(scenario)


def test_a_leader_that_ends_before_it_is_ready_fails_those_that_wait(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        ref = await at.start(leader_first(at))
        await at.adapter.open(ref, deadline=soon())
        await at.until(ref, lambda o: counts(o, "leader")[0] == 1)
        await at.tell(ref, "exit 0", role="leader")
        seen = await at.reach(ref, State.FAILED)
        assert seen.cause is Cause.DEPENDENCY_FAILED
        assert "leader" in seen.detail

    stage.play(scenario)
