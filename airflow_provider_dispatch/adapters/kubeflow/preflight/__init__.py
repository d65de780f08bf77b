# SPDX-License-Identifier: Apache-2.0
"""Looks at a cluster, tries what can be tried and watches a probe; what was seen is judged by :mod:`..model.preflight`.

The adapter calls it for the verb and when a `start` is refused; each `start` asks the two questions of :mod:`.standing`
alone. Nothing that it makes outlives the call.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.model.preflight import derive_preflight
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.sights import TrialSight, Unseen
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.trying import explain_untried, is_way_free
from airflow_provider_dispatch.adapters.kubeflow.preflight.demand import fetch_requests
from airflow_provider_dispatch.adapters.kubeflow.preflight.looking import fetch_sights, fetch_user
from airflow_provider_dispatch.adapters.kubeflow.preflight.probing import Prober, remove_abandoned
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings
from airflow_provider_dispatch.adapters.kubeflow.transport import Sleep
from airflow_provider_dispatch.core.capabilities import Preflight
from airflow_provider_dispatch.core.job_spec import JobSpec


async def run_preflight(
    client: KubeClient,
    settings: KubeflowSettings,
    *,
    now: datetime,
    spec: JobSpec | None = None,
    sleep: Sleep = asyncio.sleep,
) -> Preflight:
    """All checks, in order.

    :param spec: a job whose requests are held against the quota of its queue.
    :raises SpecError: of *spec*.
    :raises UnavailableError: the API server doesn't answer.
    """
    if spec is not None and spec.queue:
        settings = settings.model_copy(update={"queue": spec.queue})
    sights = await fetch_user(client, settings, now)
    if isinstance(sights.user, Unseen):
        return derive_preflight(sights)
    sights = await fetch_sights(client, settings, sights)
    if spec is not None:
        sights = replace(sights, requests=await fetch_requests(client, settings, spec))
    await remove_abandoned(client, settings, now)
    if said := explain_untried(sights):
        return derive_preflight(replace(sights, trial=TrialSight(*[Unseen(said)] * 3)))
    prober = Prober(client, settings, now=now, sleep=sleep, awaits_gate=is_way_free(sights))
    trial, probe = await prober.run()
    return derive_preflight(replace(sights, trial=trial, probe=probe))
