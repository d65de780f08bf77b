# SPDX-License-Identifier: Apache-2.0
"""Where clusters get broken: one installation with its controller, seen with the rights of Airflow's side alone.

Healthy until a breakage is entered and again when it is left, whatever happened meanwhile: that makes the rows of the
table independent of each other. Each call goes out on an adapter of its own, as a task's does.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import yaml

from airflow_provider_dispatch.adapters.protocol import DispatchAdapter
from airflow_provider_dispatch.adapters.registry import build_adapter
from airflow_provider_dispatch.core.capabilities import Answer, Preflight
from airflow_provider_dispatch.core.identity import build_job_id
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.records import StartRequest
from airflow_provider_dispatch.exceptions import DispatchError
from airflow_provider_dispatch.testing.waiting import Waiter
from tests.cli.calling import Caller
from tests.cluster.controller_process import ControllerProcess
from tests.cluster.set_up import KUEUE, SPEC, TRAINER, Installation
from tests.cluster.testbed.api import NOT_FOUND, Api, ApiError, Manifest
from tests.cluster.testbed.bed import Bed
from tests.cluster.testbed.foreign import ForeignBed

Connection: TypeAlias = Mapping[str, object]
CALL = timedelta(seconds=30)
PROBE_SECONDS = 0.5
"""Where the probe itself is not the matter. On a cluster that is good it is seen at once."""
RECOVERY_SECONDS = 90.0
"""For a cluster whose parts were away: they wait longer and longer between two tries."""
SOON_SECONDS = 30.0
CONFLICT = 409
CORE, JOBSET = "v1", "jobset.x-k8s.io/v1alpha2"
LEFTOVERS = (
    *(("TrainJob", TRAINER), ("TrainingRuntime", TRAINER), ("Workload", KUEUE)),
    *(("JobSet", JOBSET), ("Job", "batch/v1"), ("Pod", CORE)),
)
SERVER_FIELDS = ("resourceVersion", "uid", "creationTimestamp", "generation", "managedFields", "deletionTimestamp")


@dataclass(frozen=True)
class Place:
    """:param connection: of Airflow's side, with the healthy queue; a token and nothing else.
    :param alone: the same where no controller is.
    """

    made: Installation
    controller: ControllerProcess
    connection: Connection
    alone: Connection

    @property
    def bed(self) -> Bed:
        return self.made.bed

    @property
    def api(self) -> Api:
        """The administrator's."""
        return self.made.bed.api

    # -- what is tried -----------------------------------------------------------------------------------------------

    @contextmanager
    def connected(self, **changes: object) -> Iterator[Connection]:
        """The connection with these differences, on a copy of its kubeconfig: this process remembers nothing of it."""
        about = {**self.connection, "probe_seconds": PROBE_SECONDS, **changes}
        copy = self.made.folder / f"{os.urandom(6).hex()}.kubeconfig"
        shutil.copyfile(str(about["kubeconfig"]), copy)
        try:
            yield {**about, "kubeconfig": str(copy)}
        finally:
            copy.unlink()

    def preflight(self, **changes: object) -> Preflight:
        """What is said of a connection with these differences."""
        with self.connected(**changes) as connection:
            return preflight(connection)

    # -- what is seen of it --------------------------------------------------------------------------------------------

    def list_jobs(self) -> list[str]:
        """TrainJobs and private runtimes that nobody has asked to be removed: what a job or a probe lives on."""
        found = [*self.list_objects("TrainJob", TRAINER), *self.list_objects("TrainingRuntime", TRAINER)]
        return [
            f"{one['kind']} {one['metadata']['name']}" for one in found if "deletionTimestamp" not in one["metadata"]
        ]

    def list_leftovers(self) -> list[str]:
        """Whatever a probe or a start can leave."""
        found = [one for kind, version in LEFTOVERS for one in self.list_objects(kind, version)]
        return [f"{one['kind']} {one['metadata']['name']}" for one in found]

    def list_objects(self, kind: str, version: str) -> list[Manifest]:
        """Of the namespaces of jobs. Nothing, where the kind itself is missing."""
        found: list[Manifest] = []
        for namespace in (self.made.jobs, self.made.alone):
            try:
                items = self.api.get(kind, namespace=namespace, version=version)["items"]
            except ApiError as error:
                if error.status != NOT_FOUND:
                    raise
                return []
            # A list of a core kind leaves it out of its items.
            found += ({"apiVersion": version, "kind": kind, **one} for one in items)
        return found

    def await_nothing_left(self) -> None:
        """The garbage collector stands still for a while when kinds come and go."""
        Waiter().wait_for(
            lambda: not self.list_leftovers(), timeout_seconds=RECOVERY_SECONDS, what="the end of all that was tried"
        )

    def clear(self) -> None:
        """Whatever a failed test has left is no matter of the next one."""
        for kind in ("TrainJob", "TrainingRuntime"):
            for one in self.list_objects(kind, TRAINER):
                self.api.delete(one)

    def await_health(self) -> None:
        """Until preflight proves the place again, which a breakage of parts that all share waits for."""
        Waiter(interval_seconds=0.5).wait_for(
            lambda: not list_alarms(self.preflight()), timeout_seconds=RECOVERY_SECONDS, what="a healthy cluster"
        )

    # -- what is broken ------------------------------------------------------------------------------------------------

    def own_the_cluster(self) -> None:
        """Called before anything is broken that others of the cluster need, too."""
        if isinstance(self.bed, ForeignBed):
            pytest.skip("others may need what this breaks")

    @contextmanager
    def standing(self, *manifests: Manifest) -> Iterator[None]:
        """These objects are there, in this order."""
        try:
            self.api.apply(*manifests, patience_seconds=SOON_SECONDS)
            yield
        finally:
            for manifest in reversed(manifests):
                self.api.delete(manifest)

    @contextmanager
    def missing(self, kind: str, *names: str, version: str, namespace: str = "") -> Iterator[None]:
        """These objects are not there."""
        gone = [self.api.get(kind, name, version=version, namespace=namespace) for name in names]
        try:
            for one in gone:
                self.api.delete(one)
            self.await_gone(kind, *names, version=version, namespace=namespace)
            yield
        finally:
            self.await_gone(kind, *names, version=version, namespace=namespace)
            for one in gone:
                self.api.create(strip(one))

    @contextmanager
    def changed(self, kind: str, name: str, *, version: str, namespace: str = "", **fields: Any) -> Iterator[None]:
        """The object has these fields, at the top of it, instead of its own."""
        before = self.api.get(kind, name, version=version, namespace=namespace)
        try:
            self._replace(before | fields)
            yield
        finally:
            self._replace(before)

    def await_gone(self, kind: str, *names: str, version: str, namespace: str = "") -> None:
        def is_gone() -> bool:
            return all(self.api.find(kind, name, version=version, namespace=namespace) is None for name in names)

        Waiter().wait_for(is_gone, timeout_seconds=SOON_SECONDS, what=f"the end of {kind} {', '.join(names)}")

    def _replace(self, manifest: Manifest) -> None:
        """Controllers write their part of it meanwhile: a write that comes too late is made again."""

        def has_replaced() -> bool:
            path = self.api.path_of(manifest)
            now = self.api.request("GET", path)["metadata"]["resourceVersion"]
            wanted = manifest | {"metadata": manifest["metadata"] | {"resourceVersion": now}}
            try:
                self.api.request("PUT", path, wanted)
            except ApiError as error:
                if error.status != CONFLICT:
                    raise
                return False
            return True

        Waiter().wait_for(has_replaced, timeout_seconds=SOON_SECONDS, what="a write that nobody disturbs")


