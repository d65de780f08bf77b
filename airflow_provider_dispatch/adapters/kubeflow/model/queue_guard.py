# SPDX-License-Identifier: Apache-2.0
"""Whether our admission check and its controller stand between a queue and an admission.

Preflight and `start` judge by it what they have read. Pure: nothing is asked here.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw

HANDOVER = timedelta(minutes=4)
"""Since the last heartbeat: so long the controller is taken to be coming back."""


@dataclass(frozen=True, slots=True)
class QueueView:
    """A queue and what stands between it and an admission by us.

    :param local_queue: None when there is none of that name.
    :param check: our AdmissionCheck.
    :param lease: the controller's heartbeat.
    """

    name: str
    local_queue: Raw | None = None
    cluster_queue: Raw | None = None
    check: Raw | None = None
    lease: Raw | None = None


def describe_lease(lease: Raw | None, now: datetime) -> tuple[bool, str]:
    """Whether the controller's heartbeat is fresh and its own, and what was seen of it."""
    if lease is None:
        return False, "there is no such Lease: the controller has never run"
    renewed, holder = fields.moment(lease, "spec", "renewTime"), fields.text(lease, "spec", "holderIdentity")
    if renewed is None or not holder:
        return False, "nobody holds the Lease: the controller doesn't run"
    # Clocks of two machines disagree a little, and a busy controller renews late.
    patience = max(30, 2 * fields.number(lease, "spec", "leaseDurationSeconds"))
    age = max((now - renewed).total_seconds(), 0.0)
    told = f"held by {holder}, renewed {age:.0f} s ago"
    if fields.annotation(lease, words.HOLDER_ANNOTATION) != holder:
        return False, f"{told}, and that is no dispatch-admission"
    return age <= patience, told


def is_changing_hands(lease: Raw | None, now: datetime) -> bool:
    """Whether a controller was at work a moment ago: a roll-out, or an API server that was away, passes by itself."""
    renewed = fields.moment(lease, "spec", "renewTime")
    holder, signed = fields.text(lease, "spec", "holderIdentity"), fields.annotation(lease, words.HOLDER_ANNOTATION)
    return renewed is not None and holder in ("", signed) and now - renewed <= HANDOVER


def explain_unguarded(view: QueueView, check: str) -> str | None:
    """Why jobs of this queue would be admitted unjudged or not at all; None when our check guards it."""
    if view.local_queue is None:
        return f"there is no LocalQueue {view.name} in this namespace"
    if view.cluster_queue is None:
        missing = fields.text(view.local_queue, "spec", "clusterQueue")
        return f"ClusterQueue {missing} of LocalQueue {view.name} is missing"
    return (
        explain_unlisted(view.cluster_queue, check)
        or explain_foreign_check(view.check, check)
        or explain_inactive_check(view.check, check)
    )


def explain_unlisted(cluster_queue: Raw, check: str) -> str | None:
    """Why our check doesn't decide over each admission of a ClusterQueue, or not it alone."""
    listed = fields.items(cluster_queue, "spec", "admissionChecksStrategy", "admissionChecks")
    ours = next((entry for entry in listed if fields.text(entry, "name") == check), None)
    name = f"ClusterQueue {fields.name(cluster_queue)}"
    if ours is None:
        return f"{name} doesn't list AdmissionCheck {check}"
    if fields.dig(ours, "onFlavors"):
        return f"{name} limits AdmissionCheck {check} to some flavors; take onFlavors away"
    if others := [fields.text(entry, "name") for entry in listed if entry is not ours]:
        return f"{name} lists other checks beside ours: {', '.join(others)}"
    return None


def explain_foreign_check(check: Raw | None, name: str) -> str | None:
    """Why a check isn't ours."""
    if check is None:
        return f"there is no AdmissionCheck {name}"
    controller = fields.text(check, "spec", "controllerName")
    if controller != words.CONTROLLER_NAME:
        return f"AdmissionCheck {name} is {controller}'s, not {words.CONTROLLER_NAME}'s"
    return None


def explain_inactive_check(check: Raw | None, name: str) -> str | None:
    """Why Kueue admits nothing past a check."""
    active = fields.conditions(check).get("Active")
    if active is None or not active.is_true:
        said = (active.message or active.reason) if active is not None else "its controller has never seen it"
        return f"AdmissionCheck {name} is not active: {said}"
    return None
