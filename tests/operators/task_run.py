# SPDX-License-Identifier: Apache-2.0
"""Real legs of a task without a database or a server: Airflow's own supervisor and task runner in this process.

The Execution API is answered from memory. A deferral is run by the trigger it names, until its event, and the task is
resumed as the scheduler would.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pkgutil import resolve_name
from typing import Any
from urllib.parse import unquote
from uuid import UUID, uuid4

import airflow.sdk.api.client as api_client
from airflow.sdk import BaseOperator
from airflow.sdk.api.datamodels._generated import TaskInstance
from airflow.sdk.execution_time.supervisor import TaskRunResult, run_task_in_process
from uuid6 import uuid7

# The client stands on httpx or on its successor, whichever this Airflow has.
httpx = __import__(api_client.Client.__mro__[1].__module__.partition(".")[0])

RUN_ID = "manual__2030-01-01"
NOW = "2030-01-01T00:00:00+00:00"


@dataclass
class Airflow:
    """What a database would know."""

    max_tries: int = 0
    xcoms: dict[tuple[str, int, str], object] = field(default_factory=dict)
    states: dict[str, str | None] = field(default_factory=dict)
    next_method: str | None = None
    next_kwargs: dict[str, object] | None = None
    calls: list[str] = field(default_factory=list)

    def run(self, task: BaseOperator, *, try_number: int = 1, map_index: int = -1, ti_id: UUID | None = None) -> Leg:
        """The first leg of a try."""
        self.next_method = self.next_kwargs = None
        self.xcoms = {key: value for key, value in self.xcoms.items() if key[:2] != (task.task_id, map_index)}
        ti = TaskInstance(
            id=ti_id or uuid7(),
            task_id=task.task_id,
            dag_id=task.dag_id,
            run_id=RUN_ID,
            try_number=try_number,
            map_index=map_index,
            dag_version_id=uuid4(),
        )
        return self._run_leg(task, ti)

    def resume(self, task: BaseOperator, leg: Leg, event: dict[str, object] | None = None) -> Leg:
        """The next leg; *event* None lets the trigger find it."""
        payload = fire(leg) if event is None else event
        self.next_method, self.next_kwargs = leg.deferral.next_method, {"event": payload}
        return self._run_leg(task, leg.ti)

    def _run_leg(self, task: BaseOperator, ti: TaskInstance) -> Leg:
        client = api_client.Client(base_url=None, token="", dry_run=True, transport=httpx.MockTransport(self._answer))
        client.base_url = "http://in-process.invalid./"
        return Leg(run_task_in_process(ti=ti, task=task, client=client), ti)

    def _answer(self, request):
        path = unquote(request.url.path)
        self.calls.append(f"{request.method} {path}")
        if path.endswith("/run"):
            return httpx.Response(200, json=self._start_answer())
        if path.startswith("/xcoms/"):
            return self._answer_xcom(request, path)
        if path.endswith("/task-instances/states"):
            return httpx.Response(200, json={"task_states": {RUN_ID: self.states}})
        return httpx.Response(200, json={"ok": True})

    def _start_answer(self) -> dict[str, object]:
        run: dict[str, object] = {
            "dag_id": "d",
            "run_id": RUN_ID,
            "logical_date": NOW,
            "data_interval_start": NOW,
            "data_interval_end": NOW,
            "start_date": NOW,
            "end_date": None,
            "run_type": "manual",
            "run_after": NOW,
            "state": "running",
            "partition_key": None,
            "consumed_asset_events": [],
            "conf": {},
            "triggering_user_name": None,
            "note": None,
        }
        answer: dict[str, object] = {
            "dag_run": run,
            "max_tries": self.max_tries,
            "should_retry": False,
            "task_reschedule_count": 0,
            "variables": [],
            "connections": [],
            "xcom_keys_to_clear": [],
        }
        if self.next_method is not None:
            answer |= {"next_method": self.next_method, "next_kwargs": self.next_kwargs}
        return answer

    def _answer_xcom(self, request, path: str):
        _, _, _, _, task_id, key = path.split("/", 5)
        index = int(request.url.params.get("map_index", -1))
        if request.method == "POST":
            self.xcoms[task_id, index, key] = json.loads(request.content)
            return httpx.Response(201, json={"ok": True})
        if key.endswith("/slice"):
            key = key.removesuffix("/slice")
            found = [value for (task, _, name), value in self.xcoms.items() if (task, name) == (task_id, key)]
            return httpx.Response(200, json=found)
        if (task_id, index, key) not in self.xcoms:
            return httpx.Response(404, json={"detail": {"reason": "not_found", "message": "no such XCom"}})
        return httpx.Response(200, json={"key": key, "value": self.xcoms[task_id, index, key]})


@dataclass(frozen=True)
class Leg:
    """One leg and how it ended."""

    done: TaskRunResult
    ti: TaskInstance

    @property
    def state(self) -> str:
        """Of the task instance."""
        return str(getattr(self.done.state, "value", self.done.state))

    @property
    def deferral(self):
        """The deferral this leg ended with."""
        assert self.state == "deferred", self.done.error or self.done
        return self.done.msg

    @property
    def trigger_kwargs(self) -> dict[str, Any]:
        """Arguments of the trigger."""
        return self.deferral.trigger_kwargs


def fire(leg: Leg) -> dict[str, object]:
    """Run the trigger of a deferral until its event."""
    kwargs = {**leg.trigger_kwargs, "not_before": datetime.now(UTC).isoformat()}
    trigger = resolve_name(leg.deferral.classpath)(**kwargs)

    async def first() -> dict[str, object]:
        async for event in trigger.run():
            return event.payload
        raise AssertionError("the trigger ended without an event")

    return asyncio.run(asyncio.wait_for(first(), 20))
