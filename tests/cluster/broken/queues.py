# SPDX-License-Identifier: Apache-2.0
"""Breaks what a job goes through: its queue, the check of the queue, the controller behind the check, the namespace.

A queue is never changed: each breakage makes one of its own that is wrong from the start, beside the healthy one.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_provider_dispatch.testing.waiting import Waiter
from tests.cluster.broken.place import CORE, SOON_SECONDS, Breakage, Connection, Place
from tests.cluster.set_up import KUEUE
from tests.cluster.testbed.api import Manifest
from tests.cluster.testbed.objects import FLAVOR, build_queue

COORDINATION = "coordination.k8s.io/v1"
LEASE = "dispatch-admission"
OURS = "ours"
"""Stands for the name of the place's own check."""
MULTIKUEUE = "kueue.x-k8s.io/multikueue"
NOTHING = "nothing"
"""A name that nothing has."""


def with_settings(**changes: object) -> Breakage:
    """The connection alone is wrong."""

    @contextmanager
    def breakage(_place: Place) -> Iterator[Connection]:
        yield changes

    return breakage


# -- queues -----------------------------------------------------------------------------------------------------------


def with_queue(
    whole: Mapping[str, Any] | None = None,
    part: Mapping[str, Any] | None = None,
    *,
    checks: Sequence[Manifest] = ({"name": OURS},),
    controllers: Mapping[str, str] | None = None,
    check: str = OURS,
) -> Breakage:
    """A queue like the healthy one but for what is said here.

    :param whole: laid over the spec of its ClusterQueue; None takes a field away.
    :param part: laid over the spec of its LocalQueue.
    :param checks: of the ClusterQueue.
    :param controllers: further AdmissionChecks, name → controller.
    :param check: that the connection calls ours.
    """

    @contextmanager
    def breakage(place: Place) -> Iterator[Connection]:
        name = f"{place.made.jobs}-{secrets.token_hex(2)}"
        named = {one: f"{place.made.jobs}-{one}" for one in controllers or {}} | {OURS: place.made.check}
        listed = [one | {"name": named.get(one["name"], one["name"])} for one in checks]
        built = build_queue(place.made.jobs, name=name)
        lay_over(built[0]["spec"], {"admissionChecksStrategy": {"admissionChecks": listed}, **(whole or {})})
        lay_over(built[1]["spec"], part or {})
        others = [build_check(named[one], controller) for one, controller in (controllers or {}).items()]
        with place.standing(*others, *built):
            await_word(place, name)
            yield {"queue": name, "admission_check": named.get(check, check)}

    return breakage


def lay_over(spec: Manifest, changes: Mapping[str, Any]) -> None:
    for key, value in changes.items():
        if value is None:
            spec.pop(key, None)
        else:
            spec[key] = value


def build_check(name: str, controller: str) -> Manifest:
    return {
        "apiVersion": KUEUE,
        "kind": "AdmissionCheck",
        "metadata": {"name": name},
        "spec": {"controllerName": controller},
    }


def await_word(place: Place, name: str) -> None:
    """Until Kueue has said how the queue stands."""

    def has_spoken() -> bool:
        part = place.api.get("LocalQueue", name, version=KUEUE, namespace=place.made.jobs)
        whole = place.api.find("ClusterQueue", part["spec"]["clusterQueue"], version=KUEUE)
        return all(one is None or one.get("status", {}).get("conditions") for one in (part, whole))

    Waiter().wait_for(has_spoken, timeout_seconds=SOON_SECONDS, what="Kueue's word on a queue")


def build_quota(flavor: str = FLAVOR, **amounts: object) -> Manifest:
    """Resource groups of one flavor: resource → nominal quota, or the whole of what a quota says."""
    resources = [
        {"name": name, **(amount if isinstance(amount, dict) else {"nominalQuota": str(amount)})}
        for name, amount in amounts.items()
    ]
    return {
        "resourceGroups": [{"coveredResources": list(amounts), "flavors": [{"name": flavor, "resources": resources}]}]
    }


@contextmanager
def with_lending_cohort(place: Place) -> Iterator[Connection]:
    """The queue has nothing of its own, and another one lends it all it needs."""
    cohort = {"cohortName": f"{place.made.jobs}-cohort"}
    poor = with_queue({**build_quota(cpu=0, memory=0), **cohort})
    with with_queue(cohort)(place), poor(place) as changes:
        yield changes


# -- the controller ---------------------------------------------------------------------------------------------------


@contextmanager
def with_dead_controller(place: Place) -> Iterator[Connection]:
    """Killed five minutes ago; nobody waits so long for a row of a table."""
    lease = {
        "apiVersion": COORDINATION,
        "kind": "Lease",
        "metadata": {"name": LEASE, "namespace": place.made.terms.system_namespace},
    }
    place.controller.kill()
    try:
        place.api.patch(lease, {"spec": {"renewTime": write_time(timedelta(minutes=-5))}})
        yield {}
    finally:
        # The next one need not wait until the Lease of the dead one has run out.
        place.api.patch(lease, {"spec": {"holderIdentity": ""}})
        place.controller.start()
        place.await_health()


@contextmanager
def with_dead_controller_in_plain_mode(place: Place) -> Iterator[Connection]:
    with with_dead_controller(place) as changes:
        yield {**changes, "queue": None}


def with_lease(**spec: object) -> Breakage:
    """Another place for the Lease, in which one like this stands."""

    @contextmanager
    def breakage(place: Place) -> Iterator[Connection]:
        lease = {
            "apiVersion": COORDINATION,
            "kind": "Lease",
            "metadata": {"name": LEASE, "namespace": place.made.other},
            "spec": {"leaseDurationSeconds": 15, "renewTime": write_time(), **spec},
        }
        with place.standing(lease):
            yield {"lease_namespace": place.made.other}

    return breakage


@contextmanager
def without_lease(place: Place) -> Iterator[Connection]:
    yield {"lease_namespace": place.made.other}


def write_time(distance: timedelta = timedelta()) -> str:
    return (datetime.now(UTC) + distance).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


# -- the namespace ----------------------------------------------------------------------------------------------------


@contextmanager
def with_unknown_namespace(place: Place) -> Iterator[Connection]:
    """Seen by somebody who may look: to Airflow's side all of a foreign namespace is forbidden, whether it's there."""
    yield {"namespace": NOTHING, "kubeconfig": str(place.made.write_kubeconfig(place.made.jobs, "person"))}


@contextmanager
def with_full_namespace(place: Place) -> Iterator[Connection]:
    """Its quota of objects takes no more TrainJobs."""
    quota = {
        "apiVersion": CORE,
        "kind": "ResourceQuota",
        "metadata": {"name": "full", "namespace": place.made.jobs},
        "spec": {"hard": {"count/trainjobs.trainer.kubeflow.org": "0"}},
    }

    def is_counted() -> bool:
        found = place.api.get("ResourceQuota", "full", namespace=place.made.jobs)
        return "hard" in found.get("status", {})

    with place.standing(quota):
        Waiter().wait_for(is_counted, timeout_seconds=SOON_SECONDS, what="the first count of a quota")
        yield {}


@contextmanager
def with_queue_for_all(place: Place) -> Iterator[Connection]:
    """Kueue puts every job that names no queue into the one named ``default``: there is no plain mode beside it."""
    whole, part = build_queue(place.made.jobs, name=f"{place.made.jobs}-{secrets.token_hex(2)}")
    part["metadata"]["name"] = "default"
    with place.standing(whole, part):
        await_word(place, "default")
        yield {"queue": None}
