# SPDX-License-Identifier: Apache-2.0
"""The shim on real processes: how ranks start and end, and that nothing survives it."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from airflow_provider_dispatch.adapters.local.logs import read_lines
from tests.adapters.local.shim_process import PATIENCE_SECONDS, ShimProcess, python

WAIT = "hello(); signal.pause()"
DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN); hello()\nwhile True: signal.pause()"

# A process that is never there for longer than a moment; its greeting lasts as long as the chain does.
ENDLESS = """
if not os.fork():
    hello()
    while True:
        if os.fork(): os._exit(0)
        {step}
"""


@pytest.fixture
def shim(tmp_path):
    with ShimProcess(tmp_path, job=f"job-{tmp_path.name}-{os.getpid()}") as shim:
        yield shim


def read_text(shim: ShimProcess, role: str = "worker", rank: int = 0) -> list[str]:
    lines, _ = read_lines(shim.log_dir, execution=1, role=role, rank=rank)
    return [line.text for line in lines]


class TestStart:
    def test_a_rank_gets_its_environment_and_nothing_else(self, shim):
        shim.spawn(["env"], env={"ONLY": "this ü"})
        shim.wait_for("exited", exit_code=0)
        expected = shim.build_environment("worker", 0) | {"ONLY": "this ü"}
        assert dict(line.split("=", 1) for line in read_text(shim)) == expected

    def test_a_rank_has_its_own_session_default_signals_and_no_input(self, shim):
        shim.spawn(python("print(os.getsid(0) == os.getpid() == os.getpgid(0), sys.stdin.read() == '', os.getcwd())\n"))
        shim.wait_for("exited")
        shim.spawn(["grep", "-E", "Sig(Blk|Ign)", "/proc/self/status"], rank=1)
        shim.wait_for("exited", rank=1)
        assert read_text(shim) == [f"True True {shim.folder}"]
        # The C library keeps signals 32 and 33 to itself: nobody can change what a test runner has made of them.
        masks = [int(line.split()[1], 16) & ~(0b11 << 31) for line in read_text(shim, rank=1)]
        assert masks == [0, 0]

    def test_a_rank_inherits_the_lock_and_no_other_descriptor(self, shim):
        code = """
for number in os.listdir("/proc/self/fd"):
    if int(number) > 2 and os.path.exists(f"/proc/self/fd/{number}"):
        print(os.readlink(f"/proc/self/fd/{number}"))
