# SPDX-License-Identifier: Apache-2.0
"""Writes the objects of an installation or a queue, compares them with what is there, and removes them.

The command calls it for manifests that :mod:`.rendering` and :mod:`.queues` have built. Every write may be made again.
An object that somebody else has made under the same name is never removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.resources import ADMISSION_CHECKS, RESOURCE_FLAVORS
from airflow_provider_dispatch.adapters.kubeflow.setup.kinds import describe_object, find_namespace, find_resource
from airflow_provider_dispatch.adapters.kubeflow.setup.rendering import PART_LABEL, Manifest
from airflow_provider_dispatch.adapters.kubeflow.setup.terms import NAME
from airflow_provider_dispatch.exceptions import CapabilityError, RefusedError

LOOK_SECONDS = 0.5
KUEUES_FINALIZER = "kueue.x-k8s.io/resource-in-use"
"""On what Kueue still needs (apis/kueue/v1beta2/constants.go)."""


class Outcome(StrEnum):
    """What became of an object, or stands there."""

    CREATED = "created"
    CHANGED = "changed"
    SAME = "same"
    MISSING = "missing"
    DIFFERS = "differs"
    REMOVED = "removed"
    LEFT = "left"
    KEPT = "kept"


@dataclass(frozen=True, slots=True)
class Result:
    """One object, and what became of it.

    :param detail: for people; empty where the outcome says all.
    """

    object: str
    outcome: Outcome
    detail: str = ""


Tell = Callable[[Result], None]


async def apply_manifests(client: KubeClient, manifests: Sequence[Manifest], *, tell: Tell) -> list[Result]:
    """Make all objects as their manifests say, in their order.

    :param tell: called after each.
    :raises RefusedError: one was refused; those before it stand.
    """
    results = []
    for manifest in manifests:
        before = await _fetch(client, manifest)
        after = await client.apply(find_resource(manifest), manifest, find_namespace(manifest))
        results.append(Result(describe_object(manifest), _compare(before, after, missing=Outcome.CREATED)))
        tell(results[-1])
    return results


async def compare_manifests(client: KubeClient, manifests: Sequence[Manifest]) -> list[Result]:
    """Whether each object stands as its manifest says; nothing is written."""

    async def look(manifest: Manifest) -> Result:
        before = await _fetch(client, manifest)
        if before is None:
            return Result(describe_object(manifest), Outcome.MISSING)
        after = await client.apply(find_resource(manifest), manifest, find_namespace(manifest), dry_run=True)
        outcome = _compare(before, after, missing=Outcome.MISSING)
        parts = _list_differences(before, after)
        return Result(
            describe_object(manifest),
            Outcome.DIFFERS if outcome is Outcome.CHANGED else outcome,
            f"{', '.join(parts)} is not as it should be" if parts else "",
        )

    return list(await asyncio.gather(*(look(manifest) for manifest in manifests)))


async def remove_manifests(
    client: KubeClient, manifests: Sequence[Manifest], *, deadline: datetime, clock: Callable[[], datetime], tell: Tell
) -> list[Result]:
    """Remove all objects that we have made, the last first, and see that each is gone.

    :param deadline: what is still there then is told as left.
    """
    results = []
    for manifest in reversed(manifests):
        results.append(await _remove(client, manifest, deadline, clock))
        tell(results[-1])
    return results


def is_made_by_us(raw: Raw) -> bool:
    """Whether it carries our label."""
    return fields.label(raw, PART_LABEL) == NAME


async def _fetch(client: KubeClient, manifest: Manifest) -> Raw | None:
    try:
        return await client.get(find_resource(manifest), fields.name(manifest), find_namespace(manifest))
    except CapabilityError as error:
        raise RefusedError(f"{describe_object(manifest)} can't be made: {error}") from error


async def _remove(client: KubeClient, manifest: Manifest, deadline: datetime, clock: Callable[[], datetime]) -> Result:
    resource, name, namespace = find_resource(manifest), fields.name(manifest), find_namespace(manifest)
    said = describe_object(manifest)
    try:
        found = await client.get(resource, name, namespace)
    except CapabilityError:
        found = None
    if found is None:
        return Result(said, Outcome.MISSING)
    if not is_made_by_us(found):
        return Result(said, Outcome.KEPT, f"it doesn't carry the label {PART_LABEL}={NAME}: somebody else made it")
    await client.delete(resource, name, namespace, uid=fields.uid(found))
    while True:
        latest = await client.get(resource, name, namespace)
        if latest is None or fields.uid(latest) != fields.uid(found):
            return Result(said, Outcome.REMOVED)
        if clock() >= deadline:
            return Result(said, Outcome.LEFT, _describe_finalizers(latest))
        await asyncio.sleep(LOOK_SECONDS)


def _describe_finalizers(raw: Raw) -> str:
    held = fields.dig(raw, "metadata", "finalizers")
    if not isinstance(held, list) or not held:
        return "it is being removed"
    if KUEUES_FINALIZER in held:
        users = {ADMISSION_CHECKS.kind: "ClusterQueues list it", RESOURCE_FLAVORS.kind: "ClusterQueues have it"}
        return (
            f"it goes when it isn't used any more: {users.get(fields.text(raw, 'kind'), 'jobs in it have not ended')}"
        )
    return f"it is being removed, held by {', '.join(map(str, held))}"


def _compare(before: Raw | None, after: Raw, *, missing: Outcome) -> Outcome:
    if before is None:
        return missing
    return Outcome.CHANGED if _list_differences(before, after) else Outcome.SAME


def _list_differences(before: Raw, after: Raw) -> list[str]:
    """What of an object differs, by the first words of its path; what the server keeps for itself aside."""
    one, two = _strip(before), _strip(after)
    return sorted(part for part in one.keys() | two.keys() if one.get(part) != two.get(part))


def _strip(raw: Raw) -> dict[str, object]:
    parts: dict[str, object] = {key: value for key, value in raw.items() if key not in ("metadata", "status")}
    metadata = fields.mapping(raw, "metadata")
    kept: Mapping[str, object] = {key: metadata[key] for key in ("labels", "annotations") if key in metadata}
    return parts | dict(kept)
