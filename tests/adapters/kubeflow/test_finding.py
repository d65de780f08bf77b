# SPDX-License-Identifier: Apache-2.0
"""find, list, events and adopt."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_dispatch.adapters.kubeflow.errors import StaleObjectError
from airflow_provider_dispatch.adapters.kubeflow.finding import events, find, list_jobs
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.event_log import build_kind, list_events
from airflow_provider_dispatch.adapters.kubeflow.model.ledger import Ledger, build_ledger
from airflow_provider_dispatch.adapters.kubeflow.model.resources import (
    CONFIG_MAPS,
    EVENTS,
    PODS,
    TRAINING_RUNTIMES,
    TRAINJOBS,
    WORKLOADS,
)
from airflow_provider_dispatch.adapters.kubeflow.model.submission import End, dump, read_submission
from airflow_provider_dispatch.adapters.kubeflow.ownership import adopt
from airflow_provider_dispatch.adapters.kubeflow.recording import record_decision
from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.core.owner import Owner
from airflow_provider_dispatch.core.records import JobRecord, JobSelector, SubmissionRecord
from airflow_provider_dispatch.core.state import State
from airflow_provider_dispatch.exceptions import CapabilityError, ConflictError, JobNotFoundError
from tests.adapters.kubeflow.memory_client import Fault, MemoryClient, Object
from tests.adapters.kubeflow.objects import (
    JOB,
    NOW,
    OWNER,
    SETTINGS,
    SOON,
    build_name,
    build_pod,
    build_ref,
    build_runtime,
    build_trainjob,
    place_job,
)

GATED = {words.ADMISSION_GATED_BY: words.GATE}
OTHER = JobID("01HZZZZZZZZZZZZZZZZZZZZZZY")


def look(client: MemoryClient) -> JobRecord:
    return asyncio.run(find(client, SETTINGS, JOB, now=NOW))


def list_all(client: MemoryClient, **wanted: Any) -> list[str]:
    records: tuple[SubmissionRecord, ...] = asyncio.run(list_jobs(client, SETTINGS, JobSelector(**wanted), now=NOW))
    return [f"{record.ref.job[-1]}{record.ref.submission} {record.state}" for record in records]


def trainjob_of(client: MemoryClient) -> Object:
    trainjob = client.peek(TRAINJOBS, build_name())
    assert trainjob is not None
    return trainjob


def build_other() -> Object:
    trainjob = build_trainjob(1, queue="other", suspend=True, notes=GATED)
    trainjob["metadata"] |= {
        "name": f"dj-{OTHER.lower()}-s1",
        "uid": "tj-other",
        "creationTimestamp": "2026-03-01T10:00:00Z",
    }
    trainjob["metadata"]["labels"] |= {words.JOB_LABEL: OTHER.lower(), words.DEPLOYMENT_LABEL: "blue"}
    return trainjob


def test_find_tells_submissions_ledger_and_orphans() -> None:
    client = MemoryClient()
    place_job(client, 2, pods=0, suspend=True, notes=GATED)
    client.put(CONFIG_MAPS, build_ledger(JOB, Ledger(2)))
    client.put(PODS, build_pod(0, 1))
    client.put(TRAINING_RUNTIMES, build_runtime(1))
    found = look(client)
    assert (found.job, found.ledger) == (JOB, 2)
    assert [(record.ref.submission, record.state, record.owner) for record in found.submissions] == [
        (2, State.GATED, OWNER)
    ]
    assert sorted(found.orphans) == [f"Pod {build_name()}-node-0-0-1-0", f"TrainingRuntime {build_name()}"]


@pytest.mark.parametrize(
    ("notes", "status", "ended"),
    [
        ({}, {}, None),
        (
            {},
            {"conditions": [{"type": "Failed", "status": "False", "lastTransitionTime": "2026-03-01T11:30:00Z"}]},
            None,
        ),
        (
            {},
            {"conditions": [{"type": "Complete", "status": "True", "lastTransitionTime": "2026-03-01T11:30:00Z"}]},
            30,
        ),
        ({words.END_ANNOTATION: dump(End(State.FAILED, NOW.replace(hour=11, minute=20)))}, {}, 20),
    ],
)
def test_find_tells_when_a_submission_ended(notes: dict[str, str], status: Object, ended: int | None) -> None:
    client = MemoryClient()
    client.put(TRAINJOBS, build_trainjob(notes=notes) | {"status": status})
    (record,) = look(client).submissions
    assert record.ended_at == (ended and NOW.replace(hour=11, minute=ended))


def test_find_without_a_ledger_counts_what_is_there() -> None:
    client = MemoryClient()
    place_job(client, 3)
    assert look(client).ledger == 3


def test_an_unknown_job_has_nothing() -> None:
    assert look(MemoryClient()) == JobRecord(JOB)


def test_list_tells_the_newest_submission_of_each_job_the_oldest_first() -> None:
    client = MemoryClient()
    place_job(client, 1, suspend=True, notes=GATED)
    place_job(client, 2, pods=0, suspend=True, notes=GATED)
    client.put(TRAINJOBS, build_other())
    assert list_all(client) == ["Y1 gated", "Z2 gated"]
    assert list_all(client, queue="lq") == ["Z2 gated"]
    assert list_all(client, deployment="blue", dag_id="dag") == ["Y1 gated"]
    assert list_all(client, deployment="green") == []
    assert list_all(client, states=frozenset({State.RUNNING})) == []


def test_a_spoilt_job_hides_no_other() -> None:
    client = MemoryClient()
    place_job(client, 1, suspend=True, notes=GATED, pods=0)
    spoilt = build_other()
    spoilt["metadata"]["annotations"][words.OWNER_ANNOTATION] = "{"
    client.put(TRAINJOBS, spoilt)
    assert list_all(client) == ["Z1 gated"]


def test_list_on_a_cluster_without_kueue() -> None:
    client = MemoryClient()
    place_job(client, 1, queue="", suspend=True, notes=GATED, pods=0)
    client.faults.append(Fault("list", WORKLOADS, CapabilityError("not served")))
    assert list_all(client) == ["Z1 gated"]


def build_event(name: str, reason: str, *, at: str, version: str = "5", **more: Any) -> Object:
    return {
        "metadata": {"name": f"{name}.{reason}", "resourceVersion": version, **more.pop("metadata", {})},
        "involvedObject": {"kind": "Pod", "name": name},
        "reason": reason,
        "message": "said\nthis",
        "lastTimestamp": at,
        **more,
    }


def test_events_of_all_objects_of_a_job_come_in_the_order_they_were_written() -> None:
    found = [
        build_event(f"{build_name()}-node-0-1-abcde", "Pulling", at="2026-03-01T12:00:03Z", version="9"),
        build_event(f"trainjob-{build_name()}-1a2b3", "EvictedDueToPreempted", at="2026-03-01T12:00:02Z"),
        build_event(f"{build_name()}x", "Other", at="2026-03-01T12:00:02Z"),
        build_event(build_name(2), "Second", at="2026-03-01T12:00:01Z", version="4"),
        build_event("dj-another-s1", "Other", at="2026-03-01T12:00:02Z"),
    ]
    told = list_events(found, JOB)
    assert [(event.submission, event.kind) for event in told] == [
        (2, "second"),
        (1, "evicted_due_to_preempted"),
        (1, "pulling"),
    ]
    assert told[2].message == f"Pod {build_name()}-node-0-1-abcde: said this"
    assert [event.kind for event in list_events(found, JOB, 2)] == ["second"]


def test_an_event_that_repeats_tells_when_it_was_last_and_how_often() -> None:
    raw = build_event(build_name(), "Retry", at="2026-03-01T12:09:00Z", count=3, eventTime="2026-03-01T12:00:00.5Z")
    event = list_events([raw], JOB)[0]
    assert event.at.minute == 9
    assert event.message.endswith("(3 times)")


def test_an_event_of_the_controller_tells_its_epoch() -> None:
    raw = build_event(
        build_name(),
        "lifted",
        at="2026-03-01T12:00:00Z",
        metadata={"annotations": {words.EPOCH_ANNOTATION: "1000002"}},
    )
    assert list_events([raw], JOB)[0].epoch == 1_000_002


@pytest.mark.parametrize(("reason", "kind"), [("opened", "opened"), ("FailedScheduling", "failed_scheduling")])
def test_kinds_are_short_names(reason: str, kind: str) -> None:
    assert build_kind(reason) == kind


def test_our_decisions_are_among_the_events_once() -> None:
    client = MemoryClient()
    place_job(client)

    async def scenario() -> list[tuple[str, str]]:
        for _ in range(2):
            await record_decision(client, trainjob_of(client), "opened", "our gate was removed", at=NOW)
        return [(event.kind, event.message) for event in await events(client, SETTINGS, build_ref())]

    assert asyncio.run(scenario()) == [("opened", "our gate was removed")]
    assert asyncio.run(events(client, SETTINGS, OTHER)) == ()


def test_the_event_has_what_kubernetes_asks_for() -> None:
    client = MemoryClient()
    place_job(client)
    asyncio.run(record_decision(client, trainjob_of(client), "held", "x" * 5000, at=NOW, key="1"))
    event = client.peek_all(EVENTS)[0]
    assert event["involvedObject"]["uid"] == "tj-1"
    assert event["metadata"]["namespace"] == event["involvedObject"]["namespace"]
    assert len(event["message"].encode()) <= 1024
    assert event["firstTimestamp"] == "2026-03-01T12:00:00Z"


def take(client: MemoryClient, owner: Owner, expected: Owner) -> None:
    asyncio.run(adopt(client, SETTINGS, build_ref(), owner, expected=expected, deadline=SOON, now=NOW))


def test_the_owner_changes_by_compare_and_swap() -> None:
    client = MemoryClient()
    place_job(client)
    later = replace(OWNER, try_number=3, instance_id="try-3")
    client.faults.append(Fault("patch", TRAINJOBS, StaleObjectError("stale")))
    take(client, later, OWNER)
    with pytest.raises(ConflictError, match="try-3"):
        take(client, replace(OWNER, instance_id="try-4"), OWNER)
    assert read_submission(trainjob_of(client)).owner == later
    take(client, later, OWNER)


def test_a_submission_that_is_not_there_can_not_be_adopted() -> None:
    with pytest.raises(JobNotFoundError):
        take(MemoryClient(), OWNER, OWNER)
