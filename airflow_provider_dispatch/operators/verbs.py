# SPDX-License-Identifier: Apache-2.0
"""The four errands: open the gate of jobs, hold them, release them, stop them.

Each says what it does with one job and when that has come true; :mod:`.errand` does the rest. All are idempotent: a
retried task finds what the former try did.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_provider_dispatch.core import wire
from airflow_provider_dispatch.core.goals import Goal, Judgement, Verdict, judge
from airflow_provider_dispatch.core.holds import Hold, HoldRequest
from airflow_provider_dispatch.core.narration import describe_stop
from airflow_provider_dispatch.core.records import ObjectReport, StopReport
from airflow_provider_dispatch.core.state import OVER, State
from airflow_provider_dispatch.operators.errand import Errand, Item
from airflow_provider_dispatch.operators.keeper import persist

if TYPE_CHECKING:
    from airflow_provider_dispatch.adapters.protocol import DispatchAdapter
    from airflow_provider_dispatch.core.observation import Observation
    from airflow_provider_dispatch.operators.leg import Leg

SETTLED = frozenset(State) - OVER - {State.HOLDING, State.UNKNOWN}
"""States in which a hold that was asked for is either in force or lifted again."""

STOP_PATIENCE = timedelta(seconds=10)
"""How long a deferrable task's stop may take at once; it goes on by itself after that."""


@dataclass(slots=True)
class OpenErrand(Errand):
    """Opens our gate."""

    leg: Leg
    wanted = SETTLED

    async def act(self, adapter: DispatchAdapter, item: Item, observation: Observation) -> bool:
        """Idempotent, also for a job that is over."""
        ref = observation.ref
        await persist(lambda: adapter.open(ref, deadline=self.leg.call_deadline()), self.leg.sleeper)
        item.result = wire.dump(ref)
        return True


@dataclass(slots=True)
class HoldErrand(Errand):
    """Places one hold a job, all under the same key.

    :param is_waiting: until the processes are gone.
    """

    leg: Leg
    request: HoldRequest
    is_waiting: bool = True
    wanted = SETTLED

    async def act(self, adapter: DispatchAdapter, item: Item, observation: Observation) -> bool:
        """Ask for it; the answer comes once that is durable."""
        del observation
        deadline = self.leg.call_deadline()
        hold = await persist(lambda: adapter.hold(item.address, self.request, deadline=deadline), self.leg.sleeper)
        item.result = wire.dump(hold)
        return True

    def judge(self, item: Item, observation: Observation) -> Judgement:
        """Held. A hold that somebody lifted meanwhile is no more waited for."""
        if not self.is_waiting:
            return Judgement(Verdict.DONE)
        mine = wire.load(Hold, item.result).instance
        if not observation.is_over and mine not in {hold.instance for hold in observation.holds}:
            return Judgement(Verdict.FAIL, "its hold was lifted before the job was held")
        return judge(Goal.HELD, observation)


@dataclass(slots=True)
class ReleaseErrand(Errand):
    """Lifts holds.

    :param key_prefix: of the holds to lift.
    :param exactly: lift this one alone.
    :param goal: what to wait for when nobody else holds the job.
    """

    leg: Leg
    key_prefix: str
    exactly: Hold | None = None
    goal: Goal = Goal.QUEUED
    wanted = frozenset(State) - {State.GONE, State.UNKNOWN}

    def __post_init__(self) -> None:
        if self.goal is Goal.RUNNING:
            self.wanted = frozenset({State.RUNNING, State.HOLDING, State.HELD})

    async def act(self, adapter: DispatchAdapter, item: Item, observation: Observation) -> bool:
        """Lift each; what was lifted before is no error. The result is the holds that remain."""
        mine = [hold for hold in observation.holds if hold.key.startswith(self.key_prefix)]
        for hold in mine if self.exactly is None else [self.exactly]:
            await self._release(adapter, item, hold)
        return True

    async def _release(self, adapter: DispatchAdapter, item: Item, hold: Hold) -> None:
        deadline = self.leg.call_deadline()
        await persist(lambda: adapter.release(item.address, hold, deadline=deadline), self.leg.sleeper)

    def judge(self, item: Item, observation: Observation) -> Judgement:
        """As far as asked, or as far as it can get while somebody else holds it."""
        item.result = [wire.dump(hold) for hold in observation.holds]
        if observation.holds and not observation.is_over:
            return Judgement(Verdict.DONE)
        if observation.state is State.SUCCEEDED:
            return Judgement(Verdict.DONE)
        return judge(self.goal, observation)


@dataclass(slots=True)
class StopErrand(Errand):
    """Stops, again and again until only the ledger is left.

    :param is_waiting: False takes a stop that has been asked for as done.
    """

    leg: Leg
    reason: str
    is_waiting: bool = True
    wanted = frozenset({State.GONE})

    async def act(self, adapter: DispatchAdapter, item: Item, observation: Observation) -> bool:
        """Done when everything is proved gone. The report adds up what all calls have found."""
        del observation
        extra = timedelta(0) if self.leg.patience is None else STOP_PATIENCE - self.leg.settings.call_timeout
        deadline = self.leg.call_deadline(extra)
        found = await persist(
            lambda: adapter.stop(item.job_id, reason=self.reason, deadline=deadline), self.leg.sleeper
        )
        report = merge_reports(None if item.result is None else wire.load(StopReport, item.result), found)
        item.result = wire.dump(report)
        self.leg.narrator(f"{item.name}: {describe_stop(report)}")
        return report.is_complete or not self.is_waiting


def merge_reports(earlier: StopReport | None, later: StopReport) -> StopReport:
    """What was left before and is no longer counts as stopped."""
    if earlier is None:
        return later
    left = {found.object for found in (*later.alive, *later.unproven)}
    before = (*earlier.stopped, *earlier.alive, *earlier.unproven, *later.stopped)
    stopped: dict[str, ObjectReport] = {found.object: found for found in before if found.object not in left}
    return StopReport(later.job, tuple(stopped.values()), later.alive, later.unproven)
