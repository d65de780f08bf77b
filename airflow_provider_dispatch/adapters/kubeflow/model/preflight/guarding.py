# SPDX-License-Identifier: Apache-2.0
"""Whether what keeps an execution alone is in force: policies, the start gate, and the identity behind the fence."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.answers import confirm, doubt, doubt_unseen, refute
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.sights import ProbeSight, Sights, Unseen
from airflow_provider_dispatch.core.capabilities import Finding

_EPOCH_FIELD = f"metadata.annotations['{words.EPOCH_ANNOTATION}']"
_CURE_OPEN = "nothing may be started on such a queue: see what admits jobs behind a gate, and upgrade Kueue"


def derive_policies(sights: Sights) -> Finding:
    """What RBAC is too coarse for is refused."""
    seen = sights.policies
    cure = "make them with `dispatch setup --apply`"
    if isinstance(seen.policies, Unseen):
        return doubt_unseen("ValidatingAdmissionPolicies", seen.policies)
    if missing := [name for name in seen.expected if name not in seen.policies]:
        return refute(f"not there: ValidatingAdmissionPolicy {', '.join(missing)}", cure)
    if isinstance(seen.bindings, Unseen):
        return doubt_unseen("bindings of ValidatingAdmissionPolicies", seen.bindings)
    if missing := [name for name in seen.expected_bindings if name not in seen.bindings]:
        return refute(f"not there, or doesn't deny: ValidatingAdmissionPolicyBinding {', '.join(missing)}", cure)
    return confirm(f"there and bound: {', '.join(seen.expected)}")


def derive_start_gate(sights: Sights) -> Finding:
    """A new job waits until its gate is opened."""
    answer, refused = sights.trial.trainjob, sights.trial.is_nonsense_refused
    if isinstance(answer, Unseen):
        return doubt_unseen("what becomes of a job behind its gate", answer)
    queue = fields.label(answer, words.QUEUE_LABEL)
    if queue != sights.terms.queue:
        return refute(
            f"the cluster has put a job of queue {sights.terms.queue!r} into queue {queue!r}",
            "name that queue in the connection",
        )
    if not sights.terms.queue:
        return _judge_plain_probe(sights)
    if isinstance(refused, Unseen):
        return doubt_unseen("whether Kueue looks at gates", refused)
    if not refused:
        return refute(
            "Kueue takes a gate that is none: its feature AdmissionGatedBy is off",
            "switch AdmissionGatedBy on in Kueue's configuration; since 0.19 it is on by default",
        )
    return _judge_probe(sights)


def _judge_plain_probe(sights: Sights) -> Finding:
    probe = sights.probe
    if isinstance(probe, Unseen):
        return doubt_unseen("a probe", probe)
    if probe is None:
        return confirm("spec.suspend of the TrainJob; no probe was watched", is_probed=False)
    return _find_leak(probe) or confirm(f"a suspended job made no pod in {probe.seconds:.0f} s{_describe_left(probe)}")


def _judge_probe(sights: Sights) -> Finding:
    probe = sights.probe
    if isinstance(probe, Unseen):
        return doubt_unseen("a probe", probe)
    if probe is None:
        return confirm("Kueue takes our gate and refuses one that is none; no probe was watched")
    if leak := _find_leak(probe):
        return leak
    if probe.workload is None:
        return doubt("Kueue has made no Workload of the probe", "mend Kueue first")
    waits = fields.conditions(probe.workload).get(words.QUOTA_RESERVED)
    if waits is None or waits.reason != words.ADMISSION_GATED:
        said = f"{waits.reason}: {waits.message}" if waits else "nothing is said of it yet"
        return doubt(f"it can't be seen whether the probe waited for its gate: {said}", "mend the queue first")
    return confirm(
        f"a probe waited {probe.seconds:.0f} s behind our gate, without quota and without a pod{_describe_left(probe)}"
    )


def _find_leak(probe: ProbeSight) -> Finding | None:
    if probe.pods:
        return refute(f"behind its closed gate the probe had pods: {', '.join(probe.pods)}", _CURE_OPEN)
    if probe.was_let_in:
        return refute("behind its closed gate the probe was admitted", _CURE_OPEN)
    return None


def _describe_left(probe: ProbeSight) -> str:
    return f"; still being removed: {', '.join(probe.left)}" if probe.left else ""


def derive_identity(sights: Sights) -> Finding:
    """What tells an execution who it is arrives in the pods unchanged, and they wait for it."""
    seen = sights.trial.runtime
    if isinstance(seen, Unseen):
        return doubt_unseen("what becomes of a private runtime", seen)
    if lost := _explain_loss(seen, is_fenced=sights.terms.is_fenced):
        return refute(f"the cluster has changed a private runtime: {lost}", _cure_loss("TrainingRuntimes"))
    probe = None if isinstance(sights.probe, Unseen) else sights.probe
    if probe is None or probe.jobset is None:
        return confirm(f"{_describe_kept(sights)} a private runtime")
    if lost := _explain_loss(probe.jobset, is_fenced=sights.terms.is_fenced):
        return refute(f"the cluster has changed a JobSet: {lost}", _cure_loss("JobSets"))
    return confirm(f"{_describe_kept(sights)} the JobSet that Trainer makes")


def _cure_loss(kinds: str) -> str:
    return f"find the webhook that changes {kinds}, and except our jobs from it"


def _describe_kept(sights: Sights) -> str:
    return "fence and epoch stand in" if sights.terms.is_fenced else "the epoch stands in"


def _explain_loss(raw: Raw, *, is_fenced: bool) -> str | None:
    pods = list(_find_pods(raw))
    for pod in pods:
        gates = {fields.text(gate, "name") for gate in fields.items(pod, "schedulingGates")}
        if is_fenced and words.FENCE not in gates:
            return f"the scheduling gate {words.FENCE} is gone"
        for container in fields.items(pod, "containers"):
            sources = {_read_source(variable) for variable in fields.items(container, "env")}
            if ("DISPATCH_EPOCH", _EPOCH_FIELD) not in sources:
                return f"container {fields.text(container, 'name')} is no longer told its epoch"
    return None if pods else "it has no pods"


def _find_pods(raw: Raw) -> Iterator[Raw]:
    """Pod specs of a runtime or JobSet."""
    spec = fields.mapping(raw, "spec")
    for job in fields.items(fields.mapping(spec, "template", "spec") or spec, "replicatedJobs"):
        yield fields.mapping(job, "template", "spec", "template", "spec")


def _read_source(variable: Raw) -> tuple[str, str]:
    return fields.text(variable, "name"), fields.text(variable, "valueFrom", "fieldRef", "fieldPath")
