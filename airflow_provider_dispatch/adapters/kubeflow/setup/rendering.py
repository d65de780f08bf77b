# SPDX-License-Identifier: Apache-2.0
"""Renders the manifests that lie in the package for one cluster. Pure but for reading those files.

The files are a kustomize base of their own, for one namespace named ``default``; here they are given the names,
namespaces, accounts and the image of an installation. Nothing is made that doesn't stand there.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Iterable, Iterator
from importlib import resources
from typing import Any, TypeAlias

import yaml

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.setup.terms import NAME, Account, JobsNamespace, SetupTerms

Manifest: TypeAlias = dict[str, Any]

CONTROLLER = ("controller/namespace.yaml", "controller/rights.yaml", "controller/deployment.yaml")
CHECK = "controller/admission-check.yaml"
SHARED_POLICIES, AIRFLOW_POLICIES, CONTROLLER_POLICIES = (
    f"policies/{name}.yaml" for name in ("shared", "airflow", "controller")
)
AIRFLOW = "airflow/cluster.yaml"
JOBS_NAMESPACE = "airflow/namespace.yaml"
PART_LABEL = "app.kubernetes.io/part-of"
INSTANCE_LABEL = "app.kubernetes.io/instance"
CONTROLLER_LABEL = f"{words.DOMAIN}/controller"
"""On the RoleBinding of a namespace: ``none`` where no controller watches over it."""
_OUR_NAME = re.compile(rf"(?<![-\w./]){NAME}-(?!preflight-)(?=[a-z])")


def build_manifests(terms: SetupTerms) -> tuple[Manifest, ...]:
    """All objects of an installation, in the order in which they are to be made."""
    documents = list(_build_cluster_wide(terms))
    for namespace in terms.namespaces:
        documents += build_namespace_manifests(terms, namespace)
    return tuple(documents)


def build_namespace_manifests(terms: SetupTerms, namespace: JobsNamespace) -> list[Manifest]:
    """The objects in one namespace of jobs."""
    built = []
    for document in _read(terms, JOBS_NAMESPACE):
        name = fields.name(document)
        if _is_controllers(name) and (terms.watches_all or not namespace.is_watched):
            continue
        if document["kind"] == "ServiceAccount" and namespace.accounts:
            continue
        document["metadata"]["namespace"] = namespace.name
        if document["kind"] == "RoleBinding" and not _is_controllers(name):
            document["subjects"] = _build_subjects(terms, [namespace])
            if not (namespace.is_watched or terms.watches_all):
                document["metadata"]["labels"][CONTROLLER_LABEL] = "none"
        built.append(document)
    return built


def build_service_account_name(terms: SetupTerms) -> str:
    """The account that is made for Airflow in a namespace."""
    return f"{terms.name}-airflow"


def write_yaml(documents: Iterable[Manifest]) -> str:
    """The objects as one YAML stream."""
    text: str = yaml.safe_dump_all(documents, sort_keys=False, explicit_start=True, width=120)
    return text


def _build_cluster_wide(terms: SetupTerms) -> Iterator[Manifest]:
    # The policies before the rights that they limit, so that removing goes the other way round.
    yield from _read(terms, SHARED_POLICIES)
    yield from _read(terms, AIRFLOW_POLICIES)
    if terms.has_controller:
        for path in (CONTROLLER_POLICIES, *CONTROLLER):
            yield from _read(terms, path)
        if terms.watches_all:
            yield _build_wide_binding(terms)
        if terms.has_kueue:
            yield from _read(terms, CHECK)
    for document in _read(terms, AIRFLOW):
        if document["kind"] == "ClusterRoleBinding":
            document["subjects"] = _build_subjects(terms, terms.namespaces)
        yield document


def _build_wide_binding(terms: SetupTerms) -> Manifest:
    """The rights of a namespace in all of them."""
    (binding,) = (one for one in _read(terms, JOBS_NAMESPACE) if _is_controllers(fields.name(one)))
    binding["kind"] = "ClusterRoleBinding"
    del binding["metadata"]["namespace"]
    return binding


def _build_subjects(terms: SetupTerms, namespaces: Iterable[JobsNamespace]) -> list[Manifest]:
    own = build_service_account_name(terms)
    accounts = {
        account for namespace in namespaces for account in namespace.accounts or (Account(namespace.name, own),)
    }
    return [
        {"kind": "ServiceAccount", "name": account.name, "namespace": account.namespace} for account in sorted(accounts)
    ]


def _is_controllers(name: str) -> bool:
    return name.endswith("-controller-jobs")


def _read(terms: SetupTerms, path: str) -> list[Manifest]:
    """The objects of a file under the names of the installation."""
    documents = [_rename(document, terms.name) for document in copy.deepcopy(_load(path))]
    for document in documents:
        document["metadata"]["labels"][INSTANCE_LABEL] = terms.name
        if document["kind"] == "Deployment":
            _fill_deployment(document, terms)
    return documents


@functools.cache
def _load(path: str) -> list[Manifest]:
    text = resources.files("airflow_provider_dispatch").joinpath("manifests", path).read_text(encoding="utf-8")
    return [document for document in yaml.safe_load_all(text) if document]


def _rename(value: Any, name: str) -> Any:
    """Every name that begins with ours begins with another one. A domain or an image of that name stays.

    So does the Lease: its namespace tells it from others, and connections ask for no more. So do probes: whoever runs
    a preflight may know of no installation.
    """
    match value:
        case {"resources": ["leases"]}:
            return value
        case dict():
            return {key: inner if key == "image" else _rename(inner, name) for key, inner in value.items()}
        case list():
            return [_rename(inner, name) for inner in value]
        case str():
            return _OUR_NAME.sub(f"{name}-", value)
        case _:
            return value


def _fill_deployment(deployment: Manifest, terms: SetupTerms) -> None:
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    container["image"] = terms.image
    arguments: list[str] = container["args"]
    watched = [] if terms.watches_all else [one.name for one in terms.namespaces if one.is_watched]
    asked = arguments.index("--namespace")
    container["args"] = arguments[:asked] + [word for name in watched for word in ("--namespace", name)]
    for labels in (
        deployment["spec"]["selector"]["matchLabels"],
        deployment["spec"]["template"]["metadata"]["labels"],
    ):
        labels[INSTANCE_LABEL] = terms.name
