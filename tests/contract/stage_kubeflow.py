# SPDX-License-Identifier: Apache-2.0
"""The kubeflow adapter on the contract's stage: a namespace with queues of its own on a real cluster, real pods.

The cluster and the controller are shared by all stages; see ``tests/cluster``.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from airflow_provider_dispatch.adapters.protocol import DispatchAdapter
from airflow_provider_dispatch.adapters.registry import build_adapter
from airflow_provider_dispatch.core.identity import JobID, build_object_name
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.quantity import parse_quantity
from airflow_provider_dispatch.exceptions import DispatchError
from tests.cluster.granted import Grants
from tests.cluster.testbed import objects
from tests.cluster.testbed.api import Manifest
from tests.cluster.testbed.bed import Bed
from tests.contract.stage import Difference, soon
from tests.contract.stage_processes import RANK, ProcessStage

ANY_QUEUES = ("a", "b")
"""Those that scenarios without limits name."""
PLENTY = {"cpu": "50", "memory": "50Gi", objects.SLOT: "1000"}


class KubeflowStage(ProcessStage):
    """Pods.

    :param bed: the cluster.
    :param is_plain: without Kueue.
    :param granted: rights of the adapters; None for an administrator's.
    """

    grace = timedelta(seconds=2)
    blink = timedelta(seconds=3)
    patience = timedelta(seconds=60)
    hold_span = timedelta(seconds=30)
    limit = timedelta(seconds=240)
    slot = objects.SLOT
    cpu_parts = 20
    """A job gets one of so many parts of a CPU: scenarios speak of whole ones, and many share two small nodes."""
    differences = frozenset(
        {
            Difference.NO_POSITION,
            Difference.KEEPS_ITS_NODES,
            Difference.A_PATH_PER_POD,
            Difference.OWN_EVENTS,
            Difference.OWN_WORDS,
            Difference.ROOM_BEFORE_DEATH,
        }
    )

    def __init__(
        self,
        bed: Bed,
        queues: Mapping[str, Mapping[str, str | int]] | None = None,
        *,
        is_plain: bool = False,
        granted: Grants | None = None,
    ) -> None:
        super().__init__(queues)
        self.bed, self.is_plain, self.granted = bed, is_plain, granted
        self.name = "kubeflow in plain mode" if is_plain else "kubeflow"
        self.namespace = f"contract-{secrets.token_hex(4)}"
        self.folder = bed.shared_folder / self.namespace
        if is_plain:
            self.differences |= {Difference.NO_QUEUES}

    async def set_up(self) -> None:
        """A namespace; in it a LocalQueue for each queue, fed by a ClusterQueue that knows our check."""
        self.folder.mkdir()
        self.folder.chmod(0o1777)
        await asyncio.to_thread(self.bed.api.apply, objects.build_namespace(self.namespace), *self._build_queues())
        if self.granted is not None:
            await self.granted.extend(self.namespace)
        self.adapter = self._build()

    def _build_queues(self) -> list[Manifest]:
        if self.is_plain:
            return []
        quotas = self.queues if self.queues is not None else {name: {} for name in (objects.LOCAL_QUEUE, *ANY_QUEUES)}
        return [
            manifest
            for name, quota in quotas.items()
            for manifest in objects.build_quota_queue(self.namespace, name, PLENTY | self._name_resources(quota))
        ]

    def _name_resources(self, quota: Mapping[str, str | int]) -> dict[str, str | int]:
        named = {self.slot if resource == ProcessStage.slot else resource: amount for resource, amount in quota.items()}
        return self._scale_cpu(named)

    def _scale_cpu(self, amounts: Mapping[str, str | int]) -> dict[str, str | int]:
        if "cpu" not in amounts or self.cpu_parts == 1:
            return dict(amounts)
        return {**amounts, "cpu": f"{max(parse_quantity('cpu', amounts['cpu']) // self.cpu_parts, 1)}m"}

    def _build(self) -> DispatchAdapter:
        queue = {} if self.is_plain else {"queue": next(iter(self.queues or {objects.LOCAL_QUEUE: {}}))}
        return build_adapter(
            "kubeflow",
            {
                "kubeconfig": str(self.granted.caller if self.granted is not None else self.bed.kubeconfig),
                "namespace": self.namespace,
                "runtime": {"name": objects.RUNTIME},
                "state_host_path": str(self.folder),
                **queue,
            },
        )

    async def tear_down(self) -> None:
        """Stop the jobs, so that no pod outlives them, and remove what was made. Doesn't wait for the namespace."""
        for job in self.jobs:
            with suppress(DispatchError):
                await self.adapter.stop(job, reason="the scenario is over", deadline=soon())
        await self.adapter.close()
        await asyncio.to_thread(self._remove)

    def _remove(self) -> None:
        self.bed.api.delete(objects.build_namespace(self.namespace))
        for manifest in self._build_queues():
            self.bed.api.delete(manifest)
        shutil.rmtree(self.folder, ignore_errors=True)

    async def another_adapter(self) -> DispatchAdapter:
        """In the same namespace."""
        return self._build()

    def spec(self, *behaviour: str, **fields: object) -> JobSpec:
        """Of a job whose queue is as much smaller."""
        if isinstance(asked := fields.get("resources"), Mapping):
            fields["resources"] = self._scale_cpu(asked)
        return super().spec(*behaviour, **fields)

    def role(self, *behaviour: str, **fields: object) -> dict[str, object]:
        """Ranks run ``rank.py``, whose text is their argument: the image has nothing but Python."""
        command = ["python3", "-c", RANK.read_text(), *behaviour]
        if behaviour == ("missing",):
            command = ["missing-command-of-the-contract"]
        if "readiness" in fields and isinstance(fields["readiness"], dict):
            # Kubernetes counts whole seconds.
            fields["readiness"] = {**fields["readiness"], "period": 1}
        if isinstance(asked := fields.get("resources"), Mapping):
            fields["resources"] = self._scale_cpu(asked)
        return {"command": command, **fields}

    def ready_command(self) -> list[str]:
        """Looks for the file that the rank makes when told so."""
        path = '"$DISPATCH_STATE_DIR/$DISPATCH_JOB_ID-$DISPATCH_ROLE-$DISPATCH_RANK.$DISPATCH_EPOCH.ready"'
        return ["/bin/sh", "-c", f"test -e {path}"]

    def leader_address(self, ref: JobRef) -> str:
        """By the name that the job's service gives it."""
        name = build_object_name(ref.job, ref.submission)
        return f"{name}-node-0-0.{name}"

    def find_control(self, job: JobID) -> Path:
        """Its state folder."""
        return self.folder / job.lower()

    def find_controls(self) -> list[Path]:
        """The state folders."""
        return list(self.folder.iterdir())

    async def keep_secret(self, name: str, key: str, value: str) -> None:
        """In a Secret of the namespace, which the adapter's account need not be able to read."""
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "namespace": self.namespace},
            "stringData": {key: value},
        }
        await asyncio.to_thread(self.bed.api.apply, secret)

    async def lose_node(self) -> None:
        """Its machine is shared: a lost node has tests of its own, in ``tests/cluster``."""
        self.needs(Difference.KEEPS_ITS_NODES)
