# SPDX-License-Identifier: Apache-2.0
"""What a person sees of unproven pods, and what their word changes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest

from airflow_provider_dispatch.adapters.kubeflow.errors import StaleObjectError
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.execution_record import ExecutionRecord, RecordedPod, Slot
from airflow_provider_dispatch.adapters.kubeflow.model.ledger import (
    Ledger,
    build_ledger,
    build_ledger_name,
    read_ledger,
)
from airflow_provider_dispatch.adapters.kubeflow.model.resources import CONFIG_MAPS, EVENTS, NODES, PODS, TRAINJOBS
from airflow_provider_dispatch.adapters.kubeflow.vouching import Doubt, confirm_deaths, fetch_doubts
from airflow_provider_dispatch.exceptions import JobNotFoundError, RefusedError, SpecError
from tests.adapters.kubeflow.memory_client import Fault, MemoryClient
from tests.adapters.kubeflow.objects import JOB, NOW, SETTINGS, build_name, build_pod, build_trainjob

GONE = RecordedPod(Slot("node", 0, 0), "u0", "pod-0", "n1", vanished_at=NOW - timedelta(hours=1), submission=1)
LOST = RecordedPod(Slot("node", 0, 1), "u1", "pod-1", recorded_at=NOW, submission=1)
DEAD = RecordedPod(Slot("node", 0, 2), "u2", "pod-2", "n1", is_dead=True, submission=1)
RECORD = ExecutionRecord(1, 1, "js-1", 0, pods=(GONE, LOST, DEAD))


def place(record: ExecutionRecord | None = RECORD, ledger: ExecutionRecord | None = RECORD) -> MemoryClient:
    client = MemoryClient()
    if record is not None:
        client.put(TRAINJOBS, build_trainjob(notes={words.RECORD_ANNOTATION: record.to_json()}))
    if ledger is not None:
        client.put(CONFIG_MAPS, build_ledger(JOB, Ledger(1, record=ledger.to_json())))
    ready = {"type": "Ready", "status": "Unknown", "lastTransitionTime": "2026-03-01T11:30:00Z"}
    client.put(NODES, {"metadata": {"name": "n1"}, "status": {"conditions": [ready]}})
    return client


def look(client: MemoryClient) -> list[Doubt]:
    return asyncio.run(fetch_doubts(client, SETTINGS, JOB))


def vouch(client: MemoryClient, uids: Sequence[str]) -> None:
    asyncio.run(confirm_deaths(client, SETTINGS, JOB, uids, by="ann", now=NOW))


def record_on(client: MemoryClient) -> ExecutionRecord:
    trainjob = client.peek(TRAINJOBS, build_name())
    return ExecutionRecord.from_json(fields.annotation(trainjob, words.RECORD_ANNOTATION))


def record_in_ledger(client: MemoryClient) -> ExecutionRecord:
    return ExecutionRecord.from_json(read_ledger(client.peek(CONFIG_MAPS, build_ledger_name(JOB))).record)


def test_doubts_are_shown_with_node_and_time() -> None:
    first, second = look(place())
    assert (first.pod, first.node, first.since, first.is_there) == ("pod-0", "n1", GONE.vanished_at, False)
    assert (first.pod_says, first.node_says) == ("its object is gone", "silent since 2026-03-01 11:30:00 UTC")
    assert (second.pod, second.node, second.node_says) == ("pod-1", None, "nobody saw which node had it")


@pytest.mark.parametrize(
    ("node", "said"),
    [
        (None, "gone"),
        ({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, "Ready"),
        ({"spec": {"taints": [{"key": words.OUT_OF_SERVICE_TAINT}]}}, "out of service"),
    ],
)
def test_what_the_node_says_now(node: dict[str, object] | None, said: str) -> None:
    client = place()
    asyncio.run(client.delete(NODES, "n1"))
    if node is not None:
        client.put(NODES, {"metadata": {"name": "n1"}, **node})
    assert look(client)[0].node_says == said


def test_a_node_that_may_not_be_looked_at_hides_no_doubt() -> None:
    client = place()
    client.faults.append(Fault("get", NODES, RefusedError("no rights")))
    assert [one.pod for one in look(client)] == ["pod-0", "pod-1"]
    client.faults.append(Fault("get", NODES, RefusedError("no rights")))
    assert look(client)[0].node_says == "can't be looked at: no rights"


def test_a_word_reaches_both_records_and_is_told() -> None:
    client = place()
    vouch(client, ["u0"])
    assert [one.pod for one in look(client)] == ["pod-1"]
    for record in (record_on(client), record_in_ledger(client)):
        assert {pod.uid for pod in record.pods if pod.is_dead} == {"u0", "u2"}
    (event,) = client.peek_all(EVENTS)
    assert (event["reason"], "ann" in event["message"], "pod-0" in event["message"]) == ("death-confirmed", True, True)


def test_a_word_about_a_stopped_job_reaches_the_ledger() -> None:
    client = place(record=None)
    vouch(client, ["u0", "u1"])
    assert record_in_ledger(client).unproven == ()
    assert look(client) == []


def test_pods_of_earlier_submissions_are_vouched_for_as_well() -> None:
    client = place(ExecutionRecord(1, 1, undead=(GONE,)), None)
    vouch(client, ["u0"])
    assert record_on(client).undead[0].is_dead


def test_nobody_vouches_for_a_pod_that_is_there() -> None:
    client = place()
    client.put(PODS, build_pod(uid="u0"))
    with pytest.raises(RefusedError, match="kubectl delete pod pod-0"):
        vouch(client, ["u0"])
    assert record_on(client) == RECORD


def test_a_pod_that_is_in_no_doubt_is_refused() -> None:
    client = place()
    with pytest.raises(SpecError, match="u2"):
        vouch(client, ["u2"])


def test_a_controller_that_writes_meanwhile_loses_nothing() -> None:
    client = place()
    client.faults.append(Fault("patch", TRAINJOBS, StaleObjectError("changed")))
    vouch(client, ["u0"])
    assert {pod.uid for pod in record_on(client).pods if pod.is_dead} == {"u0", "u2"}


def test_what_one_copy_knows_to_be_dead_is_in_no_doubt() -> None:
    known = ExecutionRecord(1, 1, pods=(DEAD,))
    stale = ExecutionRecord(1, 1, pods=(RecordedPod(DEAD.slot, DEAD.uid, DEAD.name, "n1", submission=1),))
    assert look(place(known, stale)) == []


def test_an_unknown_job_is_told() -> None:
    with pytest.raises(JobNotFoundError):
        look(MemoryClient())
