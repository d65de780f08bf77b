# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from airflow_provider_dispatch.adapters.kubeflow.errors import AnswerLostError, StaleObjectError
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.execution_record import ExecutionRecord
from airflow_provider_dispatch.adapters.kubeflow.model.fields import format_time
from airflow_provider_dispatch.adapters.kubeflow.model.resources import (
    CONFIG_MAPS,
    NODES,
    PODS,
    TRAINING_RUNTIMES,
    TRAINJOBS,
    WORKLOADS,
    Resource,
)
from airflow_provider_dispatch.controller.apply import LeaseLostError
from airflow_provider_dispatch.controller.running import Replica
from airflow_provider_dispatch.exceptions import ConflictError, UnavailableError
from tests.adapters.kubeflow.memory_client import Fault, MemoryClient, Object
from tests.adapters.kubeflow.objects import JOB, NOW, build_pod, build_record
from tests.controller.world import LEDGER, NAME, UID, WORKLOAD, World, asynchronous, build_condition, settle, show


@asynchronous
async def test_first_reservation_raises_a_and_is_let_in(world: World):
    world.place_job()
    world.reserve()
    replica = await world.start_replica()

    await replica.loop.look(UID)

    assert world.note(words.ADMISSIONS_ANNOTATION) == "1"
    assert (world.note(words.ADMISSION_KEY_ANNOTATION) or "").startswith("wl-1/")
    assert world.check()["state"] == "Ready"
    assert "podSetUpdates" not in world.check()


@asynchronous
async def test_a_is_written_before_ready(world: World):
    world.place_job()
    world.reserve()
    replica = await world.start_replica()
    world.client.faults.append(Fault("patch", WORKLOADS, StaleObjectError("somebody wrote first")))

    with pytest.raises(StaleObjectError):
        await replica.loop.look(UID)
    assert (world.note(words.ADMISSIONS_ANNOTATION), world.check()["state"]) == ("1", "Pending")

    await replica.loop.look(UID)
    assert (world.note(words.ADMISSIONS_ANNOTATION), world.check()["state"]) == ("1", "Ready")


@asynchronous
async def test_pods_are_lifted_under_the_first_epoch(world: World):
    world.place_admitted_job()
    replica = await world.start_replica()

    await replica.loop.look(UID)

    assert world.epochs() == ["1000001", "1000001"]
    for pod in world.client.peek_all(PODS):
        notes = pod["metadata"]["annotations"]
        assert notes[words.ATTEMPT_ANNOTATION] == f"{JOB}.1.1.1.0"
        assert (notes[words.ADMISSIONS_ANNOTATION], notes[words.RESTARTS_ANNOTATION], notes["mine"]) == (
            "1",
            "0",
            "kept",
        )
        assert pod["spec"]["schedulingGates"] == []


@asynchronous
async def test_other_gates_stay(world: World):
    world.place_admitted_job(pods=0)
    world.place_pod(0, gates=("first", words.FENCE, "last"))
    replica = await world.start_replica()

    await replica.loop.look(UID)

    (pod,) = world.client.peek_all(PODS)
    assert [gate["name"] for gate in pod["spec"]["schedulingGates"]] == ["first", "last"]


@asynchronous
async def test_record_stands_in_both_places_before_the_first_lift(world: World):
    world.place_admitted_job()
    replica = await world.start_replica()
    seen = []

    def look(client: MemoryClient, verb: str, resource: Resource, _raw: Object) -> None:
        if (verb, resource) == ("patch", PODS):
            ledger = client.peek(CONFIG_MAPS, LEDGER)
            assert ledger is not None
            seen.append((world.note(words.RECORD_ANNOTATION), ledger["data"]["execution"]))

    world.client.reactions.append(look)
    await replica.loop.look(UID)

    assert len(seen) == 2
    assert all(on_trainjob == in_ledger for on_trainjob, in_ledger in seen)
    assert {pod["uid"] for pod in json.loads(seen[0][0] or "")["pods"]} == {"pod-1-0", "pod-1-1"}


