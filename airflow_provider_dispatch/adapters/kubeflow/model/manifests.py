# SPDX-License-Identifier: Apache-2.0
"""The two objects of a submission: a private training runtime and the TrainJob that uses it, both under one name.

`start` builds them. The TrainJob is created suspended and behind our gate; nothing of ours is added to it later but
annotations. An empty list or map is never sent: under Kueue 0.19 it leaves the job admitted and never started.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.resources import TRAINING_RUNTIMES, TRAINJOBS
from airflow_provider_dispatch.adapters.kubeflow.model.runtime_copy import build_runtime_spec, count_trainer_nodes
from airflow_provider_dispatch.adapters.kubeflow.model.submission import build_annotations, build_labels
from airflow_provider_dispatch.adapters.kubeflow.model.terms import Terms
from airflow_provider_dispatch.core.identity import build_object_name
from airflow_provider_dispatch.core.records import StartRequest

FRAMEWORK_LABEL = "trainer.kubeflow.org/framework"

Object = dict[str, Any]


def build_runtime(request: StartRequest, runtime: Raw, terms: Terms) -> Object:
    """The private runtime, without an owner.

    :param runtime: the one that the user named.
    :raises SpecError: the job and the runtime don't go together.
    """
    framework = fields.label(runtime, FRAMEWORK_LABEL)
    labels = _build_labels(request) | ({FRAMEWORK_LABEL: framework} if framework else {})
    annotations = {
        words.SPEC_DIGEST_ANNOTATION: request.spec.digest,
        words.COPIED_FROM_ANNOTATION: f"{fields.text(runtime, 'kind')}/{fields.name(runtime)}",
    }
    return {
        "apiVersion": TRAINING_RUNTIMES.api_version,
        "kind": TRAINING_RUNTIMES.kind,
        "metadata": _build_metadata(request, terms, labels, annotations),
        "spec": build_runtime_spec(request, runtime, terms),
    }


def build_trainjob(request: StartRequest, runtime: Raw, terms: Terms) -> Object:
    """The TrainJob, its gate closed.

    :param runtime: the one that the user named.
    :raises SpecError: more than an object may carry.
    """
    labels = _build_labels(request)
    if terms.queue:
        labels[words.QUEUE_LABEL] = terms.queue
    if terms.priority_class:
        labels[words.PRIORITY_LABEL] = terms.priority_class
    # Without Kueue nothing reads the second gate: whoever resumes the job looks at the time itself.
    is_deferred = request.not_before is not None and bool(terms.queue)
    gates = [words.GATE, words.NOT_BEFORE_GATE] if is_deferred else [words.GATE]
    annotations = build_annotations(request) | {words.ADMISSION_GATED_BY: ",".join(gates)}
    return {
        "apiVersion": TRAINJOBS.api_version,
        "kind": TRAINJOBS.kind,
        "metadata": _build_metadata(request, terms, labels, annotations),
        "spec": {
            "suspend": True,
            "runtimeRef": {
                "apiGroup": TRAINING_RUNTIMES.group,
                "kind": TRAINING_RUNTIMES.kind,
                "name": build_object_name(request.job, request.submission),
            },
            "trainer": {"numNodes": count_trainer_nodes(request.spec, runtime)},
        },
    }


def build_owner_patch(trainjob: Raw) -> Object:
    """A merge patch that gives a runtime to its TrainJob, without keeping anybody from deleting either."""
    owner = {
        "apiVersion": TRAINJOBS.api_version,
        "kind": TRAINJOBS.kind,
        "name": fields.name(trainjob),
        "uid": fields.uid(trainjob),
        "blockOwnerDeletion": False,
    }
    return {"metadata": {"ownerReferences": [owner]}}


def _build_labels(request: StartRequest) -> dict[str, str]:
    return build_labels(request.job, request.submission, request.owner.deployment)


def _build_metadata(
    request: StartRequest, terms: Terms, labels: Mapping[str, str], annotations: Mapping[str, str]
) -> Object:
    return {
        "name": build_object_name(request.job, request.submission),
        "namespace": terms.namespace,
        "labels": dict(labels),
        "annotations": dict(annotations),
    }
