# SPDX-License-Identifier: Apache-2.0
"""An installation of its own beside all others: what `dispatch setup` applies, limited to namespaces of one test.

Policies and roles are cluster-wide, so every name begins with the installation's, and the policies are bound to its
namespaces alone. The controller runs beside the test as a process, with the rights of its service account and no other.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from airflow_provider_dispatch.adapters.kubeflow.client import open_client
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings
from airflow_provider_dispatch.adapters.kubeflow.setup.applying import Result, apply_manifests, remove_manifests
from airflow_provider_dispatch.adapters.kubeflow.setup.rendering import Manifest, build_manifests
from airflow_provider_dispatch.adapters.kubeflow.setup.terms import JobsNamespace, SetupTerms
from tests.cluster.testbed import objects
from tests.cluster.testbed.api import Api
from tests.cluster.testbed.bed import Bed

TOKEN_SECONDS = 3600


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

    def write_kubeconfig(self, namespace: str, account: str) -> Path:
        """A kubeconfig with a token of the account and nothing else."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{self.terms.name}-{account}/token"
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
        answer = self.bed.api.request("POST", path, asked | {"spec": {"expirationSeconds": TOKEN_SECONDS}})
        kubeconfig = yaml.safe_load(self.bed.kubeconfig.read_text())
        kubeconfig["users"] = [
            {"name": one["name"], "user": {"token": answer["status"]["token"]}} for one in kubeconfig["users"]
        ]
        target = self.folder / f"{namespace}-{account}.kubeconfig"
        target.write_text(yaml.safe_dump(kubeconfig))
        target.chmod(0o600)
        return target

    def open_api(self, namespace: str, account: str) -> Api:
        """The API as that account sees it."""
        return Api(self.write_kubeconfig(namespace, account))


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