"""
        shim.spawn(python(code))
        shim.wait_for("exited")
        assert read_text(shim) == [str(shim.lock_path)]

    def test_no_shell_touches_the_words_of_a_command(self, shim):
        shim.spawn(["printf", "%s\\n", "$HOME `id` ; exit 3 'x' *", "ü\udcff"])
        shim.wait_for("exited", exit_code=0)
        assert read_text(shim) == ["$HOME `id` ; exit 3 'x' *", "ü�"]

    @pytest.mark.parametrize(
        ("argv", "cwd", "number", "words"),
        [
            (["no-such-command-at-all"], None, errno.ENOENT, "no-such-command-at-all"),
            (["/etc/passwd"], None, errno.EACCES, "/etc/passwd"),
            (["./text"], None, errno.ENOEXEC, "./text"),
            (["true"], "/no/such/folder", errno.ENOENT, "working folder '/no/such/folder'"),
            (["true", "a\0b"], None, errno.EINVAL, "true"),
        ],
    )
    def test_what_cannot_be_started_is_told_with_its_reason(self, shim, argv, cwd, number, words):
        (shim.folder / "text").write_text("just text")
        (shim.folder / "text").chmod(0o755)
        shim.spawn(argv, cwd=cwd or str(shim.folder))
        failure = shim.wait_for("spawn_failed", role="worker", rank=0)
        assert (failure["errno"], words in failure["message"]) == (number, True), failure

    def test_after_a_failed_start_the_shim_goes_on(self, shim):
        shim.spawn(["no-such-command-at-all"])
        shim.wait_for("spawn_failed")
        shim.spawn(["true"])
        assert shim.wait_for("exited")["exit_code"] == 0

    def test_a_rank_is_started_once(self, shim):
        shim.spawn(["true"])
        shim.spawn(["true"])
        assert shim.wait_for("spawn_failed")["errno"] == errno.EEXIST

    @pytest.mark.parametrize(
        "order",
        [
            b"no json",
            b"[]",
            b'{"op": "dance"}',
            b'{"op": "spawn"}',
            b'{"op": "end", "grace_seconds": "long", "reason": "", "by": ""}',
            b'{"op": "spawn", "role": "../up", "rank": 0, "argv": ["true"], "env": {}, "cwd": "/", "log_dir": "/"}',
            b'{"op": "spawn", "role": "a", "rank": 0, "argv": [], "env": {}, "cwd": "/", "log_dir": "/"}',
            b'{"op": "spawn", "role": "a", "rank": 0, "argv": ["a"], "env": {"a": 1}, "cwd": "/", "log_dir": "/"}',
            b'{"op":"spawn","role":"a","rank":0,"argv":["a"],"env":{},"cwd":"/","log_dir":"/","readiness":{}}',
        ],
    )
    def test_an_order_without_sense_is_refused_and_harms_nothing(self, shim, order):
        shim.control.sendall(order + b"\n")
        assert shim.wait_for("refused")["message"]
        shim.spawn(["true"])
        assert shim.wait_for("exited")["exit_code"] == 0


class TestEnds:
    def test_exit_code_and_time_are_told(self, shim):
        before = datetime.now(UTC)
        shim.spawn(python("sys.exit(7)"))
        told = shim.wait_for("exited")
        assert (told["exit_code"], told["before_signal"], told["out_of_memory"]) == (7, True, False)
        assert (
            before - timedelta(seconds=1)
            < datetime.fromisoformat(told["at"])
            < datetime.now(UTC) + timedelta(seconds=1)
        )

    def test_the_signal_that_ended_a_rank_is_told(self, shim):
        shim.spawn(python(WAIT))
        os.kill(shim.greeter.meet(), signal.SIGKILL)
        told = shim.wait_for("exited")
        assert (told["signal"], told["before_signal"], told["out_of_memory"]) == (signal.SIGKILL, True, False)

    def test_end_terminates_every_rank_and_says_gone_last(self, shim):
        for rank in range(3):
            shim.spawn(python(WAIT), rank=rank)
            shim.greeter.meet()
        shim.end_and_wait()
        told = [event for event in shim.events if event["event"] == "exited"]
        assert [(event["signal"], event["before_signal"]) for event in told] == [(signal.SIGTERM, False)] * 3
        assert shim.events[-1]["event"] == "gone"
        assert shim.is_lock_free()

    def test_an_exit_before_the_signal_is_told_apart_from_one_after_it(self, shim):
        shim.spawn(["true"], rank=0)
        shim.wait_for("exited", rank=0)
        shim.spawn(python("signal.signal(15, lambda *_: sys.exit(0)); hello()\nwhile True: signal.pause()"), rank=1)
        shim.greeter.meet()
        shim.end_and_wait()
        told = {e["rank"]: (e["exit_code"], e["before_signal"]) for e in shim.events if e["event"] == "exited"}
        assert told == {0: (0, True), 1: (0, False)}

    def test_who_ignores_the_signal_is_killed_after_the_grace(self, shim):
        shim.spawn(python(DEAF))
        shim.greeter.meet()
        began = time.monotonic()
        shim.end_and_wait(0.3)
        assert time.monotonic() - began >= 0.3
        assert shim.wait_for("exited")["signal"] == signal.SIGKILL

    def test_a_second_end_shortens_the_grace_and_never_lengthens_it(self, shim):
        shim.spawn(python(DEAF))
        shim.greeter.meet()
        shim.end(PATIENCE_SECONDS * 10, reason="hold", by="ann")
        shim.end(0.1, reason="stop", by="bob")
        shim.end_and_wait(PATIENCE_SECONDS * 10)
        announced = json.loads((shim.folder / "result-worker-0.stop").read_text())
        assert (announced["reason"], announced["by"]) == ("hold", "ann")
        assert datetime.fromisoformat(announced["deadline"]) < datetime.now(UTC) + timedelta(seconds=1)

    def test_kill_waits_for_nothing(self, shim):
        shim.spawn(python(DEAF))
        shim.greeter.meet()
        shim.end(PATIENCE_SECONDS * 10)
        shim.order("kill")
        shim.wait_for("gone")
        assert shim.wait_for("exited")["signal"] == signal.SIGKILL

    def test_reason_and_deadline_are_there_when_the_signal_comes(self, shim):
        code = """
