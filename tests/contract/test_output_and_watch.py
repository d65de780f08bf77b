# SPDX-License-Identifier: Apache-2.0
"""output and watch: lines once and in order over reconnects, states at once and then pushed."""

from __future__ import annotations

import asyncio
import contextlib

from airflow_provider_dispatch.adapters.protocol import OutputRequest
from airflow_provider_dispatch.core.output import Cursor, OutputLine
from airflow_provider_dispatch.core.state import State
from tests.contract.stage import Stage, new_job, soon

NUMBERED = [f"line {number}" for number in range(500)]


async def read(at: Stage, ref, request: OutputRequest) -> list[OutputLine]:
    return [line async for line in at.adapter.output(ref, request)]


def test_lines_come_once_and_in_order_over_reconnects(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        ref = await at.run(at.spec("run", nodes=2))
        await at.tell(ref, "count 500", rank=1)
        await at.tell(ref, "exit 0", rank=1)
        await at.until(ref, lambda o: o.ranks[0].succeeded == 1)
        lines: list[OutputLine] = []
        cursor: Cursor | None = None
        for most in (1, 7, 100, 392, 50):
            piece = await read(at, ref, OutputRequest(rank=1, cursor=cursor, most_lines=most))
            lines += piece
            if piece:
                cursor = Cursor.from_text(piece[-1].cursor.to_text()) if piece[-1].cursor else None
        texts = [line.text for line in lines if line.text.startswith("line ")]
        assert texts == NUMBERED
        assert [line.sequence for line in lines] == list(range(len(lines)))
        assert {(line.role, line.rank, line.execution) for line in lines} == {("node", 1, 1)}

    stage.play(scenario)


def test_whoever_wants_one_line_does_not_wait_for_a_second(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        ref = await at.run(at.spec("run"))
        await at.tell(ref, "say first")
        lines = await asyncio.wait_for(read(at, ref, OutputRequest(follow=True, most_lines=1)), 10)
        assert len(lines) == 1
        assert (await at.adapter.inspect(ref)).state is State.RUNNING

    stage.play(scenario)


def test_following_from_the_gate_reaches_into_the_next_execution_and_ends_with_the_job(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        ref = await at.start(at.spec("run"))
        following = asyncio.create_task(read(at, ref, OutputRequest(follow=True)))
        await at.adapter.open(ref, deadline=soon())
        await at.reach(ref, State.RUNNING)
        await at.tell(ref, "say first")
        await at.until(ref, lambda _: True)
        await at.pass_time(at.blink)
        hold = await at.hold(ref)
        await at.reach(ref, State.HELD)
        await at.adapter.release(ref, hold, deadline=soon())
        await at.reach(ref, State.RUNNING)
        await at.tell(ref, "say second")
        await at.pass_time(at.blink)
        await at.tell(ref, "exit 0")
        lines = await asyncio.wait_for(following, 20)
        said = [(line.execution, line.text) for line in lines if line.text in ("first", "second")]
        assert said == [(1, "first"), (2, "second")]

    stage.play(scenario)


def test_a_line_can_not_pass_for_another(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        ref = await at.run(at.spec("run"))
        await at.tell(ref, "say \x1b[2K\x1b]0;title\x07fine\x00 \u202eright")
        await at.pass_time(at.blink)
        await at.tell(ref, "exit 0")
        await at.reach(ref, State.SUCCEEDED)
        lines = await read(at, ref, OutputRequest())
        text = next(line.text for line in lines if "fine" in line.text)
        assert not any(ord(character) < 32 or character == "\u202e" for character in text)

    stage.play(scenario)


def test_a_watcher_sees_the_present_at_once_then_each_change_then_the_end(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        ref = await at.start(at.spec("run"))

        async def states() -> list[State]:
            return [seen.state async for seen in at.adapter.watch([ref])]

        watching = asyncio.create_task(states())
        await asyncio.sleep(0)
        await at.adapter.open(ref, deadline=soon())
        await at.reach(ref, State.RUNNING)
        await at.pass_time(at.blink)
        await at.tell(ref, "exit 0")
        seen = await asyncio.wait_for(watching, 20)
        assert seen[-1] is State.SUCCEEDED
        assert State.RUNNING in seen
        late = await asyncio.wait_for(states(), 20)
        assert late == [State.SUCCEEDED]

    stage.play(scenario)


def test_a_watcher_by_job_id_is_there_before_the_job_and_follows_its_submissions(stage: Stage) -> None:
    async def scenario(at: Stage) -> None:
        job = new_job()
        seen: list[tuple[int, State]] = []
        is_watching, fresh = asyncio.Event(), asyncio.Event()

        async def look() -> None:
            async for observation in at.adapter.watch([job]):
                seen.append((observation.ref.submission, observation.state))
                is_watching.set()
                if (2, State.GATED) in seen:
                    fresh.set()

        watching = asyncio.create_task(look())
        await asyncio.wait_for(is_watching.wait(), 20)
        await at.start(at.spec("run"), job=job)
        await at.pass_time(at.blink)
        await at.adapter.stop(job, reason="over", deadline=soon())
        await at.start(at.spec("run"), job=job, submission=2)
        await asyncio.wait_for(fresh.wait(), 20)
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
        assert seen[0] == (0, State.GONE)
        assert seen[-1] == (2, State.GATED)

    stage.play(scenario)
