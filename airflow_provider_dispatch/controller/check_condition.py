# SPDX-License-Identifier: Apache-2.0
"""Keeps our AdmissionCheck ``Active``: until it is, Kueue admits nothing in the queues that name it.

The runner runs it beside the loop. It writes that one condition and creates nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.resources import ADMISSION_CHECKS
from airflow_provider_dispatch.controller.lease import LeaseKeeper
from airflow_provider_dispatch.exceptions import CapabilityError, DispatchError

ACTIVE = "Active"
REASON = "Serving"
LOOK_SECONDS = 60.0
MISSED_SECONDS = 10.0
FOLLOWERS_SECONDS = 0.5
_log = logging.getLogger(__name__)


class CheckKeeper:
    """Looks after the condition of one AdmissionCheck.

    :param name: of the check.
    """

    def __init__(self, client: KubeClient, lease: LeaseKeeper, name: str, *, wall: Callable[[], datetime]) -> None:
        self._client, self._lease, self._name, self._wall = client, lease, name, wall
        self._is_missed = False

    async def keep(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Look again and again, until cancelled."""
        while True:
            if not self._lease.is_held:
                await sleep(FOLLOWERS_SECONDS)
                continue
            is_active = False
            try:
                is_active = await self.ensure_active()
            except DispatchError as error:
                _log.warning("the AdmissionCheck %s can't be kept active: %s", self._name, error)
            await sleep(LOOK_SECONDS if is_active else MISSED_SECONDS)

    async def ensure_active(self) -> bool:
        """Write the condition where it is missing or about an earlier generation; whether the check is ours and there.

        :raises AdapterError: it can't be read or written.
        """
        try:
            check = await self._client.get(ADMISSION_CHECKS, self._name)
        except CapabilityError:
            return True
        if check is None or fields.text(check, "spec", "controllerName") != words.CONTROLLER_NAME:
            if not self._is_missed:
                _log.warning("there is no AdmissionCheck %s with controllerName %s", self._name, words.CONTROLLER_NAME)
            self._is_missed = True
            return False
        self._is_missed = False
        if not _is_current(check):
            await self._client.patch(ADMISSION_CHECKS, self._name, self._build_patch(check), subresource="status")
            _log.info("the AdmissionCheck %s is active", self._name)
        return True

    def _build_patch(self, check: Raw) -> dict[str, object]:
        others = [item for item in fields.items(check, "status", "conditions") if fields.text(item, "type") != ACTIVE]
        active = {
            "type": ACTIVE,
            "status": "True",
            "reason": REASON,
            "message": "dispatch-admission looks after it",
            "observedGeneration": fields.number(check, "metadata", "generation"),
            "lastTransitionTime": self._wall().isoformat(timespec="seconds").replace("+00:00", "Z"),
        }
        version = fields.text(check, "metadata", "resourceVersion")
        return {"metadata": {"resourceVersion": version}, "status": {"conditions": [*others, active]}}


def _is_current(check: Raw) -> bool:
    for item in fields.items(check, "status", "conditions"):
        if fields.text(item, "type") == ACTIVE:
            is_seen = fields.number(item, "observedGeneration") == fields.number(check, "metadata", "generation")
            return is_seen and fields.text(item, "status") == "True"
    return False
