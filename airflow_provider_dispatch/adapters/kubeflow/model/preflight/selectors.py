# SPDX-License-Identifier: Apache-2.0
"""Label selectors as Kubernetes reads them. A ClusterQueue says with one which namespaces it serves."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw


def matches_labels(selector: Raw | None, labels: Mapping[str, str]) -> bool:
    """Whether a selector picks what has these labels.

    :param selector: None picks nothing, an empty one everything.
    """
    if selector is None:
        return False
    return all(labels.get(key) == value for key, value in fields.texts(selector, "matchLabels").items()) and all(
        _fits(term, labels) for term in fields.items(selector, "matchExpressions")
    )


def _fits(term: Raw, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(fields.text(term, "key")), fields.dig(term, "values") or ()
    match fields.text(term, "operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case _:
            return False
