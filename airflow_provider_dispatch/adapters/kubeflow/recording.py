# SPDX-License-Identifier: Apache-2.0
"""Writes down decisions about a job as Kubernetes events, for `events` and for people with kubectl.

The verbs call it after they have acted. An event is a courtesy: one that can't be written never fails the verb.
"""

from __future__ import annotations

import hashlib
import logging
from datetime import datetime

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.errors import AlreadyExistsError
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.resources import EVENTS, TRAINJOBS
from airflow_provider_dispatch.exceptions import DispatchError, cut_text

LONGEST_MESSAGE = 1000
"""Kubernetes takes 1,024 bytes."""
_log = logging.getLogger(__name__)


async def record_decision(
    client: KubeClient, trainjob: Raw, kind: str, message: str, *, at: datetime, key: str = ""
) -> None:
    """Write an event about a submission, once.

    :param kind: short name, for instance ``opened``.
    :param key: tells it from others of this kind; the same again is written only once.
    """
    body = build_event(trainjob, kind, message, at=at, key=key)
    try:
        await client.create(EVENTS, body, fields.text(trainjob, "metadata", "namespace"))
    except AlreadyExistsError:
        return
    except DispatchError as error:
        _log.warning("the event that %s is %s can't be written: %s", fields.name(trainjob), kind, error)


def build_event(trainjob: Raw, kind: str, message: str, *, at: datetime, key: str = "") -> dict[str, object]:
    """The event, under a name that is the same for the same decision."""
    digest = hashlib.sha256(f"{fields.uid(trainjob)}/{kind}/{key}".encode()).hexdigest()[:16]
    # The legacy pair of stamps counts whole seconds; kubectl and older readers look at these.
    stamp = fields.format_time(at.replace(microsecond=0)).replace(".000000", "")
    about = {
        "apiVersion": TRAINJOBS.api_version,
        "kind": TRAINJOBS.kind,
        "namespace": fields.text(trainjob, "metadata", "namespace"),
        "name": fields.name(trainjob),
        "uid": fields.uid(trainjob),
    }
    labels = {
        label: fields.label(trainjob, label)
        for label in (words.JOB_LABEL, words.SUBMISSION_LABEL)
        if fields.label(trainjob, label)
    }
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{fields.name(trainjob)}.{digest}", "labels": labels},
        "involvedObject": about,
        "reason": kind,
        "message": cut_text(message, LONGEST_MESSAGE - 100),
        "type": "Normal",
        "source": {"component": "dispatch"},
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "eventTime": fields.format_time(at),
        "reportingComponent": words.DOMAIN,
        "reportingInstance": "adapter",
        "action": kind,
        "count": 1,
    }
