# SPDX-License-Identifier: Apache-2.0
"""Each check, judged from what was seen: a table of faults, with the words that name them and those that cure them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.preflight import (
    CHECKS,
    OF_A_QUEUE,
    derive_preflight,
    list_checks,
)
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.access import Right
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.sights import (
    PolicySight,
    ServedGroup,
    Sights,
    TrialSight,
    Unseen,
)
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.trying import explain_untried, is_way_free
from airflow_provider_dispatch.adapters.kubeflow.model.queue_fit import RoleRequest
from airflow_provider_dispatch.adapters.kubeflow.model.resources import PODS, TRAINJOBS, WORKLOADS
from airflow_provider_dispatch.core.capabilities import Answer, Source
from tests.adapters.kubeflow.model.preflight import sceneries as at
from tests.adapters.kubeflow.model.preflight.sceneries import DENIED, condition, judge, named, probe, scene
from tests.cluster.broken.table import ROWS

NO, UNKNOWN = Answer.NO, Answer.UNKNOWN


def queue(**parts: Any) -> Sights:
    return scene(queue=replace(scene().queue, **parts))


def trial(**parts: Any) -> Sights:
    return scene(probe=None, trial=replace(scene().trial, **parts))


def listed(*entries: dict[str, Any]) -> Sights:
    return queue(cluster_queue=at.cluster_queue(admissionChecksStrategy={"admissionChecks": list(entries)}))


def quota(cpu: object, **limits: object) -> dict[str, Any]:
    resources = [{"name": "cpu", "nominalQuota": cpu, **limits}, {"name": "memory", "nominalQuota": "1Gi"}]
    group = {"coveredResources": ["cpu", "memory"], "flavors": [{"name": "default", "resources": resources}]}
    return {"resourceGroups": [group]}


def inactive(kind: str, reason: str) -> dict[str, Any]:
    made = at.local_queue() if kind == "lq" else at.cluster_queue()
    return made | {"status": condition("Active", is_true=False, reason=reason, message="so it is")}


def unfenced() -> dict[str, Any]:
    raw = at.runtime()
    pods_of(raw)["schedulingGates"] = []
    return raw


def untold(raw: dict[str, Any]) -> dict[str, Any]:
    pods_of(raw)["containers"][0]["env"] = []
    return raw


def pods_of(raw: dict[str, Any]) -> dict[str, Any]:
    spec = raw["spec"].get("template", raw)["spec"]
    pods: dict[str, Any] = spec["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    return pods


def versions(**labels: str) -> tuple[dict[str, Any], ...]:
    (kueue, trainer, jobset) = at.WEBHOOKS
    return (kueue | {"metadata": {"labels": labels}}, trainer, jobset)


WAITS = TrialSight(Unseen("no answer", "vtrainjob.kb.io"), Unseen("x"), at.runtime())
NO_TRAINER = Unseen("no answer", "validator.trainingruntime.trainer.kubeflow.org")
NOT_TAKEN_UP: dict[str, Any] = {"jobset": None, "trainjob": at.trainjob() | {"status": {}}}
GROUPS = scene().served
OLD = {**GROUPS, WORKLOADS.group: ServedGroup(("v1beta1",))}
HALF = {
    **GROUPS,
    TRAINJOBS.group: ServedGroup(("v1alpha1",), frozenset({"trainingruntimes", "clustertrainingruntimes"})),
}
NONE = {WORKLOADS.group: GROUPS[WORKLOADS.group], TRAINJOBS.group: GROUPS[TRAINJOBS.group]}

FAULTS = [
    ("credentials", scene(user=DENIED), NO, "doesn't know us: 403 Forbidden", "renew the token"),
    ("kubernetes", scene(version="v1.33.2"), UNKNOWN, "v1.33.2 is older than 1.34", "upgrade"),
    ("kubernetes", scene(version="odd"), UNKNOWN, "its version reads 'odd'", "1.34 or newer"),
    ("apis", scene(served=OLD), NO, "workloads.kueue.x-k8s.io/v1beta2 (served: v1beta1)", "install Kueue 0.19"),
    (
        "apis",
        scene(served=HALF),
        NO,
        "trainjobs.trainer.kubeflow.org/v1alpha1 (the version is, the kind",
        "Trainer 2.3",
    ),
    ("apis", scene(served=NONE), NO, "jobsets.jobset.x-k8s.io/v1alpha2 (no such group)", "install JobSet 0.12"),
    (
        "permissions",
        scene(denied=(Right(PODS, "get"), Right(PODS, "list"), Right(WORKLOADS, "patch"))),
        NO,
        "in namespace team we may not get and list pods, patch workloads.kueue.x-k8s.io",
        "bind the roles of `dispatch setup`",
    ),
    ("permissions", scene(denied=DENIED), UNKNOWN, "what we may do can't be looked at: 403", "mend what the lines"),
    ("namespace", scene(namespace=None), NO, "there is no namespace team", "create it"),
    ("namespace", scene(namespace=DENIED), UNKNOWN, "namespace team can't be looked at", "mend"),
    (
        "namespace",
        scene(namespace={"metadata": {"deletionTimestamp": "2026-09-01T11:00:00Z"}}),
        NO,
        "namespace team is being removed",
        "correct the connection",
    ),
    (
        "namespace",
        queue(cluster_queue=at.cluster_queue(namespaceSelector={"matchLabels": {"a": "b"}})),
        NO,
        "ClusterQueue cq takes no jobs from namespace team",
        "label the namespace",
    ),
    ("runtime", scene(runtime=None), NO, "there is no training runtime plain", "create it"),
    ("runtime", scene(runtime=DENIED), UNKNOWN, "training runtime plain can't be looked at", "mend"),
    ("queue", queue(local_queue=None), NO, "there is no LocalQueue lq in namespace team", "dispatch queue create"),
    ("queue", queue(local_queue=DENIED), UNKNOWN, "LocalQueue lq can't be looked at", "mend"),
    ("queue", queue(cluster_queue=None), NO, "ClusterQueue cq of LocalQueue lq is missing", "dispatch queue create"),
    ("queue", queue(cluster_queue=DENIED), UNKNOWN, "ClusterQueue of LocalQueue lq can't be", "mend"),
    (
        "queue",
        queue(local_queue=at.local_queue(stopPolicy="Hold")),
        NO,
        "LocalQueue lq is stopped: stopPolicy Hold",
        "None",
    ),
    (
        "queue",
        queue(cluster_queue=at.cluster_queue(stopPolicy="HoldAndDrain")),
        NO,
        "ClusterQueue cq is stopped: stopPolicy HoldAndDrain",
        "set its stopPolicy to None",
    ),
    ("queue", queue(cluster_queue=inactive("cq", "Odd")), NO, "cq is not active: Odd: so it is", "what Kueue says"),
    ("queue", queue(local_queue=inactive("lq", "Odd")), NO, "lq is not active: Odd: so it is", "what Kueue says"),
    ("queue", queue(flavors=frozenset()), NO, "names ResourceFlavors that are not there: default", "create them"),
    (
        "queue",
        queue(cluster_queue=at.cluster_queue(**quota(0))),
        NO,
        "cq has no cpu to give",
        "raise the queue's quota",
    ),
    (
        "queue",
        queue(cluster_queue=at.cluster_queue(cohortName="c", **quota(0, borrowingLimit=0))),
        NO,
        "has no cpu to give",
        "cohort",
    ),
    ("admission check", listed(), NO, "cq doesn't list AdmissionCheck ours", "list ours alone, without onFlavors"),
    ("admission check", listed({"name": "ours", "onFlavors": ["a"]}), NO, "limits AdmissionCheck ours", "alone"),
    ("admission check", listed({"name": "ours"}, {"name": "b"}), NO, "other checks beside ours: b", "alone"),
    ("admission check", queue(cluster_queue=None), UNKNOWN, "no ClusterQueue that could list it", "mend the queue"),
    ("admission check", queue(cluster_queue=DENIED), UNKNOWN, "the ClusterQueue can't be looked at", "mend"),
    ("admission check", queue(checks=DENIED), UNKNOWN, "AdmissionCheck ours can't be looked at", "mend"),
    ("admission check", queue(checks={"ours": None}), NO, "there is no AdmissionCheck ours", "dispatch setup --apply"),
    ("admission check", queue(checks={"ours": at.check("x")}), NO, "ours is x's, not", "dispatch setup --apply"),
    ("admission check", queue(checks={"ours": at.check(is_active=False)}), NO, "is not active", "start the controller"),
    ("multikueue", queue(checks=DENIED), UNKNOWN, "the queue's checks can't be looked at", "mend"),
    (
        "multikueue",
        queue(checks={"ours": at.check(), "far": at.check(words.MULTIKUEUE_CONTROLLER)}),
        NO,
        "AdmissionCheck far is MultiKueue's",
        "take it out of the queue",
    ),
    (
        "multikueue",
        trial(trainjob={"spec": {"managedBy": words.MULTIKUEUE_CONTROLLER}}),
        NO,
        "another manager: managedBy kueue.x-k8s.io/multikueue",
        "take it out of the queue",
    ),
    (
        "controller",
        scene(lease=None),
        NO,
        "dispatch-system/dispatch-admission: there is no such Lease",
        "start dispatch",
    ),
    ("controller", scene(lease=DENIED), UNKNOWN, "Lease dispatch-system/dispatch-admission can't be", "mend"),
    ("controller", scene(lease=at.lease("")), NO, "nobody holds the Lease", "start dispatch-admission"),
    ("controller", scene(lease=at.lease("a", signed="b")), NO, "held by a, renewed 10 s ago, and that is no", "start"),
    (
        "controller",
        scene(lease=at.lease("a", renewed="2026-09-01T11:59:00Z")),
        NO,
        "held by a, renewed 60 s ago",
        "start dispatch-admission",
    ),
    ("kueue", scene(trial=WAITS), NO, "webhook vtrainjob.kb.io doesn't answer: no answer", "controller of Kueue runs"),
    ("kueue", trial(trainjob=DENIED), UNKNOWN, "what Kueue makes of a job can't be looked at", "mend"),
    (
        "kueue",
        scene(webhooks=at.WEBHOOKS[1:]),
        NO,
        "not registered: webhook mtrainjob.kb.io, vtrain",
        "manifests of Kueue",
    ),
    ("kueue", scene(probe=probe(workload=None)), NO, "has not taken a job up in 10 s", "the controller of Kueue runs"),
    (
        "kueue",
        scene(webhooks=(at.configuration("kueue", *words.KUEUE_WEBHOOKS, bundle=""),)),
        NO,
        "without a caBundle the API server can't call webhook mtrainjob.kb.io",
        "the controller of Kueue runs",
    ),
    ("trainjob integration", trial(trainjob=at.trainjob(at.PLAIN)), NO, "doesn't manage TrainJobs", "integrations"),
    ("trainjob integration", trial(trainjob=DENIED), UNKNOWN, "what Kueue makes of a job", "mend"),
    ("trainjob integration", trial(trainjob=at.trainjob(is_suspended=False)), NO, "doesn't manage", "integrations"),
    (
        "trainer",
        trial(runtime=NO_TRAINER),
        NO,
        "trainingruntime.trainer.kubeflow.org doesn't answer",
        "of Trainer runs",
    ),
    ("trainer", trial(runtime=DENIED), UNKNOWN, "what Trainer makes of a runtime can't be", "mend"),
    ("trainer", scene(webhooks=at.WEBHOOKS[::2]), NO, "not registered: webhook defaulter.", "manifests of Trainer"),
    ("trainer", scene(probe=probe(**NOT_TAKEN_UP)), NO, "has not taken a job up in 10 s", "of Trainer runs"),
    ("jobset", scene(webhooks=at.WEBHOOKS[:2]), NO, "not registered: webhook mjobset.kb.io, vjobset", "of JobSet"),
    ("jobset", scene(probe=probe(**NOT_TAKEN_UP)), UNKNOWN, "Trainer has made no JobSet", "mend Trainer first"),
    ("jobset", scene(probe=None, webhooks=DENIED), UNKNOWN, "its webhooks can't be looked at", "mend"),
    ("jobset", scene(probe=probe(jobset=None)), NO, "has not taken a job up", "the controller of JobSet runs"),
    ("jobset", scene(probe=probe(jobset=at.jobset() | {"status": {}})), NO, "has not taken a job up", "of JobSet runs"),
    (
        "policies",
        scene(policies=PolicySight(("one", "two"), (), frozenset({"one"}))),
        NO,
        "not there: ValidatingAdmissionPolicy two",
        "dispatch setup --apply",
    ),
    (
        "policies",
        scene(policies=PolicySight((), ("a", "b"), frozenset(), frozenset({"a"}))),
        NO,
        "not there, or doesn't deny: ValidatingAdmissionPolicyBinding b",
        "dispatch setup --apply",
    ),
    ("policies", scene(policies=PolicySight(policies=DENIED)), UNKNOWN, "Policies can't be looked at", "mend"),
    ("policies", scene(policies=PolicySight(bindings=DENIED)), UNKNOWN, "bindings of Validating", "mend"),
    ("start gate", trial(trainjob=DENIED), UNKNOWN, "what becomes of a job behind its gate", "mend"),
    ("start gate", trial(is_nonsense_refused=DENIED), UNKNOWN, "whether Kueue looks at gates", "mend"),
    ("start gate", trial(is_nonsense_refused=False), NO, "takes a gate that is none", "switch AdmissionGatedBy on"),
    ("start gate", scene(probe=DENIED), UNKNOWN, "a probe can't be looked at", "mend"),
    ("start gate", scene(at.PLAIN, probe=DENIED), UNKNOWN, "a probe can't be looked at", "mend"),
    (
        "start gate",
        scene(probe=probe(pods=("p",))),
        NO,
        "behind its closed gate the probe had pods: p",
        "upgrade Kueue",
    ),
    ("start gate", scene(at.PLAIN, probe=probe(at.PLAIN, pods=("p",))), NO, "the probe had pods: p", "nothing may be"),
    ("start gate", scene(probe=probe(was_let_in=True)), NO, "the probe was admitted", "upgrade Kueue"),
    ("start gate", scene(probe=probe(workload=None)), UNKNOWN, "no Workload of the probe", "mend Kueue first"),
    ("start gate", scene(probe=probe(workload=named("w"))), UNKNOWN, "nothing is said of it yet", "mend the queue"),
    ("start gate", scene(probe=probe(workload=at.workload("OnHold"))), UNKNOWN, "OnHold: it waits", "mend the queue"),
    (
        "start gate",
        scene(at.PLAIN, trial=TrialSight(at.trainjob())),
        NO,
        "put a job of queue '' into queue 'lq'",
        "name that queue",
    ),
    ("identity", trial(runtime=DENIED), UNKNOWN, "what becomes of a private runtime", "mend"),
    (
        "identity",
        trial(runtime=unfenced()),
        NO,
        "changed a private runtime: the scheduling gate",
        "changes TrainingRuntimes",
    ),
    ("identity", trial(runtime=untold(at.runtime())), NO, "container node is no longer told its epoch", "webhook"),
    ("identity", trial(runtime={}), NO, "it has no pods", "webhook"),
    (
        "identity",
        scene(probe=probe(jobset=untold(at.jobset()))),
        NO,
        "changed a JobSet: container node",
        "changes JobSets",
    ),
    ("quota", scene(requests={"node": RoleRequest(2, {"cpu": 3000})}), NO, "at most 4 of 6 cpu", "ask for less"),
    ("quota", queue(cluster_queue=None), UNKNOWN, "no ClusterQueue whose quota", "mend the queue first"),
    ("quota", queue(cluster_queue=DENIED), UNKNOWN, "the ClusterQueue can't be looked at", "mend"),
    (
        "known faults",
        scene(webhooks=versions(**{"app.kubernetes.io/version": "v0.18.4"})),
        NO,
        "Kueue 0.18.4 is older than 0.19",
        "upgrade Kueue",
    ),
]


@pytest.mark.parametrize(("name", "sights", "value", "reason", "cure"), FAULTS)
def test_a_fault_is_named_with_its_cure(name: str, sights: Sights, value: Answer, reason: str, cure: str) -> None:
    found = judge(name, sights)
    assert (found.value, found.source) == (value, Source.PROBED)
    assert reason in found.reason
    assert cure in found.cure
    assert "\n" not in found.advice


def test_every_check_has_a_fault() -> None:
    assert {name for name, *_ in FAULTS} == set(CHECKS)


GOOD = [
    ("credentials", scene(), "the API server knows us as us"),
    ("kubernetes", scene(version="v1.34.0"), "v1.34.0"),
    ("apis", scene(), "trainer.kubeflow.org/v1alpha1, jobset.x-k8s.io/v1alpha2, kueue.x-k8s.io/v1beta2"),
    ("apis", scene(at.PLAIN), "trainer.kubeflow.org/v1alpha1, jobset.x-k8s.io/v1alpha2"),
    ("permissions", scene(), "in namespace team and of the cluster is allowed"),
    ("namespace", scene(), "team is there, and ClusterQueue cq takes its jobs"),
    ("namespace", queue(cluster_queue=DENIED), "team is there"),
    ("runtime", scene(), "ClusterTrainingRuntime plain is there"),
    ("runtime", scene(replace(at.KUEUE, runtime="")), "the connection names none"),
    ("queue", scene(), "LocalQueue lq leads to ClusterQueue cq, which runs"),
    ("queue", queue(cluster_queue=inactive("cq", "AdmissionCheckInactive")), "which runs"),
    ("queue", queue(cluster_queue=at.cluster_queue() | {"status": {}}), "which runs"),
    ("queue", queue(cluster_queue=at.cluster_queue(cohortName="c", **quota(0))), "which runs"),
    ("queue", queue(flavors=DENIED), "which runs"),
    ("admission check", scene(), "ClusterQueue cq lists AdmissionCheck ours, alone, and it is active"),
    ("multikueue", scene(), "no check of the queue and no manager sends jobs elsewhere"),
    ("multikueue", trial(trainjob=DENIED), "no check of the queue"),
    ("multikueue", trial(trainjob={"spec": {"managedBy": words.TRAINJOB_CONTROLLER}}), "no check of the queue"),
    ("controller", scene(), "held by pod-1, renewed 10 s ago"),
    ("kueue", scene(), "its webhooks are registered and its controller takes a job up"),
    ("kueue", scene(webhooks=DENIED, probe=None), "a dry run passes"),
    ("kueue", scene(webhooks=DENIED), "its controller takes a job up"),
    ("kueue", scene(probe=probe(workload=None, trainjob=at.trainjob(at.PLAIN))), "its webhooks are registered"),
    ("trainjob integration", scene(), "Kueue suspends a new TrainJob"),
    ("trainer", scene(probe=None), "its webhooks are registered"),
    ("trainer", scene(probe=probe(trainjob={})), "its controller takes a job up"),
    ("jobset", scene(probe=DENIED), "its webhooks are registered"),
    ("jobset", scene(), "its controller takes a job up"),
    ("policies", scene(), "there and bound: one, two"),
    ("start gate", scene(), "a probe waited 10 s behind our gate, without quota and without a pod"),
    ("start gate", scene(probe=None), "no probe was watched"),
    ("start gate", scene(at.PLAIN), "a suspended job made no pod in 10 s"),
    ("start gate", scene(at.PLAIN, probe=None), "spec.suspend of the TrainJob; no probe was watched"),
    ("start gate", scene(probe=probe(left=("Pod p",))), "without a pod; still being removed: Pod p"),
    ("identity", scene(), "fence and epoch stand in the JobSet that Trainer makes"),
    ("identity", scene(at.ALONE), "the epoch stands in the JobSet that Trainer makes"),
    ("identity", scene(probe=DENIED), "fence and epoch stand in a private runtime"),
    ("identity", scene(probe=probe(jobset=None)), "fence and epoch stand in a private runtime"),
    ("quota", scene(requests={"node": RoleRequest(1, {"cpu": 3000})}), "within the quota of ClusterQueue cq"),
    ("known faults", scene(), "no version is written where it could be seen"),
    ("known faults", scene(webhooks=DENIED), "no version is written where it could be seen"),
    ("known faults", scene(webhooks=versions(**{"helm.sh/chart": "kueue-0.20.1"})), "Kueue 0.20.1"),
    ("known faults", scene(webhooks=versions(**{"helm.sh/chart": "kueue-0.19"})), "Kueue 0.19.0; known: an empty list"),
    ("known faults", scene(at.PLAIN, webhooks=versions(**{"helm.sh/chart": "kueue-0.18.0"})), "no version is written"),
]


@pytest.mark.parametrize(("name", "sights", "reason"), GOOD)
def test_what_is_good_is_told_by_what_was_seen(name: str, sights: Sights, reason: str) -> None:
    found = judge(name, sights)
    assert found.is_yes, found
    assert reason in found.reason
    assert found.cure == ""


@pytest.mark.parametrize(
    ("sights", "said"),
    [
        (scene(), None),
        (scene(denied=(Right(PODS, "get"),)), None),
        (scene(denied=DENIED), "it isn't known what we may do"),
        (scene(denied=(Right(TRAINJOBS, "delete"),)), "we may not delete trainjobs.trainer.kubeflow.org"),
        (scene(served=HALF), "trainjobs are not served"),
        (
            queue(checks={"far": at.check(words.MULTIKUEUE_CONTROLLER)}),
            "AdmissionCheck far sends jobs to other clusters",
        ),
        (queue(checks=DENIED), None),
        (scene(served={}), "trainjobs and trainingruntimes are not served"),
    ],
)
def test_nothing_is_tried_that_could_not_be_made_or_removed(sights: Sights, said: str | None) -> None:
    assert explain_untried(sights) == (said and f"nothing was tried, since {said}")


@pytest.mark.parametrize(
    ("sights", "is_free"),
    [
        (scene(), True),
        (scene(at.PLAIN, queue=replace(scene().queue, local_queue=None)), True),
        (queue(local_queue=None), False),
        (listed(), False),
        (scene(namespace=None), False),
    ],
)
def test_the_way_is_free_when_nothing_but_a_gate_could_keep_a_job_waiting(sights: Sights, *, is_free: bool) -> None:
    assert is_way_free(sights) is is_free


def test_only_what_concerns_a_connection_is_checked_in_an_order_that_stays() -> None:
    everything = tuple(CHECKS)
    assert list_checks(at.KUEUE, has_job=True) == everything
    assert list_checks(at.KUEUE) == tuple(name for name in everything if name != "quota")
    plain = [name for name in everything if name not in OF_A_QUEUE and name != "quota"]
    assert list_checks(at.PLAIN, has_job=True) == tuple(plain)
    assert list_checks(at.ALONE) == tuple(name for name in plain if name != "controller")


def test_whom_the_server_does_not_know_sees_one_line() -> None:
    assert list(derive_preflight(scene(user=DENIED)).checks) == ["credentials"]


def test_a_job_is_judged_when_there_is_one() -> None:
    assert "quota" in derive_preflight(scene(requests={})).checks
    assert "quota" not in derive_preflight(scene()).checks


def test_each_check_is_broken_on_a_real_cluster_too() -> None:
    """One that nobody has seen fail there may never fail."""
    assert {row.check for row in ROWS} == CHECKS.keys()
    assert len({row.name for row in ROWS}) == len(ROWS)
