# SPDX-License-Identifier: Apache-2.0
"""Finding and ending what a killed shim left, and the lock that tells whether anything is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from airflow_provider_dispatch.adapters.local.processes import (
    JobLock,
    end_attempts,
    find_attempts,
    find_lock_holders,
    is_same_file,
)
from tests.adapters.local.shim_process import PATIENCE_SECONDS, ShimProcess, python, take_lock

DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN); hello()\nwhile True: signal.pause()"

# Starts another that keeps the lock and shows no attempt.
HIDE = f"""
if not os.fork():
    detach()
    os.execve(sys.executable, [sys.executable, "-ISc", {python(DEAF)[-1]!r}], {{"HELLO": os.environ["HELLO"]}})
"""


@pytest.fixture
def shim(tmp_path):
    with ShimProcess(tmp_path, job=f"job-{tmp_path.name}-{os.getpid()}") as shim:
        yield shim


class TestSweep:
    def test_a_killed_shim_leaves_ranks_that_hold_the_lock_until_they_are_swept(self, shim):
        shim.spawn(python("if not os.fork(): detach()\n" + DEAF))
        pids = {shim.greeter.meet(), shim.greeter.meet()}
        shim.kill()
        assert not any(shim.greeter.is_gone(pid) for pid in pids)
        assert not shim.is_lock_free()
        report = end_attempts(shim.job, timeout_seconds=PATIENCE_SECONDS)
        assert {process.pid for process in report.killed} >= pids
        assert report.alive == ()
        assert all(shim.greeter.is_gone(pid) for pid in pids)
        assert shim.is_lock_free()

    def test_who_hides_its_environment_is_found_by_the_lock(self, shim):
        shim.spawn(python(HIDE + DEAF))
        pids = {shim.greeter.meet(), shim.greeter.meet()}
        shim.kill()
        end_attempts(shim.job, timeout_seconds=PATIENCE_SECONDS)
        (hidden,) = [pid for pid in pids if not shim.greeter.is_gone(pid)]
        assert [process.pid for process in find_lock_holders(shim.lock_path)] == [hidden]
        report = end_attempts(shim.job, lock_path=shim.lock_path, timeout_seconds=PATIENCE_SECONDS)
        assert ([process.pid for process in report.killed], report.is_complete) == ([hidden], True)
        assert shim.is_lock_free()

    @pytest.mark.parametrize("step", ["", "os.setsid()"])
    def test_who_forks_without_end_is_swept(self, shim, step):
        code = f"""
if not os.fork():
    hello()
    while True:
        if os.fork(): os._exit(0)
        {step}
"""
        shim.spawn(python(code + DEAF))
        pids = [shim.greeter.meet(), shim.greeter.meet()]
        shim.kill()
        report = end_attempts(shim.job, lock_path=shim.lock_path, timeout_seconds=PATIENCE_SECONDS)
        assert report.is_complete
        assert [shim.greeter.is_gone(pid) for pid in pids] == [True, True]
        assert shim.is_lock_free()

    def test_a_shim_that_lives_is_waited_for_and_not_killed(self, shim):
        shim.spawn(python(DEAF))
        shim.greeter.meet()
        report = end_attempts(shim.job, lock_path=shim.lock_path, timeout_seconds=0.3)
        assert ([process.pid for process in report.alive], report.is_complete) == ([shim.process.pid], False)
        assert shim.wait_for("exited")["signal"] == signal.SIGKILL
        shim.end_and_wait()

    def test_a_shim_that_is_kept_from_its_work_does_not_hide_what_is_beneath_it(self, shim, tmp_path):
        hide = HIDE.replace("os.execve", "os.closerange(0, 256); os.execve")
        shim.spawn(python(hide + DEAF), env={"DISPATCH_STATE_DIR": str(tmp_path / "state")})
        pids = [shim.greeter.meet(), shim.greeter.meet()]
        shim.lock_path.unlink()  # so the lock says nothing either
        shim.process.send_signal(signal.SIGSTOP)
        shim.control.close()
        assert end_attempts(shim.job, folder=tmp_path, timeout_seconds=PATIENCE_SECONDS).is_complete
        assert [shim.greeter.is_gone(pid) for pid in pids] == [True, True]
        assert shim.process.wait(PATIENCE_SECONDS) == 0

    def test_only_the_attempts_asked_for_are_found(self, shim):
        shim.spawn(python(DEAF), rank=0)
        shim.spawn(python(DEAF), rank=1, env={"DISPATCH_ATTEMPT": f"{shim.job}.1.1.2.0"})
        shim.spawn(python(DEAF), rank=2, env={"DISPATCH_ATTEMPT": f"{shim.job}x.1.1.1.0"})
        shim.spawn(python(DEAF), rank=3, env={"DISPATCH_ATTEMPT": ""})
        for _ in range(4):
            shim.greeter.meet()
        pids = [shim.wait_for("started", rank=rank)["pid"] for rank in range(4)]
        assert {(p.pid, p.attempt) for p in find_attempts(shim.job)} == {
            (pids[0], f"{shim.job}.1.1.1.0"),
            (pids[1], f"{shim.job}.1.1.2.0"),
        }
        assert [process.pid for process in find_attempts(f"{shim.job}.1.1.2.0")] == [pids[1]]
        end_attempts(f"{shim.job}.1.1.2.0", timeout_seconds=PATIENCE_SECONDS)
        assert [shim.greeter.is_gone(pid) for pid in pids] == [False, True, False, False]

    def test_another_store_s_processes_of_the_same_job_are_left_alone(self, shim, tmp_path):
        here, there = tmp_path / "here", tmp_path / "there"
        for rank, folder in enumerate((here, there)):
            shim.spawn(python(DEAF), rank=rank, env={"DISPATCH_STATE_DIR": str(folder / "state")})
            shim.greeter.meet()
        pids = [shim.wait_for("started", rank=rank)["pid"] for rank in range(2)]
        assert [process.pid for process in find_attempts(shim.job, folder=here)] == [pids[0]]
        end_attempts(shim.job, folder=here, timeout_seconds=PATIENCE_SECONDS)
        assert [shim.greeter.is_gone(pid) for pid in pids] == [True, False]

    def test_when_the_time_is_over_who_is_left_is_told(self, shim):
        shim.spawn(python(DEAF))
        pid = shim.greeter.meet()
        report = end_attempts(shim.job, timeout_seconds=0)
        assert ([process.pid for process in report.alive], report.killed) == ([pid], ())

    def test_nothing_to_sweep_is_no_work(self):
        report = end_attempts(f"nobody-{os.getpid()}", timeout_seconds=PATIENCE_SECONDS)
        assert (report.killed, report.alive) == ((), ())

    def test_a_process_that_is_dead_but_not_reaped_is_not_alive(self, shim):
        shim.spawn(python(DEAF))
        pid = shim.greeter.meet()
        shim.process.send_signal(signal.SIGSTOP)  # nobody reaps now
        try:
            os.kill(pid, signal.SIGKILL)
            shim.greeter.wait_until_gone(pid)
            assert end_attempts(shim.job, timeout_seconds=PATIENCE_SECONDS).alive == ()
        finally:
            shim.process.send_signal(signal.SIGCONT)


# Uses up its descriptors, and tells what a look says then, and what it says once there are some again.
SHORT = """
import json, os, resource, sys, threading, time
from pathlib import Path
from airflow_provider_dispatch.adapters.local.agent.locking import clear_execution
from airflow_provider_dispatch.adapters.local.processes import end_attempts, find_lock_holders, scan_processes
from airflow_provider_dispatch.adapters.local.shim.descent import fetch_entry, fetch_environment
from airflow_provider_dispatch.exceptions import UnavailableError

