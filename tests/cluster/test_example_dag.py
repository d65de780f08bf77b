# SPDX-License-Identifier: Apache-2.0
"""The hold-and-release example on the cluster of all tests, its controller a process beside them.

Beside it a job lives that is given a secret. After both, and while they run, neither its value nor anything of the
connection's kubeconfig is in what Airflow has written or in any object of the namespace.
:mod:`.test_bare_to_proven` plays the example where the controller runs in pods.
"""

from __future__ import annotations

import hashlib
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from airflow_provider_dispatch.adapters.kubeflow.setup.terms import Account
from airflow_provider_dispatch.core.state import State
from airflow_provider_dispatch.testing.airflow_processes import RealAirflow
from airflow_provider_dispatch.testing.airflow_rest import Run
from tests.cluster.hold_and_release import (
    FIRST,
    PATIENCE_SECONDS,
    QUEUE,
    ROOM_OF_ONE,
    SECOND,
    Place,
    fetch_xcom,
    open_airflow,
    play_hold_and_release,
    see,
)
from tests.cluster.set_up import write_kubeconfig
from tests.cluster.test_secrecy import find_in_namespace
from tests.cluster.testbed.api import Manifest
from tests.cluster.testbed.bed import Bed
from tests.cluster.testbed.objects import build_namespace, build_quota_queue
from tests.example_dags.jobs import find_job
from tests.secrecy import draw_secret, find_in_folder

ASIDE, ROOM_ASIDE = "aside", {"cpu": "100m", "memory": "64Mi"}
CALLER = "caller"
VALUE, SPARE = draw_secret("value"), draw_secret("spare user")


@pytest.fixture
def place(controlled_bed: Bed, tmp_path: Path) -> Iterator[Place]:
    bed, name = controlled_bed, f"example-dag-{secrets.token_hex(3)}"
    queue, local_queue = build_quota_queue(name, QUEUE, ROOM_OF_ONE)
    aside, local_aside = build_quota_queue(name, ASIDE, ROOM_ASIDE)
    state = bed.shared_folder / name
    state.mkdir(mode=0o777)
    head = {"name": "hugging-face", "namespace": name}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": head, "stringData": {"token": VALUE}}
    account, binding = build_caller(name)
    bed.api.apply(build_namespace(name), queue, local_queue, aside, local_aside, secret, account, binding)
    yield Place(write_connection(bed, name, tmp_path / "kubeconfig"), name, state)
    bed.api.delete(binding)
    bed.api.delete(build_namespace(name))
    bed.api.delete(queue)
    bed.api.delete(aside)
    shutil.rmtree(state)


def build_caller(namespace: str) -> tuple[Manifest, Manifest]:
    """Who starts the jobs: an account, so that there is a token that could get lost."""
    rbac, name = "rbac.authorization.k8s.io", f"{namespace}-{CALLER}"
    account: Manifest = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": CALLER, "namespace": namespace},
    }
    binding: Manifest = {
        "apiVersion": f"{rbac}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": CALLER, "namespace": namespace}],
    }
    return account, binding


def write_connection(bed: Bed, namespace: str, target: Path) -> Path:
    """A kubeconfig with the account's token, and a second user that nobody uses."""
    write_kubeconfig(bed, Account(namespace, CALLER), target)
    kubeconfig = yaml.safe_load(target.read_text())
    kubeconfig["users"].append({"name": "spare", "user": {"token": SPARE}})
    target.write_text(yaml.safe_dump(kubeconfig))
    return target


def list_planted(place: Place) -> list[str]:
    kubeconfig = yaml.safe_load(place.kubeconfig.read_text())
    return [VALUE, *(user["user"]["token"] for user in kubeconfig["users"])]


def list_leaks(airflow: RealAirflow, place: Place, bed: Bed) -> list[str]:
    """Logs of tasks and of Airflow itself, its database to the last row and byte, and the objects of the namespace."""
    planted = list_planted(place)
    return [*find_in_folder(airflow.home, planted), *find_in_namespace(bed, place.namespace, planted)]


def begin_with_a_secret(airflow: RealAirflow, place: Place) -> Run:
    """Its rank runs and has seen the value, and its task is deferred: the trigger has a row."""
    airflow.wait_for_dag("with_a_secret", timeout_seconds=PATIENCE_SECONDS)
    run = airflow.rest.trigger_dag("with_a_secret")

    def is_deferred() -> bool:
        states = {row.state for row in airflow.rest.fetch_tasks(run)}
        return states == {"deferred"} and see(place, find_job(*run, "sees_it"))[0].state is State.RUNNING

    airflow.wait_for(is_deferred, timeout_seconds=PATIENCE_SECONDS, what="a deferred task whose job runs")
    return run


def test_a_training_is_held_and_released_around_maintenance_and_no_secret_is_left(
    place: Place, controlled_bed: Bed, repository: Path, tmp_path: Path
) -> None:
    dags = shutil.copytree(repository / "example_dags", tmp_path / "dags")
    shutil.copy(repository / "tests/cluster/dags/with_a_secret.py", dags)
    with open_airflow(place, repository, dags) as airflow:
        run = begin_with_a_secret(airflow, place)
        assert list_leaks(airflow, place, controlled_bed) == []

        assert play_hold_and_release(airflow, place) == [FIRST, SECOND]
        assert list_leaks(airflow, place, controlled_bed) == []

        (place.state / find_job(*run, "sees_it").lower() / "go").touch()
        airflow.wait_for_run(run, timeout_seconds=PATIENCE_SECONDS)
        seen = hashlib.sha256(VALUE.encode()).hexdigest()
        assert fetch_xcom(airflow, run, "sees_it")["result"] == {"seen": seen}
        assert list_leaks(airflow, place, controlled_bed) == []