def stop(*_):
    print(open(os.environ["DISPATCH_RESULT_PATH"] + ".stop").read())
    sys.exit(0)
signal.signal(signal.SIGTERM, stop); hello()
while True: signal.pause()
"""
        shim.spawn(python(code))
        shim.greeter.meet()
        asked = datetime.now(UTC)
        shim.end(20, reason="maintenance", by="ann")
        shim.wait_for("gone")
        seen = json.loads(read_text(shim)[0])
        assert (seen["reason"], seen["by"]) == ("maintenance", "ann")
        assert timedelta(seconds=19) < datetime.fromisoformat(seen["deadline"]) - asked < timedelta(seconds=22)

    def test_a_stopped_rank_hears_the_signal_too(self, shim):
        shim.spawn(python(WAIT))
        os.kill(shim.greeter.meet(), signal.SIGSTOP)
        shim.end_and_wait()
        assert shim.wait_for("exited")["signal"] == signal.SIGTERM

    def test_nothing_is_started_after_the_end_has_begun(self, shim):
        shim.spawn(python(DEAF))
        shim.greeter.meet()
        shim.end()
        shim.spawn(["true"], rank=1)
        assert shim.wait_for("spawn_failed")["errno"] == errno.ESHUTDOWN

    def test_an_execution_without_ranks_ends_too(self, shim):
        shim.end_and_wait()
        assert [event["event"] for event in shim.events] == ["gone"]

    def test_the_shim_does_not_hear_what_is_meant_for_its_ranks(self, shim):
        shim.spawn(python(WAIT))
        shim.greeter.meet()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            shim.process.send_signal(number)
        shim.end_and_wait()
        assert shim.process.returncode == 0


class TestNothingSurvives:
    def test_double_fork_and_own_session_are_gone_before_gone_is_said(self, shim):
        shim.spawn(python("if not os.fork(): detach()\n" + DEAF), rank=0)
        shim.spawn(python(WAIT), rank=1)
        pids = [shim.greeter.meet() for _ in range(3)]
        shim.end(0)
        shim.wait_for("gone")
        assert [shim.greeter.is_gone(pid) for pid in pids] == [True] * 3

    def test_what_a_rank_leaves_behind_ends_with_its_main_process(self, shim):
        code = """
if not os.fork():
    detach(); signal.signal(15, signal.SIG_IGN); hello()
    while True: signal.pause()
hello(); signal.pause()
"""
        shim.spawn(python(code), rank=0)
        shim.spawn(python(WAIT), rank=1)
        pids = {shim.greeter.meet() for _ in range(3)}
        ranks = [shim.wait_for("started", rank=rank)["pid"] for rank in (0, 1)]
        (left_behind,) = pids - set(ranks)
        os.kill(ranks[0], signal.SIGKILL)
        shim.greeter.wait_until_gone(left_behind)
        assert not shim.greeter.is_gone(ranks[1])

    def test_what_hides_its_environment_ends_with_the_execution(self, shim):
        code = "detach(); os.execve(sys.executable, [sys.executable, '-ISc', CODE], {'HELLO': os.environ['HELLO']})"
        hidden = python(DEAF)[-1]
        shim.spawn(python(f"CODE = {hidden!r}\nif not os.fork(): {code}\n{WAIT}"))
        pids = [shim.greeter.meet(), shim.greeter.meet()]
        shim.end(0)
        shim.wait_for("gone")
        assert [shim.greeter.is_gone(pid) for pid in pids] == [True, True]

    @pytest.mark.parametrize("step", ["", "os.setsid()"])
    def test_a_process_that_forks_without_end_is_caught(self, shim, step):
        shim.spawn(python(ENDLESS.format(step=step) + DEAF))
        pids = [shim.greeter.meet(), shim.greeter.meet()]
        shim.end(0)
        shim.wait_for("gone")
        assert [shim.greeter.is_gone(pid) for pid in pids] == [True, True]
        assert shim.process.wait(PATIENCE_SECONDS) == 0
        assert shim.is_lock_free()

    @pytest.mark.parametrize("step", ["", "os.setsid()"])
    def test_one_that_an_ended_rank_left_is_caught_too(self, shim, step):
        shim.spawn(python(WAIT), rank=1)
        other = shim.greeter.meet()
        shim.spawn(python(ENDLESS.format(step=step) + WAIT))
        (left_behind,) = {shim.greeter.meet(), shim.greeter.meet()} - {shim.wait_for("started", rank=0)["pid"]}
        os.kill(shim.wait_for("started", rank=0)["pid"], signal.SIGKILL)
        shim.greeter.wait_until_gone(left_behind)
        assert not shim.greeter.is_gone(other)

    def test_a_broad_and_deep_tree_is_gone(self, shim):
        regroup = "if os.getpid() % 2 and os.getpid() != os.getsid(0): os.setpgid(0, 0)\n"
        shim.spawn(python("for _ in range(4): os.fork()\n" + regroup + DEAF))
        pids = [shim.greeter.meet() for _ in range(16)]
        shim.end(0.05)
        shim.wait_for("gone")
        assert all(shim.greeter.is_gone(pid) for pid in pids)

    def test_who_dies_slowly_is_waited_for(self, shim):
        code = """
