# SPDX-License-Identifier: Apache-2.0
"""What each `start` asks of its queue: whether our check guards it and its controller lives. Nothing is tried.

Hold and start gate are seen on the job itself, and everything else when something is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.model.preflight import CHECKS, list_checks
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.capabilities import derive_capabilities
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.sights import QueueSight, Sights
from airflow_provider_dispatch.adapters.kubeflow.model.queue_guard import is_changing_hands
from airflow_provider_dispatch.adapters.kubeflow.preflight.looking import build_preflight_terms
from airflow_provider_dispatch.adapters.kubeflow.queue_lookup import fetch_lease, fetch_queue_names, fetch_queue_view
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings
from airflow_provider_dispatch.core.capabilities import Answer, check_may_start
from airflow_provider_dispatch.exceptions import SpecError, UnavailableError

_CONTROLLER = "controller"
_ASKED = ("admission check", _CONTROLLER)


async def check_standing(client: KubeClient, settings: KubeflowSettings, queue: str, *, now: datetime) -> None:
    """Refuse a queue that nobody guards.

    :param queue: empty means plain mode.
    :raises SpecError: no such LocalQueue in the namespace of the connection.
    :raises CapabilityError: the queue is not guarded; the message says why, and the cure.
    :raises UnavailableError: it is, and its controller was at work a moment ago.
    """
    sights = Sights(replace(build_preflight_terms(settings), queue=queue), now)
    if queue:
        view = await fetch_queue_view(client, settings, queue)
        if view.local_queue is None:
            known = await fetch_queue_names(client, settings)
            raise SpecError("queue", f"is not one of {known} in namespace {settings.namespace}", queue)
        seen = QueueSight(view.local_queue, view.cluster_queue, {settings.admission_check: view.check})
        sights = replace(sights, queue=seen, lease=view.lease)
    elif sights.terms.is_fenced:
        sights = replace(sights, lease=await fetch_lease(client, settings))
    found = {name: CHECKS[name](sights) for name in list_checks(sights.terms) if name in _ASKED}
    wrong = [name for name, finding in found.items() if finding.value is not Answer.YES]
    if wrong == [_CONTROLLER] and isinstance(sights.lease, Mapping) and is_changing_hands(sights.lease, now):
        raise UnavailableError(
            f"the controller is changing hands, or coming back: {found[_CONTROLLER].reason}; try again"
        )
    check_may_start(derive_capabilities(found, sights))
