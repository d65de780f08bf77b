# SPDX-License-Identifier: Apache-2.0
"""After jobs with a secret have lived on a cluster, their value and our tokens are in no object, log or answer.

Run with the shipped rights alone: neither Airflow's side nor the controller may read a Secret, and ranks see it all the
same. :func:`find_in_namespace` is for other tests, too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
import yaml

from airflow_provider_dispatch.cli.screen import OutputForm
from airflow_provider_dispatch.testing.waiting import Waiter
from tests.adapters.local.world import new_job
from tests.cli.calling import Answer, Caller
from tests.cluster.controller_process import ControllerProcess
from tests.cluster.set_up import Installation, installed, run_controller
from tests.cluster.testbed import objects
from tests.cluster.testbed.bed import Bed
from tests.secrecy import draw_secret, find_in_data, find_in_text

VALUE = draw_secret("value")
SECRET = {"apiVersion": "v1", "kind": "Secret", "stringData": {"token": VALUE}}
PROGRAM = "import hashlib, os, time; print(hashlib.sha256(os.environ['TOKEN'].encode()).hexdigest(), flush=True);"
WAIT, BREAK = f"{PROGRAM} time.sleep(600)", f"{PROGRAM} raise SystemExit(3)"
KINDS = {
    "v1": ("Pod", "ConfigMap", "Event", "Service", "ServiceAccount"),
    "batch/v1": ("Job",),
    "jobset.x-k8s.io/v1alpha2": ("JobSet",),
    objects.TRAINER_VERSION: ("TrainJob", "TrainingRuntime"),
    objects.KUEUE_VERSION: ("Workload",),
}


def find_in_namespace(bed: Bed, namespace: str, planted: Collection[str]) -> list[str]:
    """Which values of secrets are in which objects of a namespace, its Secrets aside."""
    return [
        found
        for version, kinds in KINDS.items()
        for kind in kinds
        for one in bed.api.get(kind, namespace=namespace, version=version)["items"]
        for found in find_in_data(f"{kind} {one['metadata']['name']}", one, planted)
    ]


@pytest.fixture(scope="module")
def made(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    bed.api.apply(*objects.build_shared_objects())
    with installed(bed, tmp_path_factory.mktemp("secrecy")) as installation:
        bed.api.apply(SECRET | {"metadata": {"name": "team", "namespace": installation.jobs}})
        yield installation


@pytest.fixture(scope="module")
def controller(made: Installation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControllerProcess]:
    with run_controller(made, tmp_path_factory.mktemp("controller"), "--log-level", "DEBUG") as process:
        yield process


@pytest.fixture(scope="module")
def kubeconfig(made: Installation) -> Path:
    return made.write_kubeconfig(made.jobs, "airflow")


@pytest.fixture
def dispatch(made: Installation, controller: ControllerProcess, kubeconfig: Path, tmp_path: Path) -> Caller:
    """With the rights of Airflow's side."""
    path = tmp_path / "settings.yaml"
    place = {"kubeconfig": str(kubeconfig), "namespace": made.jobs, "queue": objects.LOCAL_QUEUE}
    runtime = {"runtime": {"name": objects.RUNTIME}}
    path.write_text(yaml.safe_dump({"backend": "kubeflow"} | place | runtime | made.terms.names))
    return Caller(path)


def read_tokens(made: Installation) -> list[str]:
    """Of all accounts that were used so far."""
    configs = [yaml.safe_load(path.read_text()) for path in made.folder.glob("*.kubeconfig")]
    return [user["user"]["token"] for config in configs for user in config["users"]]


def read_all(dispatch: Caller, job: str) -> list[Answer]:
    verbs = ("inspect", "find", "events", "explain")
    return [dispatch(verb, job, "-o", form) for form in OutputForm for verb in verbs]


def test_no_secret_is_in_any_object_log_or_answer(
    made: Installation, controller: ControllerProcess, dispatch: Caller
) -> None:
    runs, breaks, unfound = new_job(), new_job(), new_job()
    words = ("--resource", "cpu=50m", "--resource", "memory=64Mi", "--open", "-o", "json")

    def start(job: str, secret: str, program: str) -> Answer:
        return dispatch("start", "--job", job, "--secret", f"TOKEN={secret}", *words, "--", "python3", "-c", program)

    answers = [start(runs, "team/token", WAIT), start(breaks, "team/token", BREAK), start(unfound, "team/other", WAIT)]
    answers.append(dispatch("watch", runs, "--until", "running", "--timeout", "90s"))
    answers.append(dispatch("watch", breaks, "--timeout", "90s"))
    assert [answer.code for answer in answers] == [0, 0, 0, 0, 1], answers[-1].err
    Waiter().wait_for(
        lambda: dispatch.json("inspect", unfound)["cause"] == "misconfigured",
        timeout_seconds=60,
        what="a word about the key that isn't there",
    )
    answers += [one for job in (runs, breaks, unfound) for one in read_all(dispatch, job)]
    answers += [dispatch("logs", breaks), dispatch("list", "-o", "yaml"), dispatch("preflight")]
    in_flight = find_in_namespace(made.bed, made.jobs, [VALUE, *read_tokens(made)])
    answers += [dispatch("hold", runs, "--wait"), *(dispatch("stop", job) for job in (runs, breaks, unfound))]

    said = "\n".join(f"{answer.out}{answer.err}" for answer in answers)
    planted = [VALUE, *read_tokens(made)]
    assert hashlib.sha256(VALUE.encode()).hexdigest() in said
    assert in_flight == []
    assert find_in_namespace(made.bed, made.jobs, planted) == []
    assert find_in_text("answers", said, planted) == []
    assert find_in_text("the controller's log", controller.log.read_text(), planted) == []


def test_a_token_that_is_refused_is_not_repeated(made: Installation, kubeconfig: Path, tmp_path: Path) -> None:
    config = yaml.safe_load(kubeconfig.read_text())
    broken = draw_secret("broken")
    for user in config["users"]:
        user["user"]["token"] += broken
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    settings = {"backend": "kubeflow", "kubeconfig": str(tmp_path / "kubeconfig"), "namespace": made.jobs}
    (tmp_path / "settings.yaml").write_text(yaml.safe_dump(settings))
    dispatch = Caller(tmp_path / "settings.yaml")

    answers = [dispatch("list"), dispatch("preflight"), dispatch("find", new_job())]

    said = "\n".join(f"{answer.out}{answer.err}" for answer in answers)
    assert "401" in said
    assert find_in_text("answers", said, [broken, *read_tokens(made)]) == []