@pytest.mark.parametrize(
    ("verb", "resource"),
    [("patch", TRAINJOBS), ("create", CONFIG_MAPS), ("patch", PODS)],
    ids=["record", "ledger", "lift"],
)
@pytest.mark.parametrize("is_late", [False, True], ids=["before", "after"])
@asynchronous
async def test_killed_at_any_write_it_ends_the_same(world: World, verb: str, resource: Resource, is_late: bool):
    world.place_admitted_job()
    replica = await world.start_replica()
    world.client.faults.append(Fault(verb, resource, AnswerLostError("killed"), is_late=is_late))
    with pytest.raises(AnswerLostError):
        await replica.loop.look(UID)

    successor = await world.start_replica()
    await successor.loop.look(UID)

    assert world.epochs() == ["1000001", "1000001"]


@asynchronous
async def test_hold_after_the_record_stops_the_lifts(world: World):
    world.place_admitted_job()
    replica = await world.start_replica()

    def hold(client: MemoryClient, verb: str, resource: Resource, raw: Object) -> None:
        if (verb, resource) == ("create", CONFIG_MAPS):
            trainjob = world.trainjob()
            trainjob["metadata"]["annotations"][words.HOLDS_ANNOTATION] = json.dumps(
                {
                    "active": [
                        {
                            "instance": 1,
                            "key": "k",
                            "actor": {"kind": "human", "id": "me"},
                            "reason": "",
                            "since": "2026-03-01T12:00:00Z",
                        }
                    ],
                    "last_instance": 1,
                }
            )
            client.put(TRAINJOBS, trainjob)

    world.client.reactions.append(hold)
    with pytest.raises(ConflictError, match="held"):
        await replica.loop.look(UID)

    assert world.epochs() == [None, None]
    await show(replica)
    await replica.loop.look(UID)
    workload = world.client.peek(WORKLOADS, WORKLOAD)
    assert workload is not None
    assert workload["spec"]["active"] is False
    assert workload["metadata"]["annotations"][words.HOLD_INSTANCE_ANNOTATION] == "1"


@asynchronous
async def test_old_pod_keeps_the_check_pending_and_is_named(world: World):
    world.place_job()
    world.reserve()
    world.client.put(PODS, build_pod(0, node="node-2", deletionTimestamp="2026-03-01T12:00:00Z"))
    replica = await world.start_replica()

    await settle(world, replica)

    assert world.check()["state"] == "Pending"
    assert "node-2" in world.check()["message"]
    requests = len(world.client.requests)
    assert await replica.loop.look(UID) == pytest.approx(5.0)
    assert len(world.client.requests) == requests


@asynchronous
async def test_the_last_deaths_and_the_next_a_are_one_write(world: World):
    world.place_admitted_job()
    replica = await world.start_replica()
    await replica.loop.look(UID)
    for pod in world.client.peek_all(PODS):
        world.client.put(PODS, pod | {"status": {**pod["status"], "phase": "Failed"}})
    world.reserve(at=2)
    world.client.put(TRAINJOBS, world.trainjob() | {"spec": {**world.trainjob()["spec"], "suspend": True}})
    await show(replica)
    before = len(world.client.requests)

    world.pass_time(3)
    await replica.loop.look(UID)

    assert (world.check()["state"], world.note(words.ADMISSIONS_ANNOTATION)) == ("Ready", "2")
    record = ExecutionRecord.from_json(world.note(words.RECORD_ANNOTATION) or "")
    assert all(pod.is_dead for pod in record.pods)
    writes = [one.resource for one in world.client.requests[before:] if one.verb == "patch"]
    assert writes[:3] == [TRAINJOBS, CONFIG_MAPS, WORKLOADS]


@asynchronous
async def test_vanished_pod_is_doubted_until_its_node_vouches(world: World):
    record = {
        "r": 1,
        "a": 1,
        "jobset_uid": "js-1",
        "pods": [
            {"slot": {"role": "node", "job_index": 0, "completion_index": 0}, "uid": "old", "name": "old", "node": "n1"}
        ],
    }
    world.place_job(admissions="1", notes={words.RECORD_ANNOTATION: json.dumps(record)})
    world.reserve()
    node = {"metadata": {"name": "n1"}, "status": {"conditions": [build_condition("Ready", "False", world.wall())]}}
    world.client.put(NODES, node)
    replica = await world.start_replica()

    await replica.loop.look(UID)
    assert (world.check()["state"], "old" in world.check()["message"]) == ("Pending", True)

    node["status"] = {"conditions": [build_condition("Ready", "True", world.wall())]}
    world.client.put(NODES, node)
    await replica.loop.look(UID)
    assert world.check()["state"] == "Pending"

    world.pass_time(300)
    await replica.lease.attempt()
    await replica.loop.look(UID)
    assert (world.check()["state"], world.note(words.ADMISSIONS_ANNOTATION)) == ("Ready", "2")


