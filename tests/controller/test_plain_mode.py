# SPDX-License-Identifier: Apache-2.0
"""The loop in plain mode, where nobody but the controller suspends and resumes a job."""

import json

from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.resources import PODS, TRAINJOBS
from tests.adapters.kubeflow.objects import build_pod, build_record
from tests.controller.world import UID, World, asynchronous, show

HELD = {
    "instance": 1,
    "key": "k",
    "actor": {"kind": "human", "id": "me"},
    "reason": "",
    "since": "2026-03-01T12:00:00Z",
}


@asynchronous
async def test_plain_job_runs_again_once_its_pods_are_gone(world: World):
    world.place_job(queue="")
    world.place_jobset()
    old = world.client.put(PODS, build_pod(0, deletionTimestamp="2026-03-01T12:00:00Z"))
    replica = await world.start_replica()
    await replica.loop.look(UID)
    assert world.trainjob()["spec"]["suspend"] is True

    world.client.drop(PODS, old["metadata"]["name"])
    await show(replica)
    await replica.loop.look(UID)
    assert world.trainjob()["spec"]["suspend"] is False


@asynchronous
async def test_held_plain_job_is_suspended(world: World):
    world.place_job(queue="", notes={words.HOLDS_ANNOTATION: json.dumps({"active": [HELD], "last_instance": 1})})
    trainjob = world.trainjob()
    trainjob["spec"]["suspend"] = False
    world.client.put(TRAINJOBS, trainjob)
    replica = await world.start_replica()
    await replica.loop.look(UID)
    assert world.trainjob()["spec"]["suspend"] is True


@asynchronous
async def test_broken_plain_execution_is_suspended_so_that_its_rest_ends(world: World):
    record = build_record(**{"pod-1-0": {"node": "n1"}, "pod-1-1": {"node": "n1"}})
    world.place_job(queue="", notes={words.RECORD_ANNOTATION: record})
    trainjob = world.trainjob()
    trainjob["spec"]["suspend"] = False
    world.client.put(TRAINJOBS, trainjob)
    world.place_jobset()
    world.client.put(PODS, build_pod(0))
    world.place_pod(1, uid="replacement")
    replica = await world.start_replica()

    await replica.loop.look(UID)

    assert world.trainjob()["spec"]["suspend"] is True
    assert None in world.epochs()
