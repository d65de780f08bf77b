# SPDX-License-Identifier: Apache-2.0
"""Which pod is a rank in which execution: whose log is read."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.rank_pods import find_rank_pods, has_ended, has_started
from tests.adapters.kubeflow.objects import build_pod


def made(uid: str, epoch: str, second: int = 0, *, rank: int = 0) -> dict[str, Any]:
    notes = {words.EPOCH_ANNOTATION: epoch} if epoch else {}
    return build_pod(rank, uid=uid, notes=notes, creationTimestamp=f"2026-03-01T12:00:{second:02}Z")


PODS = (
    made("first", "1000001", 1),
    made("younger", "1000002", 9),
    made("older", "1000002", 2),
    made("twin", "1000002", 9),
    made("never lifted", "", 5),
    made("another rank", "1000003", 3, rank=1),
)


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_of_two_pods_of_one_execution_the_younger_is_the_rank_in_whatever_order_they_come(order) -> None:
    found = find_rank_pods([*(PODS[place] for place in order), *PODS[4:]], "node", 0)
    assert {r: fields.uid(pod) for r, pod in found.items()} == {1: "first", 2: "younger"}


@pytest.mark.parametrize(
    ("statuses", "started", "ended"),
    [
        ([], False, False),
        ([{"name": "node", "state": {"waiting": {"reason": "ContainerCreating"}}}], False, False),
        ([{"name": "node", "state": {"running": {"startedAt": "2026-03-01T12:00:00Z"}}}], True, False),
        ([{"name": "node", "state": {"terminated": {"exitCode": 0}}}], True, True),
        ([{"name": "sidecar", "state": {"terminated": {"exitCode": 0}}}], False, False),
    ],
)
def test_a_log_begins_and_ends_with_the_container_of_the_rank(statuses, started: bool, ended: bool) -> None:
    pod = {"status": {"containerStatuses": statuses}}
    assert (has_started(pod), has_ended(pod)) == (started, ended)