def fails(look):
    try:
        look()
    except (OSError, UnavailableError) as error:
        return str(error)

attempt, lock = sys.argv[1], Path(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
kept = []
while not fails(lambda: kept.append(os.open("/dev/null", os.O_RDONLY))): pass
own = os.getpid()
looks = [scan_processes, lambda: find_lock_holders(lock), lambda: fetch_entry(own), lambda: fetch_environment(own)]
told = {"looks": [fails(look) for look in looks]}
report = end_attempts(attempt, timeout_seconds=0.3)
told["short"] = [report.is_complete, len(report.killed)]
waiter = threading.Thread(target=clear_execution, args=(lock, attempt))
waiter.start()
waiter.join(0.5)
told["is_cleared_blindly"] = not waiter.is_alive()
for fd in kept: os.close(fd)
waiter.join()
told["left"] = len(scan_processes().find_attempts(attempt))
print(json.dumps(told))
"""


class TestShortage:
    def test_who_has_no_descriptor_to_look_with_proves_nothing(self, shim, tmp_path):
        shim.spawn(python(HIDE + DEAF), env={"DISPATCH_STATE_DIR": str(tmp_path / "state")})
        pids = [shim.greeter.meet(), shim.greeter.meet()]
        attempt = f"{shim.job}.1.1.1.0"
        shim.kill()
        words = [sys.executable, "-c", SHORT, attempt, str(tmp_path / "lock")]
        child = subprocess.run(words, stdout=subprocess.PIPE, timeout=PATIENCE_SECONDS, check=True)
        told = json.loads(child.stdout)
        assert all("Too many open files" in answer for answer in told.pop("looks"))
        assert told == {"short": [False, 0], "is_cleared_blindly": False, "left": 0}
        assert [shim.greeter.is_gone(pid) for pid in pids] == [True, True]


class TestLock:
    def test_one_holder_at_a_time(self, tmp_path):
        with take_lock(tmp_path / "lock"):
            assert JobLock.take(tmp_path / "lock") is None
        with take_lock(tmp_path / "lock") as lock:
            assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600
            lock.close()

    def test_it_lasts_as_long_as_somebody_who_inherited_it(self, tmp_path):
        with take_lock(tmp_path / "lock") as lock:
            heir = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[lock.fd])
        try:
            assert JobLock.take(tmp_path / "lock") is None
            assert [process.pid for process in find_lock_holders(tmp_path / "lock")] == [heir.pid]
        finally:
            heir.communicate(timeout=PATIENCE_SECONDS)
        with take_lock(tmp_path / "lock") as again:
            assert again.fd >= 0

    def test_a_link_is_not_followed(self, tmp_path):
        (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(OSError, match="lock"):
            JobLock.take(tmp_path / "lock")

    def test_a_lock_that_nobody_has_has_no_holders(self, tmp_path):
        assert find_lock_holders(tmp_path / "none") == []

    def test_the_lock_of_a_removed_file_is_not_taken_for_the_new_one(self, tmp_path):
        with take_lock(tmp_path / "lock") as first:
            assert is_same_file(first.fd, tmp_path / "lock")
            (tmp_path / "lock").unlink()
            assert not is_same_file(first.fd, tmp_path / "lock")
            with take_lock(tmp_path / "lock") as second:
                assert not is_same_file(first.fd, tmp_path / "lock")
                assert is_same_file(second.fd, tmp_path / "lock")
                assert JobLock.take(tmp_path / "lock") is None
