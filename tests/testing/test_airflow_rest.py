# SPDX-License-Identifier: Apache-2.0
"""The REST client against a server that answers as Airflow does, and the settings of a throw-away Airflow."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from airflow_provider_dispatch.testing.airflow_processes import build_commands, find_free_port
from airflow_provider_dispatch.testing.airflow_rest import AirflowRest, Login, RestError
from airflow_provider_dispatch.testing.airflow_settings import AirflowSettings, build_environment

TASK = {
    "id": "0",
    "task_id": "train",
    "map_index": -1,
    "state": "deferred",
    "try_number": 2,
    "max_tries": 1,
    "start_date": "2026-01-01T00:00:00Z",
    "end_date": None,
    "pid": None,
    "a field of tomorrow": 1,
}


class StandIn(HTTPServer):
    """Answers from a table, forgets every token but the newest, and remembers what it was asked.

    :ivar locked: how often its database still refuses.
    """

    def __init__(self, answers: dict[str, object]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers = answers
        self.logins = 0
        self.locked = 0
        self.asked: list[tuple[str, str, object]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: StandIn

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        if self.path == "/auth/token":
            self.server.logins += 1
            return self._send(201, {"access_token": f"token {self.server.logins}"})
        if self.headers.get("Authorization") != f"Bearer token {self.server.logins}":
            return self._send(401, {"detail": "who are you?"})
        self.server.asked.append((self.command, self.path, body))
        if self.server.locked:
            self.server.locked -= 1
            return self._send(500, {"detail": {"reason": "Database error", "statement": "hidden"}})
        if self.path not in self.server.answers:
            return self._send(404, {"detail": "not found"})
        return self._send(200, self.server.answers[self.path])

    do_GET = do_POST = do_PATCH = do_DELETE = _answer  # noqa: N815 # named by the standard library

    def _send(self, status: int, answer: object) -> None:
        text = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 # the standard library's name
        """Says nothing."""


RUN = ("a dag", "r/1")
PATH = "/api/v2/dags/a%20dag/dagRuns/r%2F1"


@pytest.fixture
def server() -> Iterator[StandIn]:
    with StandIn({}) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.02])
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def rest(server) -> AirflowRest:
    return AirflowRest(server.url, Login("ann", "secret"), timeout_seconds=10)


def test_names_are_quoted_and_fields_of_tomorrow_ignored(server, rest):
    server.answers[f"{PATH}/taskInstances/train"] = TASK
    server.answers[f"{PATH}/taskInstances/train/3"] = TASK | {"map_index": 3}

    assert rest.fetch_task(RUN, "train").state == "deferred"
    assert rest.fetch_task(RUN, "train", map_index=3).map_index == 3


def test_it_logs_in_once_and_again_when_its_token_has_run_out(server, rest):
    server.answers[f"{PATH}/taskInstances?limit=1000"] = {"task_instances": [TASK]}
    assert [rest.fetch_tasks(RUN)[0].try_number for _ in range(2)] == [2, 2]
    assert server.logins == 1
    server.logins = 7

    assert rest.fetch_tasks(RUN)[0].task_id == "train"
    assert server.logins == 8


def test_a_stranger_does_not_log_in(server):
    with pytest.raises(RestError, match="who are you") as refusal:
        AirflowRest(server.url, None).fetch_run(RUN)
    assert (refusal.value.status, server.logins) == (401, 0)


def test_an_unknown_dag_is_an_answer_and_another_error_is_not(server, rest):
    assert not rest.is_dag_known("a dag")
    server.answers["/api/v2/dags/a%20dag"] = {}
    assert rest.is_dag_known("a dag")
    with pytest.raises(RestError) as missing:
        rest.fetch_run(RUN)
    assert missing.value.status == 404


@pytest.mark.parametrize(("locked", "is_answered"), [(4, True), (5, False)])
def test_a_locked_database_is_asked_again_a_few_times(server, locked, is_answered):
    pauses: list[float] = []
    rest = AirflowRest(server.url, Login("ann", "secret"), sleep=pauses.append)
    server.locked, server.answers = locked, {"/x": {}}

    if is_answered:
        assert rest.request("POST", "/x", {}) == "{}"
    else:
        with pytest.raises(RestError, match="Database error"):
            rest.request("POST", "/x", {})
    assert pauses == [1.0] * 4


def test_no_answer_has_the_status_zero():
    with pytest.raises(RestError) as silence:
        AirflowRest(f"http://127.0.0.1:{find_free_port()}", None).request("GET", "/")
    assert silence.value.status == 0


def test_a_log_is_read_whether_airflow_could_parse_it_or_not(server, rest):
    path = f"{PATH}/taskInstances/train/logs/1?full_content=true&map_index=-1"
    server.answers[path] = {
        "content": [{"event": "one"}, {"event": "two", "level": "info"}],
        "continuation_token": None,
    }
    assert rest.fetch_log(RUN, "train") == "one\ntwo"
    server.answers[path] = {"content": ["one", "two"], "continuation_token": None}
    assert rest.fetch_log(RUN, "train") == "one\ntwo"


def test_what_changes_something_is_sent_in_full(server, rest):
    task = f"{PATH}/taskInstances/train"
    run = {"dag_run_id": "r/1", "state": "queued", "start_date": None, "end_date": None}
    server.answers |= {f"/api/v2/dags/a%20dag/{end}": run for end in ("dagRuns", "clearTaskInstances", "dagRuns/r%2F1")}
    server.answers |= {"/api/v2/dags/a%20dag": {}, task: {}}

    assert rest.trigger_dag("a dag", {"x": 1}, run_id="r/1") == RUN
    rest.clear_tasks(RUN, ["train"])
    rest.mark_task(RUN, "train", "failed")
    rest.mark_run(RUN, "success")
    rest.delete_run(RUN)
    rest.delete_dag("a dag")

    assert server.asked == [
        ("POST", "/api/v2/dags/a%20dag/dagRuns", {"logical_date": None, "conf": {"x": 1}, "dag_run_id": "r/1"}),
        (
            "POST",
            "/api/v2/dags/a%20dag/clearTaskInstances",
            {
                "dag_run_id": "r/1",
                "task_ids": ["train"],
                "dry_run": False,
                "only_failed": False,
                "reset_dag_runs": True,
            },
        ),
        ("PATCH", task, {"new_state": "failed"}),
        ("PATCH", PATH, {"state": "success"}),
        ("DELETE", PATH, None),
        ("DELETE", "/api/v2/dags/a%20dag", None),
    ]


def settings(heartbeat_interval_seconds: int | None = 1) -> dict[str, str]:
    inherited = {"PATH": "/bin", "AIRFLOW_HOME": "/mine", "AIRFLOW_CONN_X": "x://", "PYTHONDONTWRITEBYTECODE": "1"}
    return build_environment(
        inherited,
        AirflowSettings(
            home=Path("/h"),
            dags_folder=Path("/d"),
            port=4711,
            users={"ann": "op", "bob": "viewer"},
            heartbeat_interval_seconds=heartbeat_interval_seconds,
        ),
        {"AIRFLOW__CORE__EXECUTOR": "Mine"},
        draw_bytes=lambda n: b"\1" * n,
    )


def test_the_callers_airflow_is_left_out_and_the_callers_wish_wins():
    environment = settings()

    assert environment["PATH"] == "/bin"
    assert environment["AIRFLOW_HOME"] == "/h"
    assert environment["AIRFLOW__CORE__EXECUTOR"] == "Mine"
    assert not {"AIRFLOW_CONN_X", "PYTHONDONTWRITEBYTECODE"} & environment.keys()


def test_it_is_for_this_machine_and_for_known_users_only():
    environment = settings()

    assert environment["AIRFLOW__API__HOST"] == "127.0.0.1"
    assert environment["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS"] == "False"
    assert environment["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS"] == "ann:op,bob:viewer"
    assert environment["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] == "http://127.0.0.1:4711/execution/"
    assert all("--skip-serve-logs" in command for name, command in build_commands(2).items() if name.startswith("trig"))


@pytest.mark.parametrize(("seconds", "expected"), [(None, None), (1, "1"), (5, "5")])
def test_the_heartbeat_is_airflows_own_unless_told(seconds, expected):
    environment = settings(heartbeat_interval_seconds=seconds)

    assert environment.get("AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL") == expected
