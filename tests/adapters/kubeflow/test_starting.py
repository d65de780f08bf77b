# SPDX-License-Identifier: Apache-2.0
"""`start` and `open` on a cluster: the order of the writes, what they refuse, and that nothing is ever made twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_dispatch.adapters.kubeflow.client import WatchEvent
from airflow_provider_dispatch.adapters.kubeflow.errors import AnswerLostError
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.ledger import Ledger, build_ledger, read_ledger
from airflow_provider_dispatch.adapters.kubeflow.model.resources import (
    CLUSTER_TRAINING_RUNTIMES,
    CONFIG_MAPS,
    EVENTS,
    JOBSETS,
    LOCAL_QUEUES,
    PODS,
    TRAINING_RUNTIMES,
    TRAINJOBS,
    WORKLOADS,
    Resource,
)
from airflow_provider_dispatch.adapters.kubeflow.model.submission import build_labels
from airflow_provider_dispatch.adapters.kubeflow.opening import open_gate
from airflow_provider_dispatch.adapters.kubeflow.queue_lookup import QueueMemory
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings, RuntimeSettings
from airflow_provider_dispatch.adapters.kubeflow.starting import start
from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.owner import Owner
from airflow_provider_dispatch.core.records import StartRequest
from airflow_provider_dispatch.exceptions import (
    ConflictError,
    JobNotFoundError,
    RefusedError,
    SpecError,
    UnavailableError,
)
from tests.adapters.kubeflow.cluster_parts import NOW, build_cluster, build_runtime
from tests.adapters.kubeflow.memory_client import Fault, MemoryClient
from tests.adapters.kubeflow.proved_cluster import build_proved_cluster

JOB = JobID("01K0000000000000000000000A")
NAME = f"dj-{JOB.lower()}-s1"
KUEUE = KubeflowSettings(queue="lq", runtime=RuntimeSettings(name="plain"))
PLAIN = KubeflowSettings(runtime=RuntimeSettings(name="plain"), has_controller=False)
SPEC = JobSpec(command=["python", "train.py"], nodes=2)
WRITES = ("create", "patch", "delete")


def ask(spec: JobSpec = SPEC, submission: int = 1, **more: Any) -> StartRequest:
    return StartRequest(JOB, submission, 1, spec, **more)


def begin(
    client: MemoryClient,
    request: StartRequest | None = None,
    settings: KubeflowSettings = KUEUE,
    *,
    memory: QueueMemory | None = None,
    seconds: float = 5,
) -> JobRef:
    deadline = NOW + timedelta(seconds=seconds)
    memory = memory or QueueMemory()
    return asyncio.run(start(client, settings, request or ask(), memory=memory, deadline=deadline, now=NOW))


def unlock(client: MemoryClient, ref: JobRef, settings: KubeflowSettings = KUEUE) -> None:
    asyncio.run(open_gate(client, settings, ref, deadline=NOW + timedelta(seconds=5), now=NOW))


def gates(client: MemoryClient) -> str | None:
    trainjob = client.peek(TRAINJOBS, NAME)
    assert trainjob is not None
    return trainjob["metadata"]["annotations"].get(words.ADMISSION_GATED_BY)


def ledger(client: MemoryClient) -> Ledger:
    return read_ledger(client.peek(CONFIG_MAPS, f"dj-{JOB.lower()}"))


def written(client: MemoryClient) -> list[tuple[str, str]]:
    return [(one.verb, one.resource.kind) for one in client.requests if one.verb in WRITES]


def test_a_start_writes_runtime_ledger_trainjob_and_owner_in_this_order() -> None:
    client = build_cluster()
    ref = begin(client)
    trainjob, runtime = client.peek(TRAINJOBS, NAME), client.peek(TRAINING_RUNTIMES, NAME)
    assert trainjob is not None
    assert runtime is not None
    assert ref == JobRef(JOB, 1, "kubeflow", "default", trainjob["metadata"]["uid"])
    assert runtime["metadata"]["ownerReferences"][0]["uid"] == ref.uid
    assert ledger(client) == Ledger(1, "")
    assert written(client) == [
        ("create", "TrainingRuntime"),
        ("create", "ConfigMap"),
        ("create", "TrainJob"),
        ("patch", "TrainingRuntime"),
    ]


def test_a_start_costs_eight_requests_once_the_queue_is_known() -> None:
    client, memory = build_cluster(), QueueMemory()
    begin(client, memory=memory)
    first = len(client.requests)
    asyncio.run(
        start(
            client,
            KUEUE,
            StartRequest(JobID("01K0000000000000000000000B"), 1, 1, SPEC),
            memory=memory,
            deadline=NOW + timedelta(seconds=5),
            now=NOW,
        )
    )
    assert len(client.requests) - first == 8


def test_what_was_found_good_is_asked_again_after_a_minute() -> None:
    memory = QueueMemory()
    memory.note(KUEUE, NOW, "queue", "lq")
    assert memory.knows(KUEUE, NOW + timedelta(seconds=59), "queue", "lq")
    assert not memory.knows(KUEUE, NOW + timedelta(seconds=60), "queue", "lq")
    assert not memory.knows(KUEUE, NOW, "queue", "other")
    assert not memory.knows(PLAIN, NOW, "queue", "lq")


def test_the_same_start_again_gives_the_same_ref_and_makes_nothing() -> None:
    client = build_cluster()
    first = begin(client)
    client.requests.clear()
    assert begin(client) == first
    assert written(client) == [("patch", "TrainingRuntime")]


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize(
    ("verb", "resource"),
    [
        ("create", TRAINING_RUNTIMES),
        ("create", CONFIG_MAPS),
        ("create", TRAINJOBS),
        ("patch", TRAINING_RUNTIMES),
        ("watch", WORKLOADS),
    ],
)
def test_a_start_that_broke_off_anywhere_is_completed_by_the_same_call(
    verb: str, resource: Resource, is_late: bool
) -> None:
    client = build_cluster()
    client.faults.append(Fault(verb, resource, AnswerLostError("gone"), is_late))
    with pytest.raises(UnavailableError):
        begin(client)
    ref = begin(client)
    assert [len(client.peek_all(kind)) for kind in (TRAINJOBS, TRAINING_RUNTIMES, WORKLOADS)] == [1, 1, 1]
    runtime = client.peek(TRAINING_RUNTIMES, NAME)
    assert runtime is not None
    assert runtime["metadata"]["ownerReferences"][0]["uid"] == ref.uid


def test_a_start_that_broke_off_with_another_spec_is_a_conflict() -> None:
    client = build_cluster()
    client.faults.append(Fault("create", CONFIG_MAPS, AnswerLostError("gone")))
    with pytest.raises(UnavailableError):
        begin(client)
    with pytest.raises(ConflictError, match="another spec"):
        begin(client, ask(JobSpec(command=["other"])))


def test_a_number_whose_trainjob_was_deleted_is_used_up() -> None:
    client = build_cluster()
    begin(client)
    client.drop(TRAINJOBS, NAME)
    with pytest.raises(ConflictError, match="used before; the next is 2"):
        begin(client)
    client.drop(TRAINING_RUNTIMES, NAME)
    with pytest.raises(ConflictError, match="used before; the next is 2"):
        begin(client)
    assert begin(client, ask(submission=2)).submission == 2


def test_a_number_below_the_ledger_is_refused() -> None:
    client = build_cluster()
    client.put(CONFIG_MAPS, build_ledger(JOB, Ledger(3, "")))
    for used in (1, 3):
        with pytest.raises(ConflictError, match="the next is 4"):
            begin(client, ask(submission=used))
    begin(client, ask(submission=5))
    assert ledger(client).submission == 5


def test_another_spec_under_the_same_number_is_a_conflict() -> None:
    client = build_cluster()
    begin(client)
    with pytest.raises(ConflictError, match="another spec"):
        begin(client, ask(JobSpec(command=["other"])))


def test_a_new_submission_waits_until_the_old_one_has_ended() -> None:
    client = build_cluster()
    begin(client)
    with pytest.raises(ConflictError, match=r"submission 1 .* has not ended"):
        begin(client, ask(submission=2))
    trainjob = client.peek(TRAINJOBS, NAME)
    assert trainjob is not None
    trainjob["status"] = {"conditions": [{"type": "Failed", "status": "True"}]}
    assert begin(client, ask(submission=2)).submission == 2


def test_a_rank_that_failed_ends_its_submission_before_its_trainjob_says_so() -> None:
    client = build_cluster()
    begin(client)
    ended = {"exitCode": 3, "finishedAt": "2030-01-01T00:00:00Z"}
    trainjob = client.peek(TRAINJOBS, NAME)
    assert trainjob is not None
    owner = {"kind": "TrainJob", "name": NAME, "uid": trainjob["metadata"]["uid"], "controller": True}
    about = {"name": NAME, "labels": build_labels(JOB, 1, ""), "ownerReferences": [owner]}
    client.put(JOBSETS, {"metadata": about, "spec": {}, "status": {}})
    jobset = client.peek(JOBSETS, NAME)
    assert jobset is not None
    labels = {words.ROLE_LABEL: "node", words.COMPLETION_INDEX_LABEL: "0", words.RESTART_LABEL: "0"}
    labels |= build_labels(JOB, 1, "") | {words.JOBSET_UID_LABEL: jobset["metadata"]["uid"]}
    status = {"phase": "Failed", "containerStatuses": [{"name": "node", "state": {"terminated": ended}}]}
    client.put(PODS, {"metadata": {"name": f"{NAME}-node-0-0-abcde", "labels": labels}, "status": status})
    assert begin(client, ask(submission=2)).submission == 2


def test_a_job_of_another_deployment_is_refused() -> None:
    client = build_cluster()
    begin(client, ask(owner=Owner("blue")))
    with pytest.raises(ConflictError, match="deployment 'blue'"):
        begin(client, ask(owner=Owner("green"), submission=2))
    with pytest.raises(ConflictError, match="serves deployment 'red'"):
        begin(client, ask(owner=Owner("blue")), KUEUE.model_copy(update={"deployment": "red"}))


@pytest.mark.parametrize(
    ("resource", "name"), [(TRAINJOBS, NAME), (TRAINING_RUNTIMES, NAME), (CONFIG_MAPS, f"dj-{JOB.lower()}")]
)
def test_a_name_that_somebody_else_has_taken_is_a_conflict(resource: Resource, name: str) -> None:
    client = build_cluster()
    client.put(resource, {"metadata": {"name": name}})
    with pytest.raises(ConflictError, match=f"{resource.kind} {name} in namespace default was made by somebody else"):
        begin(client)
    assert client.count("patch") == 0
    assert [client.count("delete"), len(client.peek_all(TRAINJOBS))] == [0, int(resource == TRAINJOBS)]


def test_two_starts_at_once_that_write_the_ledger_make_one_job() -> None:
    client = build_cluster()

    def overtake(client: MemoryClient, verb: str, resource: Resource, body: Any) -> None:
        if (verb, resource) == ("create", TRAINING_RUNTIMES):
            client.put(CONFIG_MAPS, build_ledger(JOB, Ledger(1, "")))

    client.reactions.append(overtake)
    assert begin(client).submission == 1


def test_a_ledger_that_another_submission_has_just_moved_is_no_longer_ours_to_use() -> None:
    client = build_cluster()

    def overtake(client: MemoryClient, verb: str, resource: Resource, body: Any) -> None:
        if (verb, resource) == ("create", TRAINING_RUNTIMES):
            client.put(CONFIG_MAPS, build_ledger(JOB, Ledger(2, "")))

    client.reactions.append(overtake)
    with pytest.raises(UnavailableError, match="somebody else changed the ledger"):
        begin(client)
    assert client.peek_all(TRAINJOBS) == []


def test_a_ledger_into_which_the_controller_writes_meanwhile_keeps_what_it_wrote() -> None:
    client = build_cluster()
    client.put(CONFIG_MAPS, build_ledger(JOB, Ledger(1, "")))

    def note_a_death(client: MemoryClient, verb: str, resource: Resource, body: Any) -> None:
        if (verb, resource) == ("create", TRAINING_RUNTIMES):
            client.put(CONFIG_MAPS, build_ledger(JOB, Ledger(1, "", record="noted meanwhile")))

    client.reactions.append(note_a_death)
    assert begin(client, ask(submission=2)).submission == 2
    assert ledger(client) == Ledger(2, "")
    assert ledger(client).record == "noted meanwhile"


@pytest.mark.parametrize(
    ("spec", "settings", "field", "said"),
    [
        ({"queue": "team-x"}, KUEUE, "queue", "is not one of lq in namespace default"),
        ({"priority": "urgent"}, KUEUE, "priority", "must be one of high, low"),
        ({"priority": 5}, KUEUE, "priority", "name a WorkloadPriorityClass"),
        ({"priority": "high"}, PLAIN, "priority", "needs a queue"),
        ({"max_restarts": 1}, PLAIN, "max_restarts", "needs the controller"),
        ({"runtime": "jax"}, KUEUE, "runtime", "the cluster's are plain"),
        ({}, KubeflowSettings(queue="lq"), "runtime", "name a training runtime"),
        ({"env": {"Ä": "x"}}, KUEUE, "roles[0].env", "printable ASCII"),
        ({"secrets": {"Ä": "team/x"}}, KUEUE, "roles[0].secrets", "printable ASCII"),
    ],
)
def test_what_the_cluster_can_not_carry_is_told_before_anything_is_written(
    spec: dict, settings: KubeflowSettings, field: str, said: str
) -> None:
    client = build_cluster()
    with pytest.raises(SpecError, match=said) as caught:
        begin(client, ask(JobSpec(command=["a"], **spec)), settings)
    assert caught.value.field == field
    assert written(client) == []


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (ask(submission=0), "submission"),
        (ask(not_before=NOW.replace(tzinfo=None)), "not_before"),
        (ask(owner=Owner("my airflow")), "owner.deployment"),
        (StartRequest(JOB, 1, 0, SPEC), "attempt"),
    ],
)
def test_a_request_that_no_object_could_hold_is_refused(request_: StartRequest, field: str) -> None:
    client = build_cluster()
    with pytest.raises(SpecError) as caught:
        begin(client, request_)
    assert (caught.value.field, client.requests) == (field, [])


def test_a_priority_travels_as_its_class() -> None:
    client = build_cluster()
    begin(client, ask(JobSpec(command=["a"], priority="high")))
    trainjob = client.peek(TRAINJOBS, NAME)
    assert trainjob is not None
    assert trainjob["metadata"]["labels"][words.PRIORITY_LABEL] == "high"


def test_a_namespaces_own_runtime_is_found_by_its_name() -> None:
    client = build_cluster()
    client.put(TRAINING_RUNTIMES, build_runtime("ours"))
    begin(client, ask(JobSpec(command=["a"], runtime="ours")))
    runtime = client.peek(TRAINING_RUNTIMES, NAME)
    assert runtime is not None
    assert runtime["metadata"]["annotations"][words.COPIED_FROM_ANNOTATION] == "TrainingRuntime/ours"


def test_a_watch_that_ends_at_once_is_begun_again_with_growing_pauses() -> None:
    """Something between us and the server ends it."""

    class CurtClient(MemoryClient):
        async def watch(self, *arguments: Any, **named: Any) -> AsyncGenerator[WatchEvent]:
            if len(slept) < 6:
                return
            async for event in super().watch(*arguments, **named):
                yield event

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    slept: list[float] = []
    client = build_cluster(CurtClient())
    by = NOW + timedelta(seconds=5)
    asyncio.run(start(client, KUEUE, ask(), memory=QueueMemory(), deadline=by, now=NOW, sleep=sleep))
    assert slept == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0]


def test_without_a_workload_in_time_the_call_may_be_made_again() -> None:
    client = build_cluster()
    kueue = client.reactions.pop()

    def webhook_alone(client: MemoryClient, verb: str, resource: Resource, body: Any) -> None:
        kueue(client, verb, resource, body)
        for workload in client.peek_all(WORKLOADS):
            client.drop(WORKLOADS, workload["metadata"]["name"])

    client.reactions.append(webhook_alone)
    with pytest.raises(UnavailableError, match="may be made again"):
        begin(client, seconds=0.05)
    assert len(client.peek_all(TRAINJOBS)) == 1


def test_past_its_deadline_a_start_asks_nothing() -> None:
    client = build_cluster()
    with pytest.raises(UnavailableError, match="nothing was written"):
        begin(client, seconds=-1)
    assert client.requests == []


def test_a_webhook_that_has_not_seen_the_runtime_yet_is_asked_again() -> None:
    client, slept = build_cluster(), []
    unseen = RefusedError(
        "admission webhook denied the request: specified trainingRuntime must be created before the TrainJob is created"
    )
    client.faults += [Fault("create", TRAINJOBS, unseen), Fault("create", TRAINJOBS, unseen)]

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    by = NOW + timedelta(seconds=5)
    asyncio.run(start(client, KUEUE, ask(), memory=QueueMemory(), deadline=by, now=NOW, sleep=sleep))
    assert (slept, len(client.peek_all(TRAINJOBS))) == ([0.05, 0.1], 1)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("specified trainingRuntime must be created before the TrainJob is created", UnavailableError),
        (f"runtime '{NAME}' not found", UnavailableError),
        (f'TrainingRuntime.trainer.kubeflow.org "{NAME}" not found', UnavailableError),
        ('priority class "urgent" not found', RefusedError),
    ],
)
def test_a_webhook_that_stays_behind_is_no_refusal(said: str, kind: type[Exception]) -> None:
    client = build_proved_cluster()
    client.faults += [Fault("create", TRAINJOBS, RefusedError(f"admission webhook denied the request: {said}"))] * 7

    async def sleep(_seconds: float) -> None:
        pass

    by = NOW + timedelta(seconds=5)
    with pytest.raises(kind, match=r"not found|created before"):
        asyncio.run(start(client, KUEUE, ask(), memory=QueueMemory(), deadline=by, now=NOW, sleep=sleep))
    assert client.peek_all(TRAINJOBS) == []


def test_opening_takes_our_gate_and_no_other() -> None:
    client = build_cluster()
    later = NOW + timedelta(minutes=1)
    ref = begin(client, ask(not_before=later))
    assert gates(client) == f"{words.GATE},{words.NOT_BEFORE_GATE}"
    unlock(client, ref)
    assert gates(client) == words.NOT_BEFORE_GATE
    unlock(client, ref)
    assert client.count("patch", TRAINJOBS) == 1
    assert [event["reason"] for event in client.peek_all(EVENTS)] == ["opened"]


def test_the_annotation_goes_with_the_last_gate() -> None:
    client = build_cluster()
    unlock(client, begin(client))
    assert gates(client) is None
    trainjob = client.peek(TRAINJOBS, NAME)
    assert trainjob is not None
    assert trainjob["spec"]["suspend"], "Kueue resumes it, not we"


def test_an_opening_whose_answer_was_lost_is_made_once() -> None:
    client = build_cluster()
    ref = begin(client)
    client.faults.append(Fault("patch", TRAINJOBS, AnswerLostError("gone"), is_late=True))
    with pytest.raises(UnavailableError):
        unlock(client, ref)
    unlock(client, ref)
    assert gates(client) is None
    assert client.count("patch", TRAINJOBS) == 1


def test_a_job_that_changed_meanwhile_is_judged_again() -> None:
    client = build_cluster()
    ref = begin(client)

    real, count = client.list, 0

    async def list_and_change(*args: Any, **more: Any) -> Any:
        nonlocal count
        found = await real(*args, **more)
        trainjob = client.peek(TRAINJOBS, NAME)
        if trainjob is not None and count == 0:
            client.put(TRAINJOBS, trainjob)
        count += 1
        return found

    client.list = list_and_change  # type: ignore[method-assign]  # a client that is slower than somebody else
    unlock(client, ref)
    assert (gates(client), count) == (None, 2)


@pytest.mark.parametrize("change", [{"uid": "another"}, {"submission": 2}])
def test_opening_what_is_not_there_is_an_error(change: dict) -> None:
    client = build_cluster()
    ref = begin(client)
    missing = JobRef(
        **{"job": JOB, "submission": 1, "backend": "kubeflow", "place": "default", "uid": ref.uid} | change
    )
    with pytest.raises(JobNotFoundError):
        unlock(client, missing)
    with pytest.raises(ConflictError, match="lives in kubeflow elsewhere"):
        unlock(client, JobRef(JOB, 1, "kubeflow", "elsewhere"))
    assert gates(client) == words.GATE


def test_in_plain_mode_opening_resumes_under_the_first_epoch() -> None:
    client = build_cluster()
    ref = begin(client, settings=PLAIN)
    assert client.count("watch") == 0
    unlock(client, ref, PLAIN)
    trainjob = client.peek(TRAINJOBS, NAME)
    assert trainjob is not None
    assert trainjob["spec"]["suspend"] is False
    (item,) = trainjob["spec"]["runtimePatches"]
    (job,) = item["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    notes = job["template"]["spec"]["template"]["metadata"]["annotations"]
    assert (notes[words.EPOCH_ANNOTATION], notes[words.ATTEMPT_ANNOTATION]) == ("1000001", f"{JOB}.1.1.1.0")


def test_in_plain_mode_pods_of_an_older_submission_keep_an_open_job_suspended() -> None:
    client = build_cluster()
    ref = begin(client, settings=PLAIN)
    labels = {words.JOB_LABEL: JOB.lower(), words.SUBMISSION_LABEL: "0"}
    client.put(PODS, {"metadata": {"name": "old", "labels": labels}, "status": {"phase": "Running"}})
    unlock(client, ref, PLAIN)
    trainjob = client.peek(TRAINJOBS, NAME)
    assert trainjob is not None
    assert (gates(client), trainjob["spec"]["suspend"]) == (None, True)


def test_an_unknown_queue_is_asked_for_again_each_time() -> None:
    client, memory = build_cluster(), QueueMemory()
    asked = ask(JobSpec(command=["a"], queue="late"))
    with pytest.raises(SpecError):
        begin(client, asked, memory=memory)
    client.put(LOCAL_QUEUES, {"metadata": {"name": "late"}, "spec": {"clusterQueue": "cq"}})
    assert begin(client, asked, memory=memory).submission == 1
    client.drop(CLUSTER_TRAINING_RUNTIMES, "plain", "")
    assert begin(client, asked, memory=memory).submission == 1, "what is there needs no runtime"
