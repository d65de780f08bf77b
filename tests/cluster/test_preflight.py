# SPDX-License-Identifier: Apache-2.0
"""Preflight on a healthy cluster, with the rights of Airflow's side alone: all is proved, nothing is refused, and
nothing is left, also when somebody presses Ctrl-C.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from airflow_provider_dispatch.adapters.kubeflow.model.preflight import CHECKS
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


def test_who_presses_ctrl_c_leaves_nothing(made: Installation, tmp_path: Path) -> None:
    settings = tmp_path / "cluster.yaml"
    settings.write_text(yaml.safe_dump(build_connection(made)))
    command = [sys.executable, "-m", "airflow_provider_dispatch.cli", "preflight", "--settings", str(settings)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        try:
            Waiter().wait_for(
                lambda: any(one.startswith("TrainJob") for one in list_left(made, made.jobs)),
                timeout_seconds=60,
                what="the probe",
            )
            running.send_signal(signal.SIGINT)
            _, said = running.communicate(timeout=60)
        finally:
            running.kill()
    assert running.returncode == ExitCode.INTERRUPTED
    assert "interrupted: a job that was being watched is removed" in said
    assert list_left(made, made.jobs) == []
