# SPDX-License-Identifier: Apache-2.0
"""Plain mode: when a suspended TrainJob is resumed, what its pods are told, and that A is raised once for each time."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_dispatch.adapters.kubeflow.errors import StaleObjectError
from airflow_provider_dispatch.adapters.kubeflow.holding import hold, release
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.fields import format_time
from airflow_provider_dispatch.adapters.kubeflow.model.resources import JOBS, JOBSETS, PODS, TRAINJOBS
from airflow_provider_dispatch.adapters.kubeflow.model.resuming import find_obstacles, is_resume_due
from airflow_provider_dispatch.adapters.kubeflow.model.submission import StopRequest, dump
from airflow_provider_dispatch.adapters.kubeflow.plain_mode import advance
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings
from airflow_provider_dispatch.core.holds import Actor, ActorKind, HoldBook, HoldRequest, place_hold
from airflow_provider_dispatch.exceptions import RefusedError, UnavailableError
from tests.adapters.kubeflow.memory_client import Fault, MemoryClient, Object
from tests.adapters.kubeflow.objects import (
    JOB,
    NOW,
    PLAIN,
    SOON,
    build_jobset,
    build_labels,
    build_name,
    build_pod,
    build_ref,
    build_trainjob,
    place_job,
)

REQUEST = HoldRequest("k", Actor(ActorKind.HUMAN, "ann"))
HELD = dump(place_hold(HoldBook(), REQUEST, NOW)[0])


def place_suspended(*, pods: int = 0, **trainjob: Any) -> MemoryClient:
    client = MemoryClient()
    notes = {words.ADMISSIONS_ANNOTATION: "0", **trainjob.pop("notes", {})}
    place_job(client, pods=pods, queue="", suspend=True, notes=notes, **trainjob)
    client.put(JOBSETS, build_jobset(suspend=True))
    return client


def try_it(client: MemoryClient, settings: KubeflowSettings = PLAIN) -> bool:
    return asyncio.run(advance(client, settings, build_ref(), now=NOW))


def trainjob_of(client: MemoryClient) -> Object:
    trainjob = client.peek(TRAINJOBS, build_name())
    assert trainjob is not None
    return trainjob


def our_item(client: MemoryClient) -> dict[str, Any]:
    items = trainjob_of(client)["spec"]["runtimePatches"]
    found: list[dict[str, Any]] = [item for item in items if item["manager"] == words.RUNTIME_PATCH_MANAGER]
    assert len(found) == 1
    return found[0]


def told(client: MemoryClient) -> dict[str, Any]:
    role = our_item(client)["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"][0]
    assert role["name"] == "node"
    notes: dict[str, Any] = role["template"]["spec"]["template"]["metadata"]["annotations"]
    return notes


def test_one_write_raises_a_tells_the_pods_and_resumes() -> None:
    client = place_suspended()
    assert try_it(client)
    assert client.count("patch") == 1
    assert trainjob_of(client)["spec"]["suspend"] is False
    assert trainjob_of(client)["metadata"]["annotations"][words.ADMISSIONS_ANNOTATION] == "1"
    assert told(client) == {
        words.ADMISSIONS_ANNOTATION: "1",
        words.RESTARTS_ANNOTATION: "0",
        words.EPOCH_ANNOTATION: "1000001",
        words.ATTEMPT_ANNOTATION: f"{JOB}.1.1.1.0",
    }


def test_it_happens_once() -> None:
    client = place_suspended()
    assert try_it(client)
    assert not try_it(client)
    assert client.count("patch") == 1


def test_the_items_of_others_stay() -> None:
    theirs = {"manager": "kueue.x-k8s.io/manager", "trainingRuntimeSpec": {"template": {"spec": {}}}}
    old = {"manager": words.RUNTIME_PATCH_MANAGER, "time": "2026-03-01T11:00:00Z", "trainingRuntimeSpec": {}}
    client = place_suspended(runtimePatches=[old, theirs])
    assert try_it(client)
    assert theirs in trainjob_of(client)["spec"]["runtimePatches"]
    assert "time" not in our_item(client)


def test_without_a_jobset_the_runtime_names_the_roles() -> None:
    client = place_suspended()
    client.drop(JOBSETS, build_name())
    assert try_it(client)
    assert told(client)[words.EPOCH_ANNOTATION] == "1000001"


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        (PODS, build_pod(deletionTimestamp="2026-03-01T12:00:00Z")),
        (PODS, build_pod(submission=2)),
        (PODS, build_pod(phase="Pending", node="")),
        (JOBSETS, build_jobset(suspend=False)),
        (
            JOBSETS,
            {**build_jobset(suspend=True), "status": {"replicatedJobsStatus": [{"name": "node", "active": 1}]}},
        ),
        (
            JOBS,
            {
                "metadata": {"name": "job", "labels": build_labels()},
                "spec": {"suspend": True},
                "status": {"terminating": 1},
            },
        ),
        (JOBS, {"metadata": {"name": "job", "labels": build_labels()}, "spec": {}, "status": {}}),
    ],
    ids=[
        "terminating pod",
        "pod of another submission",
        "pending pod",
        "jobset not suspended",
        "active job",
        "terminating job",
        "job not suspended",
    ],
)
def test_what_may_be_alive_is_waited_for(kind: Any, raw: Object) -> None:
    client = place_suspended()
    client.put(kind, raw)
    assert not try_it(client)
    assert client.count("patch") == 0


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_finished_pod_stays_and_blocks_nothing(phase: str) -> None:
    client = place_suspended()
    client.put(PODS, build_pod(phase=phase))
    assert try_it(client)


def test_a_failure_that_no_kubelet_told_proves_nothing() -> None:
    pod = build_pod(phase="Failed")
    pod["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}]
    assert find_obstacles(None, (), (pod,)) == (f"pod {pod['metadata']['name']} on node n1",)


@pytest.mark.parametrize(
    "trainjob",
    [
        build_trainjob(suspend=True),
        build_trainjob(queue=""),
        build_trainjob(queue="", suspend=True, notes={words.ADMISSION_GATED_BY: words.GATE}),
        build_trainjob(queue="", suspend=True, notes={words.ADMISSION_GATED_BY: "example.com/theirs"}),
        build_trainjob(queue="", suspend=True, notes={words.HOLDS_ANNOTATION: HELD}),
        build_trainjob(queue="", suspend=True, notes={words.STOP_ANNOTATION: dump(StopRequest("x", NOW))}),
        build_trainjob(queue="", suspend=True, notes={words.NOT_BEFORE_ANNOTATION: format_time(SOON)}),
        {
            **build_trainjob(queue="", suspend=True),
            "status": {"conditions": [{"type": "Failed", "status": "True", "reason": "FailedJobs"}]},
        },
    ],
    ids=["Kueue's", "running", "gated", "gated by others", "held", "stopping", "too early", "failed"],
)
def test_what_keeps_it_suspended(trainjob: Object) -> None:
    assert not is_resume_due(trainjob, NOW)
    client = place_suspended()
    client.put(TRAINJOBS, trainjob)
    assert not try_it(client)
    assert client.count("patch") == 0


def test_a_pause_that_is_over_keeps_nothing() -> None:
    early = format_time(NOW - timedelta(seconds=1))
    assert is_resume_due(build_trainjob(queue="", suspend=True, notes={words.NOT_BEFORE_ANNOTATION: early}), NOW)


def test_with_the_controller_resuming_is_left_to_it() -> None:
    client = place_suspended(pods=0)
    assert not try_it(client, KubeflowSettings())
    assert client.requests == []


def test_two_that_try_at_once_raise_a_once() -> None:
    client = place_suspended()

    async def both() -> list[bool]:
        return list(await asyncio.gather(*(advance(client, PLAIN, build_ref(), now=NOW) for _ in range(2))))

    assert True in asyncio.run(both())
    assert trainjob_of(client)["metadata"]["annotations"][words.ADMISSIONS_ANNOTATION] == "1"


def test_a_stale_write_is_judged_again() -> None:
    client = place_suspended()
    client.faults.append(Fault("patch", TRAINJOBS, StaleObjectError("stale")))
    assert try_it(client)
    assert told(client)[words.ADMISSIONS_ANNOTATION] == "1"


@pytest.mark.parametrize("error", [UnavailableError("gone"), RefusedError("jobs are still active")])
def test_trouble_is_left_for_the_next_look(error: Exception) -> None:
    client = place_suspended()
    client.faults.append(Fault("patch", TRAINJOBS, error))
    assert not try_it(client)
    assert try_it(client)


def test_release_returns_at_once_and_the_next_look_resumes_under_a_higher_epoch() -> None:
    client = MemoryClient()
    place_job(client, pods=1, queue="")

    async def scenario() -> None:
        held = await hold(client, PLAIN, build_ref(), REQUEST, deadline=SOON, now=NOW)
        client.put(JOBSETS, build_jobset(suspend=True))
        assert await release(client, PLAIN, build_ref(), held, deadline=SOON, now=NOW) == ()
        assert trainjob_of(client)["spec"]["suspend"] is True
        client.drop(PODS, client.peek_all(PODS)[0]["metadata"]["name"])
        assert await advance(client, PLAIN, build_ref(), now=NOW)

    asyncio.run(scenario())
    assert told(client)[words.EPOCH_ANNOTATION] == "1000002"
    assert trainjob_of(client)["spec"]["suspend"] is False
