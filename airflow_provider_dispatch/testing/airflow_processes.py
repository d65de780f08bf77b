# SPDX-License-Identifier: Apache-2.0
"""A real Airflow for tests and demonstrations: its own processes in a throw-away home, on this machine's loopback only.

::

    with RealAirflow(None, Path("dags")) as airflow:
        airflow.wait_for_dag("train")
        run = airflow.rest.trigger_dag("train")
        assert airflow.wait_for_run(run).state == "success"

API server, scheduler with local workers, DAG processor and triggerer run as they would in production, so that a test
can kill, clear, delete and restart. Whatever way the block is left, and however this process ends, nothing of it goes
on running: see :mod:`airflow_provider_dispatch.testing.process_guard`. It is for one machine and one user, and no way
to run Airflow for work. Never imports Airflow: it starts the one that is installed beside it.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from airflow_provider_dispatch.testing.airflow_rest import AirflowRest, Login, RestError, Run, RunRow
from airflow_provider_dispatch.testing.airflow_settings import AirflowSettings, build_environment
from airflow_provider_dispatch.testing.guarded_processes import GuardedProcesses
from airflow_provider_dispatch.testing.waiting import Waiter

T = TypeVar("T")

API_SERVER, SCHEDULER, DAG_PROCESSOR, TRIGGERER = "api-server", "scheduler", "dag-processor", "triggerer"
USERS = {"admin": "admin", "viewer": "viewer"}
ENDED_RUN_STATES = frozenset({"success", "failed"})
LOG_TAIL_LINES = 40
# Airflow builds a great many small objects while it starts; with Python's default thresholds a fifth of the start-up is
# spent looking for garbage among them. Nothing else differs from `python -m airflow`.
AIRFLOW = (
    "import gc, runpy, sys; gc.set_threshold(200_000, 50, 100); sys.argv[0] = 'airflow';"
    " runpy.run_module('airflow', run_name='__main__', alter_sys=True)"
)


class ComponentEndedError(RuntimeError):
    """A component ended although nobody asked it to; the message shows the end of its log."""


class RealAirflow:
    """A running Airflow, from entering the context until leaving it.

    :param home: the Airflow home; made if missing, kept afterwards. None: a temporary one, removed afterwards.
    :param dags_folder: where the DAG files are.
    :param env: further environment of all components, for instance ``AIRFLOW_CONN_…``; wins over ours.
    :param heartbeat_interval_seconds: ``[workers] min_heartbeat_interval``; None leaves Airflow's default.
    :param triggerers: how many. More than one needs a database other than SQLite, given in *env*.
    :param users: name to role; the first is the one that *rest* acts as.
    """

    def __init__(
        self,
        home: Path | None,
        dags_folder: Path,
        *,
        env: Mapping[str, str] | None = None,
        heartbeat_interval_seconds: int | None = 1,
        triggerers: int = 1,
        users: Mapping[str, str] | None = None,
        start_timeout_seconds: float = 180.0,
    ) -> None:
        wishes = dict(env or {})
        if triggerers > 1 and "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN" not in wishes:
            raise ValueError(
                "SQLite gives the ids of ended triggers out again, which confuses a second triggerer:"
                " name another database in env, as AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"
            )
        self._is_temporary = home is None
        # Only named here, made when entered: an interruption in between leaves nothing behind.
        self.home = (home or Path(tempfile.gettempdir(), f"airflow-{secrets.token_hex(8)}")).resolve()
        self._settings = AirflowSettings(
            home=self.home,
            dags_folder=dags_folder.resolve(),
            port=find_free_port(),
            users=users or USERS,
            heartbeat_interval_seconds=heartbeat_interval_seconds,
        )
        self._environment = build_environment(os.environ, self._settings, wishes, draw_bytes=secrets.token_bytes)
        self._start_timeout_seconds = start_timeout_seconds
        self._commands = build_commands(triggerers)
        self._pids: dict[str, int] = {}
        self._processes: GuardedProcesses | None = None
        self._waiter = Waiter(is_hopeless=self._raise_if_one_ended)
        self.logins = {name: Login(name, secrets.token_urlsafe(12)) for name in self._settings.users}
        self.rest = self.rest_as(next(iter(self.logins)))

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:  # Ctrl-C too: half an Airflow must not stay
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return self._settings.url

    @property
    def environment(self) -> Mapping[str, str]:
        """What the components see; for running ``airflow`` commands against the same home."""
        return self._environment

    def rest_as(self, username: str | None) -> AirflowRest:
        """The REST API as another user sees it; None for a stranger."""
        return AirflowRest(self.url, None if username is None else self.logins[username])

    def pids(self) -> dict[str, int]:
        """The running components. Workers and tasks are beneath the scheduler, triggers beneath the triggerer."""
        return dict(self._pids)

    def alive(self) -> list[int]:
        """All processes of this Airflow, those included that components, tasks and jobs have started."""
        return self._guarded.alive()

    def kill(self, component: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Signal a component, and if that ends it, wait until it's gone. What it had started lives on, as it would."""
        pid = self._pids[component]
        if number in {signal.SIGKILL, signal.SIGTERM, signal.SIGINT}:
            del self._pids[component]
        self._guarded.send_signal(pid, number)
        if component not in self._pids:
            self.wait_for(lambda: self._guarded.exit_code(pid) is not None, what=f"the {component} to end")

    def start(self, component: str) -> None:
        """Start a component that isn't running. Does not wait until it is ready."""
        if component in self._pids:
            raise ValueError(f"the {component} is running")
        self._pids[component] = self._spawn(component, *self._commands[component])

    def restart(self, component: str, number: signal.Signals = signal.SIGTERM) -> None:
        """End a component, if it's running, and start it again."""
        if component in self._pids:
            self.kill(component, number)
        self.start(component)

    def read_log(self, component: str) -> str:
        """What a component has printed."""
        path = self._log_path(component)
        return path.read_text(errors="replace") if path.exists() else ""

    def wait_for(self, look: Callable[[], T | None], *, timeout_seconds: float = 60.0, what: str = "a condition") -> T:
        """Look until something true comes, and return it; fails at once when a component ends by itself."""
        return self._waiter.wait_for(look, timeout_seconds=timeout_seconds, what=what)

    def wait_for_dag(self, dag_id: str, *, timeout_seconds: float = 60.0) -> None:
        """Until the DAG can be triggered.

        :raises TimeoutError: with the errors of DAG files that could not be read.
        """
        try:
            self.wait_for(lambda: self.rest.is_dag_known(dag_id), timeout_seconds=timeout_seconds, what=f"DAG {dag_id}")
        except TimeoutError as error:
            broken = "\n".join(f"{name}:\n{trace}" for name, trace in self.rest.fetch_import_errors().items())
            raise TimeoutError(f"{error}\n{broken or 'no DAG file is broken'}") from error

    def wait_for_run(self, run: Run, *, timeout_seconds: float = 120.0) -> RunRow:
        """Until the run has ended, well or not."""

        def look() -> RunRow | None:
            row = self.rest.fetch_run(run)
            return row if row.state in ENDED_RUN_STATES else None

        return self.wait_for(look, timeout_seconds=timeout_seconds, what=f"run {run[1]} of {run[0]} to end")

    def stop(self) -> None:
        """End everything that runs, and remove a temporary home. May be called again."""
        try:
            if self._processes is not None:
                self._pids.clear()
                self._processes.close()
        finally:
            if self._is_temporary:
                shutil.rmtree(self.home, ignore_errors=True)

    def _start(self) -> None:
        if self._is_temporary:
            self.home.mkdir(mode=0o700)
        (self.home / "logs").mkdir(parents=True, exist_ok=True)
        passwords = {login.username: login.password for login in self.logins.values()}
        self._settings.passwords_file.touch(mode=0o600)
        self._settings.passwords_file.write_text(json.dumps(passwords))
        self._processes = GuardedProcesses(self.home / "logs")
        # The API server needs longest, and the database only for its first real request: both begin together.
        migration = self._spawn("db-migrate", "db", "migrate")
        self.start(API_SERVER)
        self._await_start(lambda: self._guarded.exit_code(migration) is not None, "the database")
        if self._guarded.exit_code(migration) != 0:
            raise ComponentEndedError(f"the database could not be made:\n{self._tail('db-migrate')}")
        for component in self._commands:
            if component != API_SERVER:
                self.start(component)
        # The first request to the part that workers use takes seconds. It shall not be a task that has to wait for it.
        self._await_start(lambda: self._answers("/execution/health"), "the API server")
        self._await_start(
            lambda: self.rest.is_healthy(["metadatabase", "scheduler", "triggerer", "dag_processor"]), "all components"
        )

    def _await_start(self, look: Callable[[], bool], what: str) -> None:
        self.wait_for(look, timeout_seconds=self._start_timeout_seconds, what=what)

    def _answers(self, path: str) -> bool:
        try:
            self.rest_as(None).request("GET", path)
        except RestError as error:
            if error.status == 0:
                return False
            raise
        return True

    @property
    def _guarded(self) -> GuardedProcesses:
        if self._processes is None:
            raise RuntimeError("this Airflow isn't running: enter its context first")
        return self._processes

    def _spawn(self, name: str, *arguments: str) -> int:
        environment = dict(self._environment)
        if name == API_SERVER:
            # It would refuse to start beside the migration.
            environment["AIRFLOW__DATABASE__CHECK_MIGRATIONS"] = "False"
        # -P: the home is no place to import from.
        argv = [sys.executable, "-P", "-c", AIRFLOW, *arguments]
        return self._guarded.start(argv, env=environment, log=self._log_path(name))

    def _log_path(self, component: str) -> Path:
        return self.home / "logs" / f"{component}.log"

    def _tail(self, component: str) -> str:
        return "\n".join(self.read_log(component).splitlines()[-LOG_TAIL_LINES:])

    def _raise_if_one_ended(self) -> None:
        for component, pid in self._pids.items():
            code = self._guarded.exit_code(pid)
            if code is not None:
                raise ComponentEndedError(f"the {component} ended by itself ({code}):\n{self._tail(component)}")


def build_commands(triggerers: int) -> dict[str, list[str]]:
    """Component to its arguments. The log servers, which would listen on all of the machine's addresses, stay off."""
    return {
        API_SERVER: ["api-server"],
        SCHEDULER: ["scheduler", "--skip-serve-logs"],
        DAG_PROCESSOR: ["dag-processor"],
        TRIGGERER: ["triggerer", "--skip-serve-logs"],
    } | {f"{TRIGGERER}-{n}": ["triggerer", "--skip-serve-logs"] for n in range(2, triggerers + 1)}


def find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
