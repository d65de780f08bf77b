# SPDX-License-Identifier: Apache-2.0
"""What careless and hostile users do to a store, its agent and its ranks: nothing runs twice, and no agent dies."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from airflow_provider_dispatch.adapters.local.doorbell import ring
from airflow_provider_dispatch.adapters.local.queues import QueuesFile
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.state import Cause, State
from airflow_provider_dispatch.exceptions import DispatchError
from tests.adapters.local.world import WAIT, World, end_process, python_job, soon
from tests.contract.stage_local import wait_until

FAR = timedelta(days=100)


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


def _find_parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


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
