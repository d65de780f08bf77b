# SPDX-License-Identifier: Apache-2.0
"""hold and release: which write comes first, what happens between two, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

import pytest
import yaml

from airflow_provider_dispatch.adapters.kubeflow.errors import AnswerLostError, StaleObjectError
from airflow_provider_dispatch.adapters.kubeflow.holding import hold, release
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.hold_record import build_hold_annotations, read_hold_book
from airflow_provider_dispatch.adapters.kubeflow.model.resources import (
    CONFIG_MAPS,
    EVENTS,
    TRAINING_RUNTIMES,
    TRAINJOBS,
    WORKLOADS,
    Resource,
)
from airflow_provider_dispatch.adapters.kubeflow.model.submission import StopRequest, dump
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings
from airflow_provider_dispatch.core.holds import Actor, ActorKind, Hold, HoldBook, HoldRequest
from airflow_provider_dispatch.exceptions import (
    ConflictError,
    JobNotFoundError,
    RefusedError,
    SpecError,
    StaleHoldError,
    UnavailableError,
)
from tests.adapters.kubeflow.memory_client import Fault, MemoryClient, Object
from tests.adapters.kubeflow.objects import (
    JOB,
    NOW,
    PLAIN,
    SETTINGS,
    SOON,
    build_name,
    build_owner,
    build_ref,
    build_runtime,
    build_trainjob,
    build_workload,
    place_job,
)

ANN = Actor(ActorKind.HUMAN, "ann")
WL = f"trainjob-{build_name()}-abcde"
T = TypeVar("T")


def play(scene: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(scene)


def ask(client: MemoryClient, key: str = "k", settings: KubeflowSettings = SETTINGS, **more: Any) -> Hold:
    request = HoldRequest(key, ANN, "maintenance", **more)
    return play(hold(client, settings, build_ref(), request, deadline=SOON, now=NOW))


def let_go(client: MemoryClient, held: Hold, settings: KubeflowSettings = SETTINGS) -> tuple[Hold, ...]:
    return play(release(client, settings, build_ref(), held, deadline=SOON, now=NOW))


def place_running() -> MemoryClient:
    client = MemoryClient()
    place_job(client)
    return client


def book_of(client: MemoryClient) -> HoldBook:
    trainjob = client.peek(TRAINJOBS, build_name())
    assert trainjob is not None
    return read_hold_book(trainjob)


def workload_of(client: MemoryClient) -> Object:
    workload = client.peek(WORKLOADS, WL)
    assert workload is not None
    return workload


def is_active(client: MemoryClient) -> bool:
    return bool(workload_of(client)["spec"].get("active", True))


def writes(client: MemoryClient) -> list[Resource]:
    return [one.resource for one in client.requests if one.verb == "patch"]


def test_a_hold_writes_the_record_first_and_the_workload_second() -> None:
    client = place_running()
    held = ask(client)
    assert held == Hold(1, "k", ANN, "maintenance", NOW)
    assert writes(client) == [TRAINJOBS, WORKLOADS]
    assert book_of(client) == HoldBook((held,), 1)
    notes = workload_of(client)["metadata"]["annotations"]
    assert notes == {key: value for key, value in build_hold_annotations(held).items() if value is not None}
    assert not is_active(client)


def test_the_same_key_is_the_same_hold_and_writes_nothing_more() -> None:
    client = place_running()
    first = ask(client)
    before = len(writes(client))
    assert ask(client) == first
    assert len(writes(client)) == before


def test_a_lost_answer_is_mended_by_asking_again() -> None:
    client = place_running()
    client.faults.append(Fault("patch", TRAINJOBS, AnswerLostError("lost"), is_late=True))
    with pytest.raises(UnavailableError):
        ask(client)
    assert is_active(client)
    assert ask(client).instance == 1
    assert not is_active(client)


def test_a_stale_record_is_judged_again() -> None:
    client = place_running()
    client.faults.append(Fault("patch", TRAINJOBS, StaleObjectError("stale")))
    assert ask(client).instance == 1
    assert book_of(client).last_instance == 1


def test_a_stale_workload_is_written_again() -> None:
    client = place_running()
    client.faults.append(Fault("patch", WORKLOADS, StaleObjectError("stale")))
    ask(client)
    assert not is_active(client)


def test_a_release_that_comes_between_record_and_workload_wins() -> None:
    client = place_running()

    def release_meanwhile(client: MemoryClient, verb: str, resource: Resource, raw: Object) -> None:
        if (verb, resource) == ("patch", WORKLOADS) and raw["spec"]["active"] is False:
            trainjob = client.peek(TRAINJOBS, build_name())
            assert trainjob is not None
            trainjob["metadata"]["annotations"][words.HOLDS_ANNOTATION] = dump(HoldBook((), 1))
            client.put(TRAINJOBS, trainjob)

    client.reactions.append(release_meanwhile)
    ask(client)
    assert is_active(client)
    assert words.HOLD_INSTANCE_ANNOTATION not in workload_of(client)["metadata"]["annotations"]


def test_without_a_workload_the_record_is_enough() -> None:
    client = place_running()
    client.drop(WORKLOADS, WL)
    assert ask(client).instance == 1
    assert book_of(client).is_held


def test_release_lifts_exactly_that_hold_and_activates_with_the_last() -> None:
    client = place_running()
    one, two = ask(client, "a"), ask(client, "b")
    assert let_go(client, one) == (two,)
    assert not is_active(client)
    assert let_go(client, one) == (two,)
    assert let_go(client, two) == ()
    assert is_active(client)
    assert ask(client, "a").instance == 3


def test_the_workload_shows_the_newest_of_those_that_remain() -> None:
    client = place_running()
    ask(client, "a")
    two = ask(client, "b")
    let_go(client, two)
    assert workload_of(client)["metadata"]["annotations"][words.HOLD_INSTANCE_ANNOTATION] == "1"


def test_a_hold_that_was_never_placed_is_not_lifted() -> None:
    client = place_running()
    held = ask(client)
    for other in (replace(held, instance=7), replace(held, key="x")):
        with pytest.raises(StaleHoldError):
            let_go(client, other)
    assert book_of(client).active == (held,)
    assert not is_active(client)


def test_what_somebody_else_made_inactive_stays_so() -> None:
    client = place_running()
    client.put(WORKLOADS, build_workload(active=False))
    held = ask(client)
    assert "annotations" not in workload_of(client)["metadata"]
    let_go(client, held)
    assert not is_active(client)


def test_a_hold_of_another_implementation_is_taken_up_and_can_be_released() -> None:
    client = place_running()
    theirs = build_workload(active=False)
    theirs["metadata"]["annotations"] = {
        words.HOLD_INSTANCE_ANNOTATION: "1",
        words.HOLD_WHO_ANNOTATION: "human/tutorial",
        words.HOLD_SINCE_ANNOTATION: "2026-03-01T11:30:00Z",
    }
    client.put(WORKLOADS, theirs)
    ours = ask(client)
    foreign = book_of(client).active[0]
    assert (ours.instance, foreign.instance, foreign.actor) == (2, 1, Actor(ActorKind.HUMAN, "tutorial"))
    assert let_go(client, ours) == (foreign,)
    assert not is_active(client)
    assert let_go(client, foreign) == ()
    assert is_active(client)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"conditions": [{"type": "Complete", "status": "True", "reason": "AllJobsCompleted"}]}, "succeeded"),
        ({"conditions": [{"type": "Failed", "status": "True", "reason": "FailedJobs"}]}, "failed"),
    ],
)
def test_an_ended_job_refuses_with_its_end(status: dict[str, Any], said: str) -> None:
    client = place_running()
    client.put(TRAINJOBS, {**build_trainjob(), "status": status})
    with pytest.raises(RefusedError, match=f"has ended and can't be held: {said}"):
        ask(client)
    assert writes(client) == []


def test_a_job_that_is_being_stopped_refuses() -> None:
    client = place_running()
    client.put(TRAINJOBS, build_trainjob(notes={words.STOP_ANNOTATION: dump(StopRequest("enough", NOW))}))
    with pytest.raises(RefusedError, match=r"being stopped.*enough"):
        ask(client)


def test_a_job_that_is_not_there_is_an_error() -> None:
    with pytest.raises(JobNotFoundError):
        ask(MemoryClient())
    client = place_running()
    for other in (replace(build_ref(), submission=2), replace(build_ref(), uid="another")):
        with pytest.raises(JobNotFoundError):
            play(hold(client, SETTINGS, other, HoldRequest("k", ANN), deadline=SOON, now=NOW))
    elsewhere = replace(build_ref(), place="elsewhere")
    with pytest.raises(ConflictError, match="elsewhere"):
        play(hold(client, SETTINGS, elsewhere, HoldRequest("k", ANN), deadline=SOON, now=NOW))


def test_a_bare_id_means_the_newest_submission() -> None:
    client = place_running()
    place_job(client, 2)
    play(hold(client, SETTINGS, JOB, HoldRequest("k", ANN), deadline=SOON, now=NOW))
    newest = client.peek(TRAINJOBS, build_name(2))
    assert newest is not None
    assert read_hold_book(newest).is_held
    assert not book_of(client).is_held


@pytest.mark.parametrize("more", [{"key": ""}, {"until": NOW - timedelta(seconds=1)}])
def test_a_wrong_request_is_refused(more: dict[str, Any]) -> None:
    client = place_running()
    with pytest.raises(SpecError, match=r"hold\."):
        ask(client, **more)
    assert writes(client) == []


def test_past_the_deadline_nothing_is_written() -> None:
    client = place_running()
    with pytest.raises(UnavailableError):
        play(hold(client, SETTINGS, build_ref(), HoldRequest("k", ANN), deadline=NOW, now=NOW))
    assert client.requests == []


def test_a_deleted_runtime_is_restored_before_the_hold() -> None:
    client = place_running()
    runtime = client.peek(TRAINING_RUNTIMES, build_name())
    assert runtime is not None
    client.put(
        CONFIG_MAPS,
        {
            "metadata": {
                "name": f"{build_name()}-runtime-snapshot",
                "ownerReferences": [build_owner("TrainJob", build_name(), "tj-1")],
            },
            "data": {"runtime": yaml.safe_dump({**runtime, "kind": "TrainingRuntime"})},
        },
    )
    client.drop(TRAINING_RUNTIMES, build_name())
    client.faults.append(Fault("patch", TRAINJOBS, RefusedError("runtime not found")))
    assert ask(client).instance == 1
    restored = client.peek(TRAINING_RUNTIMES, build_name())
    assert restored is not None
    assert restored["spec"] == build_runtime()["spec"]
    assert restored["metadata"]["uid"] != "rt-1"
    assert restored["metadata"]["ownerReferences"][0]["uid"] == "tj-1"


def test_a_refusal_that_has_another_reason_is_handed_on() -> None:
    client = place_running()
    client.faults.append(Fault("patch", TRAINJOBS, RefusedError("not allowed")))
    with pytest.raises(RefusedError, match="not allowed"):
        ask(client)


def test_each_decision_is_an_event_written_once() -> None:
    client = place_running()
    held = ask(client)
    ask(client)
    let_go(client, held)
    let_go(client, held)
    assert [event["reason"] for event in client.peek_all(EVENTS)] == ["held", "released"]


def test_an_event_that_can_not_be_written_fails_nothing() -> None:
    client = place_running()
    client.faults.append(Fault("create", EVENTS, RefusedError("forbidden")))
    assert ask(client).instance == 1


def test_in_plain_mode_the_record_and_suspend_are_one_write() -> None:
    client = MemoryClient()
    place_job(client, queue="")
    ask(client, settings=PLAIN)
    assert writes(client) == [TRAINJOBS]
    trainjob = client.peek(TRAINJOBS, build_name())
    assert trainjob is not None
    assert trainjob["spec"]["suspend"] is True
    assert read_hold_book(trainjob).is_held


def test_without_a_controller_nobody_would_end_a_hold() -> None:
    client = MemoryClient()
    place_job(client, queue="")
    with pytest.raises(SpecError, match=r"hold\.until"):
        ask(client, settings=PLAIN, until=NOW + timedelta(hours=1))


def test_with_the_controller_a_plain_release_leaves_the_resuming_to_it() -> None:
    client = MemoryClient()
    settings = KubeflowSettings()
    place_job(client, queue="")
    held = ask(client, settings=settings)
    assert let_go(client, held, settings) == ()
    assert writes(client) == [TRAINJOBS, TRAINJOBS]
    trainjob = client.peek(TRAINJOBS, build_name())
    assert trainjob is not None
    assert trainjob["spec"]["suspend"] is True


def test_a_plain_release_behind_the_gate_resumes_nothing() -> None:
    client = MemoryClient()
    settings = KubeflowSettings()
    place_job(client, queue="", suspend=True, notes={words.ADMISSION_GATED_BY: words.GATE})
    held = ask(client, settings=settings)
    let_go(client, held, settings)
    trainjob = client.peek(TRAINJOBS, build_name())
    assert trainjob is not None
    assert trainjob["spec"]["suspend"] is True


def test_what_it_costs() -> None:
    client = place_running()
    held = ask(client)
    assert len(client.requests) <= 11
    before = len(client.requests)
    let_go(client, held)
    assert len(client.requests) - before <= 7
