# SPDX-License-Identifier: Apache-2.0
"""The rights that `dispatch setup` gives, and no others, for suites that would do with an administrator's.

Where ``$DISPATCH_TEST_RIGHTS`` is ``granted``, the contract suite's adapters act under one service account and the
controllers beside it under theirs; policies and roles are those of the package. They stay on the cluster: several test
runs share it.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_dispatch.adapters.kubeflow.setup.rendering import build_manifests, build_namespace_manifests
from airflow_provider_dispatch.adapters.kubeflow.setup.terms import Account, JobsNamespace, SetupTerms
from airflow_provider_dispatch.testing.waiting import Waiter
from tests.cluster.set_up import apply, write_kubeconfig
from tests.cluster.testbed.api import Api, ApiError
from tests.cluster.testbed.bed import Bed
from tests.cluster.testbed.objects import TRAINER_VERSION

RIGHTS_VARIABLE = "DISPATCH_TEST_RIGHTS"
GRANTED = "granted"
FORBIDDEN = 403
CALLER = Account("default", "contract")
TERMS = SetupTerms((JobsNamespace(CALLER.namespace, (CALLER,)),), watches_all=True)


@dataclass(frozen=True)
class Grants:
    """What each side has.

    :param caller: kubeconfig of whoever starts jobs.
    :param controller: kubeconfig of the controllers.
    """

    bed: Bed
    caller: Path
    controller: Path

    async def extend(self, namespace: str) -> None:
        """Let the caller start jobs in one more namespace."""
        await apply(self.bed, build_namespace_manifests(TERMS, JobsNamespace(namespace, (CALLER,))))
        await asyncio.to_thread(self._await_rights, namespace)

    def _await_rights(self, namespace: str) -> None:
        """The API server looks for bindings in a cache."""
        api = Api(self.caller)

        def is_let_in() -> bool:
            try:
                api.get("TrainJob", namespace=namespace, version=TRAINER_VERSION)
            except ApiError as error:
                if error.status != FORBIDDEN:
                    raise
                return False
            return True

        Waiter().wait_for(is_let_in, timeout_seconds=20, what=f"the rights in {namespace}")


def are_wanted() -> bool:
    return os.environ.get(RIGHTS_VARIABLE) == GRANTED


def grant(bed: Bed, folder: Path) -> Grants:
    """Set the cluster up but for the controller's Deployment, and take tokens of both accounts."""
    asyncio.run(apply(bed, [one for one in build_manifests(TERMS) if one["kind"] != "Deployment"]))
    head = {"name": CALLER.name, "namespace": CALLER.namespace}
    bed.api.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": head})
    controller = Account(TERMS.system_namespace, f"{TERMS.name}-controller")
    caller, leader = (write_kubeconfig(bed, one, folder / one.name) for one in (CALLER, controller))
    return Grants(bed, caller, leader)
