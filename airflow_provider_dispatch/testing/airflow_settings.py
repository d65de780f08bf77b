# SPDX-License-Identifier: Apache-2.0
"""The settings of a throw-away Airflow, as environment variables: pure, so that they can be read without starting it.

Used by :mod:`airflow_provider_dispatch.testing.airflow_processes`. Where a value differs from Airflow's default and its
name doesn't say why, the reason stands above it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

#: What a component inherits of the caller is all but these: its Airflow, and orders to waste time.
FOREIGN_PREFIXES = ("AIRFLOW_", "_AIRFLOW_")
# Without byte code every start of a component compiles some three thousand modules again.
WASTEFUL = frozenset({"PYTHONDONTWRITEBYTECODE"})


@dataclass(frozen=True, slots=True)
class AirflowSettings:
    """What may differ between two of them.

    :param heartbeat_interval_seconds: how long a worker may linger after its task deferred; None: Airflow's default.
    :param slots: how many tasks run at once.
    :param users: name to role: ``admin``, ``op``, ``user`` or ``viewer``.
    """

    home: Path
    dags_folder: Path
    port: int
    users: Mapping[str, str]
    heartbeat_interval_seconds: int | None = 1
    slots: int = 4

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def passwords_file(self) -> Path:
        return self.home / "passwords.json"


def build_airflow_environment(settings: AirflowSettings, *, draw_bytes: Callable[[int], bytes]) -> dict[str, str]:
    """All settings that make it private, small and quick.

    :param draw_bytes: a source of secrets, such as ``secrets.token_bytes``.
    """
    variables = {
        "AIRFLOW_HOME": str(settings.home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(settings.dags_folder),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        # A run that a test triggers is meant to run.
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": str(settings.slots),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{settings.url}/execution/",
        "AIRFLOW__CORE__FERNET_KEY": base64.urlsafe_b64encode(draw_bytes(32)).decode(),
        # Users with roles and passwords. With "all admins" a stranger's request would pass every permission check.
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{n}:{r}" for n, r in settings.users.items()),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(settings.passwords_file),
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(settings.port),
        "AIRFLOW__API__BASE_URL": settings.url,
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API__SECRET_KEY": draw_bytes(32).hex(),
        "AIRFLOW__API_AUTH__JWT_SECRET": draw_bytes(64).hex(),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{settings.home / 'airflow.db'}",
        "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
        # By default a new DAG file is seen after five minutes.
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(settings.home / "task-logs"),
        # Nothing leaves the machine.
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    }
    if settings.heartbeat_interval_seconds is not None:
        variables["AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL"] = str(settings.heartbeat_interval_seconds)
    return variables


def build_environment(
    inherited: Mapping[str, str],
    settings: AirflowSettings,
    wishes: Mapping[str, str],
    *,
    draw_bytes: Callable[[int], bytes],
) -> dict[str, str]:
    """The whole environment of a component: what it inherits, then our settings, then the caller's *wishes*."""
    kept = {name: value for name, value in inherited.items() if not name.startswith(FOREIGN_PREFIXES)}
    for name in WASTEFUL:
        kept.pop(name, None)
    return kept | build_airflow_environment(settings, draw_bytes=draw_bytes) | dict(wishes)
