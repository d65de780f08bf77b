# SPDX-License-Identifier: Apache-2.0
"""The agent with real processes: a job's life, sudden deaths, two at once, retirement, what its ranks get to see."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from airflow_provider_dispatch.adapters.local import environment
from airflow_provider_dispatch.adapters.local.agent.clock import SteadyClock
from airflow_provider_dispatch.adapters.local.agent.locking import win_lock
from airflow_provider_dispatch.adapters.local.agent.node import fetch_node
from airflow_provider_dispatch.adapters.local.doorbell import Doorbell, is_agent_listening, ring
from airflow_provider_dispatch.adapters.local.launching import ensure_agent
from airflow_provider_dispatch.adapters.local.processes import find_attempts
from airflow_provider_dispatch.adapters.local.shim.descent import fetch_entry, fetch_environment
from airflow_provider_dispatch.adapters.protocol import OutputRequest
from airflow_provider_dispatch.core.identity import Identity
from airflow_provider_dispatch.core.job_spec import After, JobSpec, Readiness, RoleSpec
from airflow_provider_dispatch.core.observation import FailedRank
from airflow_provider_dispatch.core.state import Cause, State
from airflow_provider_dispatch.exceptions import RefusedError, UnavailableError
from tests.adapters.local.world import WAIT, World, end_process, epoch_of, new_job, python_job, soon, wait_for_end


def _find_parent(pid: int) -> int:
    entry = fetch_entry(pid)
    assert entry is not None
    return entry.parent


async def _until_logged(at: World, text: str) -> None:
    for _ in range(2000):
        if text in at.layout.agent_log.read_text():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"never logged: {text}")


async def read_all(world: World, ref, **request) -> list[str]:
    return [line.text async for line in world.adapter.output(ref, OutputRequest(**request))]


def test_a_job_of_two_ranks_lives_from_the_gate_to_the_stop(shared_world) -> None:
    async def scenario(at: World) -> None:
        ref = await at.start(python_job(WAIT, nodes=2, resources={"cpu": "100m"}))
        assert (await at.adapter.inspect(ref)).state is State.GATED
        await at.adapter.open(ref, deadline=soon())
        first = await at.reach(ref, State.RUNNING)
        hold = await at.adapter.hold(ref, at.hold_request(), deadline=soon())
        held = await at.reach(ref, State.HELD)
        assert held.holds == (hold,)
        assert find_attempts(ref.job) == []
        assert await at.adapter.release(ref, hold, deadline=soon()) == ()
        second = await at.reach(ref, State.RUNNING)
        assert [epoch_of(first), epoch_of(second)] == [1_000_001, 1_000_002]
        report = await at.adapter.stop(ref.job, reason="enough", deadline=soon())
        assert report.is_complete
        assert {found.object for found in report.stopped} == {
            "submission 1",
            "execution 1000002",
            "execution 1000002 rank 0 of node",
            "execution 1000002 rank 1 of node",
        }
        gone = await at.adapter.inspect(ref)
        assert (gone.state, gone.cause, gone.detail) == (State.GONE, Cause.STOPPED, "enough")
        kinds = [event.kind for event in await at.adapter.events(ref)]
        told = ["submitted", "opened", "admitted", "hold", "release", "admitted", "stopped"]
        assert [kind for kind in kinds if kind in told] == told
        assert find_attempts(ref.job) == []

    shared_world.play(scenario)


# -- sudden deaths -----------------------------------------------------------------------------------------------------


def test_when_the_agent_is_killed_its_ranks_die_and_the_job_is_lost_then_goes_on_higher(world) -> None:
    async def scenario(at: World) -> None:
        ref = await at.run(python_job(WAIT, nodes=2))
        at.end_agent(signal.SIGKILL)
        lost = await at.adapter.inspect(ref)
        assert (lost.state, lost.cause) == (State.FAILED, Cause.NODE_LOST)
        assert find_attempts(ref.job) == []
        again = await at.run(python_job(WAIT, nodes=2), job=ref.job, submission=2)
        assert epoch_of(await at.adapter.inspect(again)) == 2_000_001

    world.play(scenario)


def test_when_agent_and_shim_are_killed_the_orphans_are_found_before_the_job_is_told_lost(world) -> None:
    async def scenario(at: World) -> None:
        ref = await at.run(python_job("import signal; signal.signal(15, signal.SIG_IGN); signal.pause()"))
        (rank,) = find_attempts(ref.job)
        shim = _find_parent(rank.pid)
        orphan = os.pidfd_open(rank.pid)
        os.kill(at.agent, signal.SIGSTOP)
        os.kill(shim, signal.SIGKILL)
        at.end_agent(signal.SIGKILL)
        seen = await at.reach(ref, State.FAILED)
        assert seen.cause is Cause.NODE_LOST
        wait_for_end(orphan, 0)

    world.play(scenario)


def test_when_a_shim_is_killed_its_execution_is_lost_and_nothing_else(shared_world) -> None:
    async def scenario(at: World) -> None:
        other = await at.run(python_job(WAIT))
        ref = await at.run(python_job(WAIT))
        (rank,) = find_attempts(ref.job)
        end_process(_find_parent(rank.pid))
        seen = await at.reach(ref, State.FAILED)
        assert seen.cause is Cause.NODE_LOST
        assert "supervisor" in seen.detail
        assert (await at.adapter.inspect(other)).state is State.RUNNING

    shared_world.play(scenario)


def test_a_watch_alone_finds_a_dead_agent_and_hears_that_the_job_is_lost(world) -> None:
    async def scenario(at: World) -> None:
        ref = await at.run(python_job(WAIT))

        async def hear() -> list[State]:
            return [seen.state async for seen in at.adapter.watch([ref])]

        heard = asyncio.create_task(hear())
        await asyncio.sleep(0)
        at.end_agent(signal.SIGKILL)
        assert (await asyncio.wait_for(heard, 30))[-1] is State.FAILED

    world.play(scenario)


def test_a_rank_that_is_killed_is_named_with_its_signal(shared_world) -> None:
    async def scenario(at: World) -> None:
        ref = await at.run(python_job(WAIT, nodes=2))
        pids = {fetch_environment(found.pid)[b"DISPATCH_RANK"]: found.pid for found in find_attempts(ref.job)}
        os.kill(pids[b"1"], signal.SIGKILL)
        seen = await at.reach(ref, State.FAILED)
        assert (seen.cause, seen.failed_rank) == (Cause.EXITED, FailedRank("node", 1, signal=9))

    shared_world.play(scenario)


# -- one agent, when it is needed --------------------------------------------------------------------------------------


def test_of_many_agents_started_at_once_one_stays(world) -> None:
    launched: list[bool] = []

    def launch() -> None:
        ensure_agent(world.settings, 30)
        launched.append(True)

    threads = [threading.Thread(target=launch) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert launched == [True] * 4
    assert is_agent_listening(world.layout)
    agents = [entry for entry in Path("/proc").iterdir() if entry.name.isdecimal() and _serves(entry, world)]
    for entry in agents:
        if int(entry.name) != world.find_agent():
            with contextlib.suppress(ProcessLookupError):
                wait_for_end(os.pidfd_open(int(entry.name)))
    assert is_agent_listening(world.layout)


def _serves(entry: Path, world: World) -> bool:
    try:
        return os.fsencode(world.layout.folder) in (entry / "cmdline").read_bytes()
    except OSError:
        return False


def test_an_agent_without_work_leaves_and_the_next_call_starts_another(make_world) -> None:
    async def scenario(at: World) -> None:
        ref = await at.start(python_job(WAIT))
        leaving = os.pidfd_open(at.agent)
        await asyncio.to_thread(wait_for_end, leaving)
        assert not is_agent_listening(at.layout)
        assert (await at.adapter.inspect(ref)).state is State.GATED
        assert not is_agent_listening(at.layout)
        await at.adapter.open(ref, deadline=soon())
        assert epoch_of(await at.reach(ref, State.RUNNING)) == 1_000_001

    make_world(retire_after_seconds=0.2).play(scenario)


def test_an_agent_that_cannot_begin_says_why(world) -> None:
    world.layout.folder.mkdir(parents=True)
    world.layout.database.write_bytes(b"no database" * 1000)
    with pytest.raises(UnavailableError, match=r"ended at once.*SQLITE_NOTADB"):
        ensure_agent(world.settings, 30)


def test_an_agent_leaves_no_zombie_and_belongs_to_nobody(world) -> None:
    pid = world.start_agent()
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    parent, session = int(fields[1]), int(fields[3])
    assert parent != os.getpid()
    assert session != os.getsid(0)
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    assert [child for child in children if "adapters.local.agent" in Path(f"/proc/{child}/cmdline").read_text()] == []


def test_a_terminated_agent_ends_with_its_ranks(world) -> None:
    async def scenario(at: World) -> None:
        ref = await at.run(python_job(WAIT))
        at.end_agent(signal.SIGTERM)
        seen = await at.adapter.inspect(ref)
        assert (seen.state, seen.cause) == (State.FAILED, Cause.NODE_LOST)

    world.play(scenario)


def test_an_agent_whose_tables_change_under_it_ends_its_ranks_and_leaves(world) -> None:
    async def scenario(at: World) -> None:
        ref = await at.run(python_job(WAIT))
        leaving = os.pidfd_open(at.agent)
        with contextlib.closing(sqlite3.connect(at.layout.database)) as other:
            other.execute("PRAGMA user_version = 99")
        ring(at.layout)
        await asyncio.to_thread(wait_for_end, leaving)
        assert find_attempts(ref.job) == []
        assert "another version" in at.layout.agent_log.read_text()

    world.play(scenario)


def test_while_the_store_cannot_be_written_the_agent_waits_and_then_goes_on(world) -> None:
    async def scenario(at: World) -> None:
        ref = await at.run(python_job("import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)"))
        with contextlib.closing(sqlite3.connect(at.layout.database, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            (rank,) = find_attempts(ref.job)
            ended = os.pidfd_open(rank.pid)
            (at.layout.state_dir(ref.job) / "go").touch()
            await asyncio.to_thread(wait_for_end, ended)
            await _until_logged(at, "trying again")
            assert (await at.adapter.inspect(ref)).state is State.RUNNING
        assert (await at.reach(ref, State.SUCCEEDED)).cause is None

    world.play(scenario)


def test_a_hold_that_was_released_before_the_agent_looked_ends_the_execution_all_the_same(shared_world) -> None:
    async def scenario(at: World) -> None:
        ref = await at.run(python_job(WAIT))
        os.kill(at.agent, signal.SIGSTOP)
        hold = await at.adapter.hold(ref, at.hold_request(), deadline=soon())
        await at.adapter.release(ref, hold, deadline=soon())
        assert (await at.adapter.inspect(ref)).state is State.QUEUED
        os.kill(at.agent, signal.SIGCONT)
        seen = await at.until(ref, lambda o: o.state is State.RUNNING and o.executions == 2)
        assert epoch_of(seen) == 1_000_002

    shared_world.play(scenario)


def test_a_hold_ends_by_itself_and_a_pause_too(shared_world) -> None:
    async def scenario(at: World) -> None:
        ref = await at.start(python_job(WAIT))
        until = datetime.now(UTC) + timedelta(seconds=1)
        await at.adapter.hold(ref, at.hold_request(until=until), deadline=soon())
        await at.adapter.open(ref, deadline=soon())
        assert (await at.adapter.inspect(ref)).state is State.HELD
        await at.reach(ref, State.RUNNING)
        assert datetime.now(UTC) >= until
        paused_until = datetime.now(UTC) + timedelta(seconds=1)
        paused = await at.run(python_job(WAIT), not_before=paused_until)
        assert datetime.now(UTC) >= paused_until
        assert (await at.adapter.inspect(paused)).state is State.RUNNING

    shared_world.play(scenario)


def test_new_queues_count_at_the_next_ring(world) -> None:
    async def scenario(at: World) -> None:
        at.layout.folder.mkdir(parents=True)
        at.layout.queues.write_text('[queues.a]\nquota = {cpu = "1"}\n')
        running = await at.run(python_job(WAIT, queue="a", resources={"cpu": "1"}))
        waiting = await at.start(python_job(WAIT, queue="a", resources={"cpu": "1"}))
        await at.adapter.open(waiting, deadline=soon())
        await at.until(
            waiting, lambda o: o.pending is not None and (o.pending.code, o.pending.position) == ("quota", 1)
        )
        at.layout.queues.write_text("broken")
        ring(at.layout)
        await _until_logged(at, "the queues stay as they are")
        at.layout.queues.write_text('[queues.a]\nquota = {cpu = "2"}\n')
        ring(at.layout)
        await at.reach(waiting, State.RUNNING)
        assert (await at.adapter.inspect(running)).executions == 1

    world.play(scenario)


# -- what is left of an earlier execution ------------------------------------------------------------------------------


def _hold_lock(path: Path, **environment: str) -> subprocess.Popen[bytes]:
    """A process that has a job's lock, as what is left of an execution has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    program = (
        "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, 2); print(flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-I", "-S", "-c", program, str(path)]
    # In a session of its own, as ranks are: a sweep ends whole groups.
    held = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, start_new_session=True)
    assert held.stdout is not None
    held.stdout.readline()
    return held


