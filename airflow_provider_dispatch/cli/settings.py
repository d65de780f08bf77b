# SPDX-License-Identifier: Apache-2.0
"""Which backend ``dispatch`` talks to: an Airflow connection, a settings file, or the local store of this machine.

The session asks for it once a call. Untrusted input enters here; errors name the field and never show a value, because
a setting may be secret. No adapter is made and nothing is contacted, but an Airflow that is asked for a connection.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from airflow_provider_dispatch.cli.documents import read_document
from airflow_provider_dispatch.exceptions import NotInstalledError, SpecError

if TYPE_CHECKING:
    from airflow_provider_dispatch.hooks.settings import ConnectionSettings

SETTINGS_VARIABLE = "DISPATCH_SETTINGS"
LOCAL_BACKEND = "local"
# The cluster's adapter wants to know the default queue, too: without one, jobs run in plain mode.
ALSO_FOR_THE_BACKEND = {"kubeflow": ("queue",)}
Name = Annotated[str, Field(min_length=1, max_length=253)]


@dataclass(frozen=True, slots=True)
class BackendSettings:
    """A backend and what goes with it.

    :param fields: the backend's own settings.
    :param deployment: whose jobs these are; empty where nobody said.
    :param queue: of a job that names none.
    :param priority: of a job that names none.
    :param call_timeout: how long one call may take.
    """

    backend: str
    fields: Mapping[str, object]
    deployment: str = ""
    queue: str | None = None
    priority: int | str | None = None
    call_timeout: timedelta = timedelta(seconds=60)


class FileSettings(BaseModel):
    """The fields of a settings file that are not the backend's own.

    :param backend: adapter by name: ``local`` or ``kubeflow``.
    :param deployment: which Airflow's jobs these are; empty means that nobody said: those of all.
    :param queue: of a job that names none.
    :param priority: of a job that names none; a number or a name.
    :param call_timeout_seconds: how long one call may take.
    """

    model_config = ConfigDict(frozen=True, extra="allow", hide_input_in_errors=True)

    backend: Name = LOCAL_BACKEND
    deployment: Annotated[str, Field(max_length=63)] = ""
    queue: Name | None = None
    priority: int | Name | None = None
    call_timeout_seconds: Annotated[float, Field(ge=1, le=3600)] = 60


def load_settings(conn_id: str | None, path: Path | None) -> BackendSettings:
    """The settings that a call names; with neither, those of an Airflow task that has no connection.

    :param conn_id: an Airflow connection.
    :param path: a settings file; the environment may name one, too.
    :raises SpecError: both are given, or something they say is wrong.
    :raises NotInstalledError: a connection is named and Airflow is missing.
    """
    if conn_id is not None and path is not None:
        raise SpecError("--conn-id", "give either a connection or --settings, not both", conn_id)
    if conn_id is not None:
        return _from_connection(_load_connection(conn_id))
    path = path or (Path(named) if (named := os.environ.get(SETTINGS_VARIABLE)) else None)
    if path is not None:
        return parse_settings(read_document("--settings", path))
    return _from_connection(_load_defaults())


def parse_settings(document: object) -> BackendSettings:
    """Read the content of a settings file.

    :raises SpecError: no mapping, or a wrong value of a field that every backend has.
    """
    if not isinstance(document, Mapping):
        raise SpecError("--settings", "must hold a mapping, such as backend: local")
    try:
        found = FileSettings.model_validate({str(name): value for name, value in document.items()})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise SpecError(f"settings.{first['loc'][0]}", first["msg"]) from None
    fields: dict[str, object] = dict(found.model_extra or {})
    fields |= {name: getattr(found, name) for name in ALSO_FOR_THE_BACKEND.get(found.backend, ())}
    if found.deployment:
        fields["deployment"] = found.deployment
    if found.backend == LOCAL_BACKEND:
        root = Path(str(fields["root"])).expanduser() if "root" in fields else Path(_default_root())
        fields["root"] = str(root)
    timeout = timedelta(seconds=found.call_timeout_seconds)
    return BackendSettings(found.backend, fields, found.deployment, found.queue, found.priority, timeout)


def _from_connection(found: ConnectionSettings) -> BackendSettings:
    return BackendSettings(
        found.backend, found.adapter_settings, found.deployment, found.queue, found.priority, found.call_timeout
    )


def _default_root() -> str:
    return str(_load_defaults().adapter_settings["root"])


def _load_connection(conn_id: str) -> ConnectionSettings:
    # Airflow logs to standard output, where the answer of the verb belongs alone.
    with contextlib.redirect_stdout(sys.stderr):
        found: ConnectionSettings = _import_hooks("connection_loader").load_connection(conn_id)
    return found


def _load_defaults() -> ConnectionSettings:
    """What holds where there is no connection; read without Airflow."""
    found: ConnectionSettings = _import_hooks("settings").ConnectionSettings()
    return found


def _import_hooks(module: str) -> ModuleType:
    """The one place where the command reaches into the Airflow-facing half: by name, and only when it has to."""
    try:
        return importlib.import_module(f"airflow_provider_dispatch.hooks.{module}")
    except ModuleNotFoundError as error:
        raise NotInstalledError(f"--conn-id needs {error.name}, which is not installed; use --settings") from error
