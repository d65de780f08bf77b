# SPDX-License-Identifier: Apache-2.0
"""Preflight on a cluster: a healthy one is proved, each fault is named in one line with its cure, nothing is left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_dispatch.adapters.kubeflow.errors import UnauthorizedError, WebhookAwayError
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.fields import format_time
from airflow_provider_dispatch.adapters.kubeflow.model.preflight import CHECKS, list_checks
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.probe import build_probe_runtime, build_probe_trainjob
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.sights import PreflightTerms
from airflow_provider_dispatch.adapters.kubeflow.model.resources import (
    ACCESS_REVIEWS,
    CLUSTER_QUEUES,
    CLUSTER_TRAINING_RUNTIMES,
    JOBSETS,
    LEASES,
    LOCAL_QUEUES,
    NAMESPACES,
    TRAINING_RUNTIMES,
    TRAINJOBS,
    USER_REVIEWS,
    WORKLOADS,
    Resource,
)
from airflow_provider_dispatch.adapters.kubeflow.model.terms import Terms
from airflow_provider_dispatch.adapters.kubeflow.preflight import run_preflight
from airflow_provider_dispatch.adapters.kubeflow.preflight.permissions import AT_ONCE
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings, RuntimeSettings
from airflow_provider_dispatch.core.capabilities import REQUIRED, Answer, Capability, Preflight, Source
from airflow_provider_dispatch.core.identity import build_job_id
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.exceptions import RefusedError, SpecError, UnavailableError
from tests.adapters.kubeflow.cluster_parts import NOW
from tests.adapters.kubeflow.memory_client import Fault, MemoryClient, Object
from tests.adapters.kubeflow.proved_cluster import ProvedCluster, build_proved_cluster

KUEUE = KubeflowSettings(queue="lq", runtime=RuntimeSettings(name="plain"))
PLAIN = KubeflowSettings()
ALONE = KubeflowSettings(has_controller=False)
OTHER = build_job_id(0, b"0123456789")
PROBES = (TRAINJOBS, TRAINING_RUNTIMES, JOBSETS, WORKLOADS)


async def rest(_seconds: float) -> None:
    await asyncio.sleep(0)


def look(client: ProvedCluster, settings: KubeflowSettings = KUEUE, spec: JobSpec | None = None) -> Preflight:
    return asyncio.run(run_preflight(client, settings, now=NOW, spec=spec, sleep=rest))


def place_probe(client: ProvedCluster, age: timedelta) -> None:
    """What a preflight has left whose end was so long ago."""
    terms = Terms("default", "lq")
    client.put(TRAINJOBS, build_probe_trainjob(OTHER, terms, NOW - age))
    client.put(TRAINING_RUNTIMES, build_probe_runtime(OTHER, terms, NOW - age))


def list_left(client: ProvedCluster) -> list[str]:
    return [one["metadata"]["name"] for kind in PROBES for one in client.peek_all(kind)]


@pytest.mark.parametrize("settings", [KUEUE, PLAIN, ALONE, KUEUE.model_copy(update={"runtime": None})])
def test_a_healthy_cluster_is_proved_and_nothing_is_left(settings: KubeflowSettings) -> None:
    client = build_proved_cluster()
    found = look(client, settings)
    assert [name for name, check in found.checks.items() if not check.is_yes] == []
    assert found.is_proved
    assert found.checked_at == NOW
    assert all(finding.cure == "" for finding in (*found.checks.values(), *found.capabilities.values()))
    assert list_left(client) == []
    terms = PreflightTerms("default", settings.queue or "", has_controller=settings.has_controller)
    assert tuple(found.checks) == list_checks(terms)


def test_the_four_required_are_seen_with_kueue_and_told_by_what_proves_them() -> None:
    capabilities = look(build_proved_cluster()).capabilities
    assert {capabilities[one].source for one in REQUIRED} == {Source.PROBED}
    assert "AdmissionCheck dispatch-admission, alone" in capabilities[Capability.READMISSION_GATE].reason
    assert "Lease dispatch-system/dispatch-admission: held by pod-1" in capabilities[Capability.READMISSION_GATE].reason
    assert "a probe waited 10 s behind our gate" in capabilities[Capability.START_GATE].reason


def test_without_a_controller_we_wait_ourselves_and_there_is_no_fence() -> None:
    capabilities = look(build_proved_cluster(), ALONE).capabilities
    assert capabilities[Capability.READMISSION_GATE].source is Source.DECLARED
    assert capabilities[Capability.POD_FENCE].value is Answer.NO


def edit(
    resource: Resource, name: str, change: Callable[[Object], object], namespace: str = "default"
) -> Callable[[ProvedCluster], None]:
    def spoil(client: ProvedCluster) -> None:
        found = client.peek(resource, name, namespace)
        assert found is not None
        change(found)

    return spoil


def drop(resource: Resource, name: str, namespace: str = "default") -> Callable[[ProvedCluster], None]:
    return lambda client: client.drop(resource, name, namespace)


def change(**traits: Any) -> Callable[[ProvedCluster], None]:
    def spoil(client: ProvedCluster) -> None:
        for name, value in traits.items():
            setattr(client, name, value)

    return spoil


AWAY = WebhookAwayError("no answer", "mtrainjob.kb.io")
FAULTS = {
    "apis": (change(unserved={LOCAL_QUEUES}), "localqueues.kueue.x-k8s.io/v1beta2 (served: v1)", "Kueue 0.19"),
    "permissions": (change(denied={("get", "pods/log"), ("patch", "workloads")}), "patch workloads.kueue", "bind"),
    "namespace": (drop(NAMESPACES, "default"), "there is no namespace default", "create it"),
    "runtime": (drop(CLUSTER_TRAINING_RUNTIMES, "plain"), "no training runtime plain", "create it"),
    "queue": (drop(LOCAL_QUEUES, "lq"), "no LocalQueue lq in namespace default", "queue create"),
    "admission check": (
        edit(CLUSTER_QUEUES, "cq", lambda raw: raw["spec"].pop("admissionChecksStrategy")),
        "doesn't list AdmissionCheck",
        "alone, without onFlavors",
    ),
    "multikueue": (change(manager=words.MULTIKUEUE_CONTROLLER), "managedBy kueue.x-k8s.io/multikueue", "take it out"),
    "controller": (drop(LEASES, words.LEASE_NAME, words.LEASE_NAMESPACE), "has never run", "start dispatch-admission"),
    "kueue": (change(away={TRAINJOBS: AWAY}), "mtrainjob.kb.io doesn't answer", "the controller of Kueue runs"),
    "trainjob integration": (change(is_managed=False), "doesn't manage TrainJobs", "integrations"),
    "trainer": (change(lazy={"trainer"}), "not taken a job up in 10 s", "the controller of Trainer runs"),
    "jobset": (change(lazy={"jobset"}), "not taken a job up in 10 s", "the controller of JobSet runs"),
    "start gate": (change(looks_at_gates=False), "takes a gate that is none", "AdmissionGatedBy"),
    "identity": (change(strips=True), "scheduling gate dispatch.phpboyscout.uk/fence is gone", "webhook"),
}


@pytest.mark.parametrize("name", list(FAULTS))
def test_a_fault_is_named_with_its_cure_and_nothing_is_left(name: str) -> None:
    spoil, said, cure = FAULTS[name]
    client = build_proved_cluster()
    spoil(client)
    found = look(client)
    assert found.checks[name].value is Answer.NO
    assert said in found.checks[name].reason
    assert cure in found.checks[name].cure
    assert not found.is_proved
    assert list_left(client) == []


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (change(leaks=True), "the probe had pods: dispatch-preflight-"),
        (change(reason=""), "the probe was admitted"),
    ],
)
def test_a_gate_that_leaks_is_found_at_once(spoil, said: str) -> None:
    client, slept = build_proved_cluster(), []
    spoil(client)

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    found = asyncio.run(run_preflight(client, KUEUE, now=NOW, sleep=sleep))
    assert said in found.checks["start gate"].reason
    assert sum(slept) == 0.5
    assert list_left(client) == []


@pytest.mark.parametrize(
    ("seconds", "lazy", "waited"), [(2.0, set(), 2.0), (2.0, {"jobset"}, 10.0), (20.0, set(), 20.0), (0.0, set(), 0.0)]
)
def test_a_probe_is_watched_as_long_as_asked_and_controllers_have_their_time(seconds, lazy, waited) -> None:
    client, slept = build_proved_cluster(lazy=lazy), []

    async def sleep(pause: float) -> None:
        slept.append(pause)

    settings = KUEUE.model_copy(update={"probe_seconds": seconds})
    found = asyncio.run(run_preflight(client, settings, now=NOW, sleep=sleep))
    assert sum(slept) == waited
    assert found.is_proved is not bool(lazy)
    assert client.count("create", TRAINJOBS) == bool(seconds)


def test_what_does_not_go_in_time_is_told() -> None:
    found = look(build_proved_cluster(keeps=True))
    assert "still being removed: Workload trainjob-dispatch-preflight-" in found.checks["start gate"].reason


def test_a_probe_is_removed_although_its_preflight_is_cancelled() -> None:
    client = build_proved_cluster()

    async def scenario() -> None:
        reached = asyncio.Event()

        async def sleep(_seconds: float) -> None:
            reached.set()
            await asyncio.sleep(0 if client.peek_all(TRAINJOBS) == [] else 3600)

        running = asyncio.create_task(run_preflight(client, KUEUE, now=NOW, sleep=sleep))
        await reached.wait()
        assert client.peek_all(TRAINJOBS)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(asyncio.wait_for(scenario(), 20))
    assert list_left(client) == []


def test_what_can_not_be_removed_now_does_not_hide_what_was_seen() -> None:
    client = build_proved_cluster()
    client.faults.append(Fault("delete", TRAINJOBS, UnavailableError("down")))
    found = look(client)
    assert found.is_proved
    assert "still being removed: TrainJob dispatch-preflight-" in found.checks["start gate"].reason
    assert found.checks["start gate"].reason.endswith("(down)")
    # The controller finds the probe by its runtime.
    assert len(client.peek_all(TRAINING_RUNTIMES)) == 1


def test_an_end_that_can_not_be_seen_does_not_hide_what_was_seen() -> None:
    client = build_proved_cluster()

    def fail(client: MemoryClient, verb: str, resource: Resource, _body: Object) -> None:
        if (verb, resource) == ("delete", TRAINJOBS):
            client.faults.append(Fault("get", JOBSETS, UnavailableError("down")))

    client.reactions.append(fail)
    found = look(client)
    assert found.is_proved
    assert found.checks["start gate"].reason.endswith("(down)")


@pytest.mark.parametrize(
    ("traits", "said"),
    [
        ({"denied": {("delete", "trainjobs")}}, "we may not delete trainjobs.trainer.kubeflow.org"),
        ({"denied": {("create", "trainingruntimes")}}, "we may not create trainingruntimes.trainer.kubeflow.org"),
        ({"unserved": {TRAINJOBS}}, "trainjobs are not served"),
        ({"away": {ACCESS_REVIEWS: RefusedError("403")}}, "it isn't known what we may do"),
    ],
)
def test_nothing_is_made_that_could_not_be_removed(traits: dict, said: str) -> None:
    client = build_proved_cluster(**traits)
    found = look(client)
    assert f"nothing was tried, since {said}" in found.checks["start gate"].reason
    assert [one for one in client.requests if one.verb in {"create", "delete"} and not one.is_dry_run] == []


def test_a_queue_that_is_stopped_is_not_waited_for() -> None:
    client, slept = build_proved_cluster(reason="OnHold"), []
    edit(CLUSTER_QUEUES, "cq", lambda raw: raw["spec"].update(stopPolicy="Hold"), "")(client)

    async def sleep(pause: float) -> None:
        slept.append(pause)
        for workload in client.peek_all(WORKLOADS):
            workload.pop("status", None)

    settings = KUEUE.model_copy(update={"probe_seconds": 1.0})
    found = asyncio.run(run_preflight(client, settings, now=NOW, sleep=sleep))
    assert sum(slept) == 1.0
    assert found.checks["kueue"].is_yes
    assert "stopPolicy Hold" in found.checks["queue"].reason


@pytest.mark.parametrize(("age", "stays"), [(timedelta(seconds=1), False), (timedelta(seconds=-1), True)])
def test_what_a_killed_preflight_left_is_removed_and_a_running_one_is_let_be(age: timedelta, *, stays: bool) -> None:
    client = build_proved_cluster()
    place_probe(client, age)
    assert look(client).is_proved
    assert len(list_left(client)) == 2 * stays


def test_what_merely_looks_like_a_killed_preflights_stays() -> None:
    client = build_proved_cluster()
    place_probe(client, timedelta(hours=1))
    (trainjob,), (runtime,) = client.peek_all(TRAINJOBS), client.peek_all(TRAINING_RUNTIMES)
    trainjob["metadata"]["labels"][words.JOB_LABEL] = OTHER.lower()
    runtime["metadata"]["labels"][words.JOB_LABEL] = build_job_id(1, bytes(10)).lower()
    assert look(client).is_proved
    assert len(list_left(client)) == 2


def test_an_abandoned_probe_that_can_not_be_removed_keeps_its_runtime() -> None:
    client = build_proved_cluster()
    place_probe(client, timedelta(seconds=1))
    client.faults.append(Fault("delete", TRAINJOBS, RefusedError("403")))
    assert look(client).is_proved
    assert [one["kind"] for kind in (TRAINJOBS, TRAINING_RUNTIMES) for one in client.peek_all(kind)] == [
        "TrainJob",
        "TrainingRuntime",
    ]


def test_a_probe_says_until_when_it_may_be_in_use_and_is_nobodys_job() -> None:
    client, made = build_proved_cluster(), []
    client.reactions.append(lambda _client, verb, kind, body: made.append((verb, kind, body)))
    look(client)
    trainjob = next(body for verb, kind, body in made if (verb, kind) == ("create", TRAINJOBS))
    assert trainjob["metadata"]["labels"] == {words.QUEUE_LABEL: "lq", words.KIND_LABEL: words.PROBE_KIND}
    assert trainjob["metadata"]["annotations"][words.PROBE_UNTIL_ANNOTATION] == format_time(NOW + timedelta(seconds=50))
    runtime = next(body for verb, kind, body in made if (verb, kind) == ("create", TRAINING_RUNTIMES))
    pods = runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert pods["nodeSelector"] == {words.NOWHERE: words.PROBE_KIND}


def test_bad_credentials_are_one_line() -> None:
    client = build_proved_cluster(away={USER_REVIEWS: UnauthorizedError("401")})
    found = look(client)
    assert list(found.checks) == ["credentials"]
    assert found.checks["credentials"].reason == "the API server doesn't know us: 401"
    assert {found.capabilities[one].value for one in REQUIRED} == {Answer.NO}


@pytest.mark.parametrize("away", [{USER_REVIEWS: RefusedError("403")}, {}])
def test_an_account_that_may_not_ask_its_name_is_known_all_the_same(away) -> None:
    found = look(build_proved_cluster(away=away, user=""))
    assert found.checks["credentials"].reason == "the API server knows us as an account without a name"


@pytest.mark.parametrize("resource", [LEASES, NAMESPACES])
def test_a_server_that_does_not_answer_is_an_error(resource: Resource) -> None:
    client = build_proved_cluster()
    client.faults.append(Fault("get", resource, UnavailableError("down")))
    with pytest.raises(UnavailableError):
        look(client)
    assert list_left(client) == []


@pytest.mark.parametrize(
    ("verb", "resource", "name"),
    [
        ("get", LOCAL_QUEUES, "queue"),
        ("get", CLUSTER_QUEUES, "queue"),
        ("get", LEASES, "controller"),
        ("get", CLUSTER_TRAINING_RUNTIMES, "runtime"),
        ("create", TRAINING_RUNTIMES, "identity"),
        ("create", TRAINJOBS, "start gate"),
    ],
)
def test_what_may_not_be_looked_at_is_unknown(verb: str, resource: Resource, name: str) -> None:
    client = build_proved_cluster()
    if verb == "create":
        client.away[resource] = RefusedError("403 Forbidden")
    else:
        client.faults.append(Fault(verb, resource, RefusedError("403 Forbidden")))
    found = look(client)
    assert found.checks[name].value is Answer.UNKNOWN
    assert "can't be looked at: 403 Forbidden" in found.checks[name].reason
    assert not found.is_proved


def test_rights_are_asked_for_some_at_a_time() -> None:
    client, running, most = build_proved_cluster(), 0, 0

    class Counting(ProvedCluster):
        async def create(self, resource, body, namespace=None, *, dry_run=False):
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            answer = await super().create(resource, body, namespace, dry_run=dry_run)
            running -= 1
            return answer

    client.__class__ = Counting  # the same cluster, counted
    assert look(client).is_proved
    assert most == AT_ONCE


def test_who_may_not_read_logs_may_start_jobs() -> None:
    found = look(build_proved_cluster(denied={("get", "pods/log")}))
    assert found.checks["permissions"].reason == "in namespace default we may not get pods/log"
    assert found.capabilities[Capability.LOGS].value is Answer.NO
    assert all(found.capabilities[one].is_yes for one in REQUIRED)


def test_a_job_is_held_against_the_quota_of_its_queue() -> None:
    client = build_proved_cluster()
    large = JobSpec(command=["train"], nodes=2, resources={"cpu": "200m"})
    found = look(client, spec=large)
    assert found.checks["quota"].value is Answer.NO
    assert "which can give at most 250m of 400m cpu" in found.checks["quota"].reason
    assert all(found.capabilities[one].is_yes for one in REQUIRED)
    small = JobSpec(command=["train"], resources={"cpu": "200m"})
    assert look(client, spec=small).checks["quota"].is_yes
    other = look(client, spec=large.model_copy(update={"queue": "other"}))
    assert "no LocalQueue other" in other.checks["queue"].reason
    with pytest.raises(SpecError):
        look(client, spec=large.model_copy(update={"runtime": "missing"}))


def test_a_runtime_of_the_namespace_is_found_there() -> None:
    settings = KUEUE.model_copy(update={"runtime": RuntimeSettings(name="own", kind="TrainingRuntime")})
    client = build_proved_cluster()
    assert look(client, settings).checks["runtime"].value is Answer.NO
    client.put(TRAINING_RUNTIMES, {"metadata": {"name": "own"}})
    assert look(client, settings).checks["runtime"].is_yes


def test_an_installation_of_another_name_has_policies_of_its_own() -> None:
    settings = PLAIN.model_copy(update={"lease_namespace": "other-system"})
    said = look(build_proved_cluster(), settings).checks["policies"].reason
    assert "ValidatingAdmissionPolicy other-workloads" in said
    elsewhere = PLAIN.model_copy(update={"lease_namespace": "odd"})
    assert look(build_proved_cluster(), elsewhere).checks["policies"].is_yes


def test_every_check_has_a_fault_here() -> None:
    elsewhere = {"credentials", "kubernetes", "policies", "quota", "known faults"}
    assert set(CHECKS) == {*FAULTS, *elsewhere}
