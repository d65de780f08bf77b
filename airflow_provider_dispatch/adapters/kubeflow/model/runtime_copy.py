# SPDX-License-Identifier: Apache-2.0
"""The private training runtime of a submission: a copy of the one that the user named, so that a later edit of that one
can't change the job, made into the job's roles.

The manifests are built with it. It adds the startup order, the identity and the fence, and takes out whatever could
remove evidence or replace one rank alone. Once created it is never edited.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from graphlib import TopologicalSorter
from typing import Any

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.pod_template import (
    add_labels,
    build_fenced_pods,
    build_pod_labels,
    build_role_pods,
)
from airflow_provider_dispatch.adapters.kubeflow.model.submission import build_labels
from airflow_provider_dispatch.adapters.kubeflow.model.terms import Terms
from airflow_provider_dispatch.core.identity import build_object_name
from airflow_provider_dispatch.core.job_spec import JobSpec, RoleSpec, When
from airflow_provider_dispatch.core.records import StartRequest
from airflow_provider_dispatch.exceptions import SpecError

MOST_DEPENDENCIES = 5
"""Of a replicated job, in JobSet 0.12."""
MOST_REPLICATED_JOBS = 18
"""PodSets of a Workload, in Kueue 0.19."""
LONGEST_POD_NAME = 63
_POD_SUFFIX = "-abcde"
_STATUS = {When.READY: "Ready", When.COMPLETE: "Complete"}
_KEPT_OF_JOBSET = ("volumeClaimPolicies",)
_OWN_RENDEZVOUS = "torch"
"""Of ``mlPolicy``: Trainer's variables assume one role named ``node``; ours say the same for any."""
_ONLY_FOR_NODE = ("jax", "xgboost", "flux")
"""Of ``mlPolicy``: Trainer looks for rank 0 under the name ``node``, and we say nothing in its place."""

Object = dict[str, Any]


def build_runtime_spec(request: StartRequest, runtime: Raw, terms: Terms) -> Object:
    """``spec`` of the copy.

    :param runtime: the ClusterTrainingRuntime or TrainingRuntime that the user named.
    :raises SpecError: the job and the runtime don't go together, or JobSet could not carry them.
    """
    spec = copy.deepcopy(dict(fields.mapping(runtime, "spec")))
    policy = {key: value for key, value in fields.mapping(spec, "mlPolicy").items() if key != _OWN_RENDEZVOUS}
    if request.spec.leader.name != words.NODE_CONTAINER and (found := sorted(policy.keys() & _ONLY_FOR_NODE)):
        problem = f"the runtime's policy {found[0]} finds the leading role only under the name {words.NODE_CONTAINER}"
        raise SpecError("roles", problem, request.spec.leader.name)
    spec["mlPolicy"] = {**policy, "numNodes": request.spec.leader.nodes}
    template = fields.mapping(spec, "template")
    labels = build_labels(request.job, request.submission, request.owner.deployment)
    spec["template"] = {
        **template,
        "metadata": add_labels(fields.mapping(template, "metadata"), labels),
        "spec": _build_jobset_spec(request, fields.mapping(template, "spec"), terms),
    }
    return spec


def count_trainer_nodes(spec: JobSpec, runtime: Raw) -> int:
    """``numNodes`` of the TrainJob: ranks of the leading role, but with MPI those of its workers."""
    policy = fields.dig(runtime, "spec", "mlPolicy", "mpi")
    workers = next((role.nodes for role in spec.roles if role.name == words.NODE_CONTAINER), None)
    if policy is None or workers is None:
        return spec.leader.nodes
    return workers + int(fields.flag(policy, "runLauncherAsNode"))


def _build_jobset_spec(request: StartRequest, own: Raw, terms: Terms) -> Object:
    spec = request.spec
    success: Object = {"operator": "All"}
    if spec.success_roles is not None:
        success["targetReplicatedJobs"] = list(spec.success_roles)
    built: Object = {
        **{key: own[key] for key in _KEPT_OF_JOBSET if own.get(key)},
        # JobSet's controller trips over a missing network or success policy when its webhook is off.
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "successPolicy": success,
        "replicatedJobs": _build_replicated_jobs(request, fields.items(own, "replicatedJobs"), terms),
    }
    if spec.max_restarts:
        # Nothing of the next round starts before everything of the last has gone. No policy at all means no restart.
        built["failurePolicy"] = {"maxRestarts": spec.max_restarts, "restartStrategy": "BlockingRecreate"}
    return built


def _build_replicated_jobs(request: StartRequest, own: Sequence[Raw], terms: Terms) -> list[Object]:
    initializers = [job for job in own if _is_initializer(job)]
    trainers = {fields.text(job, "name"): job for job in own if not _is_initializer(job)}
    _check_names(request, [fields.text(job, "name") for job in initializers], trainers)
    built = [_build_initializer(request, job, terms) for job in initializers]
    for role in _sort_roles(request.spec):
        template = trainers.get(role.name) or _find_template(trainers)
        built.append(_build_role_job(request, role, template, terms))
    if len(built) > MOST_REPLICATED_JOBS:
        raise SpecError("roles", f"with the runtime's initializers at most {MOST_REPLICATED_JOBS} fit", len(built))
    return built


