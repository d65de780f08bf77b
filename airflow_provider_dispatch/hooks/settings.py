# SPDX-License-Identifier: Apache-2.0
"""What a Dispatch connection says, checked: untrusted input enters here, so it is pydantic.

The hook reads a connection into it; operators ask it for defaults. Its errors name the connection and the field, never
a value, because an extra may be secret. It contacts nothing and never fetches a connection itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from airflow_provider_dispatch.exceptions import SpecError
from airflow_provider_dispatch.hooks.kubernetes_extra import read_kubernetes_extra

LOCAL_BACKEND = "local"
KUBEFLOW_BACKEND = "kubeflow"
OWN_CONNECTION_TYPE = "dispatch"
KUBERNETES_CONNECTION_TYPE = "kubernetes"
CLUSTER_FIELDS = (
    "namespace",
    "kubeconfig",
    "context",
    "runtime",
    "runtime_kind",
    "image",
    "admission_check",
    "lease_namespace",
    "has_controller",
    "state_claim",
    "state_host_path",
)
"""Fields that mean something to the kubeflow backend alone."""
STORE_NAME = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"

Name = Annotated[str, Field(min_length=1, max_length=253)]


class ConnectionSettings(BaseModel):
    """The fields of a connection's extra, and their defaults where there is no connection.

    A field of the kubeflow backend that is None means that backend's own default.

    :param backend: adapter by name: ``local`` or ``kubeflow``.
    :param deployment: which Airflow this is; part of the identity of every job.
    :param store: local: folder below ``dispatch`` in the Airflow home.
    :param queue: of a job that names none; None means the backend's own default.
    :param priority: of a job that names none; a number or a name.
    :param call_timeout_seconds: how long one call may take.
    :param namespace: kubeflow: where jobs live.
    :param kubeconfig: kubeflow: path, as this process sees it; None means the pod's own account, then the usual places.
    :param context: kubeflow: of the kubeconfig.
    :param runtime: kubeflow: training runtime of a job that names none.
    :param runtime_kind: kubeflow: None means ``ClusterTrainingRuntime``.
    :param image: kubeflow: of a role that names none.
    :param admission_check: kubeflow: our AdmissionCheck, where it has another name.
    :param lease_namespace: kubeflow: where ``dispatch-admission`` runs.
    :param has_controller: kubeflow: without a queue: whether it looks after this namespace, too.
    :param state_claim: kubeflow: PersistentVolumeClaim that becomes ``DISPATCH_STATE_DIR``.
    :param state_host_path: kubeflow: folder on every node that becomes it instead.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True, hide_input_in_errors=True)

    backend: Name = LOCAL_BACKEND
    deployment: Annotated[str, Field(min_length=1, max_length=63)] = "airflow"
    store: Annotated[str, Field(pattern=STORE_NAME)] = "default"
    queue: Name | None = None
    priority: int | Name | None = None
    call_timeout_seconds: Annotated[float, Field(ge=1, le=600)] = 60
    namespace: Name | None = None
    kubeconfig: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    context: Name | None = None
    runtime: Name | None = None
    runtime_kind: Literal["ClusterTrainingRuntime", "TrainingRuntime"] | None = None
    image: Name | None = None
    admission_check: Name | None = None
    lease_namespace: Name | None = None
    has_controller: bool = True
    state_claim: Name | None = None
    state_host_path: Annotated[str, Field(min_length=1, max_length=4096)] | None = None

    @field_validator("priority", mode="before")
    @classmethod
    def _read_number(cls, value: object) -> object:
        return int(value) if isinstance(value, str) and value.lstrip("-").isdecimal() else value

    @property
    def call_timeout(self) -> timedelta:
        """How long one call may take."""
        return timedelta(seconds=self.call_timeout_seconds)

    @property
    def adapter_settings(self) -> dict[str, object]:
        """What the registry hands to the backend."""
        settings: dict[str, object] = {"deployment": self.deployment}
        if self.backend == LOCAL_BACKEND:
            settings |= {"root": str(_airflow_home() / "dispatch"), "store": self.store}
        if self.backend == KUBEFLOW_BACKEND:
            settings |= self._cluster_settings
        return settings

    @property
    def _cluster_settings(self) -> dict[str, object]:
        kind = self.runtime_kind or "ClusterTrainingRuntime"
        given: dict[str, object] = {
            **{name: getattr(self, name) for name in CLUSTER_FIELDS if name not in ("runtime", "runtime_kind")},
            "queue": self.queue,
            "priority_class": self.priority if isinstance(self.priority, str) else None,
            "runtime": {"name": self.runtime, "kind": kind} if self.runtime else None,
        }
        return {name: value for name, value in given.items() if value is not None}


def parse_connection(conn_id: str, conn_type: str | None, extra: str | None) -> ConnectionSettings:
    """Read a connection.

    :param extra: the connection's extra as JSON text.
    :raises SpecError: another type, no JSON object, an unknown field or a wrong value.
    """
    if conn_type not in (OWN_CONNECTION_TYPE, KUBERNETES_CONNECTION_TYPE):
        raise SpecError(f"connection {conn_id}", f"must be of type {OWN_CONNECTION_TYPE}, not {conn_type!r}")
    try:
        fields = json.loads(extra or "{}")
    except ValueError:
        raise SpecError(f"connection {conn_id}: extra", "is not JSON") from None
    if not isinstance(fields, Mapping):
        raise SpecError(f"connection {conn_id}: extra", "must be a JSON object")
    if conn_type == KUBERNETES_CONNECTION_TYPE:
        fields = read_kubernetes_extra(conn_id, fields) | {"backend": KUBEFLOW_BACKEND}
    # The form sends an emptied field as an empty string or as null.
    given = {name: value for name, value in fields.items() if value not in ("", None)}
    try:
        settings = ConnectionSettings.model_validate(given)
    except ValidationError as error:
        raise _translate(conn_id, error) from None
    _check_backend(conn_id, settings)
    return settings


def _check_backend(conn_id: str, settings: ConnectionSettings) -> None:
    """A cluster named beside the local backend is a backend forgotten: its jobs would train on this machine."""
    if settings.backend != LOCAL_BACKEND:
        return
    for name in CLUSTER_FIELDS:
        if getattr(settings, name) != ConnectionSettings.model_fields[name].default:
            raise SpecError(f"connection {conn_id}: {name}", f"means nothing locally; set backend {KUBEFLOW_BACKEND}")


def _translate(conn_id: str, error: ValidationError) -> SpecError:
    first = error.errors(include_url=False, include_input=False)[0]
    field = first["loc"][0] if first["loc"] else "extra"
    if first["type"] == "extra_forbidden":
        known = ", ".join(ConnectionSettings.model_fields)
        return SpecError(f"connection {conn_id}: {field}", f"is no field of a Dispatch connection; they are {known}")
    return SpecError(f"connection {conn_id}: {field}", first["msg"])


def _airflow_home() -> Path:
    return Path(os.path.expandvars(os.environ.get("AIRFLOW_HOME", "~/airflow"))).expanduser()
