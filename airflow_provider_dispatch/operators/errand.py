# SPDX-License-Identifier: Apache-2.0
"""One verb on one or many jobs: each gets its own result, and one failure doesn't stop the rest.

The operators that open, hold, release and stop say what to do with a job and when that has come true; here is what
they share: jobs that nobody has heard of yet, waiting in the worker or in a trigger, and what is carried from one leg
of the task to the next as plain JSON. The same code serves deferred tasks and those that wait in their worker.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from airflow_provider_dispatch.core import wire
from airflow_provider_dispatch.core.goals import Judgement, Verdict
from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.state import State
from airflow_provider_dispatch.exceptions import DispatchError
from airflow_provider_dispatch.operators.keeper import persist
from airflow_provider_dispatch.triggers.judging import build_states_judge
from airflow_provider_dispatch.triggers.starter import build_starter_probe
from airflow_provider_dispatch.triggers.waiting import StarterProbe, Timing, wait_for_job

if TYPE_CHECKING:
    from airflow_provider_dispatch.adapters.protocol import DispatchAdapter
    from airflow_provider_dispatch.core.observation import Observation
    from airflow_provider_dispatch.operators.leg import Leg

KNOWN = frozenset(State)
MOST_AT_ONCE = 8
SHORT_PAUSE_SECONDS = 0.1


class SomeJobsFailedError(DispatchError):
    """What was asked was not done for some of the jobs; the message says for which and why."""


@dataclass(slots=True)
class Item:
    """One job of an errand.

    :param name: for people.
    :param ref: of the submission meant, as plain JSON; None means whichever is the newest.
    :param starter: dag id, run id, task id and map index of the task that starts it; None when nobody knows.
    :param result: of the verb, as plain JSON.
    :param is_known: somebody has heard of the job.
    :param is_acted: the verb has been carried out; what is left is to wait.
    """

    name: str
    job: str
    ref: dict[str, object] | None = None
    starter: list[str | int] | None = None
    result: object = None
    is_known: bool = False
    is_acted: bool = False
    is_done: bool = False
    error: str = ""

    @property
    def is_open(self) -> bool:
        """There is something left to do or to wait for."""
        return not self.is_done and not self.error

    @property
    def job_id(self) -> JobID:
        """The job's id."""
        return JobID(self.job)

    @property
    def address(self) -> JobRef | JobID:
        """What the backend is asked about."""
        return self.job_id if self.ref is None else wire.load(JobRef, self.ref)


class Errand(ABC):
    """What is done with each job.

    :cvar wanted: states in which it is worth looking again after the verb.
    """

    wanted: frozenset[State]

    @abstractmethod
    async def act(self, adapter: DispatchAdapter, item: Item, observation: Observation) -> bool:
        """Carry out the verb and set the item's result; False means that it has to be carried out again later."""

    def judge(self, item: Item, observation: Observation) -> Judgement:
        """Whether it has come true; asked once the verb is carried out."""
        del item, observation
        return Judgement(Verdict.DONE)


@dataclass(frozen=True, slots=True)
class Patience:
    """What to do about a job that nobody has heard of.

    :param if_unknown: ``wait``, ``fail`` or ``ignore`` (there is nothing to do then).
    :param until: when waiting for it to be started ends; None means with its starting task.
    """

    if_unknown: str = "wait"
    until: datetime | None = None


