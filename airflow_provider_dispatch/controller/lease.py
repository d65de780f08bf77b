# SPDX-License-Identifier: Apache-2.0
"""The Lease: which of several replicas acts, and the heartbeat that preflight reads.

Taken and renewed by compare-and-swap on its resourceVersion. Nobody believes another's clock: a Lease may be taken when
it has been *seen* unchanged for its whole duration. Its holder counts from before its last successful renewal was
sent, by its own monotonic clock, and stops acting while a third of the duration is left.

The runner keeps it; whoever writes asks :attr:`LeaseKeeper.is_held` before each write.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.resources import LEASES
from airflow_provider_dispatch.exceptions import ConflictError, DispatchError, JobNotFoundError

USABLE_SHARE = 2 / 3
"""Of the duration: after it a holder that could not renew stops acting, long before others may take the Lease."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """Which Lease, who we are, and how long it lasts unrenewed."""

    namespace: str
    name: str
    identity: str
    duration_seconds: float = 15.0
    renew_seconds: float = 5.0


class LeaseKeeper:
    """This replica's claim to the Lease.

    :param monotonic: seconds of a clock that never steps.
    :param wall: now, for the stamps that people and preflight read.
    """

    def __init__(
        self,
        client: KubeClient,
        terms: LeaseTerms,
        *,
        monotonic: Callable[[], float],
        wall: Callable[[], datetime],
    ) -> None:
        self.terms = terms
        self._client, self._monotonic, self._wall = client, monotonic, wall
        self._renewed_at: float | None = None
        self._last: Raw | None = None
        self._seen: tuple[str, float] | None = None
        """Version of the Lease, and since when it has been that."""

    @property
    def is_held(self) -> bool:
        """Whether this replica may act now."""
        if self._renewed_at is None:
            return False
        return self._monotonic() - self._renewed_at < self.terms.duration_seconds * USABLE_SHARE

    async def attempt(self) -> bool:
        """Take or renew the Lease once, if it can be had; whether it is ours now."""
        began = self._monotonic()
        for known in (self._last, None):
            try:
                self._last = await self._claim(known)
            except (ConflictError, JobNotFoundError):
                # Somebody wrote first, or took it away. What stands there now is judged, once.
                continue
            if self._last is None:
                break
            self._renewed_at = began
            return True
        self._lose()
        return False

    async def _claim(self, known: Raw | None) -> Raw | None:
        """The Lease as ours; None while another has it.

        :param known: as we last wrote it, which saves reading it.
        """
        lease = known or await self._client.get(LEASES, self.terms.name, self.terms.namespace)
        if lease is None:
            return await self._client.create(LEASES, self._build_new(), self.terms.namespace)
        if not self._may_take(lease):
            return None
        return await self._client.patch(LEASES, self.terms.name, self._build_claim(lease), self.terms.namespace)

    async def keep(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Take and renew until cancelled; tells the log when the Lease comes and goes."""
        was_held = False
        while True:
            try:
                await self.attempt()
            except DispatchError as error:
                _log.warning("the Lease can't be renewed now: %s", error)
            if self.is_held != was_held:
                was_held = self.is_held
                _log.info("%s %s the Lease", self.terms.identity, "holds" if was_held else "doesn't hold")
            await sleep(self.terms.renew_seconds)

    async def release(self) -> None:
        """Give the Lease up, so that another replica needn't wait for its end."""
        if self._renewed_at is None:
            return
        self._lose()
        lease = await self._client.get(LEASES, self.terms.name, self.terms.namespace)
        if lease is None or self._holder(lease) != self.terms.identity:
            return
        patch = {
            "metadata": {"resourceVersion": fields.text(lease, "metadata", "resourceVersion")},
            "spec": {"holderIdentity": "", "leaseDurationSeconds": 1},
        }
        try:
            await self._client.patch(LEASES, self.terms.name, patch, self.terms.namespace)
        except ConflictError:
            _log.info("somebody else has taken the Lease already")

    def _lose(self) -> None:
        self._renewed_at, self._last = None, None

    def _holder(self, lease: Raw) -> str:
        return fields.text(lease, "spec", "holderIdentity")

    def _may_take(self, lease: Raw) -> bool:
        holder = self._holder(lease)
        if holder in ("", self.terms.identity):
            return True
        version, now = fields.text(lease, "metadata", "resourceVersion"), self._monotonic()
        if self._seen is None or self._seen[0] != version:
            self._seen = (version, now)
        duration = fields.number(lease, "spec", "leaseDurationSeconds") or self.terms.duration_seconds
        return now - self._seen[1] > duration

    def _build_spec(self, lease: Raw | None) -> dict[str, object]:
        stamp = fields.format_time(self._wall())
        spec: dict[str, object] = {
            "holderIdentity": self.terms.identity,
            "leaseDurationSeconds": round(self.terms.duration_seconds),
            "renewTime": stamp,
        }
        if lease is None or self._holder(lease) != self.terms.identity:
            spec["acquireTime"] = stamp
            spec["leaseTransitions"] = fields.number(lease, "spec", "leaseTransitions") + (lease is not None)
        return spec

    def _build_new(self) -> dict[str, object]:
        return {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {"name": self.terms.name, "namespace": self.terms.namespace, "annotations": self._sign},
            "spec": self._build_spec(None),
        }

    def _build_claim(self, lease: Raw) -> dict[str, object]:
        version = fields.text(lease, "metadata", "resourceVersion")
        return {"metadata": {"resourceVersion": version, "annotations": self._sign}, "spec": self._build_spec(lease)}

    @property
    def _sign(self) -> dict[str, str]:
        return {words.HOLDER_ANNOTATION: self.terms.identity}