def test_what_is_left_of_an_earlier_execution_is_ended_before_the_next_begins(shared_world) -> None:
    async def scenario(at: World) -> None:
        job = new_job()
        left = _hold_lock(at.layout.job_lock(job), DISPATCH_ATTEMPT=f"{job}.1.1.7.0")
        with left:
            await at.run(python_job(WAIT), job=job)
            assert left.wait(0) == -signal.SIGKILL

    shared_world.play(scenario)


def test_an_execution_that_still_waits_for_the_lock_can_be_held_and_stopped(shared_world) -> None:
    async def scenario(at: World) -> None:
        job = new_job()
        with _hold_lock(at.layout.job_lock(job)) as left:
            try:
                ref = await at.start(python_job(WAIT), job=job)
                await at.adapter.open(ref, deadline=soon())
                await at.reach(ref, State.STARTING)
                await at.adapter.hold(ref, at.hold_request(), deadline=soon())
                held = await at.reach(ref, State.HELD)
                assert epoch_of(held) == 1_000_001
                assert left.poll() is None
                assert (await at.adapter.stop(job, reason="r", deadline=soon())).is_complete
            finally:
                left.kill()

    shared_world.play(scenario)


def test_the_lock_is_waited_for_no_longer_than_asked(tmp_path) -> None:
    path = tmp_path / "lock"
    with _hold_lock(path) as left:
        try:
            assert win_lock(path, "nobody", patience_seconds=0.05, cancelled=threading.Event()) is None
        finally:
            left.kill()
    lock = win_lock(path, "nobody", patience_seconds=None, cancelled=threading.Event())
    assert lock is not None
    lock.close()