def _build_initializer(request: StartRequest, own: Raw, terms: Terms) -> Object:
    job = fields.mapping(own, "template", "spec")
    name, nodes = fields.text(own, "name"), fields.number(job, "parallelism") or 1
    pods = build_fenced_pods(request, name, nodes, fields.mapping(job, "template"), terms)
    return _build_job(request, name, nodes, own, pods) | _depend(fields.items(own, "dependsOn"))


def _build_role_job(request: StartRequest, role: RoleSpec, own: Raw, terms: Terms) -> Object:
    pods = build_role_pods(request, role, fields.mapping(own, "template", "spec", "template"), terms)
    built = _build_job(request, role.name, role.nodes, own, pods)
    labels = built["template"]["metadata"]["labels"]
    labels.pop(words.ANCESTOR_STEP_LABEL, None)
    if role.name == request.spec.leader.name:
        labels[words.ANCESTOR_STEP_LABEL] = words.TRAINER_STEP
    # Of the template's own order only what concerns initializers has a meaning here.
    roles = {other.name for other in request.spec.roles}
    initial = [edge for edge in fields.items(own, "dependsOn") if _is_edge_to_initializer(edge, roles)]
    asked = [{"name": after.role, "status": _STATUS[after.when]} for after in role.after]
    if len(initial) + len(asked) > MOST_DEPENDENCIES:
        problem = f"role {role.name!r} may wait for {MOST_DEPENDENCIES} others at most, initializers included"
        raise SpecError("after", problem, len(initial) + len(asked))
    return built | _depend([*initial, *asked])


def _build_job(request: StartRequest, name: str, nodes: int, own: Raw, pods: Object) -> Object:
    """A replicated job with nothing of the template's own Job but its metadata: the rest decides about restarts."""
    return {
        "name": name,
        "replicas": 1,
        "template": {
            "metadata": add_labels(fields.mapping(own, "template", "metadata"), build_pod_labels(request, name)),
            "spec": {
                "backoffLimit": 0,
                "completionMode": "Indexed",
                "completions": nodes,
                "parallelism": nodes,
                "template": pods,
            },
        },
    }


def _depend(edges: Iterable[Raw]) -> Object:
    listed = [dict(edge) for edge in edges]
    return {"dependsOn": listed} if listed else {}


def _is_edge_to_initializer(edge: Raw, roles: set[str]) -> bool:
    return fields.text(edge, "name") not in roles and fields.text(edge, "name") != words.NODE_CONTAINER


def _sort_roles(spec: JobSpec) -> list[RoleSpec]:
    """Whoever is waited for comes first, otherwise the spec's order: JobSet refuses any other."""
    sorter = TopologicalSorter({role.name: [after.role for after in role.after] for role in spec.roles})
    sorter.prepare()
    order: list[RoleSpec] = []
    while sorter.is_active():
        ready = set(sorter.get_ready())
        order += [role for role in spec.roles if role.name in ready]
        sorter.done(*ready)
    return order


def _is_initializer(job: Raw) -> bool:
    return _read_step(job).endswith("-initializer") or fields.text(job, "name").endswith("-initializer")


def _read_step(job: Raw) -> str:
    return fields.label(fields.mapping(job, "template"), words.ANCESTOR_STEP_LABEL)


def _find_template(trainers: dict[str, Raw]) -> Raw:
    """The template of a role that the runtime doesn't name: its ``node``, or whatever trains in it."""
    if words.NODE_CONTAINER in trainers:
        return trainers[words.NODE_CONTAINER]
    marked = (job for job in trainers.values() if _read_step(job) == words.TRAINER_STEP)
    return next(marked, next(iter(trainers.values())))


def _check_names(request: StartRequest, initializers: Sequence[str], trainers: dict[str, Raw]) -> None:
    if not trainers:
        raise SpecError("runtime", "has no replicated job that trains")
    roles = {role.name for role in request.spec.roles}
    if taken := roles & set(initializers):
        raise SpecError("roles", "the runtime has an initializer of that name", min(taken))
    idle = sorted(trainers.keys() - roles - {words.NODE_CONTAINER})
    # Of a runtime with one kind of pod that one is the template, whatever its name.
    if idle and len(trainers) > 1:
        raise SpecError("roles", f"the runtime also has {', '.join(idle)}: name a role like each of its jobs")
    for role in request.spec.roles:
        name = build_object_name(request.job, request.submission)
        longest = f"{name}-{role.name}-0-{role.nodes - 1}{_POD_SUFFIX}"
        if len(longest) > LONGEST_POD_NAME:
            excess = len(longest) - LONGEST_POD_NAME
            raise SpecError("roles", f"shorten the name by {excess}: its pods' names would be too long", role.name)
