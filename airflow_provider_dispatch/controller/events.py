# SPDX-License-Identifier: Apache-2.0
"""Tells what was done: to the log, to Prometheus, and to people as Kubernetes Events about the TrainJob.

Events are written in the background, one after another: a decision never waits for its Event, and an Event that can't
be written is left out. Whoever applies a decision hands it in.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime
from enum import StrEnum

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.resources import EVENTS
from airflow_provider_dispatch.adapters.kubeflow.recording import build_event
from airflow_provider_dispatch.controller.cache import place
from airflow_provider_dispatch.controller.metrics import Metrics
from airflow_provider_dispatch.exceptions import DispatchError

MOST_WAITING = 1000
_log = logging.getLogger(__name__)


class Decision(StrEnum):
    """Kinds of decisions, in Events and metrics."""

    ADMISSION_RAISED = "admission-raised"
    CHECK_READY = "check-ready"
    CHECK_WAITS = "check-waits"
    CHECK_RETRY = "quota-given-back"
    RECORDED = "execution-recorded"
    PODS_NOTED = "pods-noted"
    STARTED = "started"
    HOLDS_CHANGED = "holds-changed"
    WORKLOAD_HELD = "workload-deactivated"
    WORKLOAD_RELEASED = "workload-activated"
    WORKLOAD_ENDED = "workload-ended"
    SUSPENDED = "suspended"
    RESUMED = "resumed"
    OWNER_REPAIRED = "owner-repaired"
    RUNTIME_RESTORED = "runtime-restored"
    GATE_OPENED = "time-gate-opened"
    ENDED = "ended"
    STATE_NOTED = "state-noted"
    PROBE_REMOVED = "probe-removed"


QUIET_DECISIONS = frozenset({Decision.STATE_NOTED, Decision.PODS_NOTED, Decision.RECORDED, Decision.PROBE_REMOVED})
"""Counted and logged, but no news for people: the objects tell them already, or they are nobody's job."""


class Journal:
    """Where decisions are handed in, and the line of Events that wait to be written."""

    def __init__(self, client: KubeClient, metrics: Metrics, *, reporter: str, wall: Callable[[], datetime]) -> None:
        self.metrics = metrics
        self._client, self._reporter, self._wall = client, reporter, wall
        self._waiting: asyncio.Queue[dict[str, object]] = asyncio.Queue(MOST_WAITING)
        self._counter = 0

    def tell(self, trainjob: Raw, decision: Decision, note: str) -> None:
        """Hand one in. When the line is full, its Event is left out."""
        self.metrics.decisions.labels(str(decision)).inc()
        _log.info("%s/%s: %s: %s", place(trainjob), fields.name(trainjob), decision, note)
        if decision in QUIET_DECISIONS:
            return
        try:
            self._waiting.put_nowait(self._build(trainjob, decision, note))
        except asyncio.QueueFull:
            _log.warning("an event is left out: %s of %s", decision, fields.name(trainjob))

    async def write(self) -> None:
        """Write what comes, until cancelled."""
        while True:
            event = await self._waiting.get()
            try:
                await self._client.create(EVENTS, event, fields.text(event, "involvedObject", "namespace"))
            except DispatchError as error:
                _log.info("an event can't be written: %s", error)
            self._waiting.task_done()

    async def flush(self) -> None:
        """Wait until everything handed in is written."""
        await self._waiting.join()

    def _build(self, trainjob: Raw, decision: Decision, note: str) -> dict[str, object]:
        self._counter += 1
        now = self._wall()
        key = f"{self._reporter}/{now.timestamp()}/{self._counter}"
        event = build_event(trainjob, decision, note, at=now, key=key)
        return event | {"reportingComponent": words.CONTROLLER_NAME, "reportingInstance": self._reporter[:128]}
