# SPDX-License-Identifier: Apache-2.0
"""The pods of a role: the runtime's template with the role's command, resources and identity, behind the fence.

The runtime copy is built with it. Volumes, mounts, variables, node selectors and tolerations of the template stay; what
could replace or restart one rank alone goes.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.rank_environment import (
    Variable,
    build_identity_variables,
    build_role_variables,
    build_state_path,
    count_ranks_before,
    escape,
    merge_variables,
)
from airflow_provider_dispatch.adapters.kubeflow.model.terms import Terms
from airflow_provider_dispatch.core.job_spec import Readiness, RoleSpec
from airflow_provider_dispatch.core.quantity import format_quantity
from airflow_provider_dispatch.core.records import StartRequest
from airflow_provider_dispatch.exceptions import SpecError

STATE_VOLUME = "dispatch-state"
PROBE_TIMEOUT_SECONDS = 10
"""Of a readiness check; Kubernetes' own second is short for a program that starts a Python."""
TERM_DELAY_SECONDS = 2
"""Between a pod's deletion and TERM. The Job controller looks at its pods once a second (syncJobBatchPeriod, 1.35) and
takes one that has exited 0 by then for a success, though it was told to end: a held training would be over."""
_NOT_TAKEN_OVER = ("activeDeadlineSeconds", "nodeName", "hostname", "subdomain")
"""Fields of a pod that end it, place it behind the scheduler's back, or take it the name it is found by."""
_OWN_RESTARTS = ("restartPolicy", "restartPolicyRules")
"""Fields of a container that restart it within its pod."""

Object = dict[str, Any]


def build_role_pods(request: StartRequest, role: RoleSpec, template: Raw, terms: Terms) -> Object:
    """Pod template of a role.

    :param template: of the runtime.
    :raises SpecError: nothing names an image.
    """
    pods = build_fenced_pods(request, role.name, role.nodes, template, terms)
    grace = math.ceil(request.spec.grace_period.total_seconds())
    pods["spec"]["terminationGracePeriodSeconds"] = grace + TERM_DELAY_SECONDS
    container = _find_rank_container(pods["spec"]["containers"])
    own = fields.items(container, "env")
    container |= {
        "name": words.NODE_CONTAINER,
        "image": _choose_image(role, container, terms),
        "command": [escape(word) for word in role.command],
        "env": merge_variables(own, build_role_variables(request, role, terms)),
        "lifecycle": {"preStop": {"sleep": {"seconds": TERM_DELAY_SECONDS}}, **fields.mapping(container, "lifecycle")},
        "terminationMessagePath": words.RESULT_PATH,
        # The controller may read no log: so a failed rank's last lines stand in its status.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    container.pop("args", None)
    if role.requests:
        container["resources"] = _merge_resources(fields.mapping(container, "resources"), role.requests)
    if before := count_ranks_before(request.spec, role):
        notes = fields.texts(pods, "metadata", "annotations")
        pods["metadata"]["annotations"] = {**notes, words.RANK_OFFSET_ANNOTATION: str(before)}
    if role.readiness is not None:
        container["readinessProbe"] = _build_probe(role.readiness)
    return pods


def build_fenced_pods(request: StartRequest, name: str, nodes: int, template: Raw, terms: Terms) -> Object:
    """Pod template of any replicated job: labelled, fenced, told who it is, never restarted in place."""
    pods = copy.deepcopy(dict(template))
    pods["metadata"] = add_labels(fields.mapping(pods, "metadata"), build_pod_labels(request, name))
    spec = dict(fields.mapping(pods, "spec"))
    for field in _NOT_TAKEN_OVER:
        spec.pop(field, None)
    identity = build_identity_variables(request, name, nodes, terms)
    spec["restartPolicy"] = "Never"
    spec["containers"] = [
        _build_container({key: value for key, value in container.items() if key not in _OWN_RESTARTS}, identity)
        for container in fields.items(spec, "containers")
    ]
    if inits := fields.items(spec, "initContainers"):
        spec["initContainers"] = [_build_container(container, identity) for container in inits]
    if terms.is_fenced:
        others = [gate for gate in fields.items(spec, "schedulingGates") if gate.get("name") != words.FENCE]
        spec["schedulingGates"] = [*others, {"name": words.FENCE}]
    if terms.state is not None:
        _mount_state(spec, request, terms)
    pods["spec"] = spec
    return pods


def build_pod_labels(request: StartRequest, role: str) -> dict[str, str]:
    """Labels of the Jobs and pods of a role."""
    return {
        words.JOB_LABEL: request.job.lower(),
        words.SUBMISSION_LABEL: str(request.submission),
        words.ROLE_LABEL: role,
    }


def add_labels(metadata: Raw, labels: Mapping[str, str]) -> Object:
    """Metadata of a template with more labels."""
    return {**metadata, "labels": {**fields.texts(metadata, "labels"), **labels}}


def _build_container(container: Raw, identity: list[Variable]) -> Object:
    return {**container, "env": merge_variables(fields.items(container, "env"), identity)}


def _find_rank_container(containers: list[Object]) -> Object:
    if not containers:
        raise SpecError("runtime", "has no container in its trainer's pod template")
    return next((one for one in containers if one.get("name") == words.NODE_CONTAINER), containers[0])


def _choose_image(role: RoleSpec, container: Raw, terms: Terms) -> str:
    image = role.image or terms.image or fields.text(container, "image")
    if not image:
        raise SpecError("image", f"neither role {role.name!r}, the connection nor the runtime names one")
    return image


def _merge_resources(own: Raw, requests: Mapping[str, int]) -> Object:
    """Requests and limits alike, over what the runtime gives."""
    asked = {resource: format_quantity(resource, amount) for resource, amount in requests.items()}
    return {**own, **{side: {**fields.mapping(own, side), **asked} for side in ("requests", "limits")}}


def _build_probe(readiness: Readiness) -> Object:
    # Kubernetes counts whole seconds, and one at least.
    timing = {
        "periodSeconds": max(1, math.ceil(readiness.period.total_seconds())),
        "timeoutSeconds": PROBE_TIMEOUT_SECONDS,
        "failureThreshold": 1,
    }
    if readiness.command is not None:
        return {"exec": {"command": [escape(word) for word in readiness.command]}, **timing}
    return {"tcpSocket": {"port": readiness.tcp_port}, **timing}


def _mount_state(spec: Object, request: StartRequest, terms: Terms) -> None:
    """The kubelet makes the job's folder when it mounts it, with the mode of the volume's own."""
    state = terms.state
    assert state is not None
    source = (
        {"hostPath": {"path": state.host_path, "type": "Directory"}}
        if state.host_path
        else {"persistentVolumeClaim": {"claimName": state.claim}}
    )
    others = [volume for volume in fields.items(spec, "volumes") if volume.get("name") != STATE_VOLUME]
    spec["volumes"] = [*others, {"name": STATE_VOLUME, **source}]
    mount = {"name": STATE_VOLUME, "mountPath": build_state_path(request), "subPath": request.job.lower()}
    for kind in ("initContainers", "containers"):
        for container in spec.get(kind, ()):
            container["volumeMounts"] = [*fields.items(container, "volumeMounts"), mount]
