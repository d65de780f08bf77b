# SPDX-License-Identifier: Apache-2.0
"""The controller's loop: one job at a time per worker, judged, written, and looked at again when there is reason to.

A glance at the cache costs nothing; unless it finds everything quiet, the job is read anew, judged anew, and what the
judgement says is written in the order of the protocol: record, ledger, check, lifts. Killed at any point, the next look
finds what is missing. Whatever goes wrong with one job is logged here, a named border, and tried again later.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model.controller_view import ControllerSettings
from airflow_provider_dispatch.adapters.kubeflow.model.fence import FencePlan, derive_refusal
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.submission import read_submission
from airflow_provider_dispatch.controller.apply import LeaseLostError, Writer
from airflow_provider_dispatch.controller.cache import ObjectCache
from airflow_provider_dispatch.controller.events import Decision, Journal
from airflow_provider_dispatch.controller.judging import Judgement, judge
from airflow_provider_dispatch.controller.keeping import Keeper
from airflow_provider_dispatch.controller.lease import LeaseKeeper
from airflow_provider_dispatch.controller.probes import ProbeRemover
from airflow_provider_dispatch.controller.queue import BackOff, WorkQueue
from airflow_provider_dispatch.controller.reading import Situation, SituationReader
from airflow_provider_dispatch.controller.upkeep import derive_next_moment
from airflow_provider_dispatch.exceptions import ConflictError, DispatchError, JobNotFoundError

MOST_ROUNDS = 6
"""Writes and fresh reads in one turn; after them others have theirs."""
WAITING_SECONDS = 5.0
"""Between two glances at a job whose check waits: who else wants its quota shows nowhere on it."""
REST_SHARE = 3.0
"""Of the time that a glance takes: so long a quiet job rests. A large one that starts has news all the time."""
FOLLOWERS_SECONDS = 1.0
"""How long a replica without the Lease leaves a job alone before it asks again whether it has the Lease."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Office:
    """What the loop works with."""

    cache: ObjectCache
    queue: WorkQueue
    lease: LeaseKeeper
    reader: SituationReader
    writer: Writer
    keeper: Keeper
    probes: ProbeRemover
    journal: Journal
    settings: ControllerSettings
    wall: Callable[[], datetime]


