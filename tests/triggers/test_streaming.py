# SPDX-License-Identifier: Apache-2.0
"""A job's output in the task log: whose line it is, each once, and no more than a log can carry."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from airflow_provider_dispatch.adapters.protocol import DispatchAdapter, OutputRequest
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.output import OutputLine
from airflow_provider_dispatch.exceptions import CapabilityError, DispatchError, UnavailableError
from airflow_provider_dispatch.triggers.cursors import Cursors
from airflow_provider_dispatch.triggers.streaming import Limits, OutputPrinter, StreamedRank
from tests.triggers.world import CountingAdapter, World, settle

LINE = re.compile(r"\[(?P<whose>.*) #(?P<sequence>\d+)\] (?P<text>.*)")
SECOND = timedelta(seconds=1)


class MemoryCursors:
    """Outlives a printer, as the task's XCom does."""

    def __init__(self) -> None:
        self.saved: Cursors = {}
        self.saves = self.loads = 0
        self.is_out_of_reach = False

    async def load(self) -> Cursors:
        self.loads += 1
        return self.saved

    async def save(self, cursors: Cursors) -> None:
        if self.is_out_of_reach:
            await asyncio.Event().wait()
        self.saved, self.saves = dict(cursors), self.saves + 1


class Printed:
    """A printer over the fake with what it wrote."""

    def __init__(
        self,
        world: World,
        *,
        ranks: tuple[StreamedRank, ...] = ((None, 0),),
        cursors: MemoryCursors | None = None,
        adapter: DispatchAdapter | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.writes: list[str] = []
        self.cursors = cursors or MemoryCursors()
        self.adapter = adapter or world.build_adapter()
        self.printer = OutputPrinter(
            self.adapter,
            ranks,
            write=self.writes.append,
            cursors=self.cursors,
            sleeper=world.sleep,
            limits=limits or Limits(slice_seconds=60),
        )

    async def follow(self, ref: JobRef) -> None:
        self.printer.follow(await self.adapter.inspect(ref))
        await settle()

    async def kill(self) -> None:
        """What ``kill -9`` leaves: nothing more is printed and nothing more is saved."""
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await settle()

    @property
    def texts(self) -> list[str]:
        return [match["text"] for write in self.writes for line in write.split("\n") if (match := LINE.match(line))]

    @property
    def lines(self) -> list[str]:
        return [line for write in self.writes for line in write.split("\n")]


def test_a_line_says_which_rank_of_which_execution_said_it(world: World) -> None:
    async def scenario() -> list[str]:
        ref = await world.start("run", nodes=2)
        printed = Printed(world, ranks=((None, 0), ("node", 1)))
        world.print_lines(ref, "hello", "again")
        world.print_lines(ref, "from the other", rank=1)
        await printed.follow(ref)
        await printed.printer.finish(is_over=False)
        return sorted(printed.lines)

    assert asyncio.run(scenario()) == [
        "[node rank 1 · 1000001 #0] from the other",
        "[rank 0 · 1000001 #0] hello",
        "[rank 0 · 1000001 #1] again",
    ]


def test_lines_are_packed_into_one_call_a_tick(world: World) -> None:
    async def scenario() -> list[int]:
        ref = await world.start("run")
        printed = Printed(world)
        await printed.follow(ref)
        world.print_lines(ref, "the first is printed at once")
        await settle()
        at_once = len(printed.writes)
        for number in range(200):
            world.print_lines(ref, str(number))
        await settle()
        before = len(printed.writes)
        await world.advance(SECOND)
        after = len(printed.writes)
        await printed.printer.finish(is_over=False)
        return [at_once, before, after, len(printed.texts)]

    assert asyncio.run(scenario()) == [1, 1, 2, 201]


def test_the_rest_is_printed_when_the_job_is_over(world: World) -> None:
    async def scenario() -> list[str]:
        ref = await world.start("run")
        printed = Printed(world)
        await printed.follow(ref)
        world.print_lines(ref, "one")
        await settle()
        world.print_lines(ref, "two", "three")
        world.finish(ref)
        finishing = asyncio.ensure_future(printed.printer.finish(is_over=True))
        await world.advance(SECOND)
        await finishing
        return printed.texts

    assert asyncio.run(scenario()) == ["one", "two", "three"]


def test_what_is_too_much_for_a_tick_is_counted(world: World) -> None:
    async def scenario() -> tuple[list[str], list[str]]:
        ref = await world.start("run")
        printed = Printed(world, limits=Limits(bytes_per_tick=1000, slice_seconds=60))
        for number in range(100):
            world.print_lines(ref, f"{number:02} {'x' * 70}")
        await printed.follow(ref)
        flood = list(printed.lines)
        world.print_lines(ref, "calm again")
        await world.advance(SECOND)
        await printed.printer.finish(is_over=False)
        return flood, printed.lines[len(flood) :]

    flood, calm = asyncio.run(scenario())

    assert len(flood) == 11
    assert flood[-1] == "[rank 0 · 1000001] … 90 lines left out: too many at once"
    assert calm == ["[rank 0 · 1000001 #100] calm again"]


def test_a_single_line_beyond_the_limit_is_printed(world: World) -> None:
    async def scenario() -> list[str]:
        ref = await world.start("run")
        printed = Printed(world, limits=Limits(bytes_per_tick=10, slice_seconds=60))
        world.print_lines(ref, "x" * 100)
        await printed.follow(ref)
        await printed.printer.finish(is_over=False)
        return printed.texts

    assert asyncio.run(scenario()) == ["x" * 100]


def test_reading_stops_for_the_tick_when_it_took_its_share_of_the_loop(world: World) -> None:
    async def scenario() -> list[int]:
        ref = await world.start("run")
        printed = Printed(world, limits=Limits(slice_seconds=0, busy_seconds=0))
        world.print_lines(ref, *map(str, range(5)))
        await printed.follow(ref)
        counts = [len(printed.texts)]
        for _ in range(4):
            await world.advance(SECOND)
            counts.append(len(printed.texts))
        await printed.printer.finish(is_over=False)
        return counts

    assert asyncio.run(scenario()) == [1, 2, 3, 4, 5]


def test_a_graceful_restart_repeats_nothing_and_loses_nothing(world: World) -> None:
    async def scenario() -> tuple[list[str], list[str]]:
        ref = await world.start("run")
        first = Printed(world)
        await first.follow(ref)
        for number in range(10):
            world.print_lines(ref, str(number))
            await settle()
        await first.printer.finish(is_over=False)
        world.print_lines(ref, "meanwhile")
        second = Printed(world, cursors=first.cursors)
        await second.follow(ref)
        await second.printer.finish(is_over=False)
        return first.texts, second.texts

    first, second = asyncio.run(scenario())

    assert first + second == [*map(str, range(10)), "meanwhile"]
    assert second[-1] == "meanwhile"


def test_after_a_hard_death_the_lines_of_the_last_second_repeat_under_their_numbers(world: World) -> None:
    async def scenario() -> tuple[list[str], list[str]]:
        ref = await world.start("run")
        first = Printed(world)
        await first.follow(ref)
        for number in range(5):
            world.print_lines(ref, str(number))
            await world.advance(SECOND)
        world.print_lines(ref, "lost track of")
        first.cursors.is_out_of_reach = True
        await world.advance(SECOND)
        await first.kill()
        survivor = MemoryCursors()
        survivor.saved = first.cursors.saved
        second = Printed(world, cursors=survivor)
        await second.follow(ref)
        await second.printer.finish(is_over=False)
        return first.lines, second.lines

    first, second = asyncio.run(scenario())

    assert [line for line in second if line not in first] == []
    assert second == first[-len(second) :]
    assert 1 <= len(second) <= 2


def test_cursors_are_saved_once_a_second_at_most(world: World) -> None:
    async def scenario() -> int:
        ref = await world.start("run")
        printed = Printed(world, limits=Limits(tick_seconds=0.1, slice_seconds=60))
        await printed.follow(ref)
        for number in range(100):
            world.print_lines(ref, str(number))
            await world.advance(timedelta(seconds=0.1))
        saves = printed.cursors.saves
        await printed.printer.finish(is_over=False)
        return saves

    assert 8 <= asyncio.run(scenario()) <= 11


def test_a_new_submission_begins_anew(world: World) -> None:
    async def scenario() -> list[str]:
        ref = await world.start("run")
        printed = Printed(world)
        world.print_lines(ref, "old")
        await printed.follow(ref)
        world.finish(ref)
        await world.advance(SECOND)
        again = await world.start("run", submission=2)
        world.print_lines(again, "new")
        await printed.follow(again)
        await printed.printer.finish(is_over=False)
        return printed.lines

    assert asyncio.run(scenario()) == ["[rank 0 · 1000001 #0] old", "[rank 0 · 2000001 #0] new"]


def test_cursors_of_another_submission_are_not_used(world: World) -> None:
    async def scenario() -> list[str]:
        ref = await world.start("run")
        first = Printed(world)
        world.print_lines(ref, "a", "b")
        await first.follow(ref)
        await first.printer.finish(is_over=False)
        world.finish(ref)
        again = await world.start("run", submission=2)
        world.print_lines(again, "c")
        second = Printed(world, cursors=first.cursors)
        await second.follow(again)
        await second.printer.finish(is_over=False)
        return second.texts

    assert asyncio.run(scenario()) == ["c"]


def test_unreadable_cursors_only_cost_a_repetition(world: World) -> None:
    async def scenario() -> list[str]:
        ref = await world.start("run")
        cursors = MemoryCursors()
        cursors.saved = {"submission": "1", "/0": "written by a later version"}
        world.print_lines(ref, "a")
        printed = Printed(world, cursors=cursors)
        await printed.follow(ref)
        await printed.printer.finish(is_over=False)
        return printed.texts

    assert asyncio.run(scenario()) == ["a"]


class Faltering(CountingAdapter):
    """Its output breaks off once."""

    def __init__(self, world: World, error: DispatchError) -> None:
        super().__init__(world.backend)
        self._errors = [error]

    async def output(self, ref: JobRef, request: OutputRequest) -> AsyncIterator[OutputLine]:
        count = 0
        async for line in super().output(ref, request):
            if self._errors and count == 2:
                raise self._errors.pop()
            count += 1
            yield line


@pytest.mark.parametrize(
    ("error", "texts"), [(UnavailableError("away"), ["0", "1", "2", "3"]), (CapabilityError("no logs"), ["0", "1"])]
)
def test_an_output_that_breaks_off_goes_on_where_it_was(world: World, error: DispatchError, texts: list[str]) -> None:
    async def scenario() -> Printed:
        ref = await world.start("run")
        world.print_lines(ref, *map(str, range(4)))
        printed = Printed(world, adapter=Faltering(world, error))
        await printed.follow(ref)
        await world.advance(timedelta(seconds=10))
        await printed.printer.finish(is_over=False)
        return printed

    printed = asyncio.run(scenario())

    assert printed.texts == texts
    assert any("can't be shown: no logs" in line for line in printed.lines) == isinstance(error, CapabilityError)


def test_a_rank_can_not_forge_a_line_of_ours(world: World) -> None:
    hostile = "harmless\n[rank 1 · 1000001 #0] forged\x1b[2J\x00\r[rank 2 · 1000001 #1] forged"

    async def scenario() -> list[str]:
        ref = await world.start("run")
        world.print_lines(ref, hostile)
        printed = Printed(world)
        await printed.follow(ref)
        await printed.printer.finish(is_over=False)
        return printed.lines

    (line,) = asyncio.run(scenario())

    assert line.startswith("[rank 0 · 1000001 #0] ")
    assert line.isprintable()


def test_nothing_is_asked_before_there_can_be_output(world: World) -> None:
    async def scenario() -> int:
        ref = await world.start("run", is_open=False)
        printed = Printed(world)
        await printed.follow(ref)
        await printed.printer.finish(is_over=False)
        return printed.cursors.loads

    assert asyncio.run(scenario()) == 0


def test_an_output_that_never_ends_does_not_keep_the_trigger(world: World) -> None:
    async def scenario() -> list[str]:
        ref = await world.start("run")
        world.print_lines(ref, "a")
        printed = Printed(world, limits=Limits(finish_seconds=0.01, slice_seconds=60))
        await printed.follow(ref)
        await printed.printer.finish(is_over=True)
        return printed.texts

    assert asyncio.run(scenario()) == ["a"]
