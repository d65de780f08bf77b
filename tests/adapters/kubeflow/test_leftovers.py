# SPDX-License-Identifier: Apache-2.0
"""What is taken for left over in a namespace, what is kept, and that it is judged again before it goes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from airflow_provider_dispatch.adapters.kubeflow.client import ObjectList
from airflow_provider_dispatch.adapters.kubeflow.leftovers import Leftovers
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.ledger import Ledger, LedgerEnd, build_ledger
from airflow_provider_dispatch.adapters.kubeflow.model.resources import (
    CONFIG_MAPS,
    JOBS,
    JOBSETS,
    PODS,
    TRAINING_RUNTIMES,
    TRAINJOBS,
    WORKLOADS,
    Resource,
)
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings
from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.core.records import Leftover
from airflow_provider_dispatch.core.state import Cause
from airflow_provider_dispatch.exceptions import CapabilityError
from tests.adapters.kubeflow.memory_client import Fault, MemoryClient, Object
from tests.adapters.kubeflow.objects import (
    JOB,
    NOW,
    SOON,
    build_name,
    build_pod,
    build_record,
    build_runtime,
    build_trainjob,
    place_job,
)

LONG_AGO = "2026-02-01T12:00:00Z"
JUST_NOW = "2026-03-01T11:59:00Z"
ENDED = {"conditions": [{"type": "Complete", "status": "True", "lastTransitionTime": LONG_AGO}]}
OTHER = JobID("01BX5ZZKBKACTAV9WEVGEMMVRZ")
MAY_GO = ""


def build_leftovers(
    client: MemoryClient, deployment: str | None = None, *, meanwhile: Callable[[], None] = lambda: None
) -> Leftovers:
    async def connect() -> MemoryClient:
        return client

    async def sleep(_seconds: float) -> None:
        meanwhile()
        await asyncio.sleep(0)

    return Leftovers(connect, KubeflowSettings(deployment=deployment), lambda: NOW, sleep)


def find(client: MemoryClient, deployment: str | None = None, *, forget: bool = False) -> list[Leftover]:
    leftovers = build_leftovers(client, deployment)
    return list(asyncio.run(leftovers.find(jobs=[], with_ledgers=forget)))


def judge(client: MemoryClient, deployment: str | None = None, *, forget: bool = False) -> dict[str, str]:
    """Why each is kept."""
    return {one.object: one.kept_because for one in find(client, deployment, forget=forget)}


def remove(client: MemoryClient, found: Leftover, deadline: datetime = SOON) -> str:
    return asyncio.run(build_leftovers(client).remove(found, deadline=deadline))


def place_orphans(client: MemoryClient, submission: int = 1) -> None:
    """What is left of a submission whose TrainJob was removed and nothing else was."""
    place_job(client, submission)
    client.drop(TRAINJOBS, build_name(submission))


def age(client: MemoryClient, resource: Resource, name: str, stamp: str) -> None:
    change(client, resource, name, lambda raw: raw["metadata"].update(creationTimestamp=stamp))


def change(client: MemoryClient, resource: Resource, name: str, edit: Callable[[Object], None]) -> None:
    raw = client.peek(resource, name)
    assert raw is not None
    edit(raw)
    client.put(resource, raw)


def end_job(client: MemoryClient, submission: int) -> None:
    change(client, TRAINJOBS, build_name(submission), lambda raw: raw.update(status=ENDED))


def count_objects(client: MemoryClient) -> dict[Resource, int]:
    kinds = (TRAINJOBS, TRAINING_RUNTIMES, WORKLOADS, JOBSETS, JOBS, PODS, CONFIG_MAPS)
    return {kind: len(found) for kind in kinds if (found := client.peek_all(kind))}


def test_nothing_of_a_job_is_left_over_while_its_trainjob_is_there() -> None:
    client = MemoryClient()
    place_job(client)
    client.put(CONFIG_MAPS, build_ledger(JOB, Ledger(1)))
    assert judge(client, forget=True) == {}
    end_job(client, 1)
    assert judge(client, forget=True) == {}


def test_all_that_a_removed_trainjob_has_left_may_go_what_makes_others_first() -> None:
    client = MemoryClient()
    place_orphans(client)
    found = find(client)
    assert [one.object.split()[0] for one in found] == ["TrainingRuntime", "Workload", "JobSet", "Pod", "Pod"]
    assert {one.kept_because for one in found} == {MAY_GO}
    assert (found[0].job, found[-1].detail) == (JOB, "its TrainJob is gone; on node n1")
    assert {remove(client, one) for one in found} == {""}
    assert count_objects(client) == {}


def test_of_a_living_job_not_even_an_orphan_is_touched() -> None:
    client = MemoryClient()
    place_orphans(client, 1)
    place_job(client, 2)
    before = count_objects(client)
    assert set(judge(client).values()) == {"submission 2 of its job has not ended"}
    assert remove(client, find(client)[0]) == "submission 2 of its job has not ended"
    assert count_objects(client) == before


def test_orphans_of_a_job_that_has_ended_go_and_the_job_stays() -> None:
    client = MemoryClient()
    place_job(client, 2)
    end_job(client, 2)
    before = count_objects(client)
    place_orphans(client, 1)
    assert {remove(client, one) for one in find(client)} == {""}
    assert count_objects(client) == before


@pytest.mark.parametrize(("created", "kept"), [(LONG_AGO, MAY_GO), (JUST_NOW, "its start may be under way")])
def test_a_runtime_without_a_trainjob_goes_once_no_start_can_want_it(created: str, kept: str) -> None:
    client = MemoryClient()
    client.put(TRAINING_RUNTIMES, build_runtime())
    age(client, TRAINING_RUNTIMES, build_name(), created)
    client.put(CONFIG_MAPS, build_ledger(JOB, Ledger(1)))
    (found,) = find(client, forget=True)
    assert found.kept_because.endswith(kept)
    assert remove(client, found) == found.kept_because
    assert (client.peek(TRAINING_RUNTIMES, build_name()) is None) == (kept == MAY_GO)


def test_a_workload_whose_owner_was_taken_from_it_is_known_by_its_name() -> None:
    client = MemoryClient()
    place_orphans(client)
    change(client, WORKLOADS, f"trainjob-{build_name()}-abcde", lambda raw: raw["metadata"].pop("ownerReferences"))
    (found,) = (one for one in find(client) if one.object.startswith("Workload"))
    assert (remove(client, found), client.peek_all(WORKLOADS)) == ("", [])


def test_the_end_of_a_pod_that_was_seen_goes_into_the_ledger() -> None:
    client = MemoryClient()
    client.put(PODS, build_pod(0))
    client.put(PODS, build_pod(1, node=""))
    record = build_record(**{"pod-1-0": {"node": "n1"}, "pod-1-1": {}})
    client.put(CONFIG_MAPS, build_ledger(JOB, Ledger(1, record=record)))

    def end_first(client: MemoryClient, verb: str, resource: Resource, raw: Object) -> None:
        if (verb, resource, raw["metadata"]["uid"]) == ("delete", PODS, "pod-1-0"):
            client.drop(PODS, client.put(PODS, raw | {"status": {"phase": "Failed"}})["metadata"]["name"])

    client.reactions.append(end_first)
    assert [remove(client, one) for one in find(client)] == ["", ""]
    (found,) = find(client, forget=True)
    assert (found.object, found.kept_because) == (f"ConfigMap dj-{JOB.lower()}", MAY_GO)


def test_a_young_runtime_of_a_submission_that_was_stopped_may_go() -> None:
    client = MemoryClient()
    client.put(TRAINING_RUNTIMES, build_runtime())
    age(client, TRAINING_RUNTIMES, build_name(), JUST_NOW)
    client.put(CONFIG_MAPS, build_ledger(JOB, Ledger(1, ends=(LedgerEnd(1, Cause.STOPPED, "enough", NOW),))))
    assert list(judge(client).values()) == [MAY_GO]


def test_what_is_going_already_is_left_to_go() -> None:
    client = MemoryClient()
    client.put(PODS, build_pod(deletionTimestamp=JUST_NOW))
    assert set(judge(client).values()) == {"it is being removed"}


def test_what_goes_with_what_was_removed_before_is_waited_for() -> None:
    client = MemoryClient()
    client.put(PODS, build_pod())
    (found,) = find(client)
    client.put(PODS, build_pod(deletionTimestamp=JUST_NOW))

    def end() -> None:
        client.drop(PODS, client.peek_all(PODS)[0]["metadata"]["name"])

    assert asyncio.run(build_leftovers(client, meanwhile=end).remove(found, deadline=SOON)) == ""
    assert client.count("delete") == 0


def test_a_workload_of_nobody_of_ours_is_nothing_to_us() -> None:
    client = MemoryClient()
    ours, labels = f"trainjob-{build_name()}-abcde", {words.JOB_UID_LABEL: "x"}
    client.put(WORKLOADS, {"metadata": {"name": "trainjob-somebodys-abcde", "labels": labels}})
    client.put(WORKLOADS, {"metadata": {"name": ours.replace(JOB.lower(), "u" * 26), "labels": labels}})
    client.put(WORKLOADS, {"metadata": {"name": ours}})
    assert judge(client) == {}


def test_a_cluster_without_kueue_has_leftovers_too() -> None:
    client = MemoryClient()
    client.put(PODS, build_pod())
    client.faults.append(Fault("list", WORKLOADS, CapabilityError("not served")))
    assert list(judge(client).values()) == [MAY_GO]


def test_where_no_trainjob_can_be_seen_nothing_is_left_over() -> None:
    client = MemoryClient()
    place_job(client)
    client.faults.append(Fault("list", TRAINJOBS, CapabilityError("not served")))
    with pytest.raises(CapabilityError):
        find(client)


@pytest.mark.parametrize(("mine", "is_found"), [(None, True), ("blue", True), ("green", False)])
@pytest.mark.parametrize("is_named_by_ledger", [True, False])
def test_nothing_of_another_deployment_is_told(mine: str | None, is_found: bool, is_named_by_ledger: bool) -> None:
    client = MemoryClient()
    client.put(PODS, pod := build_pod())
    if is_named_by_ledger:
        client.put(CONFIG_MAPS, build_ledger(JOB, Ledger(1, "blue")))
    else:
        pod["metadata"]["labels"][words.DEPLOYMENT_LABEL] = "blue"
        client.put(PODS, pod)
    assert bool(judge(client, mine, forget=True)) is is_found


def test_of_what_nobody_names_no_deployment_is_sure() -> None:
    client = MemoryClient()
    client.put(PODS, build_pod())
    assert (len(judge(client)), judge(client, "blue")) == (1, {})


def test_only_the_jobs_that_are_asked_for_are_told() -> None:
    client = MemoryClient()
    client.put(PODS, build_pod())
    leftovers = build_leftovers(client)
    assert asyncio.run(leftovers.find(jobs=[OTHER], with_ledgers=True)) == ()
    assert len(asyncio.run(leftovers.find(jobs=[OTHER, JOB], with_ledgers=True))) == 1


# -- ledgers -----------------------------------------------------------------------------------------------------------


def test_a_ledger_is_forgotten_when_asked_and_nothing_else_is_left() -> None:
    client = MemoryClient()
    client.put(CONFIG_MAPS, build_ledger(JOB, Ledger(3)))
    client.put(CONFIG_MAPS, {"metadata": {"name": "somebodys"}})
    assert judge(client) == {}
    (found,) = find(client, forget=True)
    assert (found.detail, found.kept_because) == (f"ledger of job {JOB}, submission 3 was its last", MAY_GO)
    assert remove(client, found) == ""
    assert [raw["metadata"]["name"] for raw in client.peek_all(CONFIG_MAPS)] == ["somebodys"]


def test_what_is_no_ledger_is_not_forgotten() -> None:
    client = MemoryClient()
    ledger = build_ledger(JOB, Ledger(1))
    client.put(
        CONFIG_MAPS, ledger | {"metadata": {"name": f"dj-{JOB.lower()}", "labels": {words.JOB_LABEL: JOB.lower()}}}
    )
    found = client.peek_all(CONFIG_MAPS)[0]
    assert remove(client, Leftover(JOB, "ConfigMap", found["metadata"]["uid"])) == ""
    assert client.count("delete") == 0


def test_a_ledger_stays_while_anything_of_its_job_does() -> None:
    client = MemoryClient()
    client.put(CONFIG_MAPS, build_ledger(JOB, Ledger(1)))
    client.put(PODS, build_pod(deletionTimestamp=JUST_NOW))
    assert [one.object.split()[0] for one in find(client, forget=True)] == ["Pod"]


@pytest.mark.parametrize(
    ("record", "kept"),
    [
        (build_record(lost={"node": "n1"}), "nobody saw the end of pod lost; see dispatch fence show"),
        (build_record(dead={"is_dead": True}), MAY_GO),
        ("{", "it can't be read, so nobody knows whether its pods are dead"),
    ],
)
def test_a_ledger_that_knows_of_a_pod_that_may_live_stays(record: str, kept: str) -> None:
    client = MemoryClient()
    client.put(CONFIG_MAPS, build_ledger(JOB, replace(Ledger(1), record=record)))
    (found,) = find(client, forget=True)
    assert (found.kept_because, remove(client, found)) == (kept, kept)


def test_a_spoilt_ledger_stays() -> None:
    client = MemoryClient()
    client.put(CONFIG_MAPS, {**build_ledger(JOB, Ledger(1)), "data": {"ledger": "{"}})
    assert list(judge(client, forget=True).values()) == ["it can't be read, so nobody knows whether its pods are dead"]


# -- meanwhile ---------------------------------------------------------------------------------------------------------


def test_what_belongs_to_a_job_again_is_not_removed() -> None:
    client = MemoryClient()
    place_orphans(client)
    found = find(client)[0]
    client.put(TRAINJOBS, build_trainjob())
    assert remove(client, found) == ""
    assert client.peek(TRAINING_RUNTIMES, build_name()) is not None


class StartingClient(MemoryClient):
    """A start goes on while its objects are looked at."""

    async def list(self, resource: Resource, namespace: str | None = None, **more: str) -> ObjectList:
        found = await super().list(resource, namespace, **more)
        if resource == WORKLOADS:
            self.put(TRAINJOBS, build_trainjob())
        return found


def test_what_a_start_takes_up_while_it_is_judged_is_not_removed() -> None:
    client = StartingClient()
    found = client.put(TRAINING_RUNTIMES, build_runtime())
    age(client, TRAINING_RUNTIMES, build_name(), LONG_AGO)
    assert remove(client, Leftover(JOB, "TrainingRuntime", found["metadata"]["uid"])) == ""
    assert client.count("delete") == 0


class BusyClient(MemoryClient):
    """Somebody writes into the ledger right after it was judged."""

    async def list(self, resource: Resource, namespace: str | None = None, **more: str) -> ObjectList:
        found = await super().list(resource, namespace, **more)
        if resource == TRAINJOBS:
            for ledger in self.peek_all(CONFIG_MAPS):
                self.put(CONFIG_MAPS, ledger)
        return found


def test_a_ledger_that_somebody_writes_into_stays() -> None:
    client = BusyClient()
    client.put(CONFIG_MAPS, build_ledger(JOB, Ledger(1)))
    (found,) = find(client, forget=True)
    assert remove(client, found) == "somebody has changed it meanwhile"
    assert len(client.peek_all(CONFIG_MAPS)) == 1


class SlowClient(MemoryClient):
    """Nothing that is deleted goes."""

    async def delete(self, resource: Resource, name: str, namespace: str | None = None, **more: object) -> bool:
        return True


def test_what_does_not_go_in_time_is_told() -> None:
    client = SlowClient()
    client.put(PODS, build_pod())
    (found,) = find(client)
    why = remove(client, found, NOW + timedelta(milliseconds=20))
    assert why == "the time was over before it had gone; ask again"
