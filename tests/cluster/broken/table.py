# SPDX-License-Identifier: Apache-2.0
"""The table: how a healthy cluster is broken, and what preflight must then say of it. Says nothing about how to try it.

The words are those that a person needs: what was seen, and what to do. The rest of each line may change freely.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.exceptions import DispatchError, RefusedError, UnavailableError
from tests.cluster.broken import access, meddling, parts, queues
from tests.cluster.broken.place import Breakage
from tests.cluster.broken.queues import MULTIKUEUE, NOTHING, OURS, build_quota, with_lease, with_queue
from tests.cluster.testbed.objects import CONTROLLER_NAME, FLAVOR


@dataclass(frozen=True)
class Row:
    """:param check: the one that names the trouble.
    :param seen: words of its reason.
    :param cure: words of its cure.
    :param may_start: jobs are as safe as ever.
    :param is_proved: it is a doubt about what no job needs.
    :param spec: of the job that can't be.
    """

    name: str
    broken: Breakage
    check: str
    seen: tuple[str, ...]
    cure: tuple[str, ...]
    may_start: bool = False
    is_proved: bool = False
    spec: JobSpec | None = None


@dataclass(frozen=True)
class DeadEnd:
    """Where nobody gets far enough to check anything.

    :param error: of every call.
    """

    name: str
    broken: Breakage
    error: type[DispatchError]
    seen: tuple[str, ...]


DEAD_ENDS = [
    DeadEnd("wrong address", access.with_kubeconfig(access.use_wrong_address), UnavailableError, ("can't be reached",)),
    DeadEnd(
        "wrong authority",
        access.with_kubeconfig(access.trust_somebody_else),
        RefusedError,
        ("certificate", "mend the kubeconfig"),
    ),
]

KUBERNETES = [
    Row(
        "Kubernetes of an older version",
        access.with_kubernetes("v1.33.9"),
        "kubernetes",
        ("v1.33.9 is older than",),
        ("upgrade the cluster",),
        may_start=True,
        is_proved=True,
    ),
    Row(
        "no Kubernetes",
        access.with_kubernetes("proxy-7"),
        "kubernetes",
        ("its version reads 'proxy-7'",),
        ("use Kubernetes",),
        may_start=True,
        is_proved=True,
    ),
]

STRANGERS = ("doesn't know us",)
RENEWAL = ("renew the token",)
SETUP = ("dispatch setup",)
ACCESS = [
    Row("expired token", access.with_kubeconfig(access.use_expired_token), "credentials", STRANGERS, RENEWAL),
    Row("wrong token", access.with_kubeconfig(access.use_wrong_token), "credentials", STRANGERS, RENEWAL),
    Row("revoked token", access.with_kubeconfig(access.use_revoked_token), "credentials", STRANGERS, RENEWAL),
    Row(
        "account without rights",
        access.with_kubeconfig(access.use_account_without_rights),
        "permissions",
        ("create and patch and delete trainjobs", "clusterqueues"),
        SETUP,
    ),
    Row("no RoleBinding", access.without_role_binding, "permissions", ("trainjobs", "pods/log", "localqueues"), SETUP),
    Row("no ClusterRoleBinding", access.without_cluster_role_binding, "permissions", ("clusterqueues",), SETUP),
    # They keep others from doing harm with these rights; what we do ourselves doesn't rest on them.
    Row(
        "policies missing",
        access.without_policies(access.POLICY, "airflow-trainjobs", "workloads"),
        "policies",
        ("not there", "-airflow-trainjobs", "-workloads"),
        SETUP,
        may_start=True,
    ),
    Row(
        "binding missing",
        access.without_policies(access.BINDING, "airflow-trainjobs"),
        "policies",
        ("not there", "Binding", "-airflow-trainjobs"),
        SETUP,
        may_start=True,
    ),
    Row(
        "binding that only audits",
        access.with_toothless_binding,
        "policies",
        ("doesn't deny", "-airflow-trainjobs"),
        SETUP,
        may_start=True,
    ),
]

SELECTOR = ("namespaceSelector",)
NAMESPACE = [
    Row("unknown namespace", queues.with_unknown_namespace, "namespace", ("no namespace", NOTHING), ("create it",)),
    Row("forbidden namespace", queues.with_settings(namespace=NOTHING), "permissions", (NOTHING,), SETUP),
    Row(
        "somebody else's queue",
        with_queue({"namespaceSelector": {"matchLabels": {"team": "others"}}}),
        "namespace",
        SELECTOR,
        ("selector", "label"),
    ),
    Row("nobody's queue", with_queue({"namespaceSelector": None}), "namespace", SELECTOR, ("selector",)),
    Row("unknown runtime", queues.with_settings(runtime={"name": NOTHING}), "runtime", (NOTHING,), ("create it",)),
    Row("full namespace", queues.with_full_namespace, "start gate", ("exceeded quota",), ()),
    Row("a queue for all", queues.with_queue_for_all, "start gate", ("into queue 'default'",), ("connection",)),
]

RESUMPTION = ("set its stopPolicy to None",)
CREATION = ("dispatch queue create",)
RAISE = ("raise the queue's quota",)
QUEUES = [
    Row("unknown LocalQueue", queues.with_settings(queue=NOTHING), "queue", ("LocalQueue nothing",), CREATION),
    Row("no ClusterQueue", with_queue(part={"clusterQueue": NOTHING}), "queue", ("ClusterQueue nothing",), CREATION),
    Row("LocalQueue on hold", with_queue(part={"stopPolicy": "Hold"}), "queue", ("LocalQueue", "Hold"), RESUMPTION),
    Row(
        "LocalQueue drained",
        with_queue(part={"stopPolicy": "HoldAndDrain"}),
        "queue",
        ("LocalQueue", "HoldAndDrain"),
        RESUMPTION,
    ),
    Row("ClusterQueue on hold", with_queue({"stopPolicy": "Hold"}), "queue", ("ClusterQueue", "Hold"), RESUMPTION),
    Row(
        "ClusterQueue drained",
        with_queue({"stopPolicy": "HoldAndDrain"}),
        "queue",
        ("ClusterQueue", "HoldAndDrain"),
        RESUMPTION,
    ),
    Row("no quota", with_queue(build_quota(cpu=0, memory=0)), "queue", ("cpu", "memory", "quota is 0"), RAISE),
    Row("no quota of memory", with_queue(build_quota(cpu=1, memory=0)), "queue", ("no memory", "quota is 0"), RAISE),
    Row(
        "unknown flavor",
        with_queue(build_quota(NOTHING, cpu=1, memory="1Gi")),
        "queue",
        ("FlavorNotFound", NOTHING),
        ("mend",),
    ),
]

REQUEST = ("ask for less",)
QUOTA = [
    Row(
        "job that never fits",
        with_queue(build_quota(cpu=1, memory="1Gi")),
        "quota",
        ("cpu", "64"),
        REQUEST,
        may_start=True,
        spec=JobSpec(command=["true"], resources={"cpu": "64"}),
    ),
    Row(
        "job that asks for what the queue hasn't",
        with_queue(),
        "quota",
        ("nvidia.com/gpu",),
        REQUEST,
        may_start=True,
        spec=JobSpec(command=["true"], resources={"nvidia.com/gpu": "1"}),
    ),
]

ALONE = ("alone, without onFlavors",)
CHECKS = [
    Row("no check", with_queue({"admissionChecksStrategy": None}), "admission check", ("doesn't list",), ALONE),
    Row(
        "check not listed",
        with_queue(checks=[{"name": "other"}], controllers={"other": "example.com/other"}),
        "admission check",
        ("doesn't list",),
        ALONE,
    ),
    Row("unknown check", with_queue(checks=[{"name": NOTHING}], check=NOTHING), "admission check", (NOTHING,), SETUP),
    Row(
        "check of some flavors",
        with_queue(checks=[{"name": OURS, "onFlavors": [FLAVOR]}]),
        "admission check",
        ("some flavors",),
        ALONE,
    ),
    Row(
        "second check",
        with_queue(checks=[{"name": OURS}, {"name": "second"}], controllers={"second": "example.com/second"}),
        "admission check",
        ("second",),
        ALONE,
    ),
    Row(
        "check of another controller",
        with_queue(checks=[{"name": "other"}], controllers={"other": "example.com/other"}, check="other"),
        "admission check",
        ("example.com/other",),
        SETUP,
    ),
    Row(
        "check that nobody has seen",
        with_queue(checks=[{"name": "unseen"}], controllers={"unseen": CONTROLLER_NAME}, check="unseen"),
        "admission check",
        ("not active",),
        ("start the controller",),
    ),
    Row(
        "MultiKueue in the way",
        with_queue(checks=[{"name": OURS}, {"name": "far"}], controllers={"far": MULTIKUEUE}),
        "multikueue",
        ("-far", "MultiKueue"),
        ("take it out of the queue",),
    ),
    Row(
        "MultiKueue alone",
        with_queue(checks=[{"name": "far"}], controllers={"far": MULTIKUEUE}),
        "multikueue",
        ("-far", "MultiKueue"),
        ("take it out of the queue",),
    ),
]

START = ("start dispatch-admission",)
CONTROLLER = [
    Row("controller dead", queues.with_dead_controller, "controller", ("renewed",), START),
    Row("controller dead in plain mode", queues.with_dead_controller_in_plain_mode, "controller", ("renewed",), START),
    Row("controller never there", queues.without_lease, "controller", ("no such Lease",), START),
    Row("Lease that nobody holds", with_lease(holderIdentity=""), "controller", ("nobody holds",), START),
    Row("Lease of someone else", with_lease(holderIdentity="stranger-6d8f"), "controller", ("stranger-6d8f",), START),
]

MANIFESTS = ("apply the manifests",)
KUEUE = [
    Row(
        "TrainJob integration off",
        parts.with_kueue_configured(integrations={"frameworks": ["batch/job"]}),
        "trainjob integration",
        ("doesn't manage TrainJobs",),
        ("trainer.kubeflow.org/trainjob",),
    ),
    Row(
        "namespace not managed",
        parts.with_kueue_configured(managedJobsNamespaceSelector={"matchLabels": {"team": "others"}}),
        "kueue",
        ("has not taken a job up",),
        ("manages this namespace",),
    ),
    Row(
        "gates off",
        parts.with_kueue_configured(featureGates={"AdmissionGatedBy": False}),
        "start gate",
        ("AdmissionGatedBy",),
        ("switch AdmissionGatedBy on",),
    ),
    Row("Kueue down", parts.with_stopped("kueue"), "kueue", ("doesn't answer",), ("controller of Kueue",)),
    Row(
        "Kueue's webhooks missing",
        parts.without_webhooks("kueue-mutating", "kueue-validating"),
        "kueue",
        ("not registered",),
        MANIFESTS,
    ),
    Row(
        "Kueue's validation missing",
        parts.without_webhooks("kueue-validating"),
        "kueue",
        ("not registered",),
        MANIFESTS,
    ),
    Row(
        "Kueue's webhooks lead nowhere",
        parts.with_webhooks_that_lead_nowhere("kueue-mutating"),
        "kueue",
        ("doesn't answer",),
        ("controller of Kueue",),
    ),
    Row(
        "Kueue of an older API",
        parts.with_versions(parts.KUEUE_GROUP, served=("v1beta1",)),
        "apis",
        ("workloads.kueue.x-k8s.io/v1beta2", "served: v1beta1"),
        ("Kueue 0.19",),
    ),
    Row(
        "Kueue of an older version",
        parts.with_version("kueue-validating", "v0.18.2"),
        "known faults",
        ("0.18.2",),
        ("upgrade Kueue",),
    ),
    Row(
        "foreign Workloads",
        parts.with_stranger(parts.KUEUE_GROUP, "Workload", "workloads"),
        "apis",
        ("workloads.kueue.x-k8s.io/v1beta2",),
        ("Kueue 0.19",),
    ),
]

TRAINER = [
    Row("Trainer down", parts.with_stopped("trainer"), "trainer", ("doesn't answer",), ("controller of Trainer",)),
    Row(
        "Trainer's webhooks missing",
        parts.without_webhooks("trainer-mutating", "trainer-validating"),
        "trainer",
        ("not registered",),
        MANIFESTS,
    ),
    Row(
        "no TrainJobs",
        parts.with_versions(parts.TRAINER_GROUP, "trainjobs"),
        "apis",
        ("trainjobs.trainer.kubeflow.org/v1alpha1",),
        ("Trainer 2.3",),
    ),
    Row(
        "foreign TrainJobs",
        parts.with_stranger(parts.TRAINER_GROUP, "TrainJob", "trainjobs"),
        "apis",
        ("trainjobs.trainer.kubeflow.org/v1alpha1",),
        ("Trainer 2.3",),
    ),
    Row("JobSet down", parts.with_stopped("jobset"), "jobset", ("taken",), ("controller of JobSet",)),
    Row(
        "JobSet's webhooks missing",
        parts.without_webhooks("jobset-mutating", "jobset-validating"),
        "jobset",
        ("not registered",),
        MANIFESTS,
    ),
    Row(
        "no JobSets",
        parts.with_versions(parts.JOBSET_GROUP),
        "apis",
        ("jobsets.jobset.x-k8s.io/v1alpha2", "no such group"),
        ("JobSet 0.12",),
    ),
]

MEDDLING = [
    Row(
        "fence taken from runtimes",
        meddling.with_meddler(meddling.RUNTIMES, meddling.take_gates),
        "identity",
        ("changed a private runtime", "scheduling gate"),
        ("webhook that changes TrainingRuntimes",),
    ),
    Row(
        "epoch taken from runtimes",
        meddling.with_meddler(meddling.RUNTIMES, meddling.take_environment),
        "identity",
        ("changed a private runtime", "no longer told its epoch"),
        ("webhook that changes TrainingRuntimes",),
    ),
    Row(
        "fence taken from JobSets",
        meddling.with_meddler(meddling.JOBSETS, meddling.take_gates),
        "identity",
        ("changed a JobSet", "scheduling gate"),
        ("webhook that changes JobSets",),
    ),
]

ROWS = [*KUBERNETES, *ACCESS, *NAMESPACE, *QUEUES, *QUOTA, *CHECKS, *CONTROLLER, *KUEUE, *TRAINER, *MEDDLING]