@asynchronous
async def test_without_the_lease_nothing_is_written(world: World):
    world.place_admitted_job()
    replica = await world.start_replica()
    world.pass_time(10.1)

    with pytest.raises(LeaseLostError):
        await replica.loop.look(UID)

    assert world.epochs() == [None, None]
    assert world.note(words.RECORD_ANNOTATION) is None


@asynchronous
async def test_replica_delayed_past_its_lease_lifts_nothing(world: World):
    world.place_admitted_job()
    delayed = await world.start_replica("delayed")
    second: list[Replica] = []

    def delay(_client: MemoryClient, verb: str, resource: Resource, _raw: Object) -> None:
        if (verb, resource) == ("create", CONFIG_MAPS):
            world.pass_time(16)

    world.client.reactions.append(delay)
    with pytest.raises(LeaseLostError):
        await delayed.loop.look(UID)
    assert world.epochs() == [None, None]
    world.client.reactions.clear()

    # Another sees the Lease unchanged for its whole duration, takes it, and lifts what was recorded.
    second.append(await world.start_replica("second"))
    assert not second[0].lease.is_held
    world.pass_time(16)
    assert await second[0].lease.attempt()
    await second[0].loop.look(UID)
    assert world.epochs() == ["1000001", "1000001"]


@asynchronous
async def test_two_replicas_that_both_believe_to_lead_lift_once(world: World):
    world.place_admitted_job()
    first, second = await world.start_replica("first"), await world.start_replica("second")
    # The second has a Lease object of its own: as if the rules of the Lease had failed altogether.
    rogue = await world.start_replica("rogue", lease_name="another")
    assert (first.lease.is_held, second.lease.is_held, rogue.lease.is_held) == (True, False, True)

    def interfere(client: MemoryClient, verb: str, resource: Resource, _raw: Object) -> None:
        if (verb, resource) == ("patch", PODS) and client.count("patch", PODS) == 1:
            pods = [pod for pod in client.peek_all(PODS) if pod["spec"]["schedulingGates"]]
            for pod in pods:
                pod["spec"]["schedulingGates"] = []
                pod["metadata"]["annotations"][words.EPOCH_ANNOTATION] = "1000001"
                client.put(PODS, pod)

    world.client.reactions.append(interfere)
    with pytest.raises(ConflictError):
        await first.loop.look(UID)
    await show(rogue)
    await rogue.loop.look(UID)

    assert world.epochs() == ["1000001", "1000001"]


@asynchronous
async def test_quiet_job_costs_no_request(world: World):
    world.place_admitted_job()
    replica = await world.start_replica()
    await replica.loop.look(UID)
    await show(replica)
    await settle(world, replica)
    requests = len(world.client.requests)

    for _ in range(10):
        await replica.loop.look(UID)

    assert len(world.client.requests) == requests


@asynchronous
async def test_unreadable_record_is_never_taken_for_an_empty_one(world: World):
    world.place_admitted_job()
    trainjob = world.trainjob()
    trainjob["metadata"]["annotations"][words.RECORD_ANNOTATION] = "not a record"
    world.client.put(TRAINJOBS, trainjob)
    replica = await world.start_replica()

    await replica.loop._turn(UID)

    assert world.epochs() == [None, None]
    assert b'dispatch_failures_total{error="ProtocolError"} 1.0' in replica.metrics.render()


@asynchronous
async def test_trouble_of_one_job_is_tried_again_later(world: World):
    world.place_admitted_job()
    replica = await world.start_replica()
    world.client.faults.append(Fault("list", PODS, UnavailableError("away")))

    await replica.loop._turn(UID)
    assert world.epochs() == [None, None]

    world.pass_time(1)
    assert await replica.queue.take() == UID
    await replica.loop._turn(UID)
    assert world.epochs() == ["1000001", "1000001"]


