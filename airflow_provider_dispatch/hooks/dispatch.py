# SPDX-License-Identifier: Apache-2.0
"""The Dispatch connection: from its id to settings, to an adapter, and to the contract's verbs as plain calls.

Operators, sensors and people's own tasks call the verbs; triggers take the adapter itself. It decides nothing about a
job, and never loads a backend's code before the first call.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

from airflow.sdk import BaseHook

from airflow_provider_dispatch.exceptions import DispatchError, SpecError
from airflow_provider_dispatch.hooks.deferred_import import deferred
from airflow_provider_dispatch.version_compat import AirflowNotFoundException

if TYPE_CHECKING:
    from airflow_provider_dispatch.adapters import registry
    from airflow_provider_dispatch.adapters.protocol import DispatchAdapter
    from airflow_provider_dispatch.core import capabilities, records
    from airflow_provider_dispatch.core.capabilities import Preflight
    from airflow_provider_dispatch.core.holds import Hold, HoldRequest
    from airflow_provider_dispatch.core.identity import JobID
    from airflow_provider_dispatch.core.job_ref import JobRef
    from airflow_provider_dispatch.core.job_spec import JobSpec
    from airflow_provider_dispatch.core.observation import Observation
    from airflow_provider_dispatch.core.owner import Owner
    from airflow_provider_dispatch.core.records import (
        JobEvent,
        JobRecord,
        JobSelector,
        StartRequest,
        StopReport,
        SubmissionRecord,
    )
    from airflow_provider_dispatch.hooks import settings as connection_settings
    from airflow_provider_dispatch.hooks.settings import ConnectionSettings
else:
    registry = deferred("airflow_provider_dispatch.adapters.registry")
    capabilities = deferred("airflow_provider_dispatch.core.capabilities")
    records = deferred("airflow_provider_dispatch.core.records")
    connection_settings = deferred("airflow_provider_dispatch.hooks.settings")

T = TypeVar("T")

DEFAULT_CONNECTION_ID = "dispatch_default"


class DispatchHook(BaseHook):
    """The contract's verbs for one connection.

    Without a connection ``dispatch_default`` jobs run as processes of this machine; any other id must exist. Each call
    opens an adapter, asks and closes it. Writing calls may take ``call_timeout_seconds`` unless given a *deadline*.

    :param dispatch_conn_id: a connection of type ``dispatch`` or ``kubernetes``.

    Does not keep anything between two calls, and does not wait for a job.
    """

    conn_name_attr = "dispatch_conn_id"
    default_conn_name = DEFAULT_CONNECTION_ID
    conn_type = "dispatch"
    hook_name = "Dispatch"

    def __init__(self, dispatch_conn_id: str = DEFAULT_CONNECTION_ID) -> None:
        super().__init__()
        self.dispatch_conn_id = dispatch_conn_id

    def settings(self) -> ConnectionSettings:
        """Fetch the connection and check it.

        :raises SpecError: it does not exist, or says something wrong.
        """
        try:
            connection = self.get_connection(self.dispatch_conn_id)
        except AirflowNotFoundException:
            return self._settings_without_connection()
        return connection_settings.parse_connection(self.dispatch_conn_id, connection.conn_type, connection.extra)

    async def asettings(self) -> ConnectionSettings:
        """The same within an event loop.

        :raises SpecError: see :meth:`settings`.
        """
        try:
            connection = await self.aget_connection(self.dispatch_conn_id)
        except AirflowNotFoundException:
            return self._settings_without_connection()
        return connection_settings.parse_connection(self.dispatch_conn_id, connection.conn_type, connection.extra)

    def build_adapter(self, settings: ConnectionSettings | None = None) -> DispatchAdapter:
        """A new adapter for use within one event loop; whoever asked closes it.

        :param settings: when they are known; fetched otherwise, which an event loop must not do.
        """
        settings = settings or self.settings()
        return registry.build_adapter(settings.backend, settings.adapter_settings)

    def start(self, request: StartRequest, *, deadline: datetime | None = None) -> JobRef:
        """Create a submission with its gate closed."""
        return self._call(lambda adapter, by: adapter.start(request, deadline=by), deadline)

    def open(self, ref: JobRef, *, deadline: datetime | None = None) -> None:
        """Remove our gate."""
        self._call(lambda adapter, by: adapter.open(ref, deadline=by), deadline)

    def inspect(self, ref: JobRef | JobID) -> Observation:
        """The state now."""
        return self._call(lambda adapter, _: adapter.inspect(ref))

    def hold(self, ref: JobRef | JobID, request: HoldRequest, *, deadline: datetime | None = None) -> Hold:
        """Place a hold; returns when it is durable."""
        return self._call(lambda adapter, by: adapter.hold(ref, request, deadline=by), deadline)

    def release(self, ref: JobRef | JobID, hold: Hold, *, deadline: datetime | None = None) -> tuple[Hold, ...]:
        """Lift exactly that hold; returns those that remain."""
        return self._call(lambda adapter, by: adapter.release(ref, hold, deadline=by), deadline)

    def stop(
        self, job: JobID, *, reason: str, if_owner: Owner | None = None, deadline: datetime | None = None
    ) -> StopReport:
        """Remove everything of a job."""
        return self._call(
            lambda adapter, by: adapter.stop(job, reason=reason, deadline=by, if_owner=if_owner), deadline
        )

    def adopt(self, ref: JobRef, owner: Owner, *, expected: Owner, deadline: datetime | None = None) -> None:
        """Change the owner by compare-and-swap."""
        self._call(lambda adapter, by: adapter.adopt(ref, owner, expected=expected, deadline=by), deadline)

    def find(self, job: JobID) -> JobRecord:
        """All that is left of a job."""
        return self._call(lambda adapter, _: adapter.find(job))

    def list(self, selector: JobSelector | None = None) -> tuple[SubmissionRecord, ...]:
        """Jobs that match; None means all."""
        return self._call(lambda adapter, _: adapter.list(selector or records.JobSelector()))

    def events(self, ref: JobRef | JobID) -> tuple[JobEvent, ...]:
        """What was decided about a job."""
        return self._call(lambda adapter, _: adapter.events(ref))

    def preflight(self, spec: JobSpec | None = None) -> Preflight:
        """Prove what the backend can do, and whether a job could ever fit its queue."""
        return self._call(lambda adapter, _: adapter.preflight(spec))

    def test_connection(self) -> tuple[bool, str]:
        """Run preflight and say one line a check. Does not repeat what the connection holds."""
        try:
            found = self.preflight()
        except DispatchError as error:
            return False, f"{type(error).__name__}: {error}"
        findings = [*found.checks.items(), *found.capabilities.items()]
        lines = [f"{name}: {finding.value} ({finding.advice})" for name, finding in findings]
        return found.is_proved, "\n".join([*lines, capabilities.describe_age(found, datetime.now(UTC))])

    def _call(
        self,
        call: Callable[[DispatchAdapter, datetime], Awaitable[T]],
        deadline: datetime | None = None,
    ) -> T:
        settings = self.settings()
        by = deadline or datetime.now(UTC) + settings.call_timeout
        return run_with_adapter(self.build_adapter(settings), lambda adapter: call(adapter, by))

    def _settings_without_connection(self) -> ConnectionSettings:
        if self.dispatch_conn_id != DEFAULT_CONNECTION_ID:
            raise SpecError("dispatch_conn_id", "there is no connection of that name", self.dispatch_conn_id)
        _announce_local_backend()
        return connection_settings.ConnectionSettings()


def run_with_adapter(adapter: DispatchAdapter, call: Callable[[DispatchAdapter], Awaitable[T]]) -> T:
    """Ask an unused adapter something from code without an event loop, and close it.

    A thread that runs a loop already, a notebook for instance, gets another thread for it.
    """

    async def ask() -> T:
        try:
            return await call(adapter)
        finally:
            await adapter.close()

    if not _is_loop_running():
        return asyncio.run(ask())
    with ThreadPoolExecutor(1, "dispatch-call") as pool:
        return pool.submit(contextvars.copy_context().run, lambda: asyncio.run(ask())).result()


def _is_loop_running() -> bool:
    # Nothing is called inside `except`: what it raises would drag "no running event loop" into every traceback.
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@functools.cache
def _announce_local_backend() -> None:
    logging.getLogger(__name__).info(
        "There is no connection %r: jobs run as processes of this machine. That is for trying out and for one machine; "
        "make a connection of type %r to run them elsewhere.",
        DEFAULT_CONNECTION_ID,
        DispatchHook.conn_type,
    )