def save(*_):
    time.sleep(0.5); print("saved"); sys.exit(0)
signal.signal(signal.SIGTERM, save); hello()
while True: signal.pause()
"""
        shim.spawn(python(code))
        shim.greeter.meet()
        shim.end_and_wait()
        assert read_text(shim) == ["saved"]

    def test_when_the_agent_dies_everything_dies_and_the_lock_is_free(self, shim):
        shim.spawn(python("os.fork()\nif not os.fork(): detach()\n" + DEAF))
        pids = [shim.greeter.meet() for _ in range(4)]
        assert not shim.is_lock_free()
        shim.control.close()
        assert shim.process.wait(PATIENCE_SECONDS) == 0
        assert all(shim.greeter.is_gone(pid) for pid in pids)
        assert shim.is_lock_free()

    def test_a_shim_that_fails_takes_everything_with_it(self, shim):
        shim.spawn(python("if not os.fork(): detach()\n" + DEAF))
        pids = [shim.greeter.meet(), shim.greeter.meet()]
        shim.control.sendall(b"[" * 1_000_000 + b"\n")  # deeper than its parser can go
        assert shim.process.wait(PATIENCE_SECONDS) == 1
        assert [shim.greeter.is_gone(pid) for pid in pids] == [True, True]
        assert shim.is_lock_free()

    def test_the_lock_is_held_as_long_as_anything_runs(self, shim):
        shim.spawn(python("signal.signal(15, lambda *_: print('heard')); hello()\nwhile True: signal.pause()"))
        shim.greeter.meet()
        shim.end()
        assert not shim.is_lock_free()
        shim.order("kill")
        shim.wait_for("gone")
        shim.process.wait(PATIENCE_SECONDS)
        assert shim.is_lock_free()


class TestReadiness:
    def test_without_a_check_a_rank_is_ready_when_it_runs(self, shim):
        shim.spawn(["true"])
        shim.wait_for("exited")
        assert [event["event"] for event in shim.events] == ["started", "ready", "exited"]

    def test_a_command_is_asked_until_it_says_yes(self, shim):
        code = """