@asynchronous
async def test_hold_whose_time_is_over_is_lifted(world: World):
    world.place_job(
        admissions="1",
        notes={
            words.HOLDS_ANNOTATION: json.dumps(
                {
                    "active": [
                        {
                            "instance": 1,
                            "key": "k",
                            "actor": {"kind": "policy", "id": "dag"},
                            "reason": "",
                            "since": "2026-03-01T11:00:00Z",
                            "until": "2026-03-01T12:00:10Z",
                        }
                    ],
                    "last_instance": 1,
                }
            )
        },
    )
    workload = world.reserve()
    workload["spec"]["active"] = False
    workload["metadata"]["annotations"] = {words.HOLD_INSTANCE_ANNOTATION: "1"}
    workload["status"] = {"conditions": []}
    world.client.put(WORKLOADS, workload)
    replica = await world.start_replica()

    assert await settle(world, replica) == pytest.approx(9.0)
    world.pass_time(9)
    await replica.lease.attempt()
    await replica.loop.look(UID)

    released = world.client.peek(WORKLOADS, WORKLOAD)
    assert released is not None
    assert released["spec"]["active"] is True
    assert words.HOLD_INSTANCE_ANNOTATION not in released["metadata"]["annotations"]
    assert json.loads(world.note(words.HOLDS_ANNOTATION) or "")["active"] == []


@asynchronous
async def test_clocks_follow_the_state(world: World):
    world.place_job()
    replica = await world.start_replica()
    assert await replica.loop.look(UID) == pytest.approx(1.0)
    assert world.note(words.CLOCKS_ANNOTATION) is None
    world.pass_time(1)
    await replica.loop.look(UID)
    clocks = json.loads(world.note(words.CLOCKS_ANNOTATION) or "{}")
    assert clocks["queued"]["since"] is not None


@asynchronous
async def test_end_is_noted_once_and_outlives_its_proofs(world: World):
    world.place_admitted_job()
    replica = await world.start_replica()
    await replica.loop.look(UID)
    trainjob = world.trainjob()
    trainjob["status"] = {"conditions": [build_condition(words.TRAINJOB_COMPLETE, "True", world.wall())]}
    world.client.put(TRAINJOBS, trainjob)
    await show(replica)

    await replica.loop.look(UID)
    end = json.loads(world.note(words.END_ANNOTATION) or "{}")
    assert end["state"] == "succeeded"

    trainjob = world.trainjob()
    trainjob["status"] = {}
    world.client.put(TRAINJOBS, trainjob)
    await show(replica)
    await replica.loop.look(UID)
    assert json.loads(world.note(words.END_ANNOTATION) or "{}") == end


@asynchronous
async def test_success_of_an_earlier_submission_is_none_of_the_next(world: World):
    """Its pods lie about while the next one has none yet."""
    world.place_job()
    world.reserve()
    ended = {"containerStatuses": [{"state": {"terminated": {"exitCode": 0, "finishedAt": format_time(NOW)}}}]}
    world.client.put(PODS, build_pod(0, submission=9, phase="Succeeded", status=ended))
    replica = await world.start_replica()

    await settle(world, replica)

    assert world.note(words.END_ANNOTATION) is None
    assert world.check()["state"] == "Ready"


@asynchronous
async def test_gate_of_time_is_opened_when_it_has_come(world: World):
    gates = f"{words.GATE},{words.NOT_BEFORE_GATE}"
    notes = {words.ADMISSION_GATED_BY: gates, words.NOT_BEFORE_ANNOTATION: "2026-03-01T12:00:30Z"}
    world.place_job(notes=notes)
    replica = await world.start_replica()
    assert await settle(world, replica) == pytest.approx(29.0)
    assert world.note(words.ADMISSION_GATED_BY) == gates

    world.pass_time(31)
    await replica.lease.attempt()
    await replica.loop.look(UID)
    assert world.note(words.ADMISSION_GATED_BY) == words.GATE


