# SPDX-License-Identifier: Apache-2.0
"""Objects as watches and lists tell them, each as it was last: what is news, and what is gone.

The shared watch's cache and the controller's stand on it; each finds its own way from an object to a job. Told in any
order, an older state never replaces a newer one, and what was deleted doesn't come back. It asks no server.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from airflow_provider_dispatch.adapters.kubeflow.client import ObjectList
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.resources import Resource


@dataclass(frozen=True, slots=True)
class Changes:
    """What a list has brought.

    :param gone: last known states of what it lacks.
    :param news: what is new or has changed, as it is kept.
    """

    gone: tuple[Raw, ...]
    news: tuple[Raw, ...]


class ObjectTable:
    """Objects by kind and UID."""

    def __init__(self, kinds: Iterable[Resource]) -> None:
        self._objects: dict[Resource, dict[str, Raw]] = {kind: {} for kind in kinds}
        self._deleted: defaultdict[Resource, set[str]] = defaultdict(set)
        self._listed_at: dict[tuple[Resource, str | None], str] = {}

    def __contains__(self, place: tuple[Resource, str]) -> bool:
        kind, uid = place
        return uid in self._objects.get(kind, {})

    def get(self, kind: Resource, uid: str) -> Raw | None:
        """The object of that UID."""
        return self._objects[kind].get(uid)

    def pick(self, kind: Resource, uids: Iterable[str]) -> list[Raw]:
        """Those of these UIDs that are there: an index may name one that was given another label before it went."""
        known = self._objects[kind]
        return [known[uid] for uid in uids if uid in known]

    def list(self, kind: Resource) -> list[Raw]:
        """All of a kind."""
        return [*self._objects[kind].values()]

    def put(self, kind: Resource, raw: Raw) -> Raw | None:
        """It is there, or has changed: as it is kept now, None when that is no news."""
        uid = fields.uid(raw)
        known = self._objects[kind].get(uid)
        if uid in self._deleted[kind] or (known is not None and not _is_later(raw, known)):
            return None
        self._objects[kind][uid] = kept = _trim(raw)
        return kept

    def remove(self, kind: Resource, raw: Raw) -> Raw | None:
        """It is gone: as it was kept, None when it wasn't."""
        self._deleted[kind].add(fields.uid(raw))
        return self._objects[kind].pop(fields.uid(raw), None)

    def replace(self, kind: Resource, listed: ObjectList, namespace: str | None = None) -> Changes:
        """These are all there are at that version.

        :param namespace: within it; None means everywhere.
        """
        # It does so when it is restored from a backup; what is known is then of no use.
        has_gone_back = _is_newer(self._listed_at.get((kind, namespace), ""), listed)
        self._listed_at[kind, namespace] = listed.resource_version
        present = {fields.uid(raw) for raw in listed.items}
        gone = []
        for uid, raw in list(self._objects[kind].items()):
            is_meant = namespace in (None, fields.text(raw, "metadata", "namespace"))
            # What was read by itself meanwhile may be newer than the whole list.
            is_newer = _is_newer(fields.text(raw, "metadata", "resourceVersion"), listed)
            if is_meant and (has_gone_back or (uid not in present and not is_newer)):
                gone.append(self._objects[kind].pop(uid))
        self._deleted[kind].clear()
        news = [kept for raw in listed.items if (kept := self.put(kind, raw)) is not None]
        return Changes(tuple(gone), tuple(news))


def _is_later(raw: Raw, known: Raw) -> bool:
    """Whether a state of an object comes after another; any other version where they can't be compared."""
    version, before = (fields.text(one, "metadata", "resourceVersion") for one in (raw, known))
    if version.isdecimal() and before.isdecimal():
        return int(version) > int(before)
    return version != before


def _is_newer(version: str, listed: ObjectList) -> bool:
    both_count = version.isdecimal() and listed.resource_version.isdecimal()
    return both_count and int(version) > int(listed.resource_version)


def _trim(raw: Raw) -> Raw:
    """Without what only the server needs, which is often half of an object."""
    metadata = {key: value for key, value in fields.mapping(raw, "metadata").items() if key != "managedFields"}
    return {**raw, "metadata": metadata}
