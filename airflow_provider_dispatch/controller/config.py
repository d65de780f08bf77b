# SPDX-License-Identifier: Apache-2.0
"""What may be set about the controller, from a YAML file and from flags; a flag outweighs the file.

``__main__`` reads it once. It never asks the cluster anything.
"""

from __future__ import annotations

import argparse
import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.controller_view import ControllerSettings
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings, Name
from airflow_provider_dispatch.controller.lease import USABLE_SHARE
from airflow_provider_dispatch.core.validation import describe_place, validate_settings
from airflow_provider_dispatch.exceptions import SpecError

Seconds = Annotated[float, Field(gt=0, le=86_400)]
Port = Annotated[int, Field(ge=0, le=65_535)]
Namespace = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]


def _build_identity() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"


class ControllerConfig(BaseModel):
    """Settings of one replica.

    :param kubeconfig: path; None means in-cluster, then the default places.
    :param context: of the kubeconfig; None means its current one.
    :param namespaces: whose jobs it looks after; none means those of all namespaces.
    :param admission_check: name of our AdmissionCheck.
    :param lease_namespace: of the Lease; it must exist.
    :param lease_name: of the Lease.
    :param identity: of this replica in the Lease; drawn anew when left out.
    :param lease_duration_seconds: after which another replica may take an unrenewed Lease.
    :param lease_renew_seconds: between two renewals.
    :param bind_address: of both ports.
    :param health_port: of ``/healthz`` and ``/readyz``; 0 takes any free one.
    :param metrics_port: of ``/metrics``; equal to the health port means the same server, 0 any free one.
    :param workers: jobs looked after at the same time.
    :param lifts: pods whose fence is lifted at the same time, of all jobs together.
    :param relist_seconds: after which everything is listed and looked at again.
    :param node_monitor_grace_seconds: the cluster's ``--node-monitor-grace-period``.
    :param pod_grace_seconds: for a pod that doesn't say its own.
    :param margin_seconds: for clocks that disagree and kubelets that are slow.
    :param retry_after_seconds: how long quota that somebody else wants is kept while old pods are in the way.
    :param longest_retry_after_seconds: what that grows to with each time.
    :param request_timeout_seconds: of one request to the API server; well below the Lease's duration.
    :param log_level: of what is less important nothing is logged.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    kubeconfig: str | None = None
    context: str | None = None
    namespaces: tuple[Namespace, ...] = ()
    admission_check: Name = words.DEFAULT_CHECK
    lease_namespace: Namespace = words.LEASE_NAMESPACE
    lease_name: Name = words.LEASE_NAME
    identity: Name = Field(default_factory=_build_identity)
    lease_duration_seconds: Annotated[float, Field(ge=3, le=3600)] = 15.0
    lease_renew_seconds: Seconds = 5.0
    bind_address: str = "0.0.0.0"  # noqa: S104 - the kubelet and Prometheus ask from outside of the pod
    health_port: Port = 8081
    metrics_port: Port = 8080
    workers: int = Field(default=8, ge=1, le=64)
    lifts: int = Field(default=32, ge=1, le=256)
    relist_seconds: Seconds = 600.0
    node_monitor_grace_seconds: Seconds = 50.0
    pod_grace_seconds: Seconds = 30.0
    margin_seconds: Seconds = 40.0
    retry_after_seconds: Seconds = 60.0
    longest_retry_after_seconds: Seconds = 1800.0
    request_timeout_seconds: Annotated[float, Field(gt=0, le=600)] = 5.0
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"

    @model_validator(mode="after")
    def _check_lease(self) -> Self:
        usable = self.lease_duration_seconds * USABLE_SHARE
        if self.lease_renew_seconds + self.request_timeout_seconds > usable:
            raise ValueError(
                "lease_renew_seconds + request_timeout_seconds must not exceed two thirds of lease_duration_seconds, "
                "or one slow renewal stops the controller"
            )
        if usable + self.request_timeout_seconds > self.lease_duration_seconds:
            raise ValueError(
                "request_timeout_seconds must not exceed a third of lease_duration_seconds, "
                "or a slow write could come after another replica has taken the Lease"
            )
        return self

    def build_client_settings(self) -> KubeflowSettings:
        """What the client needs to know."""
        return KubeflowSettings(
            kubeconfig=self.kubeconfig,
            context=self.context,
            admission_check=self.admission_check,
            lease_namespace=self.lease_namespace,
            lease_name=self.lease_name,
            request_timeout_seconds=self.request_timeout_seconds,
        )

    def build_decision_settings(self) -> ControllerSettings:
        """What the decisions need to know."""
        return ControllerSettings(
            node_monitor_grace=timedelta(seconds=self.node_monitor_grace_seconds),
            pod_grace=timedelta(seconds=self.pod_grace_seconds),
            margin=timedelta(seconds=self.margin_seconds),
            retry_after=timedelta(seconds=self.retry_after_seconds),
            longest_retry_after=timedelta(seconds=self.longest_retry_after_seconds),
        )


def parse_config(arguments: Sequence[str]) -> ControllerConfig:
    """Read the flags, and the file that ``--config`` names.

    :raises SpecError: an unknown field or a wrong value; the message names the field.
    :raises SystemExit: an unknown flag, or ``--help``.
    """
    given = vars(_build_parser().parse_args(arguments))
    path = given.pop("config", None)
    named = given.pop("namespace", None)
    flags = given | ({"namespaces": tuple(named)} if named else {})
    written = _read_file(Path(path)) if path else {}
    return validate_settings(ControllerConfig, {**written, **flags}, whole="config")


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dispatch-admission", description=__doc__, argument_default=argparse.SUPPRESS, allow_abbrev=False
    )
    parser.add_argument("--config", metavar="FILE", help="YAML file with the fields below, in snake case")
    parser.add_argument("--namespace", action="append", metavar="NAME", help="may be given again; all when left out")
    for field in ControllerConfig.model_fields:
        if field != "namespaces":
            parser.add_argument(f"--{field.replace('_', '-')}", metavar="VALUE")
    return parser


def _read_file(path: Path) -> Mapping[str, object]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError("config", f"can't be read: {error.strerror}", str(path)) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SpecError("config", f"is not YAML{describe_place(error)}", str(path)) from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SpecError("config", "must be a mapping of fields", str(path))
    return {str(key): value for key, value in content.items()}
