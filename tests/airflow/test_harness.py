# SPDX-License-Identifier: Apache-2.0
"""The real-Airflow harness itself: it runs DAGs, lets tests interfere, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_dispatch.testing.airflow_processes import ComponentEndedError, RealAirflow
from airflow_provider_dispatch.testing.airflow_rest import RestError, TaskRow
from airflow_provider_dispatch.testing.waiting import Waiter
from tests.airflow import harness_caller
from tests.airflow.conftest import DAGS_FOLDER, is_nothing_left

pytestmark = pytest.mark.airflow


def test_a_dag_with_a_deferral_runs_through(real_airflow):
    real_airflow.wait_for_dag("harness")
    run = real_airflow.rest.trigger_dag("harness", {"name": "ann"})
    assert real_airflow.wait_for_run(run).state == "success"

    rest = real_airflow.rest
    assert {row.task_id: (row.state, row.try_number) for row in rest.fetch_tasks(run)} == {
        "greet": ("success", 1),
        "wait": ("success", 1),
    }
    assert "hello ann" in rest.fetch_log(run, "greet")
    # A trigger's log is written by another process than the one that ended the task, and may come a moment later.
    assert real_airflow.wait_for(lambda: "Trigger fired event" in rest.fetch_log(run, "wait"), what="the trigger's log")
    assert rest.fetch_xcom(run, "wait") == "waited"


def test_the_components_see_nothing_of_the_callers_airflow(real_airflow):
    assert os.environ["AIRFLOW__CORE__UNIT_TEST_MODE"] == "True"
    real_airflow.wait_for_dag("harness")
    run = real_airflow.rest.trigger_dag("harness")
    real_airflow.wait_for_run(run)

    assert real_airflow.rest.fetch_xcom(run, "greet") == {"try": 1, "foreign": None}


def wait_for_state(airflow: RealAirflow, run: tuple[str, str], state: str) -> TaskRow:
    """Of the one task of the long DAG."""

    def look() -> TaskRow | None:
        row = airflow.rest.fetch_task(run, "wait")
        return row if row.state == state else None

    return airflow.wait_for(look, what=f"the task to be {state}")


@pytest.mark.matrix  # what it lets tests do, they do
def test_a_deferred_task_can_be_cleared_marked_and_deleted(real_airflow):
    rest = real_airflow.rest
    real_airflow.wait_for_dag("harness_long")
    run = rest.trigger_dag("harness_long", run_id="odd:but+allowed~")
    first = wait_for_state(real_airflow, run, "deferred")

    rest.clear_tasks(run, ["wait"])
    second = real_airflow.wait_for(
        lambda: (row := rest.fetch_task(run, "wait")).try_number == 2 and row.state == "deferred" and row,
        what="the second try",
    )
    assert second.id != first.id

    rest.mark_task(run, "wait", "failed")
    assert real_airflow.wait_for_run(run).state == "failed"
    rest.delete_run(run)
    with pytest.raises(RestError) as missing:
        rest.fetch_run(run)
    assert missing.value.status == 404


def test_users_have_their_own_rights(real_airflow):
    real_airflow.wait_for_dag("harness")
    for username, status in {"viewer": 403, None: 401}.items():
        with pytest.raises(RestError) as refusal:
            real_airflow.rest_as(username).trigger_dag("harness")
        assert refusal.value.status == status


def test_a_killed_triggerer_is_started_again_and_takes_up_its_triggers(real_airflow):
    real_airflow.wait_for_dag("harness_long")
    run = real_airflow.rest.trigger_dag("harness_long")
    wait_for_state(real_airflow, run, "deferred")
    starting = "trigger starting"

    def count_starts() -> int:
        return real_airflow.rest.fetch_log(run, "wait").count(starting)

    real_airflow.wait_for(lambda: count_starts() == 1, what="the trigger")
    before = real_airflow.pids()
    real_airflow.restart("triggerer", signal.SIGKILL)

    assert real_airflow.pids()["triggerer"] != before["triggerer"]
    assert real_airflow.pids() | {"triggerer": 0} == before | {"triggerer": 0}
    real_airflow.wait_for(lambda: count_starts() == 2, timeout_seconds=90, what="the trigger to start again")
    real_airflow.rest.mark_run(run, "failed")


def test_it_listens_on_loopback_only(real_airflow):
    sockets = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]
    if not sockets[0].exists():
        pytest.skip("the table of sockets is read from /proc, which only Linux has")
    inodes = {
        os.readlink(link).removeprefix("socket:[").removesuffix("]")
        for pid in real_airflow.alive()
        for link in Path(f"/proc/{pid}/fd").iterdir()
        if link.is_symlink()
    }
    rows = [line.split() for table in sockets for line in table.read_text().splitlines()[1:]]
    listening = {row[1].partition(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes}

    assert listening == {"0100007F"}


def test_a_component_that_ends_by_itself_ends_the_waiting_and_shows_its_log(tmp_path):
    airflow = RealAirflow(tmp_path, DAGS_FOLDER, env={"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "no_such_dialect://"})
    with pytest.raises(ComponentEndedError, match=r"(?s)could not be made|ended by itself.*no_such_dialect"), airflow:
        raise AssertionError("there is no such database")
    assert is_nothing_left(tmp_path)


def test_two_triggerers_on_sqlite_are_refused(tmp_path):
    with pytest.raises(ValueError, match="SQLite"):
        RealAirflow(tmp_path, DAGS_FOLDER, triggerers=2)


@pytest.mark.matrix  # the guard is tested without Airflow in seconds; this takes three full starts
@pytest.mark.parametrize("ending", ["kill -9", "interrupt", "raise"])
def test_nothing_is_left_however_the_caller_ends(ending, repository, tmp_path):
    caller = subprocess.Popen(
        [sys.executable, harness_caller.__file__, str(tmp_path), str(DAGS_FOLDER)],
        env=os.environ | {"PYTHONPATH": str(repository)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert caller.stdout is not None
        started = [int(pid) for pid in caller.stdout.readline().split()]
        assert len(started) > 4
        assert not is_nothing_left(tmp_path)
        match ending:
            case "kill -9":
                caller.kill()
            case "interrupt":
                os.killpg(caller.pid, signal.SIGINT)
        caller.communicate("enough\n" if ending == "raise" else None, timeout=60)
    finally:
        caller.kill()
        caller.communicate()

    Waiter().wait_for(lambda: is_nothing_left(tmp_path, started), timeout_seconds=60, what="everything to end")


def test_a_start_that_takes_too_long_leaves_nothing_not_even_its_temporary_home():
    airflow = RealAirflow(None, DAGS_FOLDER, start_timeout_seconds=1)
    with pytest.raises(TimeoutError, match="waited 1 s for the database"), airflow:
        raise AssertionError("that was quick")
    assert is_nothing_left(airflow.home)
    assert not airflow.home.exists()