# -- what ranks get and leave ------------------------------------------------------------------------------------------

TELL = (
    "import json, os; told = [dict(os.environ), os.getcwd()];"
    " json.dump(told, open(os.environ['DISPATCH_STATE_DIR'] + '/told-' + os.environ['DISPATCH_RANK'], 'w'))"
)


def test_a_rank_sees_who_it_is_and_no_secret_of_whoever_started_the_agent(world, monkeypatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SECRET", "hush")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("LC_TIME", "C")

    async def scenario(at: World) -> None:
        ref = await at.start(python_job(TELL, nodes=2, env={"OWN": "1", "MASTER_PORT": "7"}))
        await at.adapter.open(ref, deadline=soon())
        await at.reach(ref, State.SUCCEEDED)
        state = at.layout.state_dir(ref.job)
        (own, folder), (other, _) = (json.loads((state / f"told-{rank}").read_text()) for rank in (0, 1))
        assert "hush" not in str(own)
        assert b"hush" not in b"".join(fetch_environment(at.agent).values())
        assert folder == str(state)
        allowed = {"PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "SHELL", "LD_LIBRARY_PATH"}
        assert {name for name in own if not name.startswith(("DISPATCH_", "PET_", "LC_", "COVERAGE_"))} - allowed == {
            "OWN", "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "PYTHONUNBUFFERED",
        }  # fmt: skip
        assert own["LC_TIME"] == "C"
        assert (own["MASTER_PORT"], own["OWN"]) == ("7", "1")
        assert own["DISPATCH_ATTEMPT"] == f"{ref.job}.1.1.1.0"
        assert [other[name] for name in ("DISPATCH_RANK", "RANK", "PET_NODE_RANK", "WORLD_SIZE")] == [
            "1",
            "1",
            "1",
            "2",
        ]
        assert own["PET_MASTER_PORT"] == other["PET_MASTER_PORT"]
        assert own["DISPATCH_RESULT_PATH"] != other["DISPATCH_RESULT_PATH"]

    world.play(scenario)


@pytest.mark.parametrize(
    ("program", "result", "problem"),
    [
        ("open(p, 'w').write('{\"accuracy\": 0.9}')", {"accuracy": 0.9}, ""),
        ("None", None, ""),
        ("open(p, 'w').write('[' * 5000)", None, "has 5000 bytes"),
        ("open(p, 'w').write('nonsense')", None, "is not JSON"),
        ("os.mkfifo(p)", None, "is not a file"),
        ("os.symlink('/etc/passwd', p)", None, "can't be read"),
    ],
)
def test_the_result_of_rank_0_is_read_with_care(shared_world, program, result, problem) -> None:
    async def scenario(at: World) -> None:
        ref = await at.start(python_job(f"import os; p = os.environ['DISPATCH_RESULT_PATH']; {program}"))
        await at.adapter.open(ref, deadline=soon())
        seen = await at.reach(ref, State.SUCCEEDED, State.FAILED)
        assert (seen.state is State.FAILED) == bool(problem)
        assert seen.result == result
        assert problem in seen.detail

    shared_world.play(scenario)


def test_a_failing_rank_leaves_its_last_lines_also_of_a_long_log(shared_world) -> None:
    program = "import sys\nfor n in range(5000): print('line', n, 'x' * 40)\nprint('\\x1b[31mred\\x1b[0m'); sys.exit(3)"

    async def scenario(at: World) -> None:
        ref = await at.start(python_job(program))
        await at.adapter.open(ref, deadline=soon())
        seen = await at.reach(ref, State.FAILED)
        assert (seen.cause, seen.failed_rank) == (Cause.EXITED, FailedRank("node", 0, exit_code=3))
        assert len(seen.last_lines) == 10
        assert seen.last_lines[-1] == "red"
        assert seen.last_lines[0].startswith("line 4991 ")
        lines = await read_all(at, ref)
        assert len(lines) == 5001
        assert lines[4999].startswith("line 4999 ")

    shared_world.play(scenario)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"command": ["no-such-command-anywhere"]}, "no-such-command-anywhere"),
        ({"command": ["true"], "working_dir": "/no/such/folder"}, "/no/such/folder"),
    ],
)
def test_what_cannot_be_started_is_misconfigured(shared_world, fields, problem) -> None:
    async def scenario(at: World) -> None:
        ref = await at.start(JobSpec(nodes=2, **fields))
        await at.adapter.open(ref, deadline=soon())
        seen = await at.reach(ref, State.FAILED)
        assert seen.cause is Cause.MISCONFIGURED
        assert problem in seen.detail

    shared_world.play(scenario)


