# SPDX-License-Identifier: Apache-2.0
"""Every name on the wire, once: ours, and those of Kueue, Trainer, JobSet and Kubernetes with the place they come from.

The whole pure half, the adapter and the controller read it. It holds no logic.
"""

from __future__ import annotations

# -- ours: the same names as the other implementation of this contract uses, so that each reads the other's objects --
DOMAIN = "dispatch.phpboyscout.uk"
BACKEND = "kubeflow"

GATE = f"{DOMAIN}/gate"
"""Our name in Kueue's annotation :data:`ADMISSION_GATED_BY`."""
NOT_BEFORE_GATE = f"{DOMAIN}/not-before"
"""A second gate, of a job that may not be admitted before :data:`NOT_BEFORE_ANNOTATION`; the controller removes it."""
FENCE = f"{DOMAIN}/fence"
"""Our scheduling gate on every pod; only the controller lifts it."""
CONTROLLER_NAME = f"{DOMAIN}/admission"
"""``spec.controllerName`` of our AdmissionCheck."""
DEFAULT_CHECK = "dispatch-admission"
LEASE_NAMESPACE = "dispatch-system"
LEASE_NAME = "dispatch-admission"
FIELD_MANAGER = "dispatch"

JOB_LABEL = f"{DOMAIN}/job"
"""Job id in lower case, on every object of ours."""
SUBMISSION_LABEL = f"{DOMAIN}/submission"
DEPLOYMENT_LABEL = f"{DOMAIN}/deployment"
ROLE_LABEL = f"{DOMAIN}/role"
KIND_LABEL = f"{DOMAIN}/kind"
"""On ConfigMaps of ours: what they are, for instance :data:`LEDGER_KIND`."""
LEDGER_KIND = "ledger"
PROBE_KIND = "probe"
"""On the TrainJob and the runtime that preflight makes to watch: they are nobody's job."""
PROBE_UNTIL_ANNOTATION = f"{DOMAIN}/probe-until"
"""On a probe: when its preflight is over in any case. One that is left later may be removed: :mod:`.probe_marks`."""
NOWHERE = f"{DOMAIN}/nowhere"
"""Label that no node has: a probe asks for it."""
HOLDER_ANNOTATION = f"{DOMAIN}/holder"
"""On the Lease: which dispatch-admission wrote it last. Any other holder is none."""
QUEUE_ANNOTATION = f"{DOMAIN}/queue"
"""On what was made for a queue: its namespace and name."""

# On the TrainJob.
SPEC_ANNOTATION = f"{DOMAIN}/spec"
SPEC_DIGEST_ANNOTATION = f"{DOMAIN}/spec-digest"
OWNER_ANNOTATION = f"{DOMAIN}/owner"
SUPERVISION_ANNOTATION = f"{DOMAIN}/supervision"
CALLER_ATTEMPT_ANNOTATION = f"{DOMAIN}/caller-attempt"
NOT_BEFORE_ANNOTATION = f"{DOMAIN}/not-before"
HOLDS_ANNOTATION = f"{DOMAIN}/holds"
"""The hold book: the record that decides. The Workload's five annotations follow it."""
RECORD_ANNOTATION = f"{DOMAIN}/execution"
"""The execution record, written by the controller."""
ADMISSION_KEY_ANNOTATION = f"{DOMAIN}/admission-key"
"""For which reservation A was raised: ``<Workload UID>/<QuotaReserved lastTransitionTime>/<evictions>``."""
CLOCKS_ANNOTATION = f"{DOMAIN}/clocks"
END_ANNOTATION = f"{DOMAIN}/end"
"""How the submission ended, written when it was first seen: nothing later un-ends a job."""
STOP_ANNOTATION = f"{DOMAIN}/stop"
"""Why the job is being stopped, and since when."""

# On the TrainJob and, written by the patch that lifts the fence, on each pod.
ADMISSIONS_ANNOTATION = f"{DOMAIN}/admissions"
"""A."""
RESTARTS_ANNOTATION = f"{DOMAIN}/restarts"
"""J."""
EPOCH_ANNOTATION = f"{DOMAIN}/epoch"
ATTEMPT_ANNOTATION = f"{DOMAIN}/attempt"
"""``<job>.<submission>.<attempt>.<A>.<J>``."""

WORLD_RANK_ANNOTATION = f"{DOMAIN}/world-rank"
"""On a pod, written by the lift: its rank counted through all roles. The downward API can't add."""
RANK_OFFSET_ANNOTATION = f"{DOMAIN}/rank-offset"
"""On a pod template: the ranks of the roles before its own; the lift adds the pod's index to it."""
COPIED_FROM_ANNOTATION = f"{DOMAIN}/copied-from"
"""On the private runtime: kind and name of the one that the user named."""

