# SPDX-License-Identifier: Apache-2.0
"""What an administrator sets up for jobs: flavor, check, priorities, a runtime, and a queue for each namespace.

Pure: builds manifests. Applied by the instance (the shared ones) and by the tests' fixtures (the rest).
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.cluster.testbed.api import Manifest
from tests.cluster.testbed.pins import TRAINER_IMAGE

KUEUE_VERSION, TRAINER_VERSION = "kueue.x-k8s.io/v1beta2", "trainer.kubeflow.org/v1alpha1"
FLAVOR, RUNTIME, LOCAL_QUEUE = "default-flavor", "dispatch-plain", "lq"
ADMISSION_CHECK, CONTROLLER_NAME = "dispatch-admission", "dispatch.phpboyscout.uk/admission"
CONTROLLER_NAMESPACE = "dispatch-system"
PRIORITIES = {"low": 100, "normal": 500, "high": 1000}
SLOT = "example.com/slot"
"""An extended resource that both nodes have plenty of."""


def build_bare_objects() -> list[Manifest]:
    """What is there before anybody sets the cluster up for jobs of ours: priorities and a runtime."""
    return [
        *(
            {
                "apiVersion": KUEUE_VERSION,
                "kind": "WorkloadPriorityClass",
                "metadata": {"name": name},
                "value": value,
            }
            for name, value in PRIORITIES.items()
        ),
        build_runtime(RUNTIME),
    ]


def build_shared_objects() -> list[Manifest]:
    """Cluster-wide, the same for all tests."""
    return [
        build_namespace(CONTROLLER_NAMESPACE),
        {"apiVersion": KUEUE_VERSION, "kind": "ResourceFlavor", "metadata": {"name": FLAVOR}},
        {
            "apiVersion": KUEUE_VERSION,
            "kind": "AdmissionCheck",
            "metadata": {"name": ADMISSION_CHECK},
            "spec": {"controllerName": CONTROLLER_NAME},
        },
        *build_bare_objects(),
    ]


def build_runtime(name: str, *, image: str = TRAINER_IMAGE) -> Manifest:
    """A runtime of one role, ``node``, that trains with nothing but Python."""
    container = {
        "name": "node",
        "image": image,
        "imagePullPolicy": "Never",
        "resources": {"requests": {"cpu": "100m", "memory": "32Mi"}},
    }
    pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 5, "containers": [container]}
    step = {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}
    job = {"name": "node", "template": {"metadata": step, "spec": {"backoffLimit": 0, "template": {"spec": pod}}}}
    return {
        "apiVersion": TRAINER_VERSION,
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": name, "labels": {"trainer.kubeflow.org/framework": "plain"}},
        "spec": {"mlPolicy": {"numNodes": 1}, "template": {"spec": {"replicatedJobs": [job]}}},
    }


def build_namespace(name: str) -> Manifest:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def build_quota_queue(namespace: str, name: str, quota: Mapping[str, str | int]) -> list[Manifest]:
    """A LocalQueue of its own ClusterQueue, in which the more important job preempts the less important one.

    :param quota: of any resources.
    """
    cluster_queue, local_queue = build_queue(namespace, name=name)
    resources = [{"name": resource, "nominalQuota": str(amount)} for resource, amount in quota.items()]
    group = {"coveredResources": list(quota), "flavors": [{"name": FLAVOR, "resources": resources}]}
    unique = f"{namespace}-{name}"
    cluster_queue["metadata"] = {"name": unique}
    cluster_queue["spec"] |= {"resourceGroups": [group], "preemption": {"withinClusterQueue": "LowerPriority"}}
    local_queue["spec"] = {"clusterQueue": unique}
    return [cluster_queue, local_queue]


def build_queue(
    namespace: str,
    *,
    cpu: str = "2",
    memory: str = "1Gi",
    cohort: str | None = None,
    checks: tuple[str, ...] = (ADMISSION_CHECK,),
    name: str | None = None,
) -> list[Manifest]:
    """A ClusterQueue and the LocalQueue of the namespace that feeds it.

    :param name: of the ClusterQueue; None: that of the namespace, and then the LocalQueue is ``lq``.
    """
    flavor = {
        "name": FLAVOR,
        "resources": [{"name": "cpu", "nominalQuota": cpu}, {"name": "memory", "nominalQuota": memory}],
    }
    spec: Manifest = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "resourceGroups": [{"coveredResources": ["cpu", "memory"], "flavors": [flavor]}],
    }
    if checks:
        spec["admissionChecksStrategy"] = {"admissionChecks": [{"name": check} for check in checks]}
    if cohort is not None:
        spec["cohortName"] = cohort
    queue = name or namespace
    return [
        {"apiVersion": KUEUE_VERSION, "kind": "ClusterQueue", "metadata": {"name": queue}, "spec": spec},
        {
            "apiVersion": KUEUE_VERSION,
            "kind": "LocalQueue",
            "metadata": {"name": name or LOCAL_QUEUE, "namespace": namespace},
            "spec": {"clusterQueue": queue},
        },
    ]