hello()
is_here = os.path.exists("sign") and os.environ["DISPATCH_RANK"] == "3"
sys.exit(0 if is_here else 1)
"""
        shim.spawn(python(WAIT), rank=3, readiness={"command": python(code)}, readiness_period_seconds=0.02)
        for _ in range(4):  # the rank and three tries
            shim.greeter.meet()
        shim.spawn(["true"])
        shim.wait_for("exited", rank=0)
        assert not [event for event in shim.events if event["event"] == "ready" and event["rank"] == 3]
        (shim.folder / "sign").touch()
        assert shim.wait_for("ready", rank=3)

    def test_a_check_that_hangs_is_given_up_and_blocks_nothing(self, shim):
        shim.spawn(
            python(WAIT),
            readiness={"command": python(WAIT)},
            readiness_period_seconds=0.02,
            readiness_timeout_seconds=0.2,
        )
        rank = shim.wait_for("started")["pid"]
        tries = [pid for pid in (shim.greeter.meet() for _ in range(3)) if pid != rank]
        shim.greeter.wait_until_gone(tries[0])
        shim.spawn(["true"], rank=1)
        assert shim.wait_for("exited", rank=1)["exit_code"] == 0
        shim.end_and_wait()
        assert not [event for event in shim.events if event["event"] == "ready" and event["rank"] == 0]

    def test_a_port_is_tried_until_somebody_listens(self, shim):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
            shim.spawn(python(WAIT), readiness={"tcp_port": port}, readiness_period_seconds=0.02)
            shim.wait_for("started")
            shim.spawn(["true"], rank=1)
            shim.wait_for("exited", rank=1)
            assert not [event for event in shim.events if event["event"] == "ready" and event["rank"] == 0]
            listener.listen()
            assert shim.wait_for("ready", rank=0)

    @pytest.mark.parametrize("readiness", [{"command": ["no-such-command"]}, {"tcp_port": 0}, {"tcp_port": 99_999}])
    def test_a_check_that_cannot_be_made_is_never_ready_and_harms_nothing(self, shim, readiness):
        shim.spawn(python(WAIT), readiness=readiness, readiness_period_seconds=0.01)
        shim.greeter.meet()
        shim.end_and_wait()
        assert [event["event"] for event in shim.events] == ["started", "exited", "gone"]


class TestMemory:
    GREEDY = "block = bytearray(150 << 20)\nfor i in range(0, len(block), 4096): block[i] = 1\nhello(); signal.pause()"

    def test_a_rank_above_its_limit_is_killed_and_the_others_are_not(self, shim):
        shim.spawn(python(self.GREEDY), rank=0, memory_bytes=100 << 20)
        shim.spawn(python(self.GREEDY), rank=1, memory_bytes=400 << 20)
        told = shim.wait_for("exited")
        assert (told["rank"], told["signal"], told["out_of_memory"]) == (0, signal.SIGKILL, True)
        shim.end_and_wait()
        told = shim.wait_for("exited", rank=1)
        assert (told["signal"], told["out_of_memory"]) == (signal.SIGTERM, False)

    def test_what_a_rank_has_started_counts(self, shim):
        shim.spawn(python(f"if not os.fork(): detach()\n{self.GREEDY}"), memory_bytes=250 << 20)
        assert shim.wait_for("exited")["out_of_memory"] is True

    def test_memory_shared_after_a_fork_counts_once(self, shim):
        # Eight processes that share 60 MiB: far above the limit if counted each, far below together.
        shim.spawn(python("block = bytearray(60 << 20)\nfor _ in range(3): os.fork()\n" + WAIT), memory_bytes=250 << 20)
        pids = [shim.greeter.meet() for _ in range(8)]
        greedy = python(self.GREEDY)
        shim.spawn(greedy, rank=1, memory_bytes=100 << 20)
        shim.wait_for("exited", rank=1)  # at least one look has been taken at both
        assert not any(shim.greeter.is_gone(pid) for pid in pids)


def test_an_idle_shim_takes_no_time(shim):
    shim.spawn(python(WAIT))
    shim.greeter.meet()
    ticks = [_read_ticks(shim.process.pid)]
    shim.spawn(["sleep", "1"], rank=1)
    shim.wait_for("exited", rank=1)
    ticks.append(_read_ticks(shim.process.pid))
    assert (ticks[1] - ticks[0]) / os.sysconf("SC_CLK_TCK") < 0.1


def test_a_shim_without_descriptors_waits_in_peace_until_it_can_look_again(shim):
    shim.spawn(python("if not os.fork(): detach()\n" + DEAF))
    pids = [shim.greeter.meet(), shim.greeter.meet()]
    limits = resource.prlimit(shim.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(shim.process.pid, resource.RLIMIT_NOFILE, (0, limits[1]))
    shim.end(0)
    shim.wait_for("exited")
    ticks = [_read_ticks(shim.process.pid)]
    subprocess.run(["sleep", "1"], check=True)
    ticks.append(_read_ticks(shim.process.pid))
    assert (ticks[1] - ticks[0]) / os.sysconf("SC_CLK_TCK") < 0.1
    assert [shim.greeter.is_gone(pid) for pid in pids].count(False) == 1
    resource.prlimit(shim.process.pid, resource.RLIMIT_NOFILE, limits)
    shim.wait_for("gone")
    assert [shim.greeter.is_gone(pid) for pid in pids] == [True, True]


def _read_ticks(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text()
    return sum(map(int, stat.rpartition(")")[2].split()[11:13]))


def test_the_shim_needs_nothing_but_the_standard_library(shim):
    shim.spawn(["true"])
    shim.wait_for("exited")
    command = Path(f"/proc/{shim.process.pid}/cmdline").read_text().split("\0")
    assert command[:2] == [sys.executable, "-I"]
    assert "-S" in command or "COVERAGE_PROCESS_CONFIG" in os.environ
