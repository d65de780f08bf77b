# SPDX-License-Identifier: Apache-2.0
"""Airflow's public REST API as far as tests need it: trigger, look, clear, mark, delete.

Used through :class:`~airflow_provider_dispatch.testing.airflow_processes.RealAirflow`; works against any Airflow 3 with
simple logins. Never waits for anything to happen: that is the caller's business. Asks again only where Airflow's
database was locked by another of its components, as SQLite is at times, and nothing was done.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias
from urllib.parse import quote, urlencode

from pydantic import BaseModel, ConfigDict, Field, JsonValue

#: (dag id, run id)
Run: TypeAlias = tuple[str, str]
UNMAPPED = -1
MOST_TRIES = 5
LOCKED_SECONDS = 1.0
"""Before Airflow is asked again after its database was locked."""


class RestError(RuntimeError):
    """Airflow answered with an error, or not at all.

    :param status: the HTTP status; 0 when there was no answer.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status

    @property
    def is_locked(self) -> bool:
        """Airflow's database refused the whole transaction."""
        return self.status == 500 and "Database error" in str(self)


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, populate_by_name=True)


class TaskRow(_Answer):
    """A task instance, as Airflow shows it."""

    id: str
    task_id: str
    map_index: int
    state: str | None
    try_number: int
    max_tries: int
    start_date: datetime | None
    end_date: datetime | None
    #: of the worker's task process; kept from the last leg while deferred
    pid: int | None


class RunRow(_Answer):
    run_id: str = Field(alias="dag_run_id")
    state: str
    start_date: datetime | None
    end_date: datetime | None


class _Token(_Answer):
    access_token: str


class _TaskRows(_Answer):
    task_instances: list[TaskRow]


class _Log(_Answer):
    content: list[dict[str, JsonValue]] | list[str]
    continuation_token: str | None = None


class _XCom(_Answer):
    value: JsonValue


class _ImportError(_Answer):
    filename: str
    stack_trace: str


class _ImportErrors(_Answer):
    import_errors: list[_ImportError]


@dataclass(frozen=True, slots=True)
class Login:
    username: str
    password: str