def test_a_folder_that_cannot_be_made_fails_the_job_and_not_the_agent(shared_world) -> None:
    async def scenario(at: World) -> None:
        job = new_job()
        at.layout.job_folder(job).parent.mkdir(parents=True, exist_ok=True)
        at.layout.job_folder(job).write_text("in the way")
        ref = await at.start(python_job(WAIT), job=job)
        await at.adapter.open(ref, deadline=soon())
        assert (await at.reach(ref, State.FAILED)).cause is Cause.MISCONFIGURED
        await at.run(python_job(WAIT))

    shared_world.play(scenario)


def test_two_hundred_ranks_start_at_once(shared_world) -> None:
    async def scenario(at: World) -> None:
        ref = await at.start(JobSpec(command=["true"], nodes=200, env={"LARGE": "x" * 20_000}))
        await at.adapter.open(ref, deadline=soon())
        seen = await at.reach(ref, State.SUCCEEDED)
        assert (seen.cause, seen.executions) == (None, 1)

    shared_world.play(scenario)


def test_ten_thousand_ranks_are_told_that_they_never_fit_and_cost_no_agent(make_world) -> None:
    async def scenario(at: World) -> None:
        ref = await at.start(python_job(WAIT, nodes=10_000))
        await at.adapter.open(ref, deadline=soon())
        seen = await at.until(ref, lambda o: o.cause is not None)
        assert (seen.state, seen.cause) == (State.QUEUED, Cause.NO_CAPACITY)
        await asyncio.to_thread(wait_for_end, os.pidfd_open(at.agent))

    make_world(retire_after_seconds=0.2).play(scenario)


