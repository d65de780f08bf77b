# SPDX-License-Identifier: Apache-2.0
"""Writes what :mod:`.upkeep` finds out of order, and mends a private runtime without owner or altogether missing.

The loop calls it for a job whose admission needs nothing. What ends a job for good is judged on a fresh read.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.resources import TRAINING_RUNTIMES
from airflow_provider_dispatch.adapters.kubeflow.model.runtime_snapshot import build_owner_reference
from airflow_provider_dispatch.adapters.kubeflow.runtimes import restore_runtime
from airflow_provider_dispatch.controller.apply import Writer
from airflow_provider_dispatch.controller.cache import ObjectCache
from airflow_provider_dispatch.controller.events import Decision, Journal
from airflow_provider_dispatch.controller.reading import Situation, SituationReader
from airflow_provider_dispatch.controller.upkeep import (
    Upkeep,
    derive_upkeep,
    has_private_runtime,
    is_owner_missing,
    is_young,
)

SETTLING_SECONDS = 1.0
"""So long a state has lasted before it is noted."""


class Keeper:
    """Keeps TrainJobs in order."""

    def __init__(
        self,
        client: KubeClient,
        cache: ObjectCache,
        reader: SituationReader,
        writer: Writer,
        journal: Journal,
        *,
        wall: Callable[[], datetime],
    ) -> None:
        self._client, self._cache, self._reader = client, cache, reader
        self._writer, self._journal, self._wall = writer, journal, wall
        self._settling: dict[str, tuple[str, datetime]] = {}
        """The state of a job that its clocks don't tell yet, and since when it has been seen."""

    async def keep(self, situation: Situation) -> float | None:
        """Write what is out of order, in one patch; seconds until it is to be called again, None for never.

        :raises ConflictError: somebody wrote first.
        """
        now, trainjob = self._wall(), situation.trainjob
        if situation.trainjob_view.is_stopping:
            return None
        runtime = self._cache.runtime(trainjob)
        await self._mend_runtime(situation, runtime, now)
        upkeep = derive_upkeep(situation, runtime, now)
        if left := self._derive_rest(fields.uid(trainjob), upkeep, now):
            return left
        if words.END_ANNOTATION in upkeep.annotations and not situation.is_fresh:
            fresh = await self._reader.read(fields.uid(trainjob))
            if fresh is None:
                return None
            trainjob, upkeep = fresh.trainjob, derive_upkeep(fresh, runtime, now)
        await self._writer.annotate(trainjob, upkeep.annotations, upkeep.spec)
        for decision, note in upkeep.tells.items():
            self._journal.tell(trainjob, decision, note)
        return None

    def _derive_rest(self, uid: str, upkeep: Upkeep, now: datetime) -> float:
        """Seconds that a change of the clocks alone still waits.

        A state begins with writes of others to the TrainJob, which ours would only get in the way of. When it began
        stands on the objects.
        """
        state = upkeep.tells.get(Decision.STATE_NOTED)
        if state is None or len(upkeep.tells) > 1:
            self._settling.pop(uid, None)
            return 0.0
        known, since = self._settling.get(uid, ("", now))
        if known != state:
            since = now
            self._settling[uid] = (state, since)
        left = (since - now).total_seconds() + SETTLING_SECONDS
        if left <= 0:
            self._settling.pop(uid)
        return max(0.0, left)

    async def _mend_runtime(self, situation: Situation, runtime: Raw | None, now: datetime) -> None:
        trainjob = situation.trainjob
        if situation.trainjob_view.is_finished or is_young(trainjob, now):
            return
        if runtime is None and has_private_runtime(trainjob):
            # Kueue and Trainer refuse every change of a TrainJob whose runtime is gone, also those that end it.
            self._writer.require_lease()
            if await restore_runtime(self._client, trainjob):
                self._journal.tell(trainjob, Decision.RUNTIME_RESTORED, "somebody has deleted its private runtime")
        elif runtime is not None and is_owner_missing(situation, runtime, now):
            await self._give_owner(trainjob, runtime)

    async def _give_owner(self, trainjob: Raw, runtime: Raw) -> None:
        owners = [*fields.items(runtime, "metadata", "ownerReferences"), build_owner_reference(trainjob)]
        version = fields.text(runtime, "metadata", "resourceVersion")
        change = {"metadata": {"resourceVersion": version, "ownerReferences": owners}}
        await self._writer.patch(TRAINING_RUNTIMES, runtime, change)
        self._journal.tell(trainjob, Decision.OWNER_REPAIRED, "its private runtime had no owner")
