# SPDX-License-Identifier: Apache-2.0
"""An installation of its own beside all others: what `dispatch setup` applies, limited to namespaces of one test.

Policies and roles are cluster-wide, so every name begins with the installation's, and the policies are bound to its
namespaces alone. The controller runs beside the test as a process, with the rights of its service account and no other.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from airflow_provider_dispatch.adapters.kubeflow.client import open_client
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings
from airflow_provider_dispatch.adapters.kubeflow.setup.applying import Result, apply_manifests, remove_manifests
from airflow_provider_dispatch.adapters.kubeflow.setup.rendering import PART_LABEL, Manifest, build_manifests
from airflow_provider_dispatch.adapters.kubeflow.setup.terms import Account, JobsNamespace, SetupTerms
from airflow_provider_dispatch.adapters.protocol import DispatchAdapter
from airflow_provider_dispatch.adapters.registry import build_adapter
from airflow_provider_dispatch.core.identity import build_job_id
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.core.records import StartRequest
from airflow_provider_dispatch.core.state import State
from airflow_provider_dispatch.testing.waiting import Waiter
from tests.cluster.controller_process import ControllerProcess
from tests.cluster.fixtures import CONTROLLER_FLAGS
from tests.cluster.testbed import objects
from tests.cluster.testbed.api import Api
from tests.cluster.testbed.bed import Bed

TOKEN_SECONDS = 4 * 3600
"""As long as the longest run of tests."""
PATIENCE_SECONDS = 90.0
TRAINER, KUEUE = objects.TRAINER_VERSION, objects.KUEUE_VERSION
SPEC = JobSpec(command=["sh", "-c", "echo here; trap 'exit 143' TERM; while :; do sleep 1 & wait $!; done"])


@dataclass(frozen=True)
class Installation:
    """What was set up.

    :param jobs: a namespace with the LocalQueue ``lq``, watched by the controller.
    :param alone: a namespace without a controller.
    :param other: a namespace that nobody was given.
    """

    bed: Bed
    folder: Path
    terms: SetupTerms
    jobs: str
    alone: str
    other: str

    @property
    def check(self) -> str:
        return self.terms.admission_check

    @property
    def flags(self) -> tuple[str, ...]:
        """Of a controller."""
        return (
            *("--namespace", self.jobs, "--admission-check", self.check),
            *("--lease-namespace", self.terms.system_namespace),
        )

    def user(self, namespace: str, account: str) -> str:
        """As the API server calls it."""
        return f"system:serviceaccount:{namespace}:{self.terms.name}-{account}"

    @property
    def controller(self) -> str:
        """The controller's user."""
        return self.user(self.terms.system_namespace, "controller")

    def write_kubeconfig(self, namespace: str, account: str) -> Path:
        """A kubeconfig with a token of the account and nothing else."""
        named = Account(namespace, f"{self.terms.name}-{account}")
        return write_kubeconfig(self.bed, named, self.folder / f"{namespace}-{account}.kubeconfig")

    def open_api(self, namespace: str, account: str) -> Api:
        """The API as that account sees it."""
        return Api(self.write_kubeconfig(namespace, account))


def write_kubeconfig(bed: Bed, account: Account, target: Path) -> Path:
    """A kubeconfig with a token of the account and nothing else."""
    path = f"/api/v1/namespaces/{account.namespace}/serviceaccounts/{account.name}/token"
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
    answer = bed.api.request("POST", path, asked | {"spec": {"expirationSeconds": TOKEN_SECONDS}})
    kubeconfig = yaml.safe_load(bed.kubeconfig.read_text())
    kubeconfig["users"] = [
        {"name": one["name"], "user": {"token": answer["status"]["token"]}} for one in kubeconfig["users"]
    ]
    target.write_text(yaml.safe_dump(kubeconfig))
    target.chmod(0o600)
    return target


@contextmanager
def installed(bed: Bed, folder: Path) -> Iterator[Installation]:
    """Set it up, and remove all of it."""
    name = f"rights-{secrets.token_hex(3)}"
    made = Installation(
        bed,
        folder,
        SetupTerms((JobsNamespace(f"{name}-jobs"), JobsNamespace(f"{name}-alone", is_watched=False)), name=name),
        jobs=f"{name}-jobs",
        alone=f"{name}-alone",
        other=f"{name}-other",
    )
    namespaces = [objects.build_namespace(one) for one in (made.jobs, made.alone, made.other)]
    queue, local_queue = objects.build_queue(made.jobs, checks=(made.check,))
    manifests = [limit(one, made) for one in build_manifests(made.terms) if one["kind"] != "Deployment"]
    manifests += [*build_person(made), *(limit(one, made) for one in build_seclusion(made))]
    try:
        bed.api.apply(*namespaces)
        asyncio.run(apply(bed, manifests))
        bed.api.apply(queue, local_queue)
        yield made
    finally:
        bed.api.delete(local_queue)
        bed.api.delete(queue)
        for namespace in namespaces:
            bed.api.delete(namespace)
        asyncio.run(remove(bed, manifests))


@contextmanager
def governed(bed: Bed, folder: Path) -> Iterator[tuple[Installation, ControllerProcess]]:
    """The same with its controller, which acts."""
    bed.api.apply(*objects.build_shared_objects())
    with installed(bed, folder) as made, run_controller(made, folder) as controller:
        yield made, controller