@dataclass(slots=True)
class Round:
    """An errand within one leg of a task."""

    adapter: DispatchAdapter
    errand: Errand
    leg: Leg
    patience: Patience = field(default_factory=Patience)
    give_up_at: datetime | None = None
    build_probe: Callable[[Sequence[str | int] | None], StarterProbe | None] = build_starter_probe

    async def run(self, items: Sequence[Item]) -> Item | None:
        """Get on with every item as far as this leg may; returns the first that is to be waited for elsewhere."""
        turns, patience_end = asyncio.Semaphore(MOST_AT_ONCE), self.leg.patience_end
        while True:
            await asyncio.gather(*(self._advance(item, turns) for item in items if item.is_open))
            pending = next((item for item in items if item.is_open), None)
            if pending is None or (patience_end is not None and self.leg.clock() >= patience_end):
                return pending
            await self._wait(pending, patience_end)
            # What is worth a look again need not be what was waited for; then this loop must not be a hot one.
            await self.leg.sleeper(SHORT_PAUSE_SECONDS)

    async def _advance(self, item: Item, turns: asyncio.Semaphore) -> None:
        async with turns:
            try:
                await self._advance_or_raise(item)
            except DispatchError as error:
                item.error = f"{type(error).__name__}: {error}"

    async def _advance_or_raise(self, item: Item) -> None:
        observation = await self._inspect(item)
        item.is_known = not observation.is_unheard_of
        if not item.is_known:
            self._judge_unknown(item)
            return
        if not item.is_acted:
            item.is_acted = await self.errand.act(self.adapter, item, observation)
            if not item.is_acted:
                self._judge_time(item)
                return
            observation = await self._inspect(item)
        judgement = self.errand.judge(item, observation)
        item.is_done = judgement.verdict is Verdict.DONE
        if judgement.verdict is Verdict.FAIL:
            item.error = judgement.reason
        elif judgement.verdict is Verdict.WAIT:
            self._judge_time(item)

    async def _inspect(self, item: Item) -> Observation:
        return await persist(lambda: self.adapter.inspect(item.address), self.leg.sleeper)

    def _judge_unknown(self, item: Item) -> None:
        until, now = self.patience.until, self.leg.clock()
        if self.patience.if_unknown == "ignore":
            item.is_done = True
        elif self.patience.if_unknown == "fail":
            item.error = "nobody has heard of it"
        elif until is not None and now >= until:
            item.error = "the unknown_timeout is over, and it was not started"
        else:
            self._judge_time(item)

    def _judge_time(self, item: Item) -> None:
        ends = [end for end in (self.leg.deadline, self.give_up_at) if end is not None]
        if ends and self.leg.clock() >= min(ends):
            item.error = "the time is over"

    async def _wait(self, item: Item, patience_end: datetime | None) -> None:
        leg = self.leg
        limits = (patience_end, self.deadline_of(item))
        outcome = await wait_for_job(
            self.adapter,
            item.job_id,
            build_states_judge(self.wanted_of(item)),
            narrator=lambda line: leg.narrator(f"{item.name}: {line}"),
            timing=Timing(
                deadline=min((limit for limit in limits if limit is not None), default=None),
                clock=leg.clock,
                sleeper=leg.sleeper,
            ),
            starter=self.build_probe(item.starter),
        )
        if outcome.verdict == "failed" and not item.is_known:
            item.error = outcome.reason

    def wanted_of(self, item: Item) -> frozenset[State]:
        """States that are worth looking at the item again."""
        return self.errand.wanted if item.is_known else KNOWN

    def deadline_of(self, item: Item) -> datetime | None:
        """When waiting for the item ends in any case."""
        limits = (self.leg.deadline, self.give_up_at, None if item.is_known else self.patience.until)
        return min((limit for limit in limits if limit is not None), default=None)


def dump_items(items: Sequence[Item]) -> dict[str, object]:
    """All items as plain JSON, for an XCom."""
    return {"items": [asdict(item) for item in items]}


def load_items(record: object) -> list[Item]:
    """The items that :func:`dump_items` wrote; none where nothing of the kind is found.

    :param record: one record, or a list of them from mapped tasks.
    """
    if isinstance(record, Mapping):
        found = record.get("items", ())
        known = set(Item.__dataclass_fields__)
        return [Item(**{name: value for name, value in item.items() if name in known}) for item in found]
    if isinstance(record, Sequence) and not isinstance(record, str):
        return [item for part in record for item in load_items(part)]
    return []


def build_report(items: Sequence[Item]) -> list[dict[str, object]]:
    """What a task on many jobs hands on: one entry a job, with its result or its error."""
    return [{"job": item.job, "name": item.name, "result": item.result, "error": item.error or None} for item in items]


def build_failure(items: Sequence[Item]) -> SomeJobsFailedError:
    """The exception that names every job that failed."""
    failed = [item for item in items if item.error]
    lines = [f"{item.name}: {item.error}" for item in failed]
    count = "" if len(items) == 1 else f"{len(failed)} of {len(items)} jobs failed:\n"
    return SomeJobsFailedError(count + "\n".join(lines))
