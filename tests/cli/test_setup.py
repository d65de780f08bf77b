# SPDX-License-Identifier: Apache-2.0
"""The words `setup`, `queue` and `fence`: what they read, what they answer, how they end. Over a cluster in memory."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_dispatch.adapters import registry
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.ledger import Ledger, build_ledger
from airflow_provider_dispatch.adapters.kubeflow.model.resources import (
    ADMISSION_CHECKS,
    CLUSTER_QUEUES,
    CONFIG_MAPS,
    LOCAL_QUEUES,
    NODES,
    RESOURCE_FLAVORS,
    TRAINJOBS,
)
from airflow_provider_dispatch.adapters.kubeflow.setup.keeper import ClusterKeeper
from airflow_provider_dispatch.testing.fake_adapter import FakeAdapter
from airflow_provider_dispatch.testing.fake_backend import FakeBackend
from tests.adapters.kubeflow.objects import JOB, build_trainjob
from tests.adapters.kubeflow.setup.cluster import SetupClient, build_client, keep
from tests.adapters.kubeflow.test_vouching import RECORD
from tests.cli.calling import Answer, Caller
from tests.cli.conftest import write_settings

BACKEND = "in-memory"


@pytest.fixture
def client() -> SetupClient:
    return build_client("team-a", "team-b")


@pytest.fixture
def dispatch(client: SetupClient, tmp_path: Path) -> Caller:
    """The command over that cluster, with settings that name namespace team-a."""

    def build(given: Mapping[str, object]) -> ClusterKeeper:
        return keep(client, clock=lambda: datetime.now(UTC), **given)

    registry.register_adapter(BACKEND, lambda _: FakeAdapter(FakeBackend()))
    registry.register_keeper(BACKEND, build)
    return Caller(write_settings(tmp_path / "settings.yaml", {"backend": BACKEND, "namespace": "team-a"}))


def outcomes(answer: Answer) -> set[str]:
    return {row[0] for row in answer.rows[1:] if row[0].islower() and ":" not in row[0]}


def test_setup_prints_what_can_be_piped_to_kubectl(dispatch: Caller, client: SetupClient) -> None:
    answer = dispatch("setup", "-n", "team-b", "--controller-image", "ours:1")
    assert answer.code == 0
    printed = list(yaml.safe_load_all(answer.out))
    assert dispatch.json("setup", "-n", "team-b", "--controller-image", "ours:1") == {
        "apiVersion": "v1",
        "kind": "List",
        "items": printed,
    }
    assert "ours:1" in answer.out
    assert "namespace: team-b" in answer.out
    assert client.requests == []


def test_setup_is_applied_checked_and_deleted(dispatch: Caller) -> None:
    missing = dispatch("setup", "--check")
    assert (missing.code, outcomes(missing)) == (1, {"missing"})
    applied = dispatch("setup", "--apply")
    assert (applied.code, outcomes(applied)) == (0, {"created"})
    assert "next: dispatch queue create NAME --namespace team-a" in applied.out
    checked = dispatch("setup", "--check")
    assert (checked.code, outcomes(checked)) == (0, {"same"})
    deleted = dispatch("setup", "--delete")
    assert (deleted.code, outcomes(deleted)) == (0, {"removed"})


def test_setup_answers_programs(dispatch: Caller) -> None:
    found = dispatch.json("setup", "--apply")
    assert found[0].keys() == {"object", "outcome", "detail"}
    assert {one["outcome"] for one in found} == {"created"}


def test_setup_of_another_instance_tells_what_connections_need(dispatch: Caller, client: SetupClient) -> None:
    answer = dispatch("setup", "--apply", "--instance", "blue")
    assert "admission_check: blue-admission, lease_namespace: blue-system" in answer.out
    assert client.peek(ADMISSION_CHECKS, "blue-admission", "") is not None


def test_setup_without_a_controller_tells_so(dispatch: Caller) -> None:
    assert "has_controller: false" in dispatch("setup", "--apply", "--plain-without-controller").out


def test_setup_says_why_the_controller_does_not_come_up(dispatch: Caller, client: SetupClient) -> None:
    client.has_images = False
    answer = dispatch("setup", "--apply", "--call-timeout", "0.01s")
    assert (answer.code, outcomes(answer)) == (3, {"created"})
    assert "the controller doesn't act yet: 0 of 2 pods are ready; the same call waits again" in answer.err
    assert dispatch("setup", "--apply", "--no-wait").code == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--apply", "--check"), "--apply"),
        (("-n", "No"), "namespace"),
        (("--airflow-account", "worker"), "airflow_account"),
        (("--instance", "No"), "name"),
        (("--all-namespaces", "--plain-without-controller"), "--all-namespaces"),
        (("--apply", "-n", "nowhere"), "kubectl create namespace nowhere"),
    ],
)
def test_setup_names_what_is_wrong(dispatch: Caller, given: tuple[str, ...], said: str) -> None:
    answer = dispatch("setup", *given)
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err


def test_a_backend_without_a_cluster_has_nothing_to_set_up(fake: Any) -> None:
    answer = fake.dispatch("setup", "--apply")
    assert answer.code == 5
    assert "nothing to set up" in answer.err


@pytest.fixture
def guarded(dispatch: Caller) -> Caller:
    assert dispatch("setup", "--apply").code == 0
    return dispatch


def test_a_queue_from_one_line(guarded: Caller, client: SetupClient) -> None:
    answer = guarded(
        *("queue", "create", "train", "--cpu", "8", "--memory", "64Gi", "--resource", "nvidia.com/gpu=8"),
        *("--node-label", "gpu=a100", "--toleration", "nvidia.com/gpu:NoSchedule", "--cohort", "all", "--weight", "2"),
        *("--reclaim", "any", "--preemption", "never"),
    )
    assert (answer.code, outcomes(answer)) == (0, {"created"})
    assert "backend: kubeflow, namespace: team-a, queue: train" in answer.out
    queue = client.peek(CLUSTER_QUEUES, "team-a-train", "")
    assert queue is not None
    assert queue["spec"]["preemption"] == {"withinClusterQueue": "Never", "reclaimWithinCohort": "Any"}
    flavor = client.peek(RESOURCE_FLAVORS, "team-a-train", "")
    assert flavor is not None
    assert flavor["spec"]["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]


def test_a_queue_of_several_flavors(guarded: Caller, client: SetupClient) -> None:
    answer = guarded(
        *("queue", "create", "train", "-n", "team-b", "--flavor", "a100:cpu=96,memory=1Ti"),
        *("--flavor", "spot:cpu=8,memory=64Gi", "--node-label", "a100@gpu=a100", "--toleration", "spot@spot=yes"),
    )
    assert answer.code == 0, answer.err
    queue = client.peek(CLUSTER_QUEUES, "team-b-train", "")
    assert queue is not None
    (group,) = queue["spec"]["resourceGroups"]
    assert [one["name"] for one in group["flavors"]] == ["a100", "spot"]
    spot = client.peek(RESOURCE_FLAVORS, "spot", "")
    assert spot is not None
    assert spot["spec"] == {"tolerations": [{"key": "spot", "operator": "Equal", "value": "yes"}]}


def test_a_queue_is_shown_and_deleted(guarded: Caller, client: SetupClient) -> None:
    guarded("queue", "create", "train", "--cpu", "8", "--memory", "64Gi")
    shown = guarded("queue", "show")
    assert shown.code == 1
    assert shown.rows[1][:4] == ["train", "team-a-train", "team-a-train", "cpu"]
    assert "Kueue has not looked at it yet" in shown.out
    found = guarded("queue", "show", "train", "-o", "json").data
    assert found[0]["usage"][1] == {"flavor": "team-a-train", "resource": "memory", "quota": "64Gi", "used": "0"}
    assert guarded("queue", "delete", "train").code == 0
    assert client.peek_all(LOCAL_QUEUES) == []
    assert guarded("queue", "show").out == "no queues\n"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--cpu", "8"), "memory"),
        ((), "--cpu 8 --memory 64Gi"),
        (("--cpu", "many", "--memory", "1Gi"), "cpu"),
        (("--cpu", "1", "--memory", "1Gi", "--resource", "gpu"), "--resource"),
        (("--cpu", "1", "--flavor", "a:cpu=1,memory=1Gi"), "--flavor"),
        (("--flavor", "a"), "--flavor"),
        (("--flavor", "a:cpu=1,memory=1", "--flavor", "a:cpu=1,memory=1"), "twice"),
        (("--flavor", "a:cpu=1,memory=1", "--flavor", "b:cpu=1,memory=1", "--node-label", "x=y"), "of which flavor"),
        (("--cpu", "1", "--memory", "1Gi", "--node-label", "b@x=y"), "none of the flavors"),
        (("--cpu", "1", "--memory", "1Gi", "--toleration", "x:Never"), "--toleration"),
        (("--cpu", "1", "--memory", "1Gi", "--reclaim", "any"), "cohort"),
    ],
)
def test_queue_names_what_is_wrong(guarded: Caller, client: SetupClient, given: tuple[str, ...], said: str) -> None:
    answer = guarded("queue", "create", "train", *given)
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err
    assert client.peek_all(CLUSTER_QUEUES) == []


def test_a_queue_before_setup_is_told_the_cure(dispatch: Caller) -> None:
    answer = dispatch("queue", "create", "train", "--cpu", "8", "--memory", "64Gi")
    assert answer.code == 5
    assert "dispatch setup --apply" in answer.err


@pytest.fixture
def doubtful(dispatch: Caller, client: SetupClient) -> Caller:
    """A job of which two pods have gone and nobody saw how."""
    client.put(TRAINJOBS, build_trainjob(notes={words.RECORD_ANNOTATION: RECORD.to_json()}), "team-a")
    client.put(CONFIG_MAPS, build_ledger(JOB, Ledger(1, record=RECORD.to_json())), "team-a")
    client.put(NODES, {"metadata": {"name": "n1"}})
    return dispatch


def test_doubts_are_shown(doubtful: Caller) -> None:
    answer = doubtful("fence", "show", JOB)
    assert answer.code == 1
    assert [row[0] for row in answer.rows] == ["POD", "pod-0", "pod-1"]
    found = doubtful("fence", "show", JOB, "-o", "json").data
    assert (found[0]["pod"], found[0]["node"], found[0]["since"]) == ("pod-0", "n1", "2026-03-01T11:00:00+00:00")


def test_a_word_is_asked_twice_for(doubtful: Caller) -> None:
    shown = doubtful("fence", "confirm", JOB, "--node", "n1")
    assert (shown.code, [row[0] for row in shown.rows]) == (1, ["POD", "pod-0"])
    assert "--yes" in shown.err
    left = doubtful("fence", "confirm", JOB, "--node", "n1", "--yes")
    assert (left.code, [row[0] for row in left.rows]) == (1, ["POD", "pod-1"])
    assert doubtful("fence", "confirm", JOB, "--pod", "pod-1", "--yes").code == 0
    assert doubtful("fence", "show", JOB).out == "every recorded pod is proven dead\n"


@pytest.mark.parametrize(
    ("given", "said"), [((), "--pod"), (("--pod", "pod-9"), "pod-0"), (("--node", "n9"), "in doubt: n1")]
)
def test_confirm_names_what_is_wrong(doubtful: Caller, given: tuple[str, ...], said: str) -> None:
    answer = doubtful("fence", "confirm", JOB, *given, "--yes")
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err


def test_an_unknown_job_has_no_doubts(dispatch: Caller) -> None:
    answer = dispatch("fence", "show", JOB)
    assert answer.code == 4
    assert "dispatch list" in answer.err


@pytest.mark.parametrize("group", [("setup",), ("queue",), ("queue", "create"), ("fence",), ("fence", "confirm")])
def test_help_needs_no_cluster(dispatch: Caller, client: SetupClient, group: tuple[str, ...]) -> None:
    answer = dispatch(*group, "--help")
    assert answer.code == 0
    assert "Usage" in answer.out
    assert client.requests == []
