# SPDX-License-Identifier: Apache-2.0
"""Preflight on a healthy cluster, with the rights of Airflow's side alone: all is proved, nothing is refused, and
nothing is left, also when somebody presses Ctrl-C, and for no longer than a minute when it is killed.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.preflight import CHECKS
from airflow_provider_dispatch.adapters.kubeflow.model.probe_marks import MARGIN
from airflow_provider_dispatch.cli.exit_codes import ExitCode
from airflow_provider_dispatch.core.capabilities import REQUIRED, Capability, Preflight, Source
from airflow_provider_dispatch.hooks.dispatch import DispatchHook
from airflow_provider_dispatch.testing.waiting import Waiter
from tests.cluster.set_up import KUEUE, TRAINER, Installation, governed, opened
from tests.cluster.testbed import objects
from tests.cluster.testbed.bed import Bed

JOBSET = "jobset.x-k8s.io/v1alpha2"
MADE = (("TrainJob", TRAINER), ("TrainingRuntime", TRAINER), ("Workload", KUEUE), ("JobSet", JOBSET), ("Pod", "v1"))
PROBE_SECONDS = 10.0
LATEST_SECONDS = 15.0
"""From a probe's end and the margin until the garbage collector and Kueue are done with it."""


@pytest.fixture(scope="module")
def made(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with governed(bed, tmp_path_factory.mktemp("preflight")) as (installation, _):
        yield installation


def list_left(made: Installation, namespace: str) -> list[str]:
    return [
        f"{kind} {one['metadata']['name']}"
        for kind, version in MADE
        for one in made.bed.api.get(kind, namespace=namespace, version=version)["items"]
    ]


def describe(found: Preflight) -> str:
    named = [*found.checks.items(), *found.capabilities.items()]
    return "\n".join(f"{name:22}{finding.value:8}{finding.source:10}{finding.advice}" for name, finding in named)


@pytest.mark.parametrize("mode", ["queue", "plain", "alone"])
def test_a_healthy_cluster_is_proved_and_nothing_is_left(made: Installation, mode: str) -> None:
    namespace = made.alone if mode == "alone" else made.jobs
    fields: dict[str, object] = {"queue": objects.LOCAL_QUEUE} if mode == "queue" else {}

    async def look() -> Preflight:
        async with opened(made, namespace, has_controller=mode != "alone", **fields) as adapter:
            return await adapter.preflight()

    since, began = made.bed.mark_requests(), time.monotonic()
    found = asyncio.run(look())
    lasted = time.monotonic() - began
    told = describe(found)
    print(f"{told}\n{lasted:.1f} s")
    assert [name for name, check in found.checks.items() if not check.is_yes] == [], told
    assert found.is_proved
    assert PROBE_SECONDS <= lasted < 3 * PROBE_SECONDS
    assert list_left(made, namespace) == []
    if mode == "queue":
        assert {found.capabilities[one].source for one in REQUIRED} == {Source.PROBED}
    # Of all it asks the cluster, only the gate that is none is refused.
    user = made.user(namespace, "airflow")
    asked = [one for one in made.bed.fetch_requests(since=since) if one.user == user]
    assert len([one for one in asked if one.status >= 400 and one.status != 404]) == (mode == "queue"), asked


def build_connection(made: Installation, **more: object) -> dict[str, object]:
    """As Airflow's side has it, with its rights alone."""
    about = {"kubeconfig": str(made.write_kubeconfig(made.jobs, "airflow")), "namespace": made.jobs}
    return {"backend": "kubeflow", **about, **made.terms.names, "queue": objects.LOCAL_QUEUE, **more}


def test_the_test_button_shows_every_line(made: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    def press(**more: object) -> tuple[bool, list[str]]:
        connection = {"conn_type": "dispatch", "extra": build_connection(made, **more)}
        monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", json.dumps(connection))
        is_fine, message = DispatchHook("cluster").test_connection()
        return is_fine, message.splitlines()

    is_fine, lines = press()
    assert is_fine, lines
    # Whether a job's request fits is asked for one job.
    assert {line.partition(":")[0] for line in lines[:-1]} == {*CHECKS, *Capability} - {"quota"}
    assert re.fullmatch(r"checked \d\d? s ago", lines[-1])

    is_fine, lines = press(queue="nowhere")
    assert not is_fine
    (said,) = [line for line in lines if line.startswith("queue: ")]
    assert "no" in said
    assert "nowhere" in said


@contextmanager
def run_preflight(
    made: Installation, tmp_path: Path, *, until_seen: Collection[str], **more: object
) -> Iterator[subprocess.Popen[str]]:
    """The command as a process that watches its probe, of which objects of these kinds are there."""
    settings = tmp_path / "cluster.yaml"
    settings.write_text(yaml.safe_dump(build_connection(made, **more)))
    command = [sys.executable, "-m", "airflow_provider_dispatch.cli", "preflight", "--settings", str(settings)]

    def is_watched() -> bool:
        return {one.partition(" ")[0] for one in list_left(made, made.jobs)} >= {*until_seen}

    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        try:
            Waiter().wait_for(is_watched, timeout_seconds=60, what="the probe")
            yield running
        finally:
            running.kill()


def test_who_presses_ctrl_c_leaves_nothing(made: Installation, tmp_path: Path) -> None:
    with run_preflight(made, tmp_path, until_seen=["TrainJob"]) as running:
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=60)
    assert running.returncode == ExitCode.INTERRUPTED
    assert "interrupted: a job that was being watched is removed" in said
    assert list_left(made, made.jobs) == []


def test_who_is_killed_leaves_a_probe_that_the_controller_removes(made: Installation, tmp_path: Path) -> None:
    objects_of_a_probe = {"TrainJob", "TrainingRuntime", "Workload", "JobSet"}
    with run_preflight(made, tmp_path, until_seen=objects_of_a_probe, probe_seconds=5.0) as running:
        running.kill()
        assert running.wait(30) == -signal.SIGKILL
    (trainjob,) = made.bed.api.get("TrainJob", namespace=made.jobs, version=TRAINER)["items"]
    end = datetime.fromisoformat(trainjob["metadata"]["annotations"][words.PROBE_UNTIL_ANNOTATION]) + MARGIN
    left = (end - datetime.now(UTC)).total_seconds()
    since = made.bed.mark_requests()

    Waiter().wait_for(lambda: not list_left(made, made.jobs), timeout_seconds=left + LATEST_SECONDS, what="its end")

    late = (datetime.now(UTC) - end).total_seconds()
    print(f"gone {late:.1f} s after its end and margin")
    assert 0 <= late < LATEST_SECONDS
    # The controller has asked for nothing of the probe before its end.
    asked = made.bed.fetch_requests(since=since)
    about = [one for one in asked if one.user == made.controller and trainjob["metadata"]["name"] in one.uri]
    assert [(one.verb, one.resource, one.status) for one in about] == [
        ("get", "trainjobs", 200),
        ("delete", "trainjobs", 200),
        ("delete", "trainingruntimes", 200),
    ]
