# SPDX-License-Identifier: Apache-2.0
"""The private runtime of a submission out of what Trainer remembers of it.

Trainer renders from a ConfigMap of its own, but its webhook and Kueue look the live runtime up: once somebody deletes
it, the TrainJob can't be changed any more and a hold never ends. Pure; `runtimes` reads and writes.
"""

from __future__ import annotations

import yaml

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.resources import TRAINING_RUNTIMES
from airflow_provider_dispatch.adapters.kubeflow.model.submission import is_ours
from airflow_provider_dispatch.core.validation import describe_place
from airflow_provider_dispatch.exceptions import ProtocolError

SNAPSHOT_KEY = "runtime"


def build_restored_runtime(trainjob: Raw, snapshot: Raw | None) -> dict[str, object] | None:
    """The runtime as it was, owned by the TrainJob; None when the snapshot isn't this TrainJob's, or no copy of ours.

    :param snapshot: Trainer's ConfigMap.
    :raises ProtocolError: it can't be read.
    """
    if snapshot is None or not fields.has_controller(snapshot, fields.uid(trainjob)):
        return None
    try:
        runtime = yaml.safe_load(fields.text(snapshot, "data", SNAPSHOT_KEY))
    except yaml.YAMLError as error:
        problem = f"the snapshot {fields.name(snapshot)} of a runtime is no YAML{describe_place(error)}"
        raise ProtocolError(problem) from None
    if not is_ours(runtime) or fields.text(runtime, "kind") != TRAINING_RUNTIMES.kind:
        return None
    metadata = {
        "name": fields.name(runtime),
        "labels": fields.texts(runtime, "metadata", "labels"),
        "annotations": fields.texts(runtime, "metadata", "annotations"),
        "ownerReferences": [build_owner_reference(trainjob)],
    }
    return {
        "apiVersion": TRAINING_RUNTIMES.api_version,
        "kind": TRAINING_RUNTIMES.kind,
        "metadata": metadata,
        "spec": dict(fields.mapping(runtime, "spec")),
    }


def build_owner_reference(trainjob: Raw) -> dict[str, object]:
    """That the runtime goes with the TrainJob, without ever keeping it from going."""
    return {
        "apiVersion": fields.text(trainjob, "apiVersion"),
        "kind": fields.text(trainjob, "kind"),
        "name": fields.name(trainjob),
        "uid": fields.uid(trainjob),
        "blockOwnerDeletion": False,
    }


def build_snapshot_name(trainjob: Raw) -> str:
    """Name of Trainer's ConfigMap."""
    return f"{fields.name(trainjob)}{words.SNAPSHOT_SUFFIX}"
