# SPDX-License-Identifier: Apache-2.0
"""What careless and hostile users do to a store, its agent and its ranks: nothing runs twice, and no agent dies."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow_provider_dispatch.core.state import State
from tests.adapters.local.world import WAIT, World, python_job, soon
from tests.contract.stage_local import wait_until

FAR = timedelta(days=100)


# -- times that no kernel can wait for ---------------------------------------------------------------------------------


def test_an_agent_waits_for_what_is_due_in_a_year(world) -> None:
    async def scenario(at: World) -> None:
        ref = await at.run(python_job(WAIT))
        first = at.agent
        later = datetime.now(UTC) + FAR
        await at.adapter.hold(ref, at.hold_request(until=later), deadline=soon())
        await at.reach(ref, State.HELD)
        paused = await at.start(python_job(WAIT), not_before=later)
        await at.adapter.open(paused, deadline=soon())
        await at.run(python_job(WAIT))
        assert at.agent == first

    world.play(scenario)


def test_a_shim_waits_for_a_long_grace_and_a_rare_check(shared_world) -> None:
    program = (
        "import signal, sys, time; signal.signal(15, lambda *_: (print('saved'), sys.exit(0))); print('begun');"
        " time.sleep(60)"
    )

    async def scenario(at: World) -> None:
        graceful = await at.run(python_job(program, grace_period=FAR))
        await wait_until(lambda: b"begun" in _read_log(at, graceful), "the rank's first line")
        await at.adapter.hold(graceful, at.hold_request(), deadline=soon())
        await at.reach(graceful, State.HELD)
        assert b"saved" in _read_log(at, graceful)
        never_ready = await at.start(python_job(WAIT, readiness={"tcp_port": 1, "period": FAR}))
        await at.adapter.open(never_ready, deadline=soon())
        seen = await at.until(never_ready, lambda o: bool(o.ranks) and o.ranks[0].running == 1)
        assert seen.state is State.STARTING
        await at.run(python_job(WAIT))
        assert (await at.adapter.inspect(never_ready)).state is State.STARTING

    shared_world.play(scenario)


def test_a_deadline_may_be_the_end_of_time(shared_world) -> None:
    async def scenario(at: World) -> None:
        never = datetime.max.replace(tzinfo=UTC)
        ref = await at.start(python_job(WAIT))
        await at.adapter.open(ref, deadline=never)
        assert (await at.adapter.stop(ref.job, reason="", deadline=never)).is_complete

    shared_world.play(scenario)


def _read_log(at: World, ref) -> bytes:
    folder = at.layout.executions_folder(ref.job, ref.submission) / "r1" / "logs"
    return b"".join(path.read_bytes() for path in folder.glob("*.log"))
