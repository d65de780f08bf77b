# SPDX-License-Identifier: Apache-2.0
"""Which variables the containers of a submission see. What an execution is comes through the downward API: from
annotations that the lift of the fence writes on the pod, read when its containers start.

The pod templates are built with it. Values go through unchanged: Kubernetes would replace ``$(NAME)`` in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.terms import STATE_ROOT, Terms
from airflow_provider_dispatch.core.identity import build_object_name
from airflow_provider_dispatch.core.job_spec import JobSpec, RoleSpec
from airflow_provider_dispatch.core.records import StartRequest
from airflow_provider_dispatch.core.secret_reference import parse_secret_reference

MASTER_PORT = 29500
"""The port that Trainer's torch runtimes use."""
INDEX_FIELD = f"metadata.labels['{words.COMPLETION_INDEX_LABEL}']"

Variable = dict[str, Any]


def escape(text: str) -> str:
    """A text that Kubernetes hands on as it was. A doubled dollar is a plain one, whatever follows it."""
    return text.replace("$", "$$")


def build_identity_variables(request: StartRequest, role: str, nodes: int, terms: Terms) -> list[Variable]:
    """Who a container is; the same for every container of a pod, those of initializers included."""
    return [
        _plain("DISPATCH_JOB_ID", request.job),
        _plain("DISPATCH_SUBMISSION", str(request.submission)),
        _field("DISPATCH_ATTEMPT", _annotation(words.ATTEMPT_ANNOTATION)),
        _field("DISPATCH_EPOCH", _annotation(words.EPOCH_ANNOTATION)),
        _plain("DISPATCH_ROLE", role),
        _field("DISPATCH_RANK", INDEX_FIELD),
        _plain("DISPATCH_NODES", str(nodes)),
        _plain("DISPATCH_LEADER_ADDR", build_leader_address(request)),
        _plain("DISPATCH_RESULT_PATH", words.RESULT_PATH),
        *([_plain("DISPATCH_STATE_DIR", build_state_path(request))] if terms.state else []),
    ]


def build_role_variables(request: StartRequest, role: RoleSpec, terms: Terms) -> list[Variable]:
    """What a rank sees besides: the rendezvous that torch wants, and what the job asks for."""
    leader, world = build_leader_address(request), str(request.spec.nodes)
    rendezvous = [
        _plain("PYTHONUNBUFFERED", "1"),
        _plain("MASTER_ADDR", leader),
        _plain("MASTER_PORT", str(MASTER_PORT)),
        _plain("WORLD_SIZE", world),
        _plain("LOCAL_RANK", "0"),
        _plain("PET_NNODES", world),
        _plain("PET_NPROC_PER_NODE", str(_count_processes(role))),
        _plain("PET_MASTER_ADDR", leader),
        _plain("PET_MASTER_PORT", str(MASTER_PORT)),
        *_build_world_rank(request.spec, role, terms),
    ]
    asked = [_plain(name, value) for name, value in role.env.items()]
    asked += [_secret(name, reference) for name, reference in role.secrets.items()]
    return merge_variables(rendezvous, asked, build_identity_variables(request, role.name, role.nodes, terms))


def build_leader_address(request: StartRequest) -> str:
    """Where rank 0 of the leading role is found, by the name that JobSet's headless service gives it."""
    name = build_object_name(request.job, request.submission)
    return f"{name}-{request.spec.leader.name}-0-0.{name}"


def build_state_path(request: StartRequest) -> str:
    """``DISPATCH_STATE_DIR``: one folder a job, kept over its submissions."""
    return f"{STATE_ROOT}/{request.job.lower()}"


def count_ranks_before(spec: JobSpec, role: RoleSpec) -> int:
    """How many ranks of the job come before the first of *role*: the leading role is first, then the spec's order."""
    in_order = sorted(spec.roles, key=lambda other: other.name != spec.leader.name)
    names = [other.name for other in in_order]
    return sum(other.nodes for other in in_order[: names.index(role.name)])


def merge_variables(*layers: Iterable[Mapping[str, Any]]) -> list[Variable]:
    """One list without a name twice: a later layer wins, in the place where the name came first."""
    merged: dict[str, Variable] = {}
    for layer in layers:
        for variable in layer:
            merged[str(variable.get("name"))] = dict(variable)
    return list(merged.values())


def _build_world_rank(spec: JobSpec, role: RoleSpec, terms: Terms) -> Sequence[Variable]:
    """``RANK`` counts through all roles, and the downward API can't add.

    The lift adds instead and writes the sum on the pod. Without a controller, a role of several nodes that isn't the
    first gets none: a wrong rank would be worse.
    """
    before = count_ranks_before(spec, role)
    if role.nodes == 1:
        return [_plain(name, str(before)) for name in ("RANK", "PET_NODE_RANK")]
    if before == 0:
        return [_field(name, INDEX_FIELD) for name in ("RANK", "PET_NODE_RANK")]
    if terms.is_fenced:
        return [_field(name, _annotation(words.WORLD_RANK_ANNOTATION)) for name in ("RANK", "PET_NODE_RANK")]
    return []


def _count_processes(role: RoleSpec) -> int:
    """Processes that torchrun starts on a node: one a GPU."""
    return max(1, sum(amount for resource, amount in role.requests.items() if resource.endswith("/gpu")))


def _plain(name: str, value: str) -> Variable:
    return {"name": name, "value": escape(value)}


def _secret(name: str, reference: str) -> Variable:
    """The kubelet looks the value up when the container starts; nobody else has to be allowed to read it."""
    secret = parse_secret_reference(reference)
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret.name, "key": secret.key}}}


def _field(name: str, path: str) -> Variable:
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def _annotation(key: str) -> str:
    return f"metadata.annotations['{key}']"
