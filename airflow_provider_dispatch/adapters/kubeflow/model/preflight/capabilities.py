# SPDX-License-Identifier: Apache-2.0
"""Which capabilities follow from the checks. None is yes while a check that it rests on isn't."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_dispatch.adapters.kubeflow.model.preflight.access import LOG_RIGHT
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.answers import confirm
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.sights import PreflightTerms, Sights, Unseen
from airflow_provider_dispatch.core.capabilities import Answer, Capability, Finding, Source

_ALWAYS = ("credentials", "apis", "permissions")
_KUEUE = ("kueue", "trainjob integration")
RESTS_ON: Mapping[Capability, tuple[str, ...]] = {
    Capability.READMISSION_GATE: (*_ALWAYS, "queue", "admission check", "multikueue", "controller", *_KUEUE),
    Capability.ATTEMPT_INJECTION: (*_ALWAYS, "controller", "trainer", "identity"),
    Capability.HOLD: (*_ALWAYS, "namespace", "kueue", "trainer"),
    Capability.START_GATE: (
        *(*_ALWAYS, "namespace", "runtime", "queue", *_KUEUE),
        *("trainer", "jobset", "start gate", "known faults"),
    ),
    Capability.POD_FENCE: (*_ALWAYS, "controller", "identity"),
    Capability.LOGS: _ALWAYS,
}
"""Policies keep others from doing harm; what we do ourselves doesn't rest on them. What concerns no queue, or no
controller, isn't checked where there is none."""


def derive_capabilities(checks: Mapping[str, Finding], sights: Sights) -> dict[Capability, Finding]:
    """Every capability, with the reason of the first check that isn't yes, or of what proves it."""
    promised = _promise(checks, sights.terms)
    found = {}
    for capability in Capability:
        rests = [name for name in _list_rests(capability, sights) if name in checks]
        broken = next((name for name in rests if not checks[name].is_yes), None)
        found[capability] = _blame(broken, checks[broken]) if broken else promised[capability]
    return found


def _list_rests(capability: Capability, sights: Sights) -> tuple[str, ...]:
    """Who may not read logs can still start, hold and end jobs; and the other way round."""
    rests = RESTS_ON.get(capability, ())
    denied = () if isinstance(sights.denied, Unseen) else sights.denied
    concerns_logs, others = LOG_RIGHT in denied, any(right != LOG_RIGHT for right in denied)
    if denied and not (concerns_logs if capability is Capability.LOGS else others):
        return tuple(name for name in rests if name != "permissions")
    return rests


def _blame(name: str, check: Finding) -> Finding:
    return Finding(check.value, check.source, f"{name}: {check.reason}", check.cure)


def _promise(checks: Mapping[str, Finding], terms: PreflightTerms) -> dict[Capability, Finding]:
    """What is so when nothing that it rests on is in the way."""
    no = (Answer.NO, Source.DECLARED)
    hold = (
        confirm("we may patch Workloads, and Kueue looks after them")
        if terms.queue
        else confirm("spec.suspend of the TrainJob", is_probed=False)
    )
    return {
        **(_promise_fenced(checks) if terms.is_fenced else _promise_alone()),
        Capability.HOLD: hold,
        Capability.START_GATE: checks.get("start gate", hold),
        Capability.LOGS: confirm("through the API server, while the pods are there", is_probed=False),
        Capability.QUEUE_POSITION: Finding(*no, "Kueue tells it only by an API of its own that is not read"),
        Capability.PROGRESS: Finding(*no, "nothing here reads progress"),
        Capability.MEMORY_LIMIT: confirm("limits of the containers", is_probed=False),
    }


def _promise_fenced(checks: Mapping[str, Finding]) -> dict[Capability, Finding]:
    def quote(*names: str) -> Finding:
        return confirm("; ".join(checks[name].reason for name in names if name in checks))

    return {
        Capability.READMISSION_GATE: quote("admission check", "controller"),
        Capability.ATTEMPT_INJECTION: quote("identity", "controller"),
        Capability.POD_FENCE: quote("identity", "controller"),
    }


def _promise_alone() -> dict[Capability, Finding]:
    return {
        Capability.READMISSION_GATE: confirm("we wait ourselves until the old pods are gone", is_probed=False),
        Capability.ATTEMPT_INJECTION: confirm("we write it into the TrainJob while it is suspended", is_probed=False),
        Capability.POD_FENCE: Finding(Answer.NO, Source.DECLARED, "there is no controller in this namespace"),
    }