def test_roles_start_in_order_by_command_and_by_port(shared_world) -> None:
    program = (
        "import os, socket, signal\n"
        "open(os.environ['DISPATCH_STATE_DIR'] + '/' + os.environ['DISPATCH_ROLE'], 'w').close()\n"
        "s = socket.socket(); s.bind(('127.0.0.1', int(os.environ.get('PORT', 0)))); s.listen(); signal.pause()"
    )
    port = _find_port()
    python = python_job(program).roles[0].command
    ready = Readiness(tcp_port=port, period=timedelta(milliseconds=50))
    looks = ("/bin/sh", "-c", 'test -e "$DISPATCH_STATE_DIR/$DISPATCH_ROLE"')
    check = Readiness(command=looks, period=timedelta(milliseconds=50))
    roles = (
        RoleSpec(name="leader", command=python, env={"PORT": str(port)}, readiness=ready),
        RoleSpec(name="worker", nodes=2, command=python, after=(After(role="leader"),), readiness=check),
        RoleSpec(name="driver", command=python, after=(After(role="worker"),), readiness=check),
    )

    async def scenario(at: World) -> None:
        ref = await at.run(JobSpec(roles=roles, grace_period=timedelta(seconds=1)))
        times = [(at.layout.state_dir(ref.job) / role.name).stat().st_mtime_ns for role in roles]
        assert times == sorted(times)

    shared_world.play(scenario)


