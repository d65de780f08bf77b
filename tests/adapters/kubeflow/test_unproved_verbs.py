# SPDX-License-Identifier: Apache-2.0
"""What each verb does where a preflight has just found the cluster unproved: nothing new is made, all else goes on.

Releasing and opening are logged then, since they let a job run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from enum import StrEnum

import pytest

from airflow_provider_dispatch.adapters.kubeflow import adapter as adapter_module
from airflow_provider_dispatch.adapters.kubeflow.adapter import KubeflowAdapter
from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.resources import LEASES, TRAINJOBS
from airflow_provider_dispatch.adapters.kubeflow.queue_lookup import QueueMemory
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings, RuntimeSettings
from airflow_provider_dispatch.adapters.protocol import DispatchAdapter
from airflow_provider_dispatch.core.capabilities import may_start
from airflow_provider_dispatch.core.holds import Actor, ActorKind, Hold, HoldRequest
from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.owner import Owner
from airflow_provider_dispatch.core.records import StartRequest
from airflow_provider_dispatch.exceptions import CapabilityError
from tests.adapters.kubeflow.cluster_parts import NOW
from tests.adapters.kubeflow.proved_cluster import ProvedCluster, build_proved_cluster

JOB, OTHER = JobID("01K0000000000000000000000A"), JobID("01K0000000000000000000000B")
SETTINGS = KubeflowSettings(queue="lq", runtime=RuntimeSettings(name="plain"), probe_seconds=0.0)
SOON = NOW + timedelta(seconds=10)
ANN = Actor(ActorKind.HUMAN, "ann")
SAID = "on a cluster that isn't proved: readmission_gate is no"
READERS = {"preflight", "inspect", "watch", "output", "find", "list", "events", "close"}

Play = Callable[[KubeflowAdapter, JobRef, Hold], Awaitable[object]]


class Answer(StrEnum):
    """What a verb does."""

    REFUSED = "refused"
    LOGGED = "done and logged"
    DONE = "done"


def ask(job: JobID) -> StartRequest:
    return StartRequest(job, 1, 1, JobSpec(command=["python", "train.py"]))


def hold(adapter: KubeflowAdapter, ref: JobRef, key: str) -> Awaitable[Hold]:
    return adapter.hold(ref, HoldRequest(key, ANN), deadline=SOON)


VERBS: dict[str, tuple[Answer, Play]] = {
    "start": (Answer.REFUSED, lambda adapter, ref, held: adapter.start(ask(OTHER), deadline=SOON)),
    "open": (Answer.LOGGED, lambda adapter, ref, held: adapter.open(ref, deadline=SOON)),
    "release": (Answer.LOGGED, lambda adapter, ref, held: adapter.release(ref, held, deadline=SOON)),
    "hold": (Answer.DONE, lambda adapter, ref, held: hold(adapter, ref, "second")),
    "stop": (Answer.DONE, lambda adapter, ref, held: adapter.stop(JOB, reason="enough", deadline=SOON)),
    "adopt": (
        Answer.DONE,
        lambda adapter, ref, held: adapter.adopt(ref, Owner(instance_id="ti"), expected=Owner(), deadline=SOON),
    ),
}


def play(verb: Play, *, is_spoilt: bool) -> ProvedCluster:
    """A job is started and held; then the controller goes, somebody runs a preflight, and the verb is called."""
    client = build_proved_cluster()

    async def connect(_settings: KubeflowSettings) -> KubeClient:
        return client

    async def run() -> None:
        adapter = KubeflowAdapter(SETTINGS, open_client=connect, memory=QueueMemory(), clock=lambda: NOW)
        ref = await adapter.start(ask(JOB), deadline=SOON)
        held = await hold(adapter, ref, "first")
        if is_spoilt:
            client.drop(LEASES, words.LEASE_NAME, words.LEASE_NAMESPACE)
        assert may_start((await adapter.preflight()).capabilities) is not is_spoilt
        await verb(adapter, ref, held)

    asyncio.run(run())
    return client


def read_note(client: ProvedCluster, name: str) -> str:
    (trainjob,) = client.peek_all(TRAINJOBS)
    return str(trainjob["metadata"]["annotations"].get(name, ""))


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING, logger=adapter_module.__name__)
    return lambda: [record.getMessage() for record in caplog.records if record.name == adapter_module.__name__]


@pytest.mark.parametrize("name", VERBS)
def test_each_verb_on_a_cluster_that_is_not_proved(warnings: Callable[[], list[str]], name: str) -> None:
    answer, verb = VERBS[name]
    if answer is Answer.REFUSED:
        with pytest.raises(CapabilityError, match="readmission_gate is no"):
            play(verb, is_spoilt=True)
    else:
        play(verb, is_spoilt=True)
    assert [SAID in line and JOB in line and "checked 0 s ago" in line for line in warnings()] == [True] * (
        answer is Answer.LOGGED
    )


@pytest.mark.parametrize("name", VERBS)
def test_nothing_is_said_on_a_cluster_that_is_proved(warnings: Callable[[], list[str]], name: str) -> None:
    play(VERBS[name][1], is_spoilt=False)
    assert warnings() == []


def test_what_goes_on_is_really_done() -> None:
    assert read_note(play(VERBS["open"][1], is_spoilt=True), words.ADMISSION_GATED_BY) == ""
    assert '"second"' in read_note(play(VERBS["hold"][1], is_spoilt=True), words.HOLDS_ANNOTATION)
    assert '"first"' not in read_note(play(VERBS["release"][1], is_spoilt=True), words.HOLDS_ANNOTATION)
    assert '"ti"' in read_note(play(VERBS["adopt"][1], is_spoilt=True), words.OWNER_ANNOTATION)
    assert play(VERBS["stop"][1], is_spoilt=True).peek_all(TRAINJOBS) == []


def test_each_verb_is_decided_about() -> None:
    assert {*VERBS, *READERS} == DispatchAdapter.__abstractmethods__
