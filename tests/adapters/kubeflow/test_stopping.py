# SPDX-License-Identifier: Apache-2.0
"""stop: what is written before anything is deleted, what is deleted, and what is said of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_dispatch.adapters.kubeflow.errors import StaleObjectError
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.execution_record import ExecutionRecord
from airflow_provider_dispatch.adapters.kubeflow.model.ledger import (
    Ledger,
    LedgerEnd,
    build_ledger,
    build_ledger_name,
    read_ledger,
)
from airflow_provider_dispatch.adapters.kubeflow.model.resources import (
    CONFIG_MAPS,
    JOBSETS,
    PODS,
    TRAINING_RUNTIMES,
    TRAINJOBS,
    WORKLOADS,
    Resource,
)
from airflow_provider_dispatch.adapters.kubeflow.model.submission import read_submission
from airflow_provider_dispatch.adapters.kubeflow.stopping import stop
from airflow_provider_dispatch.core.owner import Owner
from airflow_provider_dispatch.core.records import StopReport
from airflow_provider_dispatch.core.state import Cause
from airflow_provider_dispatch.exceptions import (
    CapabilityError,
    ConflictError,
    ProtocolError,
    RefusedError,
    UnavailableError,
)
from tests.adapters.kubeflow.memory_client import Fault, MemoryClient, Object
from tests.adapters.kubeflow.objects import (
    JOB,
    NOW,
    OWNER,
    SETTINGS,
    build_jobset,
    build_labels,
    build_name,
    build_pod,
    build_record,
    build_runtime,
    build_trainjob,
    build_workload,
    collect_garbage,
    place_job,
)

SHORT = timedelta(seconds=0.6)


def ask(client: MemoryClient, *, patience: timedelta = timedelta(seconds=20), **more: Any) -> StopReport:
    more.setdefault("reason", "over")
    return asyncio.run(stop(client, SETTINGS, JOB, deadline=NOW + patience, now=NOW, **more))


def place_running(*reactions: Callable[..., None], **trainjob: Any) -> MemoryClient:
    client = MemoryClient()
    place_job(client, **trainjob)
    client.reactions += reactions or (collect_garbage,)
    return client


def ledger_of(client: MemoryClient) -> Ledger:
    return read_ledger(client.peek(CONFIG_MAPS, build_ledger_name(JOB)))


def left(client: MemoryClient) -> list[Object]:
    kinds = (TRAINJOBS, TRAINING_RUNTIMES, WORKLOADS, JOBSETS, PODS)
    return [raw for kind in kinds for raw in client.peek_all(kind)]


def names(reports: tuple[Any, ...]) -> list[str]:
    return sorted(report.object.partition(" ")[0] for report in reports)


class SilentNode(MemoryClient):
    """Pods get a deletion timestamp and stay."""

    async def delete(self, resource: Resource, name: str, namespace: str | None = None, **options: Any) -> bool:
        pod = self.peek(PODS, name)
        if resource != PODS or pod is None:
            return await super().delete(resource, name, namespace, **options)
        self.put(PODS, {**pod, "metadata": {**pod["metadata"], "deletionTimestamp": "2026-03-01T12:00:01Z"}})
        return True


def test_a_stop_leaves_the_ledger_alone_and_reports_every_object() -> None:
    client = place_running()
    report = ask(client)
    assert left(client) == []
    assert report.is_complete
    assert names(report.stopped) == ["JobSet", "Pod", "Pod", "TrainJob", "TrainingRuntime", "Workload"]
    assert report.stopped[0].object == f"TrainJob {build_name()}"
    assert ledger_of(client) == Ledger(1, "", (LedgerEnd(1, Cause.STOPPED, "over", NOW),))


def test_the_second_stop_has_nothing_to_do_and_keeps_the_first_reason() -> None:
    client = place_running()
    ask(client)
    before = client.count("patch"), client.count("create")
    again = ask(client, reason="again")
    assert (again.is_complete, again.stopped) == (True, ())
    assert (client.count("patch"), client.count("create")) == before
    assert ledger_of(client).ends[-1].reason == "over"


def test_a_job_never_heard_of_leaves_no_ledger() -> None:
    client = MemoryClient()
    report = ask(client)
    assert (report.is_complete, report.stopped) == (True, ())
    assert client.peek_all(CONFIG_MAPS) == []


def test_the_wish_and_the_ledger_are_written_before_anything_is_deleted() -> None:
    client = place_running()
    ask(client)
    kinds = [(one.verb, one.resource) for one in client.requests]
    first_delete = next(index for index, (verb, _) in enumerate(kinds) if verb == "delete")
    assert kinds.index(("patch", TRAINJOBS)) < kinds.index(("create", CONFIG_MAPS)) < first_delete


def test_a_trainjob_that_can_not_be_changed_is_deleted_all_the_same() -> None:
    client = place_running()
    client.faults.append(Fault("patch", TRAINJOBS, RefusedError("webhook says no")))
    assert ask(client).is_complete


def test_all_submissions_and_orphans_go() -> None:
    client = MemoryClient()
    place_job(client, 1)
    place_job(client, 3)
    client.put(PODS, build_pod(0, 2, phase="Succeeded"))
    client.put(TRAINING_RUNTIMES, build_runtime(4))
    client.reactions.append(collect_garbage)
    report = ask(client)
    assert left(client) == []
    assert report.is_complete
    assert (ledger_of(client).submission, [end.submission for end in ledger_of(client).ends]) == (4, [1, 2, 3, 4])


def test_the_workload_of_a_trainjob_that_is_gone_is_found_by_its_owner() -> None:
    client = MemoryClient()
    client.put(WORKLOADS, build_workload())
    other = build_workload(2)
    other["metadata"]["ownerReferences"][0]["name"] = "dj-of-another-job-s1"
    client.put(WORKLOADS, other)
    assert names(ask(client).stopped) == ["Workload"]
    assert [raw["metadata"]["uid"] for raw in left(client)] == ["wl-2"]


def test_a_cluster_without_kueue_is_no_error() -> None:
    client = place_running(queue="")
    client.faults += [Fault("list", WORKLOADS, CapabilityError("not served")) for _ in range(2)]
    assert ask(client).is_complete


def test_what_was_made_anew_under_the_same_name_goes_too_and_is_reported() -> None:
    remade: list[str] = []

    def make_again(client: MemoryClient, verb: str, resource: Resource, raw: Object) -> None:
        if verb == "delete" and resource == PODS and not remade:
            remade.append("once")
            client.put(PODS, build_pod(0, uid="pod-again", node="", phase="Pending"))

    client = place_running(make_again, collect_garbage)
    client.drop(TRAINJOBS, build_name())
    report = ask(client, patience=SHORT)
    assert left(client) == []
    assert sum(one.object.startswith("Pod ") for one in (*report.stopped, *report.unproven)) == 3


def test_a_pod_on_a_silent_node_is_alive_and_so_is_the_trainjob_above_it() -> None:
    client = SilentNode()
    place_job(client, pods=1)
    report = ask(client, patience=SHORT)
    assert names(report.alive) == ["JobSet", "Pod", "TrainJob"]
    told = next(one for one in report.alive if one.object.startswith("Pod"))
    assert told.detail == "ending on node n1"
    assert "Pod" not in names(report.stopped)
    assert client.peek(TRAINJOBS, build_name()) is None


def test_a_pod_that_vanished_without_an_end_is_unproven() -> None:
    def vanish(client: MemoryClient, verb: str, resource: Resource, raw: Object) -> None:
        if verb == "delete" and resource == TRAINJOBS:
            for pod in client.peek_all(PODS):
                client.drop(PODS, pod["metadata"]["name"])

    client = place_running(vanish, pods=1, notes={words.RECORD_ANNOTATION: build_record(**{"pod-1-0": {}})})
    report = ask(client, patience=SHORT)
    assert names(report.unproven) == ["JobSet", "Pod", "TrainJob"]
    assert "n1 was not seen" in report.unproven[0].detail
    assert not report.is_complete
    record = ExecutionRecord.from_json(ledger_of(client).record)
    assert [pod.uid for pod in record.unproven] == ["pod-1-0"]


def test_recorded_pods_are_carried_until_they_are_proven_dead() -> None:
    notes = {words.RECORD_ANNOTATION: build_record(**{"pod-1-0": {}, "pod-1-1": {}, "old": {"is_dead": True}})}
    client = place_running(notes=notes)
    written: list[list[str]] = []

    def look(client: MemoryClient, verb: str, resource: Resource, raw: Object) -> None:
        if resource == CONFIG_MAPS:
            record = ExecutionRecord.from_json(read_ledger(raw).record)
            written.append([pod.uid for pod in record.unproven])

    client.reactions.append(look)
    report = ask(client)
    assert written == [["pod-1-0", "pod-1-1"], []]
    assert report.is_complete


def test_what_the_ledger_carried_is_not_forgotten() -> None:
    old = build_record(**{"pod-older": {}})
    client = place_running(notes={words.RECORD_ANNOTATION: build_record(**{"pod-2-0": {}})}, submission=2)
    client.put(CONFIG_MAPS, build_ledger(JOB, Ledger(1, record=old)))
    report = ask(client, patience=SHORT)
    assert [pod.uid for pod in ExecutionRecord.from_json(ledger_of(client).record).unproven] == ["pod-older"]
    assert [one.object for one in report.unproven] == ["Pod pod-older"]


def test_stop_by_owner_spares_the_job_of_another() -> None:
    client = place_running()
    with pytest.raises(ConflictError, match="try-2"):
        ask(client, if_owner=Owner("blue", instance_id="try-1"))
    assert client.count("patch") + client.count("delete") == 0
    assert ask(client, if_owner=OWNER).is_complete


@pytest.mark.parametrize(
    "annotation",
    [
        words.STOP_ANNOTATION,
        words.CLOCKS_ANNOTATION,
        words.END_ANNOTATION,
        words.SPEC_ANNOTATION,
        words.HOLDS_ANNOTATION,
        words.SUPERVISION_ANNOTATION,
    ],
)
def test_stop_by_owner_needs_to_read_no_more_than_the_owner(annotation: str) -> None:
    client = place_running()
    (trainjob,) = client.peek_all(TRAINJOBS)
    trainjob["metadata"]["annotations"][annotation] = "{garbage"
    assert ask(client, if_owner=OWNER).is_complete
    assert left(client) == []


def test_an_owner_that_can_not_be_read_is_nobody_s_word() -> None:
    client = place_running()
    (trainjob,) = client.peek_all(TRAINJOBS)
    trainjob["metadata"]["annotations"][words.OWNER_ANNOTATION] = "{garbage"
    with pytest.raises(ProtocolError, match="Owner"):
        ask(client, if_owner=OWNER)
    assert len(left(client)) > 1
    assert ask(client).is_complete


def test_the_owner_is_looked_at_again_when_the_trainjob_has_changed() -> None:
    client = place_running()
    client.faults.append(Fault("patch", TRAINJOBS, StaleObjectError("stale")))
    client.faults.append(Fault("delete", TRAINJOBS, UnavailableError("busy")))
    assert ask(client, if_owner=OWNER).is_complete
    assert client.count("patch", TRAINJOBS) == 2


def test_the_first_reason_stays_on_the_trainjob() -> None:
    client = place_running(pods=0)
    client.faults.append(Fault("create", CONFIG_MAPS, UnavailableError("gone")))
    with pytest.raises(UnavailableError):
        ask(client, reason="first")
    trainjob = client.peek(TRAINJOBS, build_name())
    assert trainjob is not None
    assert (read_submission(trainjob).stop or pytest.fail("no stop")).reason == "first"
    requests = client.count("patch", TRAINJOBS)
    assert ask(client, reason="second").is_complete
    assert client.count("patch", TRAINJOBS) == requests


def test_past_the_deadline_nothing_is_written() -> None:
    client = place_running()
    with pytest.raises(UnavailableError):
        ask(client, patience=timedelta(0))
    assert client.requests == []


def test_nothing_of_another_job_is_touched() -> None:
    client = place_running()
    other = build_trainjob()
    other["metadata"]["name"], other["metadata"]["uid"] = "dj-other-s1", "tj-other"
    other["metadata"]["labels"] = build_labels() | {words.JOB_LABEL: "01hzzzzzzzzzzzzzzzzzzzzzzy"}
    client.put(TRAINJOBS, other)
    ask(client)
    assert [raw["metadata"]["name"] for raw in left(client)] == ["dj-other-s1"]


def test_a_record_that_somebody_has_spoilt_keeps_nothing_from_going() -> None:
    copy = build_record(**{"pod-1-0": {}})
    client = place_running(notes={words.RECORD_ANNOTATION: "{"})
    client.put(CONFIG_MAPS, build_ledger(JOB, Ledger(1, record=copy)))
    assert ask(client).is_complete


def test_the_garbage_collector_is_left_its_work() -> None:
    client = place_running()
    ask(client)
    assert client.count("delete") == 1


class Swapping(MemoryClient):
    """Somebody replaces the runtime by one of his own just before it is deleted."""

    async def delete(self, resource: Resource, name: str, namespace: str | None = None, **options: Any) -> bool:
        if resource == TRAINING_RUNTIMES and self.peek(resource, name) is not None:
            self.drop(resource, name)
            self.put(resource, {"metadata": {"name": name, "uid": "theirs"}})
        return await super().delete(resource, name, namespace, **options)


def test_what_somebody_else_put_in_its_place_stays() -> None:
    client = Swapping()
    client.put(TRAINING_RUNTIMES, build_runtime())
    assert ask(client).is_complete
    assert [raw["metadata"]["uid"] for raw in left(client)] == ["theirs"]


def test_what_carries_no_label_of_ours_is_found_beneath_its_trainjob() -> None:
    client = place_running(pods=0)
    jobset = build_jobset()
    jobset["metadata"]["labels"] = {}
    client.put(JOBSETS, jobset)
    pod = build_pod(node="")
    pod["metadata"]["labels"] = {words.JOBSET_NAME_LABEL: build_name()}
    client.put(PODS, pod)
    client.reactions.clear()
    report = ask(client, patience=timedelta(seconds=1))
    assert left(client) == []
    assert {"JobSet", "Pod"} <= {*names(report.stopped), *names(report.unproven)}
