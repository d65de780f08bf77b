# SPDX-License-Identifier: Apache-2.0
from datetime import timedelta

import pytest
import yaml

from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.resources import (
    ADMISSION_CHECKS,
    CLUSTER_QUEUES,
    CONFIG_MAPS,
    LOCAL_QUEUES,
    NODES,
    PODS,
    TRAINING_RUNTIMES,
    TRAINJOBS,
    WORKLOADS,
)
from airflow_provider_dispatch.adapters.kubeflow.model.submission import End, dump
from airflow_provider_dispatch.controller.check_condition import CheckKeeper
from airflow_provider_dispatch.core.state import Cause, State
from tests.adapters.kubeflow.memory_client import Object
from tests.adapters.kubeflow.objects import NOW, build_owner, build_pod, build_record, build_workload
from tests.controller.world import NAME, UID, WORKLOAD, World, asynchronous, build_condition, settle, show


def read_runtime(world: World) -> Object:
    found = world.client.peek(TRAINING_RUNTIMES, NAME)
    assert found is not None
    return found


@asynchronous
async def test_deleted_runtime_is_made_again_out_of_trainers_snapshot():
    world = World()
    world.place_job()
    runtime = read_runtime(world) | {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainingRuntime"}
    snapshot = {
        "metadata": {"name": f"{NAME}-runtime-snapshot", "ownerReferences": [build_owner("TrainJob", NAME, UID)]},
        "data": {"runtime": yaml.safe_dump(runtime)},
    }
    world.client.put(CONFIG_MAPS, snapshot)
    world.client.drop(TRAINING_RUNTIMES, NAME)
    replica = await world.start_replica()

    await replica.loop.look(UID)

    assert read_runtime(world)["metadata"]["ownerReferences"][0]["uid"] == UID


@asynchronous
async def test_young_job_is_left_to_whoever_makes_it():
    world = World()
    trainjob = world.place_job()
    trainjob["metadata"]["creationTimestamp"] = world.wall().isoformat()
    world.client.put(TRAINJOBS, trainjob)
    del read_runtime(world)["metadata"]["ownerReferences"]
    replica = await world.start_replica()

    assert await settle(world, replica) == 9.0
    assert "ownerReferences" not in read_runtime(world)["metadata"]

    world.pass_time(9)
    await replica.lease.attempt()
    await replica.loop.look(UID)
    assert "ownerReferences" in read_runtime(world)["metadata"]


@asynchronous
async def test_plain_job_without_fence_is_left_to_the_adapter():
    world = World()
    world.place_job(queue="")
    read_runtime(world)["spec"]["template"]["spec"]["replicatedJobs"][0]["template"] = {}
    replica = await world.start_replica()
    await replica.loop.look(UID)
    assert world.trainjob()["spec"]["suspend"] is True


@asynchronous
async def test_quota_that_another_waits_for_is_given_back():
    world = World()
    world.client.put(LOCAL_QUEUES, {"metadata": {"name": "theirs"}, "spec": {"clusterQueue": "cq-2"}})
    for queue in ("cq", "cq-2"):
        world.client.put(CLUSTER_QUEUES, {"metadata": {"name": queue}, "spec": {"cohortName": "both"}}, "")
    world.place_job()
    world.reserve()
    world.client.put(PODS, build_pod(deletionTimestamp="2026-03-01T12:00:00Z"))
    replica = await world.start_replica()
    await replica.queues.refresh()

    await replica.loop.look(UID)
    world.pass_time(61)
    await replica.lease.attempt()
    await replica.loop.look(UID)
    assert world.check()["state"] == "Pending"

    other = build_workload(7, queueName="theirs")
    other["metadata"]["name"] = "another"
    world.client.put(WORKLOADS, other)
    await show(replica)
    await replica.loop.look(UID)
    assert world.check()["state"] == "Retry"
    assert "requeueAfterSeconds" not in world.check()


@asynchronous
async def test_death_that_the_watch_has_seen_needs_no_node():
    world = World()
    world.place_job(admissions="1", notes={words.RECORD_ANNOTATION: build_record(**{"pod-1-0": {}})})
    pod = world.client.put(PODS, build_pod(phase="Running"))
    replica = await world.start_replica()
    pod["status"]["phase"] = "Succeeded"
    replica.cache.remove(PODS, pod)
    world.client.drop(PODS, pod["metadata"]["name"])
    world.reserve()
    await show(replica)

    await replica.loop.look(UID)

    assert world.check()["state"] == "Ready"
    assert (world.client.count("get", NODES), world.client.count("list", NODES)) == (0, 0)


@asynchronous
async def test_check_of_another_controller_is_left_alone():
    world = World()
    world.client.put(ADMISSION_CHECKS, {"metadata": {"name": "ours"}, "spec": {"controllerName": "somebody"}}, "")
    replica = await world.start_replica()
    keeper = CheckKeeper(world.client, replica.lease, "ours", wall=world.wall)
    assert not await keeper.ensure_active()
    assert world.client.count("patch", ADMISSION_CHECKS) == 0


@asynchronous
async def test_active_check_is_written_once():
    world = World()
    check = {"metadata": {"name": "ours", "generation": 1}, "spec": {"controllerName": words.CONTROLLER_NAME}}
    world.client.put(ADMISSION_CHECKS, check, "")
    replica = await world.start_replica()
    keeper = CheckKeeper(world.client, replica.lease, "ours", wall=world.wall)
    assert await keeper.ensure_active()
    assert await keeper.ensure_active()
    assert world.client.count("patch", ADMISSION_CHECKS) == 1


def place_failed_job(world: World, **more: str) -> Object:
    """It has ended before it was ready, which Kubernetes takes for success; others of its ranks run."""
    end = End(State.FAILED, NOW - timedelta(seconds=4), Cause.DEPENDENCY_FAILED, "the leader has gone")
    trainjob = world.place_job(admissions="1", notes={words.END_ANNOTATION: dump(end)}, **more)
    trainjob["spec"]["suspend"] = False
    return world.client.put(TRAINJOBS, trainjob)


@asynchronous
async def test_what_is_left_of_a_failed_job_is_ended_after_a_while_and_under_nobodys_name():
    world = World()
    place_failed_job(world)
    workload = world.reserve()
    workload["metadata"]["annotations"] = {words.HOLD_INSTANCE_ANNOTATION: "1", "mine": "kept"}
    world.client.put(WORKLOADS, workload)
    replica = await world.start_replica()

    assert await settle(world, replica) == 5.0
    left = world.client.peek(WORKLOADS, WORKLOAD)
    assert left is not None
    assert left["spec"].get("active", True)

    world.pass_time(5)
    await replica.lease.attempt()
    await replica.loop.look(UID)
    ended = world.client.peek(WORKLOADS, WORKLOAD)
    assert ended is not None
    assert ended["spec"]["active"] is False
    assert ended["metadata"]["annotations"] == {"mine": "kept"}

    written = world.client.count("patch", WORKLOADS)
    await replica.loop.look(UID)
    assert world.client.count("patch", WORKLOADS) == written


@asynchronous
async def test_in_plain_mode_what_is_left_of_a_failed_job_is_suspended():
    world = World()
    place_failed_job(world, queue="")
    world.pass_time(6)
    replica = await world.start_replica()
    await replica.loop.look(UID)
    assert world.trainjob()["spec"]["suspend"] is True
    assert await replica.loop.look(UID) is None


@pytest.mark.parametrize("condition", [words.TRAINJOB_FAILED, words.TRAINJOB_COMPLETE])
def test_a_failure_that_kubernetes_sees_is_left_to_it(condition: str):
    @asynchronous
    async def scene() -> None:
        world = World()
        trainjob = place_failed_job(world)
        trainjob["status"] = {"conditions": [build_condition(condition, "True", NOW)]}
        world.client.put(TRAINJOBS, trainjob)
        world.reserve()
        world.pass_time(60)
        replica = await world.start_replica()
        await replica.loop.look(UID)
        assert world.client.count("patch", WORKLOADS) == 0

    scene()
