# SPDX-License-Identifier: Apache-2.0
"""What a user may set about a cluster. The adapter, the controller and the command read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.core.validation import validate_settings

Name = Annotated[str, Field(min_length=1, max_length=253)]


class RuntimeSettings(BaseModel):
    """A training runtime.

    :param name: of the runtime.
    :param kind: of the whole cluster, or of the namespace of the jobs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    name: Name
    kind: Literal["ClusterTrainingRuntime", "TrainingRuntime"] = "ClusterTrainingRuntime"


class KubeflowSettings(BaseModel):
    """Settings of one connection.

    :param namespace: where jobs live.
    :param kubeconfig: path of a kubeconfig; None means in-cluster, then the default places.
    :param context: of the kubeconfig; None means its current one.
    :param deployment: jobs of another one are refused; None takes any.
    :param queue: LocalQueue of a job that names none. With neither, the job runs in plain mode, without Kueue.
    :param priority_class: Kueue mode: WorkloadPriorityClass of a job that names none.
    :param runtime: of a job that names none.
    :param image: of a role that names none; None leaves the runtime's own.
    :param admission_check: Kueue mode: name of our AdmissionCheck.
    :param lease_namespace: where ``dispatch-admission`` runs and keeps its Lease.
    :param lease_name: of that Lease.
    :param state_host_path: folder on every node that becomes ``DISPATCH_STATE_DIR``; for clusters with one shared file
        system, and tests.
    :param state_claim: PersistentVolumeClaim that becomes ``DISPATCH_STATE_DIR``.
    :param has_controller: plain mode: ``dispatch-admission`` watches over this namespace, too.
    :param request_timeout_seconds: of one request to the API server.
    :param probe_seconds: how long preflight watches a job of its own behind its gate; 0 means that it makes none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    namespace: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")] = "default"
    kubeconfig: str | None = None
    context: str | None = None
    deployment: str | None = None
    queue: Name | None = None
    priority_class: Name | None = None
    runtime: RuntimeSettings | None = None
    image: Name | None = None
    admission_check: Name = words.DEFAULT_CHECK
    lease_namespace: Name = words.LEASE_NAMESPACE
    lease_name: Name = words.LEASE_NAME
    state_host_path: str | None = None
    state_claim: Name | None = None
    has_controller: bool = True
    request_timeout_seconds: float = Field(default=15.0, gt=0, le=600)
    probe_seconds: float = Field(default=10.0, ge=0, le=600)

    @model_validator(mode="after")
    def _has_one_state(self) -> KubeflowSettings:
        if self.state_host_path and self.state_claim:
            raise ValueError("give state_host_path or state_claim, not both")
        if self.state_host_path and not self.state_host_path.startswith("/"):
            raise ValueError("state_host_path must be an absolute path")
        return self


def parse_settings(fields: Mapping[str, object]) -> KubeflowSettings:
    """Read the settings of a connection.

    :raises SpecError: an unknown field or a wrong value; never shows the value.
    """
    return validate_settings(KubeflowSettings, fields)
