# SPDX-License-Identifier: Apache-2.0
"""JSON patches that are refused when the object has changed since it was read.

The verbs build every write of a TrainJob or Workload with it. The resourceVersion is replaced rather than tested: a
replaced one answers 409, a failed test a bare 422 that could mean anything.
"""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw

Patch = list[dict[str, object]]


def build_patch(
    raw: Raw, *, annotations: Mapping[str, str | None] | None = None, spec: Mapping[str, object] | None = None
) -> Patch:
    """What makes *raw* as wanted; empty when it is so already.

    :param annotations: None as a value takes the annotation away.
    :param spec: whole values of fields directly beneath ``spec``.
    """
    changes = _change_annotations(raw, annotations or {}) + _change_spec(raw, spec or {})
    version = fields.text(raw, "metadata", "resourceVersion")
    return [{"op": "replace", "path": "/metadata/resourceVersion", "value": version}, *changes] if changes else []


def _change_annotations(raw: Raw, wanted: Mapping[str, str | None]) -> Patch:
    have = fields.texts(raw, "metadata", "annotations")
    changes: Patch = []
    for key, value in wanted.items():
        path = f"/metadata/annotations/{_escape(key)}"
        if value is None and key in have:
            changes.append({"op": "remove", "path": path})
        elif value is not None and have.get(key) != value:
            changes.append({"op": "add", "path": path, "value": value})
    is_missing = not isinstance(fields.dig(raw, "metadata", "annotations"), Mapping)
    return (
        [{"op": "add", "path": "/metadata/annotations", "value": {}}, *changes] if changes and is_missing else changes
    )


def _change_spec(raw: Raw, wanted: Mapping[str, object]) -> Patch:
    have = fields.mapping(raw, "spec")
    return [
        {"op": "add", "path": f"/spec/{_escape(key)}", "value": value}
        for key, value in wanted.items()
        if key not in have or have[key] != value
    ]


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
