# SPDX-License-Identifier: Apache-2.0
"""Nothing that was started under a guard outlives its caller, however the caller ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from airflow_provider_dispatch.testing.guarded_processes import GuardedProcesses, GuardError
from airflow_provider_dispatch.testing.process_guard import is_beneath
from airflow_provider_dispatch.testing.waiting import Waiter
from tests.testing import guarded_caller


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout


def wait_until_gone(pids: list[int]) -> None:
    Waiter().wait_for(lambda: not any(map(is_running, pids)), timeout_seconds=30, what=f"{pids} to end")


@pytest.fixture
def processes(tmp_path):
    with GuardedProcesses(tmp_path, grace_seconds=1) as processes:
        yield processes


def start(processes: GuardedProcesses, tmp_path: Path, program: str) -> int:
    """Starts it and waits until it has said so."""
    log = tmp_path / "program.log"
    pid = processes.start([sys.executable, "-c", program], env=dict(os.environ), log=log)
    Waiter().wait_for(lambda: "ready" in log.read_text(), timeout_seconds=30, what="the program")
    return pid


@pytest.mark.parametrize(
    "ending",
    ["leaves the block", "raises", "kills itself", "is interrupted", "is interrupted while it stops", "is terminated"],
)
def test_nothing_outlives_the_caller(ending, repository, tmp_path):
    caller = subprocess.Popen(
        [sys.executable, guarded_caller.__file__, ending, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(repository)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert caller.stdout is not None
    guard, *started = map(int, caller.stdout.readline().split())
    assert len(started) == 3
    if ending.startswith("is interrupted"):
        os.killpg(caller.pid, signal.SIGINT)
    if ending == "is interrupted while it stops":
        wait_until_gone(started[:1])  # the one that obeys: now it waits for the others
        os.killpg(caller.pid, signal.SIGINT)
    if ending == "is terminated":
        caller.terminate()
    caller.wait(30)
    caller.stdout.close()

    wait_until_gone([guard, *started])


def test_what_obeys_term_is_not_killed(processes, tmp_path):
    polite = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: (print('bye'), sys.exit(0)))"
    start(processes, tmp_path, f"{polite}; {guarded_caller.SLEEPER}")
    processes.close()

    assert (tmp_path / "program.log").read_text() == "ready\nbye\n"


def test_the_exit_code_is_kept(processes, tmp_path):
    ended = start(processes, tmp_path, "print('ready'); raise SystemExit(7)")
    killed = start(processes, tmp_path, guarded_caller.SLEEPER)
    assert processes.exit_code(killed) is None
    assert processes.send_signal(killed, signal.SIGKILL)

    waiter = Waiter()
    assert waiter.wait_for(lambda: processes.exit_code(ended), timeout_seconds=30, what="the end") == 7
    assert waiter.wait_for(lambda: processes.exit_code(killed), timeout_seconds=30, what="the end") == -signal.SIGKILL
    assert not processes.send_signal(killed, signal.SIGTERM)


def test_a_stranger_is_never_signalled(processes):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        assert not processes.send_signal(stranger.pid, signal.SIGKILL)
        assert stranger.poll() is None


def test_when_the_guard_is_killed_the_process_groups_still_end(tmp_path):
    processes = GuardedProcesses(tmp_path)
    pid = start(processes, tmp_path, guarded_caller.STUBBORN)
    os.kill(processes.guard_pid, signal.SIGKILL)
    Waiter().wait_for(lambda: not is_running(processes.guard_pid), timeout_seconds=30, what="the guard to end")
    with pytest.raises(GuardError):
        processes.alive()
    processes.close()

    wait_until_gone([pid])


def test_a_program_that_does_not_exist_is_an_error_and_the_guard_goes_on(processes, tmp_path):
    with pytest.raises(GuardError, match="could not start"):
        processes.start(["/does/not/exist"], env={}, log=tmp_path / "log")

    assert processes.alive() == []


def test_it_may_be_closed_twice(tmp_path):
    processes = GuardedProcesses(tmp_path)
    processes.close()
    processes.close()

    with pytest.raises(GuardError):
        processes.alive()


def test_descent_is_told_from_the_table_and_a_circle_in_it_ends():
    parents = {10: 1, 20: 10, 30: 20, 40: 41, 41: 40}

    assert is_beneath(30, 10, parents)
    assert not is_beneath(10, 20, parents)
    assert not is_beneath(40, 10, parents)


def test_a_waiter_looks_until_something_comes():
    now, slept = [0.0], []
    seen = iter([None, "", "here"])

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    waiter = Waiter(interval_seconds=2, clock=lambda: now[0], sleeper=sleep)
    assert waiter.wait_for(lambda: next(seen), timeout_seconds=60, what="it") == "here"
    assert slept == [2, 2]


def test_a_waiter_gives_up_and_says_what_it_saw():
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    waiter = Waiter(interval_seconds=1, clock=lambda: now[0], sleeper=sleep)
    with pytest.raises(TimeoutError, match="waited 3 s for rain; the last look gave 0"):
        waiter.wait_for(lambda: 0, timeout_seconds=3, what="rain")
    assert now == [3.0]


def test_a_waiter_does_not_wait_for_what_is_hopeless():
    def despair() -> None:
        raise RuntimeError("the server has ended")

    waiter = Waiter(is_hopeless=despair, sleeper=time.sleep)
    with pytest.raises(RuntimeError, match="has ended"):
        waiter.wait_for(lambda: None, timeout_seconds=60, what="an answer")


class InterruptionError(Exception):
    """What a signal's handler raises in the middle of a request."""


def test_an_answer_that_an_interruption_left_unread_is_not_taken_for_the_next(processes, tmp_path):
    def interrupt(_number: int, _frame: object) -> None:
        raise InterruptionError

    pid = start(processes, tmp_path, guarded_caller.SLEEPER)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        os.kill(processes.guard_pid, signal.SIGSTOP)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(InterruptionError):
            processes.exit_code(pid)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        os.kill(processes.guard_pid, signal.SIGCONT)

    assert processes.alive() == [pid]
