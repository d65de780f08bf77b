# SPDX-License-Identifier: Apache-2.0
"""What a preflight has seen, judged: named checks in a stable order, and the capabilities that follow from them. Pure.

Each check says what it saw and, unless it says yes, what to do. A capability is never yes while a check that it rests
on isn't; its reason is then that check's line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from airflow_provider_dispatch.adapters.kubeflow.model.preflight.capabilities import derive_capabilities
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.entry import (
    derive_apis,
    derive_credentials,
    derive_kubernetes,
    derive_namespace,
    derive_permissions,
    derive_runtime,
)
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.guarding import (
    derive_identity,
    derive_policies,
    derive_start_gate,
)
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.machinery import (
    derive_jobset,
    derive_kueue,
    derive_trainer,
    derive_trainjob_integration,
)
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.queueing import (
    derive_admission_check,
    derive_controller,
    derive_multikueue,
    derive_queue,
    derive_quota,
)
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.sights import PreflightTerms, Sights, Unseen
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.versions import derive_known_faults
from airflow_provider_dispatch.core.capabilities import Finding, Preflight

CHECKS: Mapping[str, Callable[[Sights], Finding]] = {
    "credentials": derive_credentials,
    "kubernetes": derive_kubernetes,
    "apis": derive_apis,
    "permissions": derive_permissions,
    "namespace": derive_namespace,
    "runtime": derive_runtime,
    "queue": derive_queue,
    "admission check": derive_admission_check,
    "multikueue": derive_multikueue,
    "controller": derive_controller,
    "kueue": derive_kueue,
    "trainjob integration": derive_trainjob_integration,
    "trainer": derive_trainer,
    "jobset": derive_jobset,
    "policies": derive_policies,
    "start gate": derive_start_gate,
    "identity": derive_identity,
    "quota": derive_quota,
    "known faults": derive_known_faults,
}
"""In the order in which they are shown: what stands above must be mended first."""
OF_A_QUEUE = frozenset({"queue", "admission check", "multikueue", "kueue", "trainjob integration"})


def list_checks(terms: PreflightTerms, *, has_job: bool = False) -> tuple[str, ...]:
    """The names of the checks that concern a connection.

    :param has_job: a job is judged, too.
    """
    left_out = set() if terms.queue else set(OF_A_QUEUE)
    if not terms.is_fenced:
        left_out.add("controller")
    if not has_job or not terms.queue:
        left_out.add("quota")
    return tuple(name for name in CHECKS if name not in left_out)


def derive_preflight(sights: Sights) -> Preflight:
    """The outcome."""
    names = list_checks(sights.terms, has_job=sights.requests is not None)
    if isinstance(sights.user, Unseen):
        # Nobody gets further: one line says it all.
        names = names[:1]
    checks = {name: CHECKS[name](sights) for name in names}
    return Preflight(checks, derive_capabilities(checks, sights), sights.now)
