# SPDX-License-Identifier: Apache-2.0
"""Whether a queue lets jobs in, and only past our check, whose controller lives."""

from __future__ import annotations

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.answers import confirm, doubt, doubt_unseen, refute
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.sights import Sights, Unseen
from airflow_provider_dispatch.adapters.kubeflow.model.queue_fit import explain_misfit, find_empty_resources
from airflow_provider_dispatch.adapters.kubeflow.model.queue_guard import (
    describe_lease,
    explain_foreign_check,
    explain_inactive_check,
    explain_unlisted,
)
from airflow_provider_dispatch.core.capabilities import Finding

_RUNS = ("", "None")
"""Of ``stopPolicy``."""
_OF_THE_CHECK = ("AdmissionCheckNotFound", "AdmissionCheckInactive")
"""Reasons of a ClusterQueue that isn't Active; the line about the check tells them better."""
_CURE_MISSING = "make it with `dispatch queue create`, or name another one in the connection"


def derive_queue(sights: Sights) -> Finding:
    """LocalQueue and ClusterQueue are there, run, and have something to give."""
    local, cluster = sights.queue.local_queue, sights.queue.cluster_queue
    name, place = sights.terms.queue, sights.terms.namespace
    if isinstance(local, Unseen):
        return doubt_unseen(f"LocalQueue {name}", local)
    if local is None:
        return refute(f"there is no LocalQueue {name} in namespace {place}", _CURE_MISSING)
    if isinstance(cluster, Unseen):
        return doubt_unseen(f"the ClusterQueue of LocalQueue {name}", cluster)
    if cluster is None:
        missing = fields.text(local, "spec", "clusterQueue")
        return refute(f"ClusterQueue {missing} of LocalQueue {name} is missing", _CURE_MISSING)
    return (
        _find_stop(local, cluster)
        or _find_inactivity(local, cluster)
        or _find_poverty(cluster, sights.queue.flavors)
        or confirm(f"LocalQueue {name} leads to ClusterQueue {fields.name(cluster)}, which runs")
    )


def _find_stop(local: Raw, cluster: Raw) -> Finding | None:
    for queue in (local, cluster):
        policy = fields.text(queue, "spec", "stopPolicy")
        if policy not in _RUNS:
            title = f"{fields.text(queue, 'kind')} {fields.name(queue)}"
            return refute(f"{title} is stopped: stopPolicy {policy}", "set its stopPolicy to None")
    return None


def _find_inactivity(local: Raw, cluster: Raw) -> Finding | None:
    """What Kueue itself says of them. The ClusterQueue goes first: a LocalQueue only repeats it."""
    for queue in (cluster, local):
        active = fields.conditions(queue).get("Active")
        if active is None or active.is_true:
            continue
        if active.reason in _OF_THE_CHECK:
            return None
        title = f"{fields.text(queue, 'kind')} {fields.name(queue)}"
        return refute(f"{title} is not active: {active.reason}: {active.message}", "mend what Kueue says of it")
    return None


def _find_poverty(cluster: Raw, known: frozenset[str] | Unseen) -> Finding | None:
    name = fields.name(cluster)
    groups = fields.items(cluster, "spec", "resourceGroups")
    listed = {fields.text(flavor, "name") for group in groups for flavor in fields.items(group, "flavors")}
    if not isinstance(known, Unseen) and (missing := sorted(listed - known)):
        return refute(
            f"ClusterQueue {name} names ResourceFlavors that are not there: {', '.join(missing)}",
            "create them, or take them out of the queue",
        )
    if empty := find_empty_resources(cluster):
        return refute(
            f"ClusterQueue {name} has no {' and no '.join(empty)} to give: its quota is 0",
            "raise the queue's quota, or let it borrow from a cohort",
        )
    return None


def derive_admission_check(sights: Sights) -> Finding:
    """The ClusterQueue lists our check, alone and for every flavor, and it is active."""
    queue, checks, name = sights.queue.cluster_queue, sights.queue.checks, sights.terms.check
    if isinstance(queue, Unseen):
        return doubt_unseen("the ClusterQueue", queue)
    if queue is None:
        return doubt("there is no ClusterQueue that could list it", "mend the queue first")
    if unlisted := explain_unlisted(queue, name):
        return refute(unlisted, f"let the queue list {name} alone, without onFlavors: `dispatch queue create` does")
    if isinstance(checks, Unseen):
        return doubt_unseen(f"AdmissionCheck {name}", checks)
    if foreign := explain_foreign_check(checks.get(name), name):
        cure = "make it with `dispatch setup --apply`"
        return refute(foreign, f"remove it, and {cure}" if checks.get(name) else cure)
    if inactive := explain_inactive_check(checks.get(name), name):
        return refute(inactive, "start the controller, which keeps it active, and look into its log")
    return confirm(f"ClusterQueue {fields.name(queue)} lists AdmissionCheck {name}, alone, and it is active")


def derive_multikueue(sights: Sights) -> Finding:
    """Jobs run here: on another cluster nobody could see their pods."""
    cure = "take it out of the queue: jobs of another cluster have pods that can't be seen from here"
    checks, answer = sights.queue.checks, sights.trial.trainjob
    if isinstance(checks, Unseen):
        return doubt_unseen("the queue's checks", checks)
    if found := find_multikueue(sights):
        return refute(f"AdmissionCheck {found} is MultiKueue's", cure)
    if not isinstance(answer, Unseen):
        manager = fields.text(answer, "spec", "managedBy")
        if manager not in ("", words.TRAINJOB_CONTROLLER):
            return refute(f"the cluster gives new jobs to another manager: managedBy {manager}", cure)
    return confirm("no check of the queue and no manager sends jobs elsewhere")


def find_multikueue(sights: Sights) -> str | None:
    """A check of the queue that sends jobs to other clusters; None when there is none, or none can be seen."""
    checks = {} if isinstance(sights.queue.checks, Unseen) else sights.queue.checks
    for name, check in checks.items():
        if fields.text(check, "spec", "controllerName") == words.MULTIKUEUE_CONTROLLER:
            return name
    return None


def derive_controller(sights: Sights) -> Finding:
    """`dispatch-admission` lives: its heartbeat is fresh, and its own."""
    namespace, name = sights.terms.lease
    if isinstance(sights.lease, Unseen):
        return doubt_unseen(f"Lease {namespace}/{name}", sights.lease)
    lives, said = describe_lease(sights.lease, sights.now)
    told = f"Lease {namespace}/{name}: {said}"
    return confirm(told) if lives else refute(told, "start dispatch-admission, or correct the connection's lease")


def derive_quota(sights: Sights) -> Finding:
    """What one job asks for could fit the queue one day."""
    queue = sights.queue.cluster_queue
    if isinstance(queue, Unseen):
        return doubt_unseen("the ClusterQueue", queue)
    if queue is None:
        return doubt("there is no ClusterQueue whose quota could be looked at", "mend the queue first")
    if misfit := explain_misfit(queue, sights.requests or {}):
        return refute(misfit, "ask for less, raise the quota, or choose another queue")
    return confirm(f"what the job asks for is within the quota of ClusterQueue {fields.name(queue)}")