# On the Workload: the newest hold.
HOLD_INSTANCE_ANNOTATION = f"{DOMAIN}/hold-instance"
HOLD_SINCE_ANNOTATION = f"{DOMAIN}/hold-since"
HOLD_WHO_ANNOTATION = f"{DOMAIN}/hold-who"
HOLD_UNTIL_ANNOTATION = f"{DOMAIN}/hold-until"
HOLD_REASON_ANNOTATION = f"{DOMAIN}/hold-reason"

# -- Kueue (pkg/constants/constants.go, apis/kueue/v1beta2/workload_types.go; 0.19.2 and main of 0.20) --
ADMISSION_GATED_BY = "kueue.x-k8s.io/admission-gated-by"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
JOB_UID_LABEL = "kueue.x-k8s.io/job-uid"
"""On the Workload: UID of the TrainJob. The right server-side selector."""

KUEUE_PATCH_MANAGER = "kueue.x-k8s.io/manager"
"""Kueue's own item of ``spec.runtimePatches``, added by its webhook (pkg/controller/jobs/trainjob)."""

MULTIKUEUE_CONTROLLER = "kueue.x-k8s.io/multikueue"
"""``spec.controllerName`` of a check that sends jobs to another cluster; ``managedBy`` of such a job."""
KUEUE_WEBHOOKS = ("mtrainjob.kb.io", "vtrainjob.kb.io", "mworkload.kb.io", "vworkload.kb.io")
"""Those that our jobs need (config/components/webhook/manifests.yaml)."""
ADMISSION_GATED = "AdmissionGated"
"""Reason of ``QuotaReserved=False`` behind a gate, with nothing worse in the way (pkg/workload/workload.go)."""

QUOTA_RESERVED = "QuotaReserved"
ADMITTED = "Admitted"
EVICTED = "Evicted"
PREEMPTED = "Preempted"
REQUEUED = "Requeued"
FINISHED = "Finished"
"""Conditions of a Workload. ``PodsReady`` is left out on purpose: it stays True after an eviction."""

CHECK_PENDING = "Pending"
CHECK_READY = "Ready"
CHECK_RETRY = "Retry"

# -- Trainer 2.3 (pkg/apis/trainer/v1alpha1/trainjob_types.go) --
ANCESTOR_STEP_LABEL = "trainer.kubeflow.org/trainjob-ancestor-step"
TRAINER_STEP = "trainer"
RUNTIME_PATCH_MANAGER = f"{DOMAIN}/identity"
"""Our item of ``spec.runtimePatches``; plain mode without a controller only."""
SNAPSHOT_SUFFIX = "-runtime-snapshot"
"""ConfigMap of a TrainJob, key ``runtime``: what Trainer renders from."""
RUNTIME_UNSEEN = ("must be created before the TrainJob is created", "not found")
"""In the refusal of a TrainJob whose runtime was made a moment ago: the webhooks of Trainer and Kueue look into caches
(pkg/runtime/core/trainingruntime.go, Kueue's pkg/controller/jobs/trainjob)."""
TRAINJOB_CONTROLLER = "trainer.kubeflow.org/trainjob-controller"
"""``spec.managedBy`` of a job that runs here, as Trainer fills it in."""
TRAINER_WEBHOOKS = (
    "defaulter.trainjob.trainer.kubeflow.org",
    "validator.trainjob.trainer.kubeflow.org",
    "validator.trainingruntime.trainer.kubeflow.org",
)
"""Those that our jobs need (manifests/base/webhook/manifests.yaml)."""
TRAINJOB_SUSPENDED = "Suspended"
TRAINJOB_COMPLETE = "Complete"
TRAINJOB_FAILED = "Failed"

# -- JobSet 0.12 (api/jobset/v1alpha2/jobset_types.go) --
JOBSET_WEBHOOKS = ("mjobset.kb.io", "vjobset.kb.io")
"""Kueue has two of the same names, in the configuration of all its own (config/components/webhook/manifests.yaml)."""
JOBSET_SUSPENDED = "Suspended"
JOBSET_NAME_LABEL = "jobset.sigs.k8s.io/jobset-name"
JOBSET_UID_LABEL = "jobset.sigs.k8s.io/jobset-uid"
REPLICATED_JOB_LABEL = "jobset.sigs.k8s.io/replicatedjob-name"
JOB_INDEX_LABEL = "jobset.sigs.k8s.io/job-index"
RESTART_LABEL = "jobset.sigs.k8s.io/restart-attempt"
"""J of a pod: stamped when its Job is made."""

# -- Kubernetes (batch/v1, core/v1) --
COMPLETION_INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
DISRUPTION_TARGET = "DisruptionTarget"
POD_GC_REASON = "DeletionByPodGC"
OUT_OF_SERVICE_TAINT = "node.kubernetes.io/out-of-service"

# Container of a role's pod, as Trainer wants it for the trainer step; ours in every role.
NODE_CONTAINER = "node"
RESULT_PATH = "/dev/termination-log"
"""The result of rank 0 comes back as the termination message, which Kubernetes cuts at 4,096 bytes."""
