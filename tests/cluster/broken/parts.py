# SPDX-License-Identifier: Apache-2.0
"""Breaks what all of a cluster shares: Kueue, Trainer and JobSet, their webhooks and the kinds that they bring.

Each leaves only when preflight proves the cluster again: a part that was away takes its time to come back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from airflow_provider_dispatch.testing.airflow_processes import find_free_port
from airflow_provider_dispatch.testing.waiting import Waiter
from tests.cluster.broken.access import ADMISSION
from tests.cluster.broken.place import SOON_SECONDS, Breakage, Connection, Place
from tests.cluster.set_up import TRAINER
from tests.cluster.testbed.api import NOT_FOUND, ApiError, Manifest
from tests.cluster.testbed.objects import RUNTIME

KINDS = "apiextensions.k8s.io/v1"
KIND = "CustomResourceDefinition"
MUTATING, VALIDATING = "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"
KUEUE_GROUP, TRAINER_GROUP, JOBSET_GROUP = "kueue.x-k8s.io", "trainer.kubeflow.org", "jobset.x-k8s.io"
COMPONENTS = {KUEUE_GROUP: "kueue", TRAINER_GROUP: "trainer", JOBSET_GROUP: "jobset"}


def shared(break_it: Callable[[Place], AbstractContextManager[Connection]]) -> Breakage:
    """A breakage that takes the whole cluster along."""

    @contextmanager
    def breakage(place: Place) -> Iterator[Connection]:
        place.own_the_cluster()
        try:
            with break_it(place) as changes:
                yield changes
        finally:
            place.await_health()

    return breakage


# -- processes --------------------------------------------------------------------------------------------------------


def with_stopped(component: str) -> Breakage:
    @contextmanager
    def breakage(place: Place) -> Iterator[Connection]:
        place.bed.stop_component(component)
        try:
            yield {}
        finally:
            place.bed.start_component(component)

    return shared(breakage)


def with_kueue_configured(**wishes: Any) -> Breakage:
    """Kueue runs with these settings."""

    @contextmanager
    def breakage(place: Place) -> Iterator[Connection]:
        try:
            place.bed.configure_kueue(wishes)
            yield {}
        finally:
            place.bed.configure_kueue({})

    return shared(breakage)


# -- webhooks ---------------------------------------------------------------------------------------------------------


def without_webhooks(*names: str) -> Breakage:
    """:param names: ``kueue-mutating`` and the like."""

    @contextmanager
    def breakage(place: Place) -> Iterator[Connection]:
        with ExitStack() as stack:
            for name in names:
                kind = MUTATING if name.endswith("-mutating") else VALIDATING
                stack.enter_context(place.missing(kind, name, version=ADMISSION))
            await_no_webhook(place, names)
            yield {}

    return shared(breakage)


def with_webhooks_that_lead_nowhere(name: str) -> Breakage:
    @contextmanager
    def breakage(place: Place) -> Iterator[Connection]:
        kind = MUTATING if name.endswith("-mutating") else VALIDATING
        webhooks = place.api.get(kind, name, version=ADMISSION)["webhooks"]
        nowhere = f"https://127.0.0.1:{find_free_port()}/"
        lost = [one | {"clientConfig": one["clientConfig"] | {"url": nowhere}} for one in webhooks]
        with place.changed(kind, name, version=ADMISSION, webhooks=lost):
            await_refusal(place)
            yield {}

    return shared(breakage)


def with_version(name: str, version: str) -> Breakage:
    """The webhooks of a component say which version of it they are of, as a chart lets them."""

    @contextmanager
    def breakage(place: Place) -> Iterator[Connection]:
        metadata = place.api.get(VALIDATING, name, version=ADMISSION)["metadata"]
        labels = metadata.get("labels", {}) | {"app.kubernetes.io/version": version}
        with place.changed(VALIDATING, name, version=ADMISSION, metadata=metadata | {"labels": labels}):
            yield {}

    return shared(breakage)


def await_no_webhook(place: Place, names: tuple[str, ...]) -> None:
    """The API server goes on calling a webhook for a moment after its configuration is gone."""
    if "kueue-mutating" in names:
        Waiter().wait_for(
            lambda: "runtimePatches" not in try_trainjob(place)["spec"],
            timeout_seconds=SOON_SECONDS,
            what="a TrainJob that Kueue has not touched",
        )
    if "kueue-validating" in names:
        Waiter().wait_for(
            lambda: is_taken(place, gate="no gate"), timeout_seconds=SOON_SECONDS, what="a gate that nobody looks at"
        )


def await_refusal(place: Place) -> None:
    Waiter().wait_for(lambda: not is_taken(place), timeout_seconds=SOON_SECONDS, what="a webhook that isn't reached")


def is_taken(place: Place, **about: str) -> bool:
    try:
        try_trainjob(place, **about)
    except ApiError:
        return False
    return True


def try_trainjob(place: Place, *, gate: str = "") -> Manifest:
    """What a TrainJob of the healthy queue would become."""
    manifest: Manifest = {
        "apiVersion": TRAINER,
        "kind": "TrainJob",
        "metadata": {
            "generateName": "tried-",
            "namespace": place.made.jobs,
            "labels": {"kueue.x-k8s.io/queue-name": str(place.connection["queue"])},
            "annotations": {"kueue.x-k8s.io/admission-gated-by": gate} if gate else {},
        },
        "spec": {"suspend": True, "runtimeRef": {"name": RUNTIME}},
    }
    answer: Manifest = place.api.request("POST", f"{place.api.path_of(manifest)}?dryRun=All", manifest)
    return answer


# -- kinds ------------------------------------------------------------------------------------------------------------


def with_versions(group: str, *kinds: str, served: tuple[str, ...] = ()) -> Breakage:
    """The cluster serves these versions alone.

    :param kinds: of the group; none means all that it has.
    """

    @contextmanager
    def breakage(place: Place) -> Iterator[Connection]:
        plurals = kinds or list_kinds(place, group)
        with ExitStack() as stack:
            stack.callback(restart, place, group, list_served(place, group))
            for plural in plurals:
                name = f"{plural}.{group}"
                spec = place.api.get(KIND, name, version=KINDS)["spec"]
                versions = [one | {"served": one["name"] in served} for one in spec["versions"]]
                stack.enter_context(place.changed(KIND, name, version=KINDS, spec=spec | {"versions": versions}))
            await_served(place, group, plurals, served)
            yield {}

    return shared(breakage)


def restart(place: Place, group: str, served: dict[str, set[str]]) -> None:
    """Its part of the cluster would look for its kinds less and less often."""
    Waiter().wait_for(
        lambda: list_served(place, group) == served, timeout_seconds=SOON_SECONDS, what=f"the kinds of {group}"
    )
    place.bed.restart_component(COMPONENTS[group])


def list_kinds(place: Place, group: str) -> tuple[str, ...]:
    specs = [one["spec"] for one in place.api.get(KIND, version=KINDS)["items"]]
    return tuple(spec["names"]["plural"] for spec in specs if spec["group"] == group)


def with_stranger(group: str, kind: str, plural: str) -> Breakage:
    """Instead of the kind that we mean there is one of the same name, in another group.

    :param group: of the kind that we mean.
    """
    stranger = build_kind("example.com", kind, plural)
    without_ours = with_versions(group, plural)

    @contextmanager
    def breakage(place: Place) -> Iterator[Connection]:
        place.own_the_cluster()
        with place.standing(stranger), without_ours(place) as changes:
            await_served(place, "example.com", (plural,), ("v1alpha1", "v1beta2"))
            yield changes

    return breakage


def build_kind(group: str, kind: str, plural: str) -> Manifest:
    """One that takes anything."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    versions = [
        {"name": name, "served": True, "storage": name == "v1alpha1", "schema": schema}
        for name in ("v1alpha1", "v1beta2")
    ]
    return {
        "apiVersion": KINDS,
        "kind": KIND,
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "scope": "Namespaced",
            "versions": versions,
        },
    }


def await_served(place: Place, group: str, plurals: tuple[str, ...], versions: tuple[str, ...]) -> None:
    """Until the API server serves these kinds in these versions and in no other."""

    def is_so() -> bool:
        served = list_served(place, group)
        return all({version for version in served if plural in served[version]} == set(versions) for plural in plurals)

    Waiter().wait_for(is_so, timeout_seconds=SOON_SECONDS, what=f"{', '.join(plurals)} in {versions or 'no version'}")


def list_served(place: Place, group: str) -> dict[str, set[str]]:
    """Version → plurals. A version may go between two questions."""
    groups = place.api.request("GET", "/apis")["groups"]
    versions = [version["version"] for one in groups if one["name"] == group for version in one["versions"]]
    return {version: list_plurals(place, f"/apis/{group}/{version}") for version in versions}


def list_plurals(place: Place, path: str) -> set[str]:
    try:
        return {one["name"] for one in place.api.request("GET", path)["resources"]}
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        return set()