Breakage: TypeAlias = Callable[[Place], AbstractContextManager[Connection]]
"""Breaks the place while it is entered, and gives what the connection then says differently."""


def preflight(connection: Connection, spec: JobSpec | None = None) -> Preflight:
    """:param spec: of a job that is judged, too."""

    async def look() -> Preflight:
        async with opened(connection) as adapter:
            return await adapter.preflight(spec)

    return asyncio.run(look())


def fail_to_start(connection: Connection) -> DispatchError:
    """How a start is refused; one that isn't is undone, and fails the test."""

    async def attempt() -> DispatchError:
        async with opened(connection) as adapter:
            try:
                ref = await adapter.start(build_request(), deadline=soon())
            except DispatchError as error:
                return error
            await adapter.stop(ref.job, reason="it was not to start", deadline=soon())
            raise AssertionError(f"{ref} has started on a cluster that is broken")

    return asyncio.run(attempt())


def start_and_stop(connection: Connection) -> None:
    """A job gets as far as its closed gate."""

    async def attempt() -> None:
        async with opened(connection) as adapter:
            ref = await adapter.start(build_request(), deadline=soon())
            report = await adapter.stop(ref.job, reason="enough", deadline=soon())
            assert report.is_complete, report

    asyncio.run(attempt())


@asynccontextmanager
async def opened(connection: Connection) -> AsyncIterator[DispatchAdapter]:
    adapter = build_adapter("kubeflow", connection)
    try:
        yield adapter
    finally:
        await adapter.close()


def build_request() -> StartRequest:
    return StartRequest(build_job_id(0, os.urandom(10)), 1, 1, SPEC)


def soon() -> datetime:
    return datetime.now(UTC) + CALL


def write_settings(connection: Connection, folder: Path) -> Caller:
    """The command, with a settings file for the connection."""
    path = folder / "settings.yaml"
    about = {"backend": "kubeflow", **connection}
    path.write_text(yaml.safe_dump({key: value for key, value in about.items() if value is not None}))
    return Caller(path)


def list_alarms(found: Preflight) -> list[str]:
    """Checks that are not ``yes``, each with what was seen."""
    return [f"{name}: {one.value} {one.reason}" for name, one in found.checks.items() if one.value is not Answer.YES]


def strip(manifest: Manifest) -> Manifest:
    """As it was first sent."""
    metadata = {key: value for key, value in manifest["metadata"].items() if key not in SERVER_FIELDS}
    return {key: value for key, value in manifest.items() if key != "status"} | {"metadata": metadata}
