# SPDX-License-Identifier: Apache-2.0
"""Which versions of Kueue, Trainer and JobSet run here, as far as they say so, and what is known to be wrong with them.

Charts write a version on what they install; plain manifests don't. So one that can't be seen is no fault: what we need
of a version is proved by the other checks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.answers import confirm, refute
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.machinery import (
    COMPONENTS,
    JOBSET,
    KUEUE,
    TRAINER,
    Component,
)
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.sights import Sights, Unseen
from airflow_provider_dispatch.core.capabilities import Finding

Version = tuple[int, ...]

VERSION_LABEL = "app.kubernetes.io/version"
CHART_LABEL = "helm.sh/chart"
OLDEST: dict[Component, Version] = {KUEUE: (0, 19), TRAINER: (2, 3), JOBSET: (0, 12)}
_NUMBERS = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?$")


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong in the versions before *mended_in*."""

    component: Component
    mended_in: Version
    said: str


FAULTS = (
    # kubernetes-sigs/kueue, pull requests 14836, 15161 and 15213.
    Fault(KUEUE, (0, 20), "an empty list in spec.trainer strands a job (we send none)"),
    Fault(KUEUE, (0, 20), "tolerations of a flavor replace those of the runtime"),
    Fault(KUEUE, (0, 20), "a second call of its webhook spoils a TrainJob"),
    # kubeflow/trainer, issues 3737 and 3779.
    Fault(TRAINER, (2, 4), "a JobSet that is deleted is made again (the fence keeps its pods)"),
)


def derive_known_faults(sights: Sights) -> Finding:
    """Nothing that is known of these versions stands in the way."""
    versions = {} if isinstance(sights.webhooks, Unseen) else _find_versions(sights.webhooks)
    if not sights.terms.queue:
        versions.pop(KUEUE, None)
    for component, version in versions.items():
        if version < OLDEST[component]:
            oldest = _format(OLDEST[component])
            return refute(
                f"{component.name} {_format(version)} is older than {oldest}, the oldest that was tried",
                f"upgrade {component.name}",
            )
    if not versions:
        return confirm("no version is written where it could be seen; what is needed of it is proved", is_probed=False)
    told = [f"{component.name} {_format(version)}" for component, version in versions.items()]
    known = [f.said for f in FAULTS if f.component in versions and versions[f.component] < f.mended_in]
    return confirm(f"{', '.join(told)}{'; known: ' if known else ''}{'; '.join(known)}")


def _find_versions(configurations: tuple[fields.Raw, ...]) -> dict[Component, Version]:
    found: dict[Component, Version] = {}
    for component in COMPONENTS:
        for configuration in component.find_configurations(configurations):
            for key in (VERSION_LABEL, CHART_LABEL):
                if numbers := _NUMBERS.search(fields.label(configuration, key)):
                    found.setdefault(component, tuple(int(part or 0) for part in numbers.groups()))
    return found


def _format(version: Version) -> str:
    return ".".join(map(str, version))
