# SPDX-License-Identifier: Apache-2.0
"""What a request and a connection say together: whether a cluster can carry it, and on which terms it is made.

`start` asks it before anything is read or written. It asks nobody.
"""

from __future__ import annotations

import re

from airflow_provider_dispatch.adapters.kubeflow.model.terms import StateVolume, Terms
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings
from airflow_provider_dispatch.core.records import StartRequest
from airflow_provider_dispatch.exceptions import ConflictError, SpecError

HIGHEST_NUMBER = 2**31 - 1
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_ENV_NAME = re.compile(r"[ -<>-~]+")
"""What Kubernetes 1.34 takes: printable ASCII but the equals sign."""


def check_carried(settings: KubeflowSettings, request: StartRequest) -> None:
    """Refuse what this backend can't carry, before anything is asked.

    :raises SpecError: names the field.
    :raises ConflictError: the job of another deployment.
    """
    spec, deployment = request.spec, request.owner.deployment
    if settings.deployment is not None and deployment != settings.deployment:
        raise ConflictError(f"this connection serves deployment {settings.deployment!r}, not {deployment!r}")
    if not _LABEL_VALUE.fullmatch(deployment):
        problem = "must be a label value: up to 63 letters, digits, '-', '_' and '.', a letter or digit at both ends"
        raise SpecError("owner.deployment", problem, deployment)
    for field, number in (("submission", request.submission), ("attempt", request.attempt)):
        if not 1 <= number <= HIGHEST_NUMBER:
            raise SpecError(field, f"must lie between 1 and {HIGHEST_NUMBER}", number)
    for field, time in (("not_before", request.not_before), ("supervision.deadline", request.supervision.deadline)):
        if time is not None and time.tzinfo is None:
            raise SpecError(field, "needs a time zone", time.isoformat())
    for index, role in enumerate(spec.roles):
        for field, names in (("env", role.env), ("secrets", role.secrets)):
            if bad := next((name for name in names if not _ENV_NAME.fullmatch(name)), None):
                raise SpecError(f"roles[{index}].{field}", "a cluster takes names of printable ASCII only", bad)
    _check_mode(settings, request)


def _check_mode(settings: KubeflowSettings, request: StartRequest) -> None:
    spec = request.spec
    if isinstance(spec.priority, int):
        cure = "is a number; name a WorkloadPriorityClass of the cluster, which carries the number"
        raise SpecError("priority", cure, spec.priority)
    if spec.queue or settings.queue:
        return
    if spec.priority is not None:
        raise SpecError("priority", "needs a queue: without Kueue there is nothing that it could order", spec.priority)
    if spec.max_restarts and not settings.has_controller:
        raise SpecError("max_restarts", "needs the controller, which tells a restart its new epoch", spec.max_restarts)


def build_terms(settings: KubeflowSettings, request: StartRequest) -> Terms:
    """How a submission is made on this connection."""
    queue = request.spec.queue or settings.queue or ""
    priority = str(request.spec.priority or settings.priority_class or "") if queue else ""
    state = None
    if settings.state_host_path or settings.state_claim:
        state = StateVolume(settings.state_host_path or "", settings.state_claim or "")
    fenced = bool(queue) or settings.has_controller
    return Terms(settings.namespace, queue, priority, settings.image or "", state, fenced)
