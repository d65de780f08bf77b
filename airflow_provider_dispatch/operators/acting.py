# SPDX-License-Identifier: Apache-2.0
"""Base of the operators that do something with jobs of others: from their arguments through the legs of an errand.

What is carried from leg to leg, and what a release finds of the hold before it, lies in an XCom of the task.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NoReturn

from airflow_provider_dispatch.exceptions import SpecError
from airflow_provider_dispatch.hooks.deferred_import import deferred
from airflow_provider_dispatch.operators import arguments, targets
from airflow_provider_dispatch.operators.base import DispatchOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_dispatch.adapters.protocol import DispatchAdapter
    from airflow_provider_dispatch.operators import errand, worker_cursors
    from airflow_provider_dispatch.operators import leg as legs
    from airflow_provider_dispatch.operators.errand import Errand, Item, Round
    from airflow_provider_dispatch.operators.leg import Leg
    from airflow_provider_dispatch.triggers import job as triggers
else:
    errand = deferred("airflow_provider_dispatch.operators.errand")
    legs = deferred("airflow_provider_dispatch.operators.leg")
    worker_cursors = deferred("airflow_provider_dispatch.operators.worker_cursors")
    triggers = deferred("airflow_provider_dispatch.triggers.job")

RECORD_KEY = "dispatch_errand"
"""XCom with the jobs, and what was done with each."""

UNKNOWN_TIMEOUT = timedelta(hours=24)


class ActingOperator(DispatchOperator):
    """Does something with one or many jobs. Subclasses set these attributes and make the errand."""

    names: Mapping[str, object]
    if_unknown: str
    unknown_timeout: object

    def _check_unknown(self, choices: tuple[str, ...]) -> None:
        if self.if_unknown not in choices and arguments.is_literal(self.if_unknown):
            raise SpecError("if_unknown", f"must be one of {', '.join(choices)}", self.if_unknown)
        if self.unknown_timeout is not UNKNOWN_TIMEOUT:
            arguments.check_duration("unknown_timeout", self.unknown_timeout)

    @abstractmethod
    def _build_errand(self, leg: Leg) -> Errand:
        """What is to be done with each job."""

    async def _resolve(self, context: Context, leg: Leg, adapter: DispatchAdapter) -> list[Item]:
        del context
        return await targets.resolve_targets(self.names, self, leg, adapter)

    def _get_time_limit(self) -> object:
        """How long the task may wait for what it did to come true; None means without limit of its own."""
        return None

    def execute(self, context: Context) -> object:
        """Find the jobs, act, and wait."""
        return self._go_on(context, None, {})

    def resume(self, context: Context, event: Mapping[str, object] | None = None) -> object:
        """Look at all the jobs again; the event says only that it is worth it, or that one will never be started."""
        record = worker_cursors.pull_own(context["ti"], RECORD_KEY)
        return self._go_on(context, record, event or {})

    def _go_on(self, context: Context, record: object, event: Mapping[str, object]) -> object:
        leg = self._begin_leg(context)

        async def work(adapter: DispatchAdapter) -> tuple[list[Item], Item | None, Round]:
            items = errand.load_items(record) if record else await self._resolve(context, leg, adapter)
            _note_failure(items, event)
            round_ = errand.Round(
                adapter,
                self._build_errand(leg),
                leg,
                errand.Patience(self.if_unknown, _end_after(leg, self.unknown_timeout)),
                _end_after(leg, self._get_time_limit()),
            )
            return items, await round_.run(items), round_

        items, pending, round_ = self._call(leg.settings, work)
        context["ti"].xcom_push(RECORD_KEY, errand.dump_items(items))
        if pending is not None:
            self._defer_for(pending, round_, leg)
        return self._conclude(items)

    def _defer_for(self, item: Item, round_: Round, leg: Leg) -> NoReturn:
        trigger = triggers.DispatchJobStatesTrigger(
            states=sorted(round_.wanted_of(item)),
            dispatch_conn_id=self.dispatch_conn_id,
            job=item.job,
            starter=item.starter,
            **legs.build_trigger_times(leg, deadline=round_.deadline_of(item)),
        )
        self._defer_until(trigger, leg)

    def _conclude(self, items: list[Item]) -> object:
        if any(item.error for item in items):
            if len(items) > 1:
                self.log.info("Per job: %s", errand.build_report(items))
            raise errand.build_failure(items)
        return items[0].result if items and self._is_single() else errand.build_report(items)

    def _is_single(self) -> bool:
        return targets.is_single(self.names)


def _end_after(leg: Leg, limit: object) -> datetime | None:
    """Counted from the start of the try, so that it means the same in every leg."""
    return None if limit is None else leg.started + arguments.read_duration("timeout", limit)


def _note_failure(items: list[Item], event: Mapping[str, object]) -> None:
    """A wait for a job to be started has failed: its starting task has ended without."""
    waited = next((item for item in items if item.is_open), None)
    if event.get("verdict") == "failed" and waited is not None and not waited.is_known:
        waited.error = str(event.get("reason", ""))
