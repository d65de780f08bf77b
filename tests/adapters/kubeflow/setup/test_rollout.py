# SPDX-License-Identifier: Apache-2.0
"""When a controller counts as up, and what is said of one that isn't."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from airflow_provider_dispatch.adapters.kubeflow.model.resources import ADMISSION_CHECKS, PODS
from airflow_provider_dispatch.adapters.kubeflow.setup.kinds import DEPLOYMENTS
from airflow_provider_dispatch.adapters.kubeflow.setup.rendering import INSTANCE_LABEL, PART_LABEL
from airflow_provider_dispatch.adapters.kubeflow.setup.rollout import LOOK_SECONDS, await_controller
from airflow_provider_dispatch.adapters.kubeflow.setup.terms import JobsNamespace, SetupTerms
from tests.adapters.kubeflow.memory_client import MemoryClient
from tests.adapters.kubeflow.setup.cluster import NOW

TERMS = SetupTerms((JobsNamespace("team-a"),))
PLACE = TERMS.system_namespace
UP: dict[str, Any] = {"observedGeneration": 2, "updatedReplicas": 2, "availableReplicas": 2}


class Time:
    """Passes while somebody sleeps, and lets something happen then."""

    def __init__(self, client: MemoryClient, **later: Any) -> None:
        self.now, self.client, self.later = NOW, client, later

    def read(self) -> datetime:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        if self.later:
            place(self.client, **self.later)


def place(client: MemoryClient, *, is_active: bool = True, **status: Any) -> None:
    head = {"metadata": {"name": "dispatch-controller", "generation": 2}, "spec": {"replicas": 2}}
    client.put(DEPLOYMENTS, head | {"status": status}, PLACE)
    conditions = [{"type": "Active", "status": str(is_active)}]
    client.put(ADMISSION_CHECKS, {"metadata": {"name": "dispatch-admission"}, "status": {"conditions": conditions}})


def wait(client: MemoryClient, terms: SetupTerms = TERMS, **later: Any) -> tuple[str, timedelta]:
    """What is missing in the end, and how long that took."""
    time = Time(client, **later)
    deadline = NOW + timedelta(seconds=3)
    problem = asyncio.run(await_controller(client, terms, deadline=deadline, clock=time.read, sleep=time.sleep))
    return problem, time.now - NOW


def test_a_controller_that_acts_is_not_waited_for() -> None:
    client = MemoryClient()
    place(client, **UP)
    assert wait(client) == ("", timedelta(0))


def test_one_that_comes_up_meanwhile_is_seen() -> None:
    assert wait(MemoryClient(), **UP) == ("", timedelta(seconds=LOOK_SECONDS))


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ({**UP, "availableReplicas": 1}, "1 of 2 pods are ready"),
        ({**UP, "updatedReplicas": 0}, "0 of 2 pods are ready"),
        ({**UP, "observedGeneration": 1}, "0 of 2 pods are ready"),
        ({**UP, "is_active": False}, "AdmissionCheck dispatch-admission is not active"),
        (
            {"conditions": [{"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}]},
            "0 of 2 pods are ready: exceeded quota",
        ),
    ],
)
def test_what_is_missing_at_the_deadline_is_told(found: dict[str, Any], problem: str) -> None:
    client = MemoryClient()
    place(client, **found)
    assert wait(client) == (problem, timedelta(seconds=3))


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}, ""),
        (
            {"containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}}}]},
            ": pod p: ErrImagePull not found",
        ),
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"}]},
            ": pod p: 0/2 nodes are available",
        ),
    ],
)
def test_its_pods_say_why_they_are_not_ready(status: dict[str, Any], said: str) -> None:
    client = MemoryClient()
    place(client)
    labels = {PART_LABEL: "dispatch", INSTANCE_LABEL: "dispatch"}
    client.put(PODS, {"metadata": {"name": "p", "labels": labels}, "status": status}, PLACE)
    client.put(PODS, {"metadata": {"name": "somebodys"}, "status": {"conditions": []}}, PLACE)
    assert wait(client)[0] == f"0 of 2 pods are ready{said}"


def test_without_kueue_there_is_no_check_to_wait_for() -> None:
    client = MemoryClient()
    place(client, is_active=False, **UP)
    assert wait(client, SetupTerms(TERMS.namespaces, has_kueue=False))[0] == ""
