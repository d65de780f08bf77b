# SPDX-License-Identifier: Apache-2.0
"""Reads the recorded objects. Whatever turns objects into something is tested with them."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.object_set import ObjectSet

FOLDER = Path(__file__).parent
RECORDED_AT = "# recorded at "
"""How the second line of a recording begins."""
JOB = "0000000000000000000000000a"
"""Of objects that were recorded without the label that `start` puts on them."""

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Ten times as fast where libyaml is there."""

Manifest = dict[str, Any]


@dataclass(frozen=True, repr=False)
class Recording:
    """One file.

    :ivar story: what was going on, from the file's first line.
    :ivar now: when it was recorded; where the file doesn't say, the latest moment that an object knows.
    """

    version: str
    name: str
    story: str
    objects: tuple[Manifest, ...]
    recorded_at: datetime | None = None

    def __repr__(self) -> str:
        return self.id

    @property
    def id(self) -> str:
        return f"{self.version}/{self.name}"

    @property
    def now(self) -> datetime:
        return self.recorded_at or max(find_stamps(self.objects), default=datetime(2026, 1, 1, tzinfo=UTC))

    def object_set(self, trainjob: str = "") -> ObjectSet:
        """All objects of one submission.

        :param trainjob: its name, where a file shows several.
        """
        return build_object_set(self.objects, trainjob)


@functools.cache
def load_recordings() -> tuple[Recording, ...]:
    """All of them, in the order of their paths. Nobody may change an object: they are read once."""
    return tuple(_load(path) for path in sorted(FOLDER.glob("*/*.yaml")))


def build_object_set(objects: tuple[Manifest, ...] | list[Manifest], trainjob: str = "") -> ObjectSet:
    """Sort objects into their places, as whoever fetches them does."""
    by_kind = _sort_by_kind(objects)
    found = [one for one in by_kind.get("TrainJob", []) if trainjob in ("", fields.name(one))]
    name = trainjob or (fields.name(found[0]) if found else "")

    def is_of(one: Manifest) -> bool:
        return not trainjob or fields.label(one, words.JOBSET_NAME_LABEL) == name

    workloads = [one for one in by_kind.get("Workload", []) if not trainjob or fields.has_controller(one, _uid(found))]
    jobsets = [one for one in by_kind.get("JobSet", []) if not trainjob or fields.name(one) == name]
    return ObjectSet(
        namespace=fields.text(objects[0], "metadata", "namespace") if objects else "",
        trainjob=_label(found[0]) if found else None,
        workload=next(iter(workloads), None),
        jobset=next(iter(jobsets), None),
        runtime=next(iter(by_kind.get("TrainingRuntime", [])), None),
        ledger=next(iter(by_kind.get("ConfigMap", [])), None),
        jobs=tuple(one for one in by_kind.get("Job", []) if is_of(one)),
        pods=tuple(one for one in by_kind.get("Pod", []) if is_of(one)),
        events=tuple(by_kind.get("Event", [])),
        cluster_queue=next(iter(by_kind.get("ClusterQueue", [])), None),
        nodes=tuple(by_kind.get("Node", [])),
    )


def find_stamps(value: object) -> Iterator[datetime]:
    """Every moment that is written somewhere, but those that lie ahead of whoever wrote them."""
    if isinstance(value, dict):
        for key, part in value.items():
            if key not in ("deletionTimestamp", "notAfter", "requeueAt"):
                yield from find_stamps(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from find_stamps(part)
    elif isinstance(value, str) and len(value) >= 20 and value[4:5] == "-" and value[10:11] == "T":
        stamp = fields.parse_time(value)
        if stamp is not None:
            yield stamp


def _load(path: Path) -> Recording:
    text = path.read_text()
    story, second = text.split("\n", 2)[:2]
    at = fields.parse_time(second.removeprefix(RECORDED_AT)) if second.startswith(RECORDED_AT) else None
    return Recording(path.parent.name, path.stem, story.lstrip("# "), tuple(yaml.load(text, Loader=LOADER)), at)


def _sort_by_kind(objects: tuple[Manifest, ...] | list[Manifest]) -> dict[str, list[Manifest]]:
    found: dict[str, list[Manifest]] = {}
    for one in objects:
        found.setdefault(fields.text(one, "kind"), []).append(one)
    return found


def _uid(found: list[Manifest]) -> str:
    return fields.uid(found[0]) if found else ""


def _label(trainjob: Manifest) -> Manifest:
    labels = {words.JOB_LABEL: JOB, words.SUBMISSION_LABEL: "1"} | fields.texts(trainjob, "metadata", "labels")
    return {**trainjob, "metadata": {**fields.mapping(trainjob, "metadata"), "labels": labels}}