class AirflowRest:
    """One user's view of one Airflow.

    :param login: None asks without saying who, as a stranger would.
    :param sleep: of a wait for the database.
    """

    def __init__(
        self,
        url: str,
        login: Login | None,
        *,
        timeout_seconds: float = 60.0,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._sleep = sleep
        self._url = url.rstrip("/")
        self._login = login
        self._timeout_seconds = timeout_seconds
        self._token: str | None = None

    def request(self, method: str, path: str, body: JsonValue = None) -> str:
        """Any request, as JSON text. Logs in first; once more when the token is no longer accepted.

        :param path: everything after the address, quoted.
        """
        if self._login is None:
            return self._send(method, path, body, token=None)
        if self._token is None:
            self._token = self._log_in(self._login)
        try:
            return self._send_patiently(method, path, body, self._token)
        except RestError as error:
            if error.status != 401:
                raise
            self._token = self._log_in(self._login)
            return self._send_patiently(method, path, body, self._token)

    def is_healthy(self, components: Sequence[str]) -> bool:
        """Whether all of these have reported lately, named as Airflow's health check names them."""
        health = json.loads(self._send("GET", "/api/v2/monitor/health", None, token=None))
        return all((health.get(component) or {}).get("status") == "healthy" for component in components)

    def is_dag_known(self, dag_id: str) -> bool:
        try:
            self.request("GET", f"/api/v2/dags/{_quoted(dag_id)}")
        except RestError as error:
            if error.status == 404:
                return False
            raise
        return True

    def fetch_import_errors(self) -> dict[str, str]:
        """File name to traceback."""
        errors = _ImportErrors.model_validate_json(self.request("GET", "/api/v2/importErrors")).import_errors
        return {error.filename: error.stack_trace for error in errors}

    def trigger_dag(
        self, dag_id: str, conf: Mapping[str, JsonValue] | None = None, *, run_id: str | None = None
    ) -> Run:
        body: dict[str, JsonValue] = {"logical_date": None, "conf": dict(conf or {})}
        if run_id is not None:
            body["dag_run_id"] = run_id
        answer = self.request("POST", f"/api/v2/dags/{_quoted(dag_id)}/dagRuns", body)
        return dag_id, RunRow.model_validate_json(answer).run_id

    def fetch_run(self, run: Run) -> RunRow:
        return RunRow.model_validate_json(self.request("GET", _run_path(run)))

    def fetch_tasks(self, run: Run) -> list[TaskRow]:
        answer = self.request("GET", f"{_run_path(run)}/taskInstances?limit=1000")
        return _TaskRows.model_validate_json(answer).task_instances

    def fetch_task(self, run: Run, task_id: str, *, map_index: int = UNMAPPED) -> TaskRow:
        return TaskRow.model_validate_json(self.request("GET", _task_path(run, task_id, map_index)))

    def fetch_log(self, run: Run, task_id: str, *, try_number: int = 1, map_index: int = UNMAPPED) -> str:
        """The log of one try, the worker's and the triggerer's lines in one, without their stamps."""
        query = urlencode({"full_content": "true", "map_index": map_index})
        path = f"{_run_path(run)}/taskInstances/{_quoted(task_id)}/logs/{try_number}?{query}"
        content = _Log.model_validate_json(self.request("GET", path)).content
        return "\n".join(str(line["event"]) if isinstance(line, dict) else line for line in content)

    def fetch_xcom(self, run: Run, task_id: str, *, key: str = "return_value", map_index: int = UNMAPPED) -> JsonValue:
        query = urlencode({"map_index": map_index, "deserialize": "true"})
        path = f"{_run_path(run)}/taskInstances/{_quoted(task_id)}/xcomEntries/{_quoted(key)}?{query}"
        return _XCom.model_validate_json(self.request("GET", path)).value

    def clear_tasks(self, run: Run, task_ids: Sequence[str]) -> None:
        """Let these tasks of the run begin anew, whatever their state."""
        dag_id, run_id = run
        body: JsonValue = {
            "dag_run_id": run_id,
            "task_ids": list(task_ids),
            "dry_run": False,
            "only_failed": False,
            "reset_dag_runs": True,
        }
        self.request("POST", f"/api/v2/dags/{_quoted(dag_id)}/clearTaskInstances", body)

    def mark_task(self, run: Run, task_id: str, state: str, *, map_index: int = UNMAPPED) -> None:
        """:param state: ``success``, ``failed`` or ``skipped``."""
        self.request("PATCH", _task_path(run, task_id, map_index), {"new_state": state})

    def mark_run(self, run: Run, state: str) -> None:
        """:param state: ``queued``, ``success`` or ``failed``."""
        self.request("PATCH", _run_path(run), {"state": state})

    def delete_run(self, run: Run) -> None:
        self.request("DELETE", _run_path(run))

    def delete_dag(self, dag_id: str) -> None:
        self.request("DELETE", f"/api/v2/dags/{_quoted(dag_id)}")

    def _log_in(self, login: Login) -> str:
        body: JsonValue = {"username": login.username, "password": login.password}
        return _Token.model_validate_json(self._send("POST", "/auth/token", body, token=None)).access_token

    def _send_patiently(self, method: str, path: str, body: JsonValue, token: str) -> str:
        for _ in range(MOST_TRIES - 1):
            try:
                return self._send(method, path, body, token=token)
            except RestError as error:
                if not error.is_locked:
                    raise
            self._sleep(LOCKED_SECONDS)
        return self._send(method, path, body, token=token)

    def _send(self, method: str, path: str, body: JsonValue, *, token: str | None) -> str:
        request = urllib.request.Request(  # noqa: S310 # the address is this harness's own
            self._url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Accept": "application/json"},
        )
        if token is not None:
            request.add_header("Authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_seconds) as answer:  # noqa: S310 # as above
                return str(answer.read(), "utf-8")
        except urllib.error.HTTPError as error:
            with error:
                text = str(error.read(2000), "utf-8", "replace")
            raise RestError(f"{method} {path}: {error.code} {text}", error.code) from error
        except OSError as error:
            raise RestError(f"{method} {self._url}{path}: {error}", 0) from error


def _quoted(text: str) -> str:
    return quote(text, safe="")


def _run_path(run: Run) -> str:
    return f"/api/v2/dags/{_quoted(run[0])}/dagRuns/{_quoted(run[1])}"


def _task_path(run: Run, task_id: str, map_index: int) -> str:
    path = f"{_run_path(run)}/taskInstances/{_quoted(task_id)}"
    return path if map_index == UNMAPPED else f"{path}/{map_index}"