@contextmanager
def run_controller(made: Installation, folder: Path, *flags: str) -> Iterator[ControllerProcess]:
    """A replica with the controller's rights and no other; its check is active.

    :param folder: of its log.
    """
    rights = made.write_kubeconfig(made.terms.system_namespace, "controller")
    with ControllerProcess(rights, folder, (*CONTROLLER_FLAGS, *made.flags, *flags)) as process:
        Waiter().wait_for(lambda: is_active(made), timeout_seconds=60, what="the controller's check")
        yield process


def build_person(made: Installation) -> list[Manifest]:
    """An administrator, as a service account."""
    name = f"{made.terms.name}-person"
    head = {"name": name, "labels": {PART_LABEL: "dispatch"}}
    rbac = "rbac.authorization.k8s.io"
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": head | {"namespace": made.jobs}},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": head,
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": made.jobs}],
        },
    ]


def build_seclusion(made: Installation) -> list[Manifest]:
    """Keeps other controllers, which run with the tests' own rights and look after every namespace, out of these."""
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    answer = made.bed.api.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", asked)
    head = {"name": f"{made.terms.name}-seclusion", "labels": {PART_LABEL: "dispatch"}}
    kinds = {
        "": ["pods", "configmaps"],
        "trainer.kubeflow.org": ["trainjobs", "trainingruntimes"],
        "kueue.x-k8s.io": ["workloads", "workloads/status"],
    }
    rules = [
        {"apiGroups": [group], "apiVersions": ["*"], "operations": ["UPDATE"], "resources": resources}
        for group, resources in kinds.items()
    ]
    # Tests may delete jobs, and no controller deletes any; it deletes what a killed preflight has left.
    rules.append(rules[1] | {"operations": ["DELETE"]})
    is_another = f"request.userInfo.username != '{answer['status']['userInfo']['username']}'"
    is_probe = f"has(oldObject.metadata.labels) && '{words.KIND_LABEL}' in oldObject.metadata.labels"
    return [
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicy",
            "metadata": head,
            "spec": {
                "matchConstraints": {"resourceRules": rules},
                "validations": [{"expression": f"{is_another} || request.operation == 'DELETE' && !({is_probe})"}],
            },
        },
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": head,
            "spec": {"policyName": head["name"], "validationActions": ["Deny"]},
        },
    ]


def limit(manifest: Manifest, made: Installation) -> Manifest:
    """Policies bind the namespaces of this installation alone."""
    if manifest["kind"] == "ValidatingAdmissionPolicyBinding":
        named = {
            "key": "kubernetes.io/metadata.name",
            "operator": "In",
            "values": [made.jobs, made.alone, made.other, made.terms.system_namespace],
        }
        manifest["spec"]["matchResources"] = {"namespaceSelector": {"matchExpressions": [named]}}
    return manifest


async def apply(bed: Bed, manifests: list[Manifest]) -> list[Result]:
    async with await open_client(KubeflowSettings(kubeconfig=str(bed.kubeconfig))) as client:
        return await apply_manifests(client, manifests, tell=ignore)


async def remove(bed: Bed, manifests: list[Manifest]) -> list[Result]:
    async with await open_client(KubeflowSettings(kubeconfig=str(bed.kubeconfig))) as client:
        deadline = datetime.now(UTC) + timedelta(seconds=60)
        return await remove_manifests(client, manifests, deadline=deadline, clock=read_clock, tell=ignore)


def read_clock() -> datetime:
    return datetime.now(UTC)


def ignore(_result: Any) -> None:
    """Nobody watches."""


def is_active(made: Installation) -> bool:
    check = made.bed.api.get("AdmissionCheck", made.check, version=KUEUE)
    return any(one["status"] == "True" for one in check.get("status", {}).get("conditions", ()))


@asynccontextmanager
async def opened(made: Installation, namespace: str, **fields: object) -> AsyncIterator[DispatchAdapter]:
    """The adapter with the rights of Airflow's side."""
    adapter = build_adapter(
        "kubeflow",
        {
            "kubeconfig": str(made.write_kubeconfig(namespace, "airflow")),
            "namespace": namespace,
            "admission_check": made.check,
            "lease_namespace": made.terms.system_namespace,
            "runtime": {"name": objects.RUNTIME},
            **fields,
        },
    )
    try:
        yield adapter
    finally:
        await adapter.close()


def soon() -> datetime:
    return datetime.now(UTC) + timedelta(seconds=PATIENCE_SECONDS)


async def until(adapter: DispatchAdapter, ref: JobRef, *states: State) -> Observation:
    async def look() -> Observation:
        seen = None
        async for seen in adapter.watch([ref]):
            if seen.state in states:
                return seen
        raise AssertionError(f"the watch ended with {seen}")

    return await asyncio.wait_for(look(), PATIENCE_SECONDS)


async def start(adapter: DispatchAdapter, **fields: object) -> JobRef:
    request = StartRequest(build_job_id(0, os.urandom(10)), 1, 1, SPEC.model_copy(update=fields))
    return await adapter.start(request, deadline=soon())