class Loop:
    """Looks after jobs. Several workers may run it side by side."""

    def __init__(self, office: Office) -> None:
        self._office = office
        self._failures = BackOff()
        self._rests: dict[str, float] = {}
        self._unproven = BackOff(first_seconds=2.0, longest_seconds=15.0)
        self._conflicts = BackOff(first_seconds=0.02, longest_seconds=5.0)

    async def work(self) -> None:
        """Take keys until the queue is closed. Without the Lease they stay in it, for when it comes."""
        queue = self._office.queue
        while (uid := await queue.take()) is not None:
            try:
                if self._office.lease.is_held:
                    await self._turn(uid)
                else:
                    queue.add(uid, FOLLOWERS_SECONDS)
            finally:
                queue.finish(uid, self._rests.pop(uid, 0.0))

    async def look(self, uid: str) -> float | None:
        """Bring one job forward; seconds until it is to be looked at again without news, None for never.

        :param uid: of a TrainJob, or of a probe's runtime.
        :raises DispatchError: something could not be read or written.
        """
        if (probe := self._office.cache.probe(uid)) is not None:
            return await self._office.probes.remove_in_time(probe)
        for _ in range(MOST_ROUNDS):
            began = time.monotonic()
            glance = self._office.reader.glance(uid)
            if glance is not None and self._judge(glance).is_quiet:
                self._rests[uid] = REST_SHARE * (time.monotonic() - began)
                self._unproven.reset(uid)
                return await self._keep(glance)
            if self._office.cache.trainjob(uid) is None:
                return None
            fresh = await self._office.reader.read(uid)
            if fresh is None:
                return None
            judgement = self._judge(fresh)
            if judgement.is_quiet and glance is None:
                # Seen for the first time; from now on a glance is enough.
                continue
            if judgement.is_quiet:
                return await self._wait_for_proof(uid, fresh)
            await self._carry_out(fresh, judgement)
        return 0.0

    def _judge(self, situation: Situation) -> Judgement:
        return judge(situation, self._office.wall(), self._office.settings)

    async def _wait_for_proof(self, uid: str, fresh: Situation) -> float:
        """The glance took for dead what only a node can prove, or the cache is behind."""
        again, pause = self._unproven.next_pause(uid), await self._keep(fresh)
        return again if pause is None else min(again, pause)

    async def _keep(self, situation: Situation) -> float | None:
        pauses = (await self._office.keeper.keep(situation), self._derive_pause(situation))
        return min((pause for pause in pauses if pause is not None), default=None)

    async def _carry_out(self, situation: Situation, judgement: Judgement) -> None:
        writer = self._office.writer
        if judgement.hold is not None:
            await writer.apply_hold(judgement.hold, situation.trainjob, situation.workload)
            return
        trainjob = await self._write_record(situation, judgement)
        if judgement.check_writes and situation.workload is not None:
            await writer.apply_check(judgement.check_writes, trainjob, situation.workload)
        if judgement.plan.should_suspend:
            await writer.annotate(trainjob, {}, {"suspend": True})
            self._office.journal.tell(trainjob, Decision.SUSPENDED, judgement.plan.reason)
        if judgement.plan.lifts:
            await self._lift(situation, judgement.plan, trainjob)

    async def _write_record(self, situation: Situation, judgement: Judgement) -> Raw:
        """Record before lift, in both places, and A before Ready; the TrainJob after it."""
        writer, journal, record = self._office.writer, self._office.journal, judgement.plan.record
        trainjob = await writer.write_record(situation.trainjob, record, judgement.raised)
        if record is not None:
            is_start = bool(judgement.plan.lifts)
            journal.tell(trainjob, Decision.RECORDED if is_start else Decision.PODS_NOTED, f"R is {record.r}")
        if judgement.ledger_record is not None:
            ledger = await writer.write_ledger(
                trainjob, situation.ledger_object, situation.ledger, judgement.ledger_record
            )
            self._office.reader.remember_ledger(trainjob, ledger)
        return trainjob

    async def _lift(self, situation: Situation, plan: FencePlan, trainjob: Raw) -> None:
        """Lift what is recorded, unless a hold, an eviction or an end has come since it was judged."""
        reread = await self._office.reader.reread(situation)
        if reread is None:
            raise ConflictError(f"{fields.name(trainjob)} is gone")
        refusal = derive_refusal(reread.trainjob_view, reread.workload_view)
        if refusal:
            raise ConflictError(f"{fields.name(trainjob)} has changed while it was judged: {refusal}")
        pods = {fields.uid(pod): pod for pod in situation.pods}
        await self._office.writer.lift(trainjob, plan.lifts, pods, read_submission(trainjob).attempt)

    def _derive_pause(self, situation: Situation) -> float | None:
        now = self._office.wall()
        moment = derive_next_moment(situation, now)
        pauses = [(moment - now).total_seconds()] if moment is not None else []
        workload = situation.workload_view
        if workload is not None and workload.has_quota and workload.check_state == "Pending":
            pauses.append(WAITING_SECONDS)
        return max(0.05, min(pauses)) if pauses else None

    # -- one turn ----------------------------------------------------------------------------------------------------

    async def _turn(self, uid: str) -> None:
        """One look, with whatever may go wrong."""
        began = time.monotonic()
        pause = await self._try(uid)
        metrics = self._office.journal.metrics
        metrics.reconcile_seconds.observe(time.monotonic() - began)
        if pause is not None:
            self._office.queue.add(uid, pause)

    async def _try(self, uid: str) -> float | None:
        metrics = self._office.journal.metrics
        try:
            pause = await self.look(uid)
        except (ConflictError, JobNotFoundError) as error:
            metrics.conflicts.inc()
            _log.debug("%s is judged again: %s", uid, error)
            return self._conflicts.next_pause(uid)
        except LeaseLostError as error:
            _log.warning("%s waits for the Lease: %s", self._describe(uid), error)
            return FOLLOWERS_SECONDS
        except DispatchError as error:
            metrics.failures.labels(type(error).__name__).inc()
            again = self._failures.next_pause(uid)
            _log.warning("%s is tried again in %.1f s: %s", self._describe(uid), again, error)
            return again
        except Exception as error:  # noqa: BLE001 - the controller's loop, a named border: one job's trouble is its own
            metrics.failures.labels(type(error).__name__).inc()
            again = self._failures.next_pause(uid)
            _log.exception("a look at %s failed, trying again in %.1f s", self._describe(uid), again)
            return again
        self._failures.reset(uid)
        self._conflicts.reset(uid)
        return pause

    def _describe(self, uid: str) -> str:
        found = self._office.cache.trainjob(uid) or self._office.cache.probe(uid)
        return fields.name(found) if found is not None else uid