def _find_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# -- small parts -------------------------------------------------------------------------------------------------------


def test_everything_about_an_agent_is_its_owners_alone(world) -> None:
    world.start_agent()
    for path in (world.layout.wake, world.layout.agent_lock, world.layout.agent_log, world.layout.database):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_ISFIFO(world.layout.wake.stat().st_mode)


def test_a_file_in_the_place_of_the_fifo_is_refused(world) -> None:
    world.layout.folder.mkdir(parents=True)
    world.layout.wake.write_text("")
    with pytest.raises(RefusedError, match="not the FIFO"):
        ring(world.layout)


def test_rings_are_never_waited_for(world) -> None:
    world.layout.folder.mkdir(parents=True)
    assert not ring(world.layout)
    bell = Doorbell.take(world.layout, patience_seconds=0)
    assert bell is not None
    assert not ring(world.layout)
    bell.listen()
    assert Doorbell.take(world.layout, patience_seconds=10) is None
    assert all(ring(world.layout) for _ in range(70_000))
    bell.answer()
    bell.stop_listening()
    assert not ring(world.layout)
    assert Doorbell.take(world.layout, patience_seconds=0.05) is None


def test_the_agents_clock_adds_what_has_passed_to_what_it_read_once() -> None:
    elapsed = iter([100.0, 101.5, 161.5])
    clock = SteadyClock(lambda: next(elapsed))
    first, second = clock.now(), clock.now()
    assert second - first == timedelta(seconds=60)


def test_the_machine_says_what_it_has() -> None:
    capacity = fetch_node().capacity
    assert 1 <= capacity["cpu"] <= (os.cpu_count() or 1) * 1000
    assert 2**26 <= capacity["memory"] <= 2**50
    assert capacity["ranks"] == 256


def test_further_variables_pass_only_by_name() -> None:
    inherited = {"CUDA_VISIBLE_DEVICES": "0", "SECRET": "x", "PATH": "/opt/x:/bin"}
    assert "CUDA_VISIBLE_DEVICES" not in environment.build_base_environment(inherited)
    base = environment.build_base_environment(inherited, ["CUDA_VISIBLE_DEVICES"])
    assert base["CUDA_VISIBLE_DEVICES"] == "0"
    assert base["PATH"].endswith(":/opt/x:/bin")
    assert "SECRET" not in environment.build_agent_environment(inherited)
    role = RoleSpec(command=("true",), env={"PATH": "/own"})
    spec, identity = JobSpec(roles=[role]), Identity(new_job(), 1, 1, 1, 0)
    rank = environment.build_rank_environment(base, spec, role, identity, rank=0, port=1, known_here={})
    assert rank["PATH"] == "/own"
