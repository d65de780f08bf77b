# SPDX-License-Identifier: Apache-2.0
"""What careless and hostile users do to a store, its agent and its ranks: nothing runs twice, and no agent dies."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dispatch.adapters.local.doorbell import ring
from airflow_provider_dispatch.adapters.local.processes import find_attempts
from airflow_provider_dispatch.adapters.local.queues import QueuesFile
from airflow_provider_dispatch.adapters.local.settings import parse_settings
from airflow_provider_dispatch.adapters.local.store.database import Database
from airflow_provider_dispatch.adapters.protocol import OutputRequest
from airflow_provider_dispatch.core.capabilities import Answer
from airflow_provider_dispatch.core.holds import HoldRequest
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.output import Cursor
from airflow_provider_dispatch.core.owner import Owner
from airflow_provider_dispatch.core.records import JobSelector, StartRequest
from airflow_provider_dispatch.core.state import Cause, State
from airflow_provider_dispatch.exceptions import DispatchError, SpecError
from tests.adapters.local.world import ANN, WAIT, World, end_process, new_job, python_job, soon, wait_for_end
from tests.contract.stage_processes import wait_until

FAR = timedelta(days=100)


def is_zombie(pid: int) -> bool:
    """Ended, and not yet reaped by whoever started it."""
    return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()


# -- times that no kernel can wait for ---------------------------------------------------------------------------------


def test_an_agent_waits_for_what_is_due_in_a_year(world) -> None:
    async def scenario(at: World) -> None:
        ref = await at.run(python_job(WAIT))
        first = at.agent
        later = datetime.now(UTC) + FAR
        await at.adapter.hold(ref, at.hold_request(until=later), deadline=soon())
        await at.reach(ref, State.HELD)
        paused = await at.start(python_job(WAIT), not_before=later)
        await at.adapter.open(paused, deadline=soon())
        await at.run(python_job(WAIT))
        assert at.agent == first

    world.play(scenario)


def test_a_shim_waits_for_a_long_grace_and_a_rare_check(shared_world) -> None:
    program = (
        "import signal, sys, time; signal.signal(15, lambda *_: (print('saved'), sys.exit(0))); print('begun');"
        " time.sleep(60)"
    )

    async def scenario(at: World) -> None:
        graceful = await at.run(python_job(program, grace_period=FAR))
        await wait_until(lambda: b"begun" in _read_log(at, graceful), "the rank's first line")
        await at.adapter.hold(graceful, at.hold_request(), deadline=soon())
        await at.reach(graceful, State.HELD)
        assert b"saved" in _read_log(at, graceful)
        never_ready = await at.start(python_job(WAIT, readiness={"tcp_port": 1, "period": FAR}))
        await at.adapter.open(never_ready, deadline=soon())
        seen = await at.until(never_ready, lambda o: bool(o.ranks) and o.ranks[0].running == 1)
        assert seen.state is State.STARTING
        await at.run(python_job(WAIT))
        assert (await at.adapter.inspect(never_ready)).state is State.STARTING

    shared_world.play(scenario)


def test_a_deadline_may_be_the_end_of_time(shared_world) -> None:
    async def scenario(at: World) -> None:
        never = datetime.max.replace(tzinfo=UTC)
        ref = await at.start(python_job(WAIT))
        await at.adapter.open(ref, deadline=never)
        assert (await at.adapter.stop(ref.job, reason="", deadline=never)).is_complete

    shared_world.play(scenario)


def _read_log(at: World, ref) -> bytes:
    folder = at.layout.executions_folder(ref.job, ref.submission) / "r1" / "logs"
    return b"".join(path.read_bytes() for path in folder.glob("*.log"))


# -- ranks that give their lock away -----------------------------------------------------------------------------------

CLOSE_ALL = "os.closerange(3, 256)"
REMOVE_ALL = "shutil.rmtree(os.path.dirname(os.environ['DISPATCH_STATE_DIR']))"


@pytest.mark.skipif(sys.platform != "linux", reason="other processes are seen on Linux alone")
@pytest.mark.parametrize("deed", [CLOSE_ALL, REMOVE_ALL])
@pytest.mark.parametrize("is_agent_killed", [False, True])
def test_a_rank_without_its_lock_is_gone_before_the_job_is_told_lost(world, deed, is_agent_killed, tmp_path) -> None:
    mark = tmp_path / "mark"
    program = (
        "import os, pathlib, shutil, signal; signal.signal(15, signal.SIG_IGN);"
        f" {deed}; pathlib.Path({str(mark)!r}).write_text(str(os.getpid()))\nwhile True: signal.pause()"
    )

    async def scenario(at: World) -> None:
        ref = await at.run(python_job(program))
        await wait_until(lambda: mark.exists() and mark.read_text() != "", "the deed")
        rank = int(mark.read_text())
        shim = _find_parent(rank)
        if is_agent_killed:
            # Stopped, it can't end the rank when it sees its agent die.
            os.kill(shim, signal.SIGSTOP)
            at.end_agent(signal.SIGKILL)
        end_process(shim)
        assert _is_running(rank)
        lost = await at.reach(ref, State.FAILED)
        assert lost.cause is Cause.NODE_LOST
        assert not _is_running(rank)

    world.play(scenario)


STOP_SHIM = (
    "import os, signal; signal.signal(15, signal.SIG_IGN); os.kill(os.getppid(), signal.SIGSTOP);"
    " print('begun', flush=True)\nwhile True: signal.pause()"
)


@pytest.mark.skipif(sys.platform != "linux", reason="other processes are seen on Linux alone")
@pytest.mark.parametrize("is_agent_killed", [False, True])
def test_a_rank_that_stops_its_shim_delays_no_end(world, is_agent_killed) -> None:
    async def scenario(at: World) -> None:
        ref = await at.run(python_job(STOP_SHIM))
        await wait_until(lambda: _has_stopped_child(at.agent), "the shim's stop")
        if is_agent_killed:
            at.end_agent(signal.SIGKILL)
            assert (await at.reach(ref, State.FAILED)).cause is Cause.NODE_LOST
        assert (await at.adapter.stop(ref.job, reason="", deadline=soon())).is_complete

    world.play(scenario)


KEEP_SHIM_FROM_ITS_WORK = {
    "stop it whenever it is woken": "while os.getppid() == shim: os.kill(shim, signal.SIGSTOP)",
    "leave it no descriptor, and hide from its group": (
        "resource.prlimit(shim, resource.RLIMIT_NOFILE, (0, 0))\nos.fork() or os.setsid()"
    ),
}


@pytest.mark.skipif(sys.platform != "linux", reason="other processes are seen on Linux alone")
@pytest.mark.parametrize("deed", KEEP_SHIM_FROM_ITS_WORK.values(), ids=KEEP_SHIM_FROM_ITS_WORK)
def test_a_rank_that_keeps_its_shim_from_its_work_is_held_and_stopped(world, deed) -> None:
    begin = "import os, resource, signal; signal.signal(15, signal.SIG_IGN); shim = os.getppid()\n"

    async def scenario(at: World) -> None:
        ref = await at.run(python_job(f"{begin}{deed}\nwhile True: signal.pause()", grace_period=timedelta(0)))
        await wait_until(lambda: _has_stopped_child(at.agent) or len(find_attempts(ref.job)) == 2, "the deed")
        first = at.agent
        await at.adapter.hold(ref, at.hold_request(), deadline=soon())
        await at.reach(ref, State.HELD)
        assert find_attempts(ref.job) == []
        assert (await at.adapter.stop(ref.job, reason="", deadline=soon())).is_complete
        assert at.agent == first

    world.play(scenario)


@pytest.mark.skipif(sys.platform != "linux", reason="other processes are seen on Linux alone")
def test_a_rank_that_stops_its_shim_and_ends_has_ended(shared_world) -> None:
    async def scenario(at: World) -> None:
        ref = await at.start(python_job("import os, signal; os.kill(os.getppid(), signal.SIGSTOP)"))
        await at.adapter.open(ref, deadline=soon())
        await at.reach(ref, State.SUCCEEDED)
        assert find_attempts(ref.job) == []

    shared_world.play(scenario)


# -- ranks that hide from everything that names them -------------------------------------------------------------------

DAEMON = """
import os, signal, sys, time
def become_daemon(beat):
    if os.fork():
        signal.pause()
    os.setsid()
    if os.fork():
        os._exit(0)
    os.closerange(0, 256)
    os.execve(sys.executable, [sys.executable, "-ISc", GHOST, beat], {"GHOST": "1"})
