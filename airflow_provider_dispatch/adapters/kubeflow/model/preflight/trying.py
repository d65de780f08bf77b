# SPDX-License-Identifier: Apache-2.0
"""Whether a job may be tried at all, and what keeps it waiting: judged from what was read, before anything is made."""

from __future__ import annotations

from airflow_provider_dispatch.adapters.kubeflow.model.preflight.access import describe_rights
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.entry import derive_namespace
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.queueing import (
    derive_admission_check,
    derive_queue,
    find_multikueue,
)
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.sights import ServedGroup, Sights, Unseen
from airflow_provider_dispatch.adapters.kubeflow.model.resources import TRAINING_RUNTIMES, TRAINJOBS

_MADE = (TRAINJOBS, TRAINING_RUNTIMES)


def explain_untried(sights: Sights) -> str | None:
    """Why no job may be tried: it could not be made or not be removed, or would go elsewhere; None when it may."""
    reason = _find_hindrance(sights)
    return reason and f"nothing was tried, since {reason}"


def is_way_free(sights: Sights) -> bool:
    """Whether nothing that was read keeps a job of this queue from being admitted."""
    ahead = (derive_namespace, derive_queue, derive_admission_check) if sights.terms.queue else (derive_namespace,)
    return all(derive(sights).is_yes for derive in ahead)


def _find_hindrance(sights: Sights) -> str | None:
    if isinstance(sights.denied, Unseen):
        return "it isn't known what we may do"
    if denied := [right for right in sights.denied if right.resource in _MADE]:
        return f"we may not {describe_rights(denied)}"
    plurals = sights.served.get(TRAINJOBS.group, ServedGroup()).plurals
    if missing := [one.plural for one in _MADE if one.plural not in plurals]:
        return f"{' and '.join(missing)} are not served"
    if check := find_multikueue(sights):
        return f"AdmissionCheck {check} sends jobs to other clusters"
    return None
