# SPDX-License-Identifier: Apache-2.0
"""The pods of one rank by the execution that they belong to. Pure; `output` asks."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.derive.pods import Wanted, read_ranks
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.core.identity import HIGHEST_R


def find_rank_pods(pods: Iterable[Raw], role: str, rank: int) -> dict[int, Raw]:
    """By R, as the pod's own epoch tells it. A pod without an epoch belongs to no execution.

    :param pods: of one submission.
    """
    by_uid = {fields.uid(pod): pod for pod in pods}
    found: dict[int, Raw] = {}
    for one in read_ranks(by_uid.values(), Wanted()):
        pod = by_uid[one.uid]
        epoch = fields.whole_number(fields.annotation(pod, words.EPOCH_ANNOTATION))
        if (one.role, one.rank) != (role, rank) or epoch is None:
            continue
        r = epoch % (HIGHEST_R + 1)
        if r not in found or _age(found[r]) < _age(pod):
            found[r] = pod
    return found


def has_started(pod: Raw) -> bool:
    """Its container exists, so it has a log."""
    state = _read_state(pod)
    return bool(fields.mapping(state, "running") or fields.mapping(state, "terminated"))


def has_ended(pod: Raw) -> bool:
    """Nothing is added to its log any more."""
    return bool(fields.mapping(_read_state(pod), "terminated"))


def _read_state(pod: Raw) -> Raw:
    statuses = fields.items(pod, "status", "containerStatuses")
    ours = (status for status in statuses if fields.text(status, "name") == words.NODE_CONTAINER)
    return fields.mapping(next(ours, {}), "state")


def _age(pod: Raw) -> tuple[str, str]:
    return fields.text(pod, "metadata", "creationTimestamp"), fields.uid(pod)