"""
# Each says who it is, again and again; of the second kind none is there for longer than a moment.
GHOSTS = {
    "a daemon": (
        "import os, sys, time\nwhile True: open(sys.argv[1], 'w').write(f'{os.getpid()}\\n'); time.sleep(0.01)"
    ),
    "a chain of daemons": (
        "import os, sys\n"
        "while True:\n"
        "    if os.fork(): os._exit(0)\n"
        "    os.setsid(); open(sys.argv[1], 'w').write(f'{os.getpid()}\\n')"
    ),
}


def _build_ghost_job(ghost: str, beat: Path) -> JobSpec:
    return python_job(f"GHOST = {GHOSTS[ghost]!r}\n{DAEMON}become_daemon({str(beat)!r})")


@pytest.mark.skipif(sys.platform != "linux", reason="other processes are seen on Linux alone")
@pytest.mark.parametrize("ghost", GHOSTS)
def test_whoever_hides_as_a_daemon_is_gone_before_the_job_is_told_lost(world, ghost, tmp_path) -> None:
    beats = [tmp_path / "beat-0", tmp_path / "beat-1"]

    async def scenario(at: World) -> None:
        other = await at.run(python_job(WAIT))
        refs = [await at.run(_build_ghost_job(ghost, beat)) for beat in beats]
        for beat in beats:
            await wait_until(beat.exists, "the daemon's first beat")
        # Both at once: the orphans of one are the agent's before it has heard of the other's end.
        for shim in [_find_parent(find_attempts(ref.job)[0].pid) for ref in refs]:
            os.kill(shim, signal.SIGKILL)
        for ref, beat in zip(refs, beats, strict=True):
            assert (await at.reach(ref, State.FAILED)).cause is Cause.NODE_LOST
            beat.unlink(missing_ok=True)
        assert not [line for line in _list_commands() if "beat-" in line]
        assert not any(beat.exists() for beat in beats)
        assert (await at.adapter.inspect(other)).state is State.RUNNING
        assert not [child for child in _list_children(at.agent) if is_zombie(child)]

    world.play(scenario)


@pytest.mark.skipif(sys.platform != "linux", reason="other processes are seen on Linux alone")
def test_a_daemon_of_a_removed_store_is_gone_before_a_new_store_begins(world, tmp_path) -> None:
    beat = tmp_path / "beat"

    async def scenario(at: World) -> None:
        ref = await at.run(_build_ghost_job("a daemon", beat))
        await wait_until(beat.exists, "the daemon's first beat")
        shim = _find_parent(find_attempts(ref.job)[0].pid)
        os.kill(at.agent, signal.SIGSTOP)  # so it can't even hear that its store is gone
        os.kill(shim, signal.SIGSTOP)
        left = os.pidfd_open(at.agent)
        shutil.rmtree(at.layout.folder)
        try:
            await at.start(python_job(WAIT))
            assert not [line for line in _list_commands() if str(beat) in line]
        finally:
            signal.pidfd_send_signal(left, signal.SIGKILL)
            wait_for_end(left)

    world.play(scenario)


def _list_children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _list_commands() -> list[str]:
    """Command lines of all processes but this one."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += [path.read_text(errors="replace")] if path.parent.name != str(os.getpid()) else []
    return found


