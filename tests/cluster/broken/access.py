# SPDX-License-Identifier: Apache-2.0
"""Breaks how Airflow's side gets in and what it may: its credentials, its rights, the policies that limit it."""

from __future__ import annotations

import base64
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import jwt
import pytest
import yaml

from airflow_provider_dispatch.adapters.kubeflow.setup.rendering import build_manifests
from airflow_provider_dispatch.adapters.kubeflow.setup.terms import JobsNamespace, SetupTerms
from airflow_provider_dispatch.testing.airflow_processes import find_free_port
from airflow_provider_dispatch.testing.waiting import Waiter
from tests.cluster.broken.place import CORE, SOON_SECONDS, Breakage, Connection, Place
from tests.cluster.faulty_proxy import NO_FAULT, Fault, FaultyProxy
from tests.cluster.testbed.api import Api, Manifest
from tests.cluster.testbed.certificates import Authority

RBAC, ADMISSION = "rbac.authorization.k8s.io/v1", "admissionregistration.k8s.io/v1"
POLICY, BINDING = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"
SIGNING_KEY = Path("certificates", "service-accounts.key")


# -- credentials ------------------------------------------------------------------------------------------------------


def with_kubeconfig(change: Callable[[Place, Manifest], None]) -> Breakage:
    """:param change: of the kubeconfig as it stands in the file."""

    @contextmanager
    def breakage(place: Place) -> Iterator[Connection]:
        kubeconfig = yaml.safe_load(Path(str(place.connection["kubeconfig"])).read_text())
        change(place, kubeconfig)
        path = place.made.folder / f"{secrets.token_hex(4)}.kubeconfig"
        path.write_text(yaml.safe_dump(kubeconfig))
        try:
            yield {"kubeconfig": str(path)}
        finally:
            path.unlink()

    return breakage


def set_token(kubeconfig: Manifest, token: str) -> None:
    kubeconfig["users"][0]["user"] = {"token": token}


def use_expired_token(place: Place, kubeconfig: Manifest) -> None:
    """What the API server gave, with another time in it, signed with its own key."""
    key = place.bed.folder / SIGNING_KEY
    if not key.exists():
        pytest.skip("no key to sign a token with")
    token = kubeconfig["users"][0]["user"]["token"]
    claims = jwt.decode(token, options={"verify_signature": False})
    now = int(time.time())
    claims |= {"iat": now - 7200, "nbf": now - 7200, "exp": now - 3600}
    headers = jwt.get_unverified_header(token)
    set_token(kubeconfig, jwt.encode(claims, key.read_text(), algorithm=headers["alg"], headers=headers))


def use_wrong_token(_place: Place, kubeconfig: Manifest) -> None:
    set_token(kubeconfig, secrets.token_hex(16))


def use_revoked_token(place: Place, kubeconfig: Manifest) -> None:
    """Its account was there when the token was given."""
    account = {"apiVersion": CORE, "kind": "ServiceAccount", "metadata": {"name": "gone", "namespace": place.made.jobs}}
    with place.standing(account):
        set_token(kubeconfig, issue_token(place, "gone"))
    place.await_gone("ServiceAccount", "gone", version=CORE, namespace=place.made.jobs)


def use_account_without_rights(place: Place, kubeconfig: Manifest) -> None:
    """Every namespace has this one."""
    set_token(kubeconfig, issue_token(place, "default"))


def use_wrong_address(_place: Place, kubeconfig: Manifest) -> None:
    kubeconfig["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{find_free_port()}"


def trust_somebody_else(place: Place, kubeconfig: Manifest) -> None:
    stranger = Authority(place.made.folder / secrets.token_hex(4))
    kubeconfig["clusters"][0]["cluster"] |= {
        "certificate-authority-data": base64.b64encode(stranger.certificate.read_bytes()).decode()
    }


def with_kubernetes(version: str) -> Breakage:
    """The API server says that it is of this version, and is what it is in everything else."""

    @contextmanager
    def breakage(place: Place) -> Iterator[Connection]:
        own = str(place.api.request("GET", "/version")["gitVersion"])
        folder = place.made.folder / secrets.token_hex(4)
        folder.mkdir()
        with FaultyProxy(Path(str(place.connection["kubeconfig"])), folder) as proxy:
            older = Fault(rewrites=(own, version))
            proxy.script = lambda asked: older if asked.path == "/version" else NO_FAULT
            yield {"kubeconfig": str(proxy.kubeconfig)}

    return breakage


def issue_token(place: Place, account: str) -> str:
    path = f"/api/v1/namespaces/{place.made.jobs}/serviceaccounts/{account}/token"
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}}
    return str(place.api.request("POST", path, asked)["status"]["token"])


