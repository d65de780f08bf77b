# SPDX-License-Identifier: Apache-2.0
"""Removes what a killed preflight has left: its probe and the runtime of that, once their stated end has passed.

The loop calls it with the runtimes of probes, which the watches of jobs' runtimes show too; each look at one says when
the next is due, so that a probe costs no request until then. Whether something is a probe, and over, is decided in
``adapters/kubeflow/model``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from typing import assert_never

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.probe_marks import RemoveProbe, WaitForProbe, decide_probe
from airflow_provider_dispatch.adapters.kubeflow.model.resources import TRAINING_RUNTIMES, TRAINJOBS
from airflow_provider_dispatch.controller.apply import Writer
from airflow_provider_dispatch.controller.cache import place
from airflow_provider_dispatch.controller.events import Decision, Journal

AGAIN_SECONDS = 1.0
"""After somebody else has changed a probe: no watch tells what became of it."""
_log = logging.getLogger(__name__)


class ProbeRemover:
    """Removes probes that nobody watches any more."""

    def __init__(self, client: KubeClient, writer: Writer, journal: Journal, *, wall: Callable[[], datetime]) -> None:
        self._client, self._writer, self._journal, self._wall = client, writer, journal, wall

    async def remove_in_time(self, runtime: Raw) -> float | None:
        """Remove a probe with its runtime once its end has passed; seconds until the next look, None for never.

        :raises DispatchError: something could not be read or removed.
        """
        now = self._wall()
        match decide_probe(runtime, now):
            case None:
                return None
            case WaitForProbe(until):
                return (until - now).total_seconds()
            case RemoveProbe(reason):
                return await self._remove(runtime, reason, now)
            case never:
                assert_never(never)

    async def _remove(self, runtime: Raw, reason: str, now: datetime) -> float | None:
        """The probe first: its runtime is what it is found by."""
        trainjob = await self._client.get(TRAINJOBS, fields.name(runtime), place(runtime))
        if trainjob is None or fields.is_deleting(trainjob):
            await self._remove_runtime(runtime, reason)
            return None
        match decide_probe(trainjob, now):
            case None:
                _log.warning("%s/%s stays: it isn't surely a probe", place(trainjob), fields.name(trainjob))
                return None
            case WaitForProbe(until):
                return (until - now).total_seconds()
            case RemoveProbe():
                if not await self._writer.delete(TRAINJOBS, trainjob):
                    return AGAIN_SECONDS
                await self._remove_runtime(runtime, reason)
                return None
            case never:
                assert_never(never)

    async def _remove_runtime(self, runtime: Raw, reason: str) -> None:
        if await self._writer.delete(TRAINING_RUNTIMES, runtime):
            self._journal.tell(runtime, Decision.PROBE_REMOVED, reason)
