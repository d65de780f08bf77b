# SPDX-License-Identifier: Apache-2.0
"""Whether Kueue, Trainer and JobSet are there and at work.

Their webhooks stand in the way of each write, also of one that is only tried; that their controllers live is seen on a
probe.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.answers import confirm, doubt, doubt_unseen, refute
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.sights import ProbeSight, Sights, Unseen
from airflow_provider_dispatch.core.capabilities import Finding

EXPLAIN_UNMANAGED = "Kueue doesn't manage TrainJobs here: its webhook adds nothing to a new one"
CURE_UNMANAGED = (
    "name trainer.kubeflow.org/trainjob among Kueue's integrations, and this namespace among those it manages"
)


@dataclass(frozen=True, slots=True)
class Component:
    """One of the three.

    :param webhooks: those that our jobs need.
    :param strangers: webhooks that no configuration of its own has; another component has some of the same names.
    :param advice: what else may keep its controller from a job that it is told of.
    """

    name: str
    webhooks: Sequence[str]
    strangers: Sequence[str] = ()
    advice: str = ""

    def find_configurations(self, configurations: Iterable[Raw]) -> list[Raw]:
        """Its own among all of the cluster."""
        named = ((one, _read_webhooks(one).keys()) for one in configurations)
        return [one for one, names in named if names & {*self.webhooks} and not names & {*self.strangers}]


KUEUE = Component(
    "Kueue", words.KUEUE_WEBHOOKS, advice="; see that it manages this namespace, too (managedJobsNamespaceSelector)"
)
TRAINER = Component("Trainer", words.TRAINER_WEBHOOKS)
JOBSET = Component("JobSet", words.JOBSET_WEBHOOKS, strangers=words.KUEUE_WEBHOOKS)
COMPONENTS = (KUEUE, TRAINER, JOBSET)


def is_managed_by_kueue(trainjob: Raw) -> bool:
    """Whether Kueue's webhook has seen a TrainJob: it adds an item of its own and suspends the job."""
    managers = {fields.text(item, "manager") for item in fields.items(trainjob, "spec", "runtimePatches")}
    return words.KUEUE_PATCH_MANAGER in managers and fields.flag(trainjob, "spec", "suspend")


def derive_kueue(sights: Sights) -> Finding:
    """Each write passes through its webhooks, and its controller takes a job up."""
    if broken := _find_fault(KUEUE, sights, sights.trial.trainjob):
        return broken
    if isinstance(sights.trial.trainjob, Unseen):
        return doubt_unseen("what Kueue makes of a job", sights.trial.trainjob)
    probe = _find_probe(sights)
    if probe and probe.workload is None and is_managed_by_kueue(probe.trainjob):
        return _refute_idle(KUEUE, probe)
    return _confirm(sights)


def derive_trainjob_integration(sights: Sights) -> Finding:
    """Kueue looks after TrainJobs, in this namespace."""
    answer = sights.trial.trainjob
    if isinstance(answer, Unseen):
        return doubt_unseen("what Kueue makes of a job", answer)
    if not is_managed_by_kueue(answer):
        return refute(EXPLAIN_UNMANAGED, CURE_UNMANAGED)
    return confirm("Kueue suspends a new TrainJob and adds a runtime patch of its own")


def derive_trainer(sights: Sights) -> Finding:
    """Each write passes through its webhooks, and its controller takes a job up."""
    if broken := _find_fault(TRAINER, sights, sights.trial.trainjob, sights.trial.runtime):
        return broken
    if isinstance(sights.trial.runtime, Unseen):
        return doubt_unseen("what Trainer makes of a runtime", sights.trial.runtime)
    probe = _find_probe(sights)
    return _refute_idle(TRAINER, probe) if probe and not _is_taken_up(probe) else _confirm(sights)


def derive_jobset(sights: Sights) -> Finding:
    """Its webhooks are registered, and its controller takes a set up."""
    if broken := _find_fault(JOBSET, sights):
        return broken
    probe = _find_probe(sights)
    if probe is None and isinstance(sights.webhooks, Unseen):
        return doubt_unseen("its webhooks", sights.webhooks)
    if probe is None:
        return _confirm(sights)
    if not _is_taken_up(probe):
        return doubt("Trainer has made no JobSet that it could take up", "mend Trainer first")
    if words.JOBSET_SUSPENDED not in fields.conditions(probe.jobset):
        return _refute_idle(JOBSET, probe)
    return _confirm(sights)


def _find_probe(sights: Sights) -> ProbeSight | None:
    return None if isinstance(sights.probe, Unseen) else sights.probe


def _is_taken_up(probe: ProbeSight) -> bool:
    """Trainer has told the job that it is suspended, or made its JobSet."""
    return probe.jobset is not None or words.TRAINJOB_SUSPENDED in fields.conditions(probe.trainjob)


def _find_fault(component: Component, sights: Sights, *tried: Raw | Unseen) -> Finding | None:
    """What is wrong with a component's webhooks.

    :param tried: what was sent through them.
    """
    for answer in tried:
        if isinstance(answer, Unseen) and answer.webhook in component.webhooks:
            return refute(f"webhook {answer.webhook} doesn't answer: {answer.said}", _cure_idle(component))
    if isinstance(sights.webhooks, Unseen):
        return None
    found: dict[str, Raw] = {}
    for configuration in component.find_configurations(sights.webhooks):
        found |= _read_webhooks(configuration)
    if missing := [name for name in component.webhooks if name not in found]:
        return refute(f"not registered: webhook {', '.join(missing)}", f"apply the manifests of {component.name} again")
    if mute := [name for name in component.webhooks if not fields.text(found[name], "clientConfig", "caBundle")]:
        return refute(f"without a caBundle the API server can't call webhook {', '.join(mute)}", _cure_idle(component))
    return None


def _refute_idle(component: Component, probe: ProbeSight) -> Finding:
    cure = _cure_idle(component) + component.advice
    return refute(f"its controller has not taken a job up in {probe.seconds:.0f} s", cure)


def _cure_idle(component: Component) -> str:
    return f"see that the controller of {component.name} runs, and look into its log"


def _confirm(sights: Sights) -> Finding:
    parts = []
    if not isinstance(sights.webhooks, Unseen):
        parts.append("its webhooks are registered")
    if _find_probe(sights) is not None:
        parts.append("its controller takes a job up")
    return confirm(" and ".join(parts) or "a dry run passes")


def _read_webhooks(configuration: Raw) -> Mapping[str, Raw]:
    return {fields.text(webhook, "name"): webhook for webhook in fields.items(configuration, "webhooks")}
