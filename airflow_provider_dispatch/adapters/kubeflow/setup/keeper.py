# SPDX-License-Identifier: Apache-2.0
"""All that an administrator does to a cluster, on one connection: the face of this package for the command.

Made by the registry for the groups `setup`, `queue` and `fence` of the command. Each method hands on to the module that
knows it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from airflow_provider_dispatch.adapters.kubeflow import vouching
from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient, open_client
from airflow_provider_dispatch.adapters.kubeflow.model.resources import ADMISSION_CHECKS
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings, parse_settings
from airflow_provider_dispatch.adapters.kubeflow.setup import places, queue_keeping, rollout
from airflow_provider_dispatch.adapters.kubeflow.setup.applying import (
    Outcome,
    Result,
    Tell,
    apply_manifests,
    compare_manifests,
    remove_manifests,
)
from airflow_provider_dispatch.adapters.kubeflow.setup.queue_terms import QueueTerms
from airflow_provider_dispatch.adapters.kubeflow.setup.rendering import build_manifests, build_namespace_manifests
from airflow_provider_dispatch.adapters.kubeflow.setup.terms import DEFAULT_IMAGE, SetupTerms
from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.exceptions import RefusedError

ClientFactory = Callable[[KubeflowSettings], Awaitable[KubeClient]]
Clock = Callable[[], datetime]


def _read_clock() -> datetime:
    return datetime.now(UTC)


def build_keeper(settings: Mapping[str, object]) -> ClusterKeeper:
    """What the registry calls.

    :raises SpecError: a wrong setting.
    """
    return ClusterKeeper(parse_settings(settings))


class ClusterKeeper:
    """A cluster under the rights of whoever calls; a context manager that opens and closes the connection."""

    def __init__(
        self, settings: KubeflowSettings, *, open_client: ClientFactory = open_client, clock: Clock = _read_clock
    ) -> None:
        self.settings, self._open_client, self._clock = settings, open_client, clock
        self._opened: KubeClient | None = None

    async def __aenter__(self) -> Self:
        self._opened = await self._open_client(self.settings)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._opened is not None:
            await self._opened.close()

    @property
    def client(self) -> KubeClient:
        """The connection."""
        assert self._opened is not None, "enter the context first"
        return self._opened

    # -- the installation --------------------------------------------------------------------------------------------

    async def complete_terms(self, terms: SetupTerms) -> SetupTerms:
        """The terms with the namespaces that are set up already and aren't named, and with what the cluster lacks.

        An image or a wide watch that was chosen earlier stays unless the terms choose another.
        """
        known = await places.fetch_namespaces(self.client, terms.name)
        named = {one.name for one in terms.namespaces}
        everywhere = [*terms.namespaces, *(one for name, one in known.items() if name not in named)]
        controller = await places.fetch_controller(self.client, terms.name)
        image, watches_all = controller or (terms.image, False)
        return replace(
            terms,
            # Always in the same order, or the controller would be rolled out anew for nothing.
            namespaces=tuple(sorted(everywhere, key=lambda one: one.name)),
            image=image if terms.image == DEFAULT_IMAGE else terms.image,
            watches_all=terms.watches_all or watches_all,
            has_kueue=await self.client.is_served(ADMISSION_CHECKS),
        )

    async def apply_setup(self, terms: SetupTerms, *, tell: Tell) -> list[Result]:
        """Set the cluster up as the terms say.

        :raises SpecError: a namespace isn't there.
        """
        await places.check_namespaces(self.client, [one.name for one in terms.namespaces])
        return await apply_manifests(self.client, build_manifests(terms), tell=tell)

    async def await_controller(self, terms: SetupTerms, *, deadline: datetime) -> str:
        """See :func:`.rollout.await_controller`."""
        return await rollout.await_controller(self.client, terms, deadline=deadline, clock=self._clock)

    async def compare_setup(self, terms: SetupTerms) -> list[Result]:
        """Whether everything stands as the terms say."""
        return await compare_manifests(self.client, build_manifests(terms))

    async def remove_setup(
        self, terms: SetupTerms, *, although_used: bool, deadline: datetime, tell: Tell
    ) -> list[Result]:
        """Take the named namespaces away; with the last one everything else.

        :param although_used: also while jobs have not ended.
        :raises RefusedError: jobs have not ended.
        """
        named = {one.name for one in terms.namespaces}
        whole = await self.complete_terms(terms)
        rest = tuple(one for one in whole.namespaces if one.name not in named)
        going = named if rest else named | {one.name for one in whole.namespaces}
        living = await places.fetch_living_jobs(self.client, sorted(going))
        if living and not although_used:
            raise RefusedError(f"jobs have not ended: {', '.join(living)}; stop them, or give --yes")
        if not rest:
            gone = build_manifests(whole)
            return await remove_manifests(self.client, gone, deadline=deadline, clock=self._clock, tell=tell)
        gone = tuple(
            manifest
            for namespace in whole.namespaces
            if namespace.name in named
            for manifest in build_namespace_manifests(whole, namespace)
        )
        kept = await apply_manifests(self.client, build_manifests(replace(whole, namespaces=rest)), tell=_ignore)
        removed = await remove_manifests(self.client, gone, deadline=deadline, clock=self._clock, tell=tell)
        return [*removed, *(one for one in kept if one.outcome is not Outcome.SAME)]

    # -- queues ------------------------------------------------------------------------------------------------------

    async def create_queue(self, terms: QueueTerms, *, tell: Tell) -> list[Result]:
        """See :func:`.queue_keeping.create_queue`."""
        return await queue_keeping.create_queue(self.client, terms, tell=tell)

    async def fetch_queues(self, name: str | None) -> list[queue_keeping.QueueState]:
        """One queue of the namespace, or all of them."""
        if name is not None:
            return [await queue_keeping.fetch_queue_state(self.client, self.settings, name)]
        return await queue_keeping.fetch_queue_states(self.client, self.settings)

    async def delete_queue(self, name: str, *, although_used: bool, deadline: datetime, tell: Tell) -> list[Result]:
        """See :func:`.queue_keeping.delete_queue`."""
        return await queue_keeping.delete_queue(
            self.client,
            self.settings,
            name,
            although_used=although_used,
            deadline=deadline,
            clock=self._clock,
            tell=tell,
        )

    # -- the fence ---------------------------------------------------------------------------------------------------

    async def fetch_doubts(self, job: JobID) -> list[vouching.Doubt]:
        """See :func:`.vouching.fetch_doubts`."""
        return await vouching.fetch_doubts(self.client, self.settings, job)

    async def confirm_deaths(self, job: JobID, uids: Collection[str], *, by: str) -> None:
        """See :func:`.vouching.confirm_deaths`."""
        await vouching.confirm_deaths(self.client, self.settings, job, uids, by=by, now=self._clock())


def _ignore(_result: Result) -> None:
    """Told at the end."""