# -- rights -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Permission:
    """One verb on one kind, given by one of the two ClusterRoles of Airflow's side.

    :param suffix: of the role's name, behind the installation's.
    :param object_name: the rule is limited to it.
    """

    suffix: str
    group: str
    resource: str
    verb: str
    object_name: str = ""

    def __str__(self) -> str:
        kind = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.verb} {kind}"


def list_permissions() -> list[Permission]:
    """All that the shipped roles give to Airflow's side."""
    terms = SetupTerms((JobsNamespace("jobs"),))
    return [
        Permission(role["metadata"]["name"].removeprefix(terms.name), group, resource, verb, object_name)
        for role in build_manifests(terms)
        if role["kind"] == "ClusterRole" and role["metadata"]["name"].startswith(f"{terms.name}-airflow")
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for object_name in rule.get("resourceNames", [""])
    ]


@contextmanager
def without_permission(place: Place, permission: Permission) -> Iterator[None]:
    """The role gives all but this; returns when the API server knows it."""
    place.own_the_cluster()
    name = f"{place.made.terms.name}{permission.suffix}"
    rules = place.api.get("ClusterRole", name, version=RBAC)["rules"]
    airflow = Api(Path(str(place.connection["kubeconfig"])))

    def await_may(answer: bool) -> None:
        Waiter(interval_seconds=0.02).wait_for(
            lambda: may(place, airflow, permission) is answer,
            timeout_seconds=SOON_SECONDS,
            what=f"the word on {permission} to be {answer}",
        )

    with place.changed("ClusterRole", name, version=RBAC, rules=take_away(rules, permission)):
        await_may(False)
        yield
    await_may(True)


def take_away(rules: list[Manifest], permission: Permission) -> list[Manifest]:
    """The rules of a role without one verb of one resource."""
    left = []
    for rule in rules:
        if permission.group not in rule["apiGroups"] or permission.resource not in rule["resources"]:
            left.append(rule)
            continue
        others = [one for one in rule["resources"] if one != permission.resource]
        verbs = [one for one in rule["verbs"] if one != permission.verb]
        left += [rule | {"resources": others}] if others else []
        left += [rule | {"resources": [permission.resource], "verbs": verbs}] if verbs else []
    return left


def may(place: Place, airflow: Api, permission: Permission) -> bool:
    """What the API server says to the account itself."""
    resource, _, subresource = permission.resource.partition("/")
    namespace = place.made.terms.system_namespace if permission.object_name else place.made.jobs
    asked = {"verb": permission.verb, "group": permission.group, "resource": resource, "subresource": subresource}
    attributes = asked | {"name": permission.object_name, "namespace": namespace}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {key: value for key, value in attributes.items() if value}},
    }
    answer = airflow.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
    return bool(answer["status"]["allowed"])


@contextmanager
def without_role_binding(place: Place) -> Iterator[Connection]:
    """What it may in its namespace."""
    name, namespace = f"{place.made.terms.name}-airflow", place.made.jobs
    with place.missing("RoleBinding", name, version=RBAC, namespace=namespace):
        yield {}


@contextmanager
def without_cluster_role_binding(place: Place) -> Iterator[Connection]:
    """What it may read of the cluster."""
    with place.missing("ClusterRoleBinding", f"{place.made.terms.name}-airflow", version=RBAC):
        yield {}


# -- policies ---------------------------------------------------------------------------------------------------------


def without_policies(kind: str, *suffixes: str) -> Breakage:
    """:param suffixes: of their names, behind the installation's."""

    @contextmanager
    def breakage(place: Place) -> Iterator[Connection]:
        names = [f"{place.made.terms.name}-{suffix}" for suffix in suffixes]
        with place.missing(kind, *names, version=ADMISSION):
            yield {}

    return breakage


@contextmanager
def with_toothless_binding(place: Place) -> Iterator[Connection]:
    """Its policy is looked at, and what it forbids happens all the same."""
    name = f"{place.made.terms.name}-airflow-trainjobs"
    spec = place.api.get(BINDING, name, version=ADMISSION)["spec"]
    with place.changed(BINDING, name, version=ADMISSION, spec=spec | {"validationActions": ["Audit"]}):
        yield {}