def _find_parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _has_stopped_child(pid: int) -> bool:
    stats = (Path(f"/proc/{child}/stat").read_text() for child in _list_children(pid))
    return any(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


# -- ranks that put something else in the place of our files -----------------------------------------------------------

HERE = "import os, pathlib, shutil, signal; r = pathlib.Path(os.environ['DISPATCH_RESULT_PATH'])\n"
LOG = "r.parent.parent / 'logs' / 'node-0.0.log'"
TRICKS = {
    "a folder as result": ("r.mkdir()", Cause.MISCONFIGURED),
    "a FIFO as log": (
        f"print('x', flush=True)\nwhile not ({LOG}).exists(): pass\n({LOG}).unlink(); os.mkfifo({LOG}); os._exit(3)",
        Cause.EXITED,
    ),
    "a FIFO as the next log": (
        (
            "(r.parent.parent / 'logs').mkdir(exist_ok=True); os.mkfifo(r.parent.parent / 'logs' / 'node-0.1.log')\n"
            "for n in range(120_000): print('y' * 100)\nos._exit(3)"
        ),
        Cause.EXITED,
    ),
    "a folder as lock, and no shim": (
        "lock = r.parents[3] / 'lock'; lock.unlink(); lock.mkdir(); os.kill(os.getppid(), 9); signal.pause()",
        Cause.NODE_LOST,
    ),
    "a file as the job's folder, and no shim": (
        "job = r.parents[3]; shutil.rmtree(job); job.touch(); os.kill(os.getppid(), 9); signal.pause()",
        Cause.NODE_LOST,
    ),
}


@pytest.mark.parametrize(("program", "cause"), TRICKS.values(), ids=TRICKS)
def test_what_a_rank_puts_in_the_place_of_our_files_ends_its_own_job_alone(shared_world, program, cause) -> None:
    async def scenario(at: World) -> None:
        first = at.start_agent()
        ref = await at.start(python_job(HERE + program))
        await at.adapter.open(ref, deadline=soon())
        seen = await at.reach(ref, State.SUCCEEDED, State.FAILED)
        assert (seen.state, seen.cause) == (State.FAILED, cause)
        assert at.agent == first
        assert (await at.adapter.stop(ref.job, reason="", deadline=soon())).is_complete

    shared_world.play(scenario)


def test_a_fifo_in_the_place_of_the_announcement_delays_no_end(shared_world) -> None:
    program = HERE + "os.mkfifo(f'{r}.stop.new')\nprint('begun')\nsignal.pause()"

    async def scenario(at: World) -> None:
        ref = await at.run(python_job(program))
        await wait_until(lambda: b"begun" in _read_log(at, ref), "the rank's first line")
        assert (await at.adapter.stop(ref.job, reason="", deadline=soon(10))).is_complete

    shared_world.play(scenario)


# -- queues that nobody can read ---------------------------------------------------------------------------------------


def _make_loop(path: Path) -> None:
    path.symlink_to(path)


UNREADABLE: dict[str, Callable[[Path], object]] = {
    "a folder": lambda path: path.mkdir(),
    "a FIFO": os.mkfifo,
    "a link to itself": _make_loop,
    "too deep": lambda path: path.write_text("a = " + "[" * 100_000),
    "too large": lambda path: path.write_text("#" * 11_000_000),
    "no text": lambda path: path.write_bytes(b"\xff\xfe"),
}


@pytest.mark.parametrize("make", UNREADABLE.values(), ids=UNREADABLE)
def test_queues_that_cannot_be_read_are_an_error_of_the_contract(tmp_path, make) -> None:
    path = tmp_path / "queues.toml"
    make(path)
    with pytest.raises(DispatchError, match=r"queues\.toml"):
        QueuesFile(path).resolve(JobSpec(command=["true"]))


def test_unreadable_queues_stop_no_job_and_a_new_agent_settles_what_was_left(world) -> None:
    async def scenario(at: World) -> None:
        ref = await at.run(python_job(WAIT))
        waiting = await at.start(python_job(WAIT))
        first = at.agent
        at.layout.queues.mkdir()
        ring(at.layout)
        await wait_until(lambda: "queues stay" in at.layout.agent_log.read_text(), "the agent's complaint")
        assert at.agent == first
        at.end_agent(signal.SIGKILL)
        assert (await at.reach(ref, State.FAILED)).cause is Cause.NODE_LOST
        await at.adapter.open(waiting, deadline=soon())
        assert (await at.reach(waiting, State.QUEUED)).pending is not None
        at.layout.queues.rmdir()
        ring(at.layout)
        await at.reach(waiting, State.RUNNING)

    world.play(scenario)


# -- values that no type allows ----------------------------------------------------------------------------------------


# Wrong on purpose, so not of a type that is checked.
HALF: Any = 1.5
SEVEN: Any = 7


@pytest.mark.parametrize(
    ("numbers", "field"),
    [
        ({"submission": HALF}, "request"),
        ({"attempt": HALF}, "request"),
        ({"attempt": 0}, "attempt"),
        ({"attempt": -1}, "attempt"),
        ({"attempt": 10**5000}, "attempt"),
        ({"owner": Owner(try_number=10**5000)}, "request"),
        ({"owner": Owner(map_index=HALF)}, "request"),
    ],
)
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_nothing_is_written_that_cannot_be_read_back(shared_world, numbers, field) -> None:
    async def scenario(at: World) -> None:
        fields = {"submission": 1, "attempt": 1, "spec": python_job(WAIT), **numbers}
        with pytest.raises(SpecError) as refused:
            await at.adapter.start(StartRequest(new_job(), **fields), deadline=soon())
        assert refused.value.field == field
        await at.adapter.list(JobSelector())

    shared_world.play(scenario)


def test_a_store_that_was_removed_under_a_running_job_runs_nothing_beside_it(world, tmp_path) -> None:
    program = (
        "import fcntl, os, sys, time; lock = open(sys.argv[1], 'a'); fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB);"
        " print('alone', file=lock, flush=True); time.sleep(60)"
    )
    spec = JobSpec(command=[sys.executable, "-c", program, str(tmp_path / "lock")])

    async def scenario(at: World) -> None:
        ref = await at.run(spec)
        await wait_until(lambda: (tmp_path / "lock").exists() and (tmp_path / "lock").read_text(), "the first process")
        first = at.agent
        shutil.rmtree(at.layout.folder)
        await at.run(spec, job=ref.job)
        await wait_until(lambda: (tmp_path / "lock").read_text().count("alone") == 2, "the second process, alone")
        await wait_until(lambda: not Path(f"/proc/{first}").exists() or is_zombie(first), "the first agent's end")
        assert at.agent != first

    world.play(scenario)


def test_an_agent_whose_store_was_removed_ends_its_ranks_though_nobody_asks(world) -> None:
    async def scenario(at: World) -> None:
        await at.run(python_job(WAIT))
        agent = at.agent
        (shim,) = _list_children(agent)
        (rank,) = _list_children(shim)
        shutil.rmtree(at.layout.folder)
        await wait_until(lambda: not _is_running(rank) and not _is_running(agent), "the end of rank and agent")
        assert not at.layout.database.exists()  # it made nothing anew in its place

    world.play(scenario)


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_a_hold_that_cannot_be_read_back_is_refused(shared_world) -> None:
    async def scenario(at: World) -> None:
        ref = await at.start(python_job(WAIT))
        with pytest.raises(SpecError, match="can't be carried"):
            await at.adapter.hold(ref, HoldRequest(SEVEN, ANN), deadline=soon())
        assert (await at.adapter.inspect(ref)).state is State.GATED

    shared_world.play(scenario)


def test_a_damaged_row_is_an_error_of_the_contract(world) -> None:
    async def scenario(at: World) -> None:
        ref = await at.start(python_job(WAIT))
        with Database(at.layout).write(5) as connection:
            connection.execute("UPDATE submission SET status = '{broken'")
        with pytest.raises(DispatchError, match="damaged"):
            await at.adapter.inspect(ref)
        with pytest.raises(DispatchError, match="damaged"):
            await at.adapter.list(JobSelector())

    world.play(scenario)


@pytest.mark.parametrize(
    "request_",
    [
        OutputRequest(role="../../x"),
        OutputRequest(role="\0"),
        OutputRequest(role="\ud800"),
        OutputRequest(role="r" * 5000),
        OutputRequest(rank=-1),
        OutputRequest(rank=10**30),
        OutputRequest(cursor=Cursor(1, "node", 0, 0, 10**30)),
        OutputRequest(cursor=Cursor(1, "node", 0, -1, 0)),
    ],
)
def test_no_request_for_output_reads_other_files(shared_world, request_) -> None:
    async def scenario(at: World) -> None:
        ref = await at.run(python_job(WAIT))
        with pytest.raises(DispatchError):
            [line async for line in at.adapter.output(ref, request_)]
        await at.adapter.stop(ref.job, reason="", deadline=soon())

    shared_world.play(scenario)


def test_preflight_answers_for_a_folder_that_cannot_even_be_looked_for(tmp_path) -> None:
    async def scenario(at: World) -> None:
        found = await at.adapter.preflight()
        assert found.checks["store"].value is Answer.NO
        assert "too long" in found.checks["store"].reason

    World(tmp_path / ("x" * 300)).play(scenario)


def test_a_folder_whose_name_is_no_text_is_refused() -> None:
    with pytest.raises(SpecError, match="root"):
        parse_settings({"root": "/\ud800"})
