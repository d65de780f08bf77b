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


@pytest.mark.parametrize(("a", "b", "rank"), [(9, 2, "a"), (2, 9, "b"), (9, 9, "b")])
def test_of_two_pods_of_one_execution_the_younger_is_the_rank_in_whatever_order_they_come(a, b, rank: str) -> None:
    pods = [made("a", "1000002", a), made("b", "1000002", b), made("first", "1000001", 1)]
    for order in itertools.permutations(pods):
        found = find_rank_pods(order, "node", 0)
        assert {r: fields.uid(pod) for r, pod in found.items()} == {1: "first", 2: rank}


def test_a_pod_that_was_never_lifted_and_one_of_another_rank_are_none() -> None:
    assert find_rank_pods([made("a", ""), made("b", "1000003", rank=1), made("c", "soon")], "node", 0) == {}


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