@asynchronous
async def test_runtime_without_owner_gets_it(world: World):
    world.place_job()
    runtime = world.client.peek(TRAINING_RUNTIMES, NAME)
    assert runtime is not None
    del runtime["metadata"]["ownerReferences"]
    world.client.put(TRAINING_RUNTIMES, runtime)
    replica = await world.start_replica()

    await replica.loop.look(UID)

    mended = world.client.peek(TRAINING_RUNTIMES, NAME)
    assert mended is not None
    (owner,) = mended["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["blockOwnerDeletion"]) == (UID, False)


@asynchronous
async def test_pod_of_the_same_name_is_not_the_one_that_was_recorded(world: World):
    world.place_admitted_job(pods=1)
    replica = await world.start_replica()
    name = world.client.peek_all(PODS)[0]["metadata"]["name"]

    def swap(client: MemoryClient, verb: str, resource: Resource, _raw: Object) -> None:
        if (verb, resource) == ("create", CONFIG_MAPS):
            client.drop(PODS, name)
            world.place_pod(0, uid="another", name=name)

    world.client.reactions.append(swap)
    with pytest.raises(ConflictError):
        await replica.loop.look(UID)
    assert world.epochs() == [None]


@asynchronous
async def test_ready_is_never_said_of_a_reservation_that_has_changed(world: World):
    world.place_job()
    world.reserve()
    replica = await world.start_replica()

    def take_quota_away(client: MemoryClient, verb: str, resource: Resource, _raw: Object) -> None:
        if (verb, resource) == ("patch", TRAINJOBS):
            workload = client.peek(WORKLOADS, WORKLOAD)
            assert workload is not None
            workload["status"]["conditions"] = [build_condition(words.QUOTA_RESERVED, "False", world.wall())]
            client.put(WORKLOADS, workload)

    world.client.reactions.append(take_quota_away)
    with pytest.raises(ConflictError):
        await replica.loop.look(UID)
    assert world.check()["state"] == "Pending"


@asynchronous
async def test_old_submission_never_overwrites_what_the_ledger_says_of_a_newer_one(world: World):
    notes = {words.RECORD_ANNOTATION: build_record(old={"is_dead": True})}
    world.place_job(admissions="1", notes=notes)
    ledger = {"ledger": '{"submission": 2}', "execution": build_record(new={})}
    world.client.put(CONFIG_MAPS, {"metadata": {"name": LEDGER}, "data": ledger})
    replica = await world.start_replica()

    await replica.loop.look(UID)

    found = world.client.peek(CONFIG_MAPS, LEDGER)
    assert found is not None
    assert found["data"] == ledger


@asynchronous
async def test_end_is_judged_on_a_fresh_read(world: World):
    world.place_admitted_job()
    replica = await world.start_replica()
    await replica.loop.look(UID)
    trainjob = world.trainjob()
    trainjob["status"] = {"conditions": [build_condition(words.TRAINJOB_COMPLETE, "True", world.wall())]}
    seen = world.client.put(TRAINJOBS, trainjob)
    await show(replica)
    # Meanwhile Trainer has taken it back, and the watch is late.
    world.client.put(TRAINJOBS, {**seen, "status": {}})

    await replica.loop.look(UID)

    assert world.note(words.END_ANNOTATION) is None


@asynchronous
async def test_pod_let_loose_by_hand_is_doubted_when_it_vanishes(world: World):
    world.place_job(admissions="1")
    world.client.put(NODES, {"metadata": {"name": "n1"}, "status": {}}, "")
    stranger = world.client.put(PODS, build_pod(0, node="n1", notes={}))
    replica = await world.start_replica()
    replica.cache.remove(PODS, stranger)
    world.client.drop(PODS, stranger["metadata"]["name"])
    world.reserve()
    await show(replica)

    await replica.loop.look(UID)

    assert world.check()["state"] == "Pending"
    assert world.client.count("get", NODES) > 0


@asynchronous
async def test_ready_that_outlived_its_reservation_is_taken_back(world: World):
    world.place_job()
    workload = world.reserve(state="Ready")
    workload["status"]["conditions"] = []
    world.client.put(WORKLOADS, workload)
    replica = await world.start_replica()
    await replica.loop.look(UID)
    assert world.check()["state"] == "Pending"


@asynchronous
async def test_ready_of_another_reservation_gives_the_quota_back(world: World):
    world.place_job(admissions="1", notes={words.ADMISSION_KEY_ANNOTATION: "another"})
    world.reserve(state="Ready")
    replica = await world.start_replica()
    await replica.loop.look(UID)
    assert (world.check()["state"], world.note(words.ADMISSIONS_ANNOTATION)) == ("Retry", "1")


@asynchronous
async def test_a_fault_of_our_own_stops_no_worker(world: World):
    world.place_admitted_job()
    replica = await world.start_replica()
    world.client.faults.append(Fault("list", PODS, TypeError("a slip")))

    await replica.loop._turn(UID)

    assert b'dispatch_failures_total{error="TypeError"} 1.0' in replica.metrics.render()
    await replica.loop.look(UID)
    assert world.epochs() == ["1000001", "1000001"]
