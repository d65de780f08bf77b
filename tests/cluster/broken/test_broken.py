# SPDX-License-Identifier: Apache-2.0
"""Each broken cluster is named for what it is in one line with its cure, and no healthy one raises an alarm.

None is reported as proven, a start is refused with the same line, and nothing of a probe is ever left behind.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_provider_dispatch.cli.exit_codes import ExitCode, derive_exit_code
from airflow_provider_dispatch.core.capabilities import Answer, check_may_start, may_start
from airflow_provider_dispatch.testing.waiting import Waiter
from tests.cluster.broken.access import Permission, list_permissions, without_permission
from tests.cluster.broken.place import (
    Breakage,
    Connection,
    Place,
    fail_to_start,
    list_alarms,
    preflight,
    start_and_stop,
    write_settings,
)
from tests.cluster.broken.queues import with_lending_cohort, with_settings, write_time
from tests.cluster.broken.table import DEAD_ENDS, ROWS, SETUP, DeadEnd, Row
from tests.cluster.set_up import TRAINER, Installation, governed
from tests.cluster.testbed import objects
from tests.cluster.testbed.api import Manifest
from tests.cluster.testbed.bed import Bed

DOMAIN = "dispatch.phpboyscout.uk"
KIND_LABEL, PROBE_UNTIL = f"{DOMAIN}/kind", f"{DOMAIN}/probe-until"
PERMISSIONS = list_permissions()


@pytest.fixture(scope="module")
def whole_place(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with governed(bed, tmp_path_factory.mktemp("broken")) as (made, controller):
        healthy = build_connection(made, made.jobs, queue=objects.LOCAL_QUEUE)
        alone = build_connection(made, made.alone, has_controller=False)
        found = Place(made, controller, healthy, alone)
        found.await_health()
        yield found


@pytest.fixture
def place(whole_place: Place) -> Iterator[Place]:
    yield whole_place
    whole_place.clear()


def build_connection(made: Installation, namespace: str, **fields: object) -> Connection:
    rights = str(made.write_kubeconfig(namespace, "airflow"))
    about = {"namespace": namespace, "kubeconfig": rights, "runtime": {"name": objects.RUNTIME}, "queue": None}
    return {**about, **made.terms.names, **fields}


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_a_broken_cluster_is_named(place: Place, row: Row) -> None:
    with row.broken(place) as changes, place.connected(**changes) as connection:
        found = preflight(connection, row.spec)
        refusal = "" if row.may_start else str(fail_to_start(connection))
        jobs = place.list_jobs()
    finding = found.checks[row.check]
    line = f"{row.check}: {finding.value}: {finding.advice}"
    print(line)
    assert finding.value is not Answer.YES, list_alarms(found)
    assert_line(finding.reason, row.seen)
    assert_line(finding.cure, row.cure)
    assert found.is_proved is row.is_proved
    assert may_start(found.capabilities) is row.may_start
    assert row.may_start or line in refusal.splitlines()
    assert jobs == []
    place.await_nothing_left()


@pytest.mark.parametrize("end", DEAD_ENDS, ids=[end.name for end in DEAD_ENDS])
def test_a_cluster_that_is_out_of_reach_is_told_in_one_line(place: Place, tmp_path: Path, end: DeadEnd) -> None:
    with end.broken(place) as changes, place.connected(**changes) as connection:
        with pytest.raises(end.error) as caught:
            preflight(connection)
        refusal = fail_to_start(connection)
        answer = write_settings(connection, tmp_path)("preflight")
    assert_line(str(caught.value), end.seen)
    assert type(refusal) is end.error
    assert answer.code == derive_exit_code(caught.value)
    assert_line(answer.err.rstrip("\n"), end.seen)


def assert_line(line: str, words: tuple[str, ...]) -> None:
    """A sentence for people that says these words."""
    assert line
    assert "\n" not in line
    assert [word for word in words if word not in line] == [], line


@pytest.mark.parametrize("permission", PERMISSIONS, ids=[str(one) for one in PERMISSIONS])
def test_each_permission_is_missed(place: Place, permission: Permission) -> None:
    with without_permission(place, permission):
        found = place.preflight(probe_seconds=0)
    finding = found.checks["permissions"]
    assert finding.value is Answer.NO, list_alarms(found)
    assert_line(finding.reason, (f"may not {permission}",))
    assert finding.reason.endswith(str(permission))
    assert_line(finding.cure, SETUP)
    assert not found.is_proved
    assert place.list_jobs() == []


COLD = (
    "no RoleBinding",
    "no ClusterRoleBinding",
    "expired token",
    "check of some flavors",
    "Kueue's webhooks missing",
    "no TrainJobs",
)
"""One of each kind: of what a start looks at by itself, and of what only its writes run into."""


@pytest.mark.parametrize("row", [row for row in ROWS if row.name in COLD], ids=lambda row: row.name)
def test_a_start_that_no_preflight_went_before_says_so_too(place: Place, row: Row) -> None:
    with row.broken(place) as changes, place.connected(**changes) as connection:
        refusal = str(fail_to_start(connection))
    assert_line(next(line for line in refusal.splitlines() if line.startswith(f"{row.check}: ")), row.seen + row.cure)
    # A private runtime may stay: the next try of this start goes on with it.
    assert [job for job in place.list_jobs() if job.startswith("TrainJob")] == []


BY_COMMAND = ("check of some flavors", "expired token", "no RoleBinding")


@pytest.mark.parametrize("row", [row for row in ROWS if row.name in BY_COMMAND], ids=lambda row: row.name)
def test_the_command_says_so_too(place: Place, tmp_path: Path, row: Row) -> None:
    with row.broken(place) as changes, place.connected(**changes) as connection:
        dispatch = write_settings(connection, tmp_path)
        answer, said = dispatch("preflight", "--output", "json"), dispatch("preflight")
    assert (answer.code, said.code) == (ExitCode.FAILED, ExitCode.FAILED), answer.err
    assert_line(answer.data["checks"][row.check]["reason"], row.seen)
    assert_line(answer.data["checks"][row.check]["cure"], row.cure)
    assert any(line.startswith(row.check) for line in said.out.splitlines())


HEALTHY: dict[str, Breakage] = {
    "Kueue": with_settings(),
    "Kueue with a cohort that lends": with_lending_cohort,
    "plain mode with a controller": with_settings(queue=None),
    "plain mode without a controller": lambda place: with_settings(**place.alone)(place),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_cluster_raises_no_alarm(place: Place, tmp_path: Path, name: str) -> None:
    with HEALTHY[name](place) as changes, place.connected(**changes) as connection:
        found = preflight(connection)
        answer = write_settings(connection, tmp_path)("preflight")
        start_and_stop(connection)
    assert list_alarms(found) == []
    assert found.is_proved
    check_may_start(found.capabilities)
    assert answer.code == ExitCode.OK, answer.out
    place.await_nothing_left()


def test_the_probe_of_a_killed_preflight_is_removed_by_the_next(place: Place, tmp_path: Path) -> None:
    with place.connected(probe_seconds=10) as connection:
        process = write_settings(connection, tmp_path).spawn("preflight")
        try:
            Waiter(0.05).wait_for(lambda: list_probes(place), timeout_seconds=90, what="a probe on the cluster")
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        assert process.returncode == -signal.SIGKILL
    # As long as it could be that of a preflight that runs, it is nobody else's.
    left = list_probes(place)
    assert list_alarms(place.preflight()) == []
    assert list_probes(place) == left
    person = place.made.open_api(place.made.jobs, "person")
    for probe in left:
        person.patch(probe, {"metadata": {"annotations": {PROBE_UNTIL: write_time(timedelta(seconds=-1))}}})
    assert list_alarms(place.preflight()) == []
    assert place.list_jobs() == []
    place.await_nothing_left()


def list_probes(place: Place) -> list[Manifest]:
    """TrainJobs and private runtimes of preflights, by name alone."""
    found = [*place.list_objects("TrainJob", TRAINER), *place.list_objects("TrainingRuntime", TRAINER)]
    return [refer_to(one) for one in found if one["metadata"].get("labels", {}).get(KIND_LABEL) == "probe"]


def refer_to(manifest: Manifest) -> Manifest:
    metadata = {key: manifest["metadata"][key] for key in ("name", "namespace")}
    return {"apiVersion": manifest["apiVersion"], "kind": manifest["kind"], "metadata": metadata}
