# SPDX-License-Identifier: Apache-2.0
"""Every verb by hand, over a local store with real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest
import yaml

from airflow_provider_dispatch.core.owner import Owner
from tests.adapters.local.world import WAIT, World, new_job, python_job
from tests.cli.calling import Caller

PYTHON = (sys.executable, "-I", "-S", "-u", "-c")
PATIENCE_SECONDS = 60
NOBODY = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


def begin(dispatch: Caller, *options: str, program: str = WAIT) -> str:
    """Start a job through its gate and wait until it runs; its id."""
    job = dispatch.json("start", "--open", "--grace-period", "2s", *options, "--", *PYTHON, program)["job"]
    answer = dispatch("watch", job, "--until", "running", "--timeout", "30s")
    assert answer.code == 0, answer.err
    return job


def run_to_end(dispatch: Caller, program: str) -> str:
    return dispatch("start", "--open", "--wait", "-o", "json", "--", *PYTHON, program).data["ref"]["job"]


def test_a_job_by_hand_from_its_start_to_its_end(dispatch: Caller) -> None:
    ref = dispatch.json("start", "--nodes", "2", "--label", "team=a", "--", *PYTHON, "pass")

    assert dispatch.json("inspect", ref["id"])["state"] == "gated"
    assert dispatch("open", ref["job"].lower()).code == 0
    watched = dispatch("watch", ref["job"], "--timeout", "30s")
    listed = dispatch.json("list", "--label", "team=a", "--state", "succeeded")

    assert (watched.code, watched.err) == (0, "")
    assert watched.out.splitlines()[-1].endswith("succeeded")
    assert [record["ref"] for record in listed] == [ref]
    assert dispatch.json("list", "--label", "team=b") == []


def test_a_job_that_fails_is_explained(dispatch: Caller) -> None:
    answer = dispatch("start", "--open", "--wait", "-o", "json", "--", *PYTHON, "print('no data'); raise SystemExit(3)")

    job = answer.data["ref"]["job"]
    explained = dispatch("explain", job)

    assert (answer.code, answer.data["state"], answer.data["cause"]) == (1, "failed", "exited")
    assert answer.err.startswith("error: job ")  # nobody watches: no progress
    assert "rank 0 of node exited with code 3" in answer.err
    assert "What to do: read the last lines" in explained.out
    assert "  | no data" in explained.out
    assert dispatch("watch", job).code == 1


def test_a_hold_is_placed_told_and_lifted(dispatch: Caller) -> None:
    job = begin(dispatch)

    placed = dispatch.json("hold", job, "--reason", "maintenance", "--until", "2h", "--wait", "--timeout", "30s")
    again = dispatch.json("hold", job)
    explained = dispatch("explain", job)
    released = dispatch.json("release", job)
    watched = dispatch("watch", job, "--until", "running", "--timeout", "30s", "-o", "json")
    dispatch("stop", job)

    assert again == placed
    assert placed["actor"]["kind"] == "human"
    assert ": maintenance" in explained.out.splitlines()[0]
    assert f"dispatch release {job} --instance 1" in explained.out
    assert released == {"released": [1], "remaining": []}
    assert json.loads(watched.out.splitlines()[-1])["epoch"] == 1000002


def test_a_hold_of_somebody_else_is_lifted_only_by_name(dispatch: Caller) -> None:
    job = begin(dispatch)
    dispatch("hold", job, "--key", "somebody")

    mine, exact, again, never = (
        dispatch("release", job, *options)
        for options in ([], ["--instance", "1"], ["--instance", "1"], ["--instance", "9"])
    )
    by_key = dispatch("hold", job, "--key", "k"), dispatch("release", job, "--key", "k")
    dispatch("stop", job)

    assert (mine.code, "--instance" in mine.err) == (4, True)
    assert (exact.code, again.code) == (0, 0)
    assert (never.code, "never placed" in never.err) == (4, True)
    assert [answer.code for answer in by_key] == [0, 0]


def test_a_stop_removes_everything_and_says_so(dispatch: Caller) -> None:
    job = begin(dispatch)

    report = dispatch.json("stop", job, "--reason", "enough")
    seen = dispatch.json("inspect", job)
    again = dispatch("stop", job)
    found = dispatch.json("find", job)

    assert report["is_complete"]
    assert {"object": "submission 1", "detail": ""} in report["stopped"]
    assert (seen["state"], seen["cause"], seen["detail"]) == ("gone", "stopped", "enough")
    assert (again.code, "nothing was left" in again.out) == (0, True)
    assert (found["ledger"], found["submissions"], found["orphans"]) == (1, [], [])


def test_a_stop_asks_whose_the_job_is(dispatch: Caller, world: World) -> None:
    ref = world.play(lambda at: at.start(python_job("pass"), owner=Owner("", "dag", "run", "train", -1, 1, "ti-1")))

    refused = dispatch("stop", ref.job, "--if-owner", "ti-2")
    stopped = dispatch("stop", ref.job, "--if-owner", "ti-1")

    assert (refused.code, stopped.code) == (4, 0), refused.err


def test_an_owner_is_changed_only_by_compare_and_swap(dispatch: Caller, world: World) -> None:
    ref = world.play(lambda at: at.start(python_job("pass"), owner=Owner("", "dag", "run", "train", -1, 1, "ti-1")))

    refused = dispatch("adopt", ref.job, "--expected", "ti-0", "--instance-id", "ti-2")
    given = dispatch.json("adopt", ref.job, "--expected", "ti-1", "--instance-id", "ti-2", "--try-number", "2")
    freed = dispatch.json("adopt", ref.job)
    dispatch("stop", ref.job)

    assert refused.code == 4
    assert (given["owner"]["instance_id"], given["owner"]["try_number"], given["owner"]["task_id"]) == (
        "ti-2",
        2,
        "train",
    )
    assert (freed["owner"]["instance_id"], freed["owner"]["dag_id"]) == ("", "")


def test_lines_are_read_whole_from_a_cursor_and_of_one_rank(dispatch: Caller) -> None:
    job = dispatch(
        "start",
        "--open",
        "--wait",
        "--nodes",
        "2",
        "-o",
        "json",
        "--",
        *PYTHON,
        ("import os; print('rank', os.environ['DISPATCH_RANK']); print('done')"),
    ).data["ref"]["job"]

    lines = [json.loads(line) for line in dispatch("logs", job, "--rank", "1", "-o", "json").out.splitlines()]
    rest = dispatch("logs", job, "--rank", "1", "--cursor", lines[0]["cursor"])
    first = dispatch("logs", job, "--lines", "1", "--timestamps", "--epoch", "1000001", "--role", "node")

    assert [line["text"] for line in lines] == ["rank 1", "done"]
    assert rest.out == "done\n"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z rank 0\n", first.out)
    assert dispatch("logs", job, "--cursor", "nonsense").code == 6
    assert [doc["text"] for doc in yaml.safe_load_all(dispatch("logs", job, "-f", "-o", "yaml").out)] == [
        "rank 0",
        "done",
    ]


def test_events_tell_what_happened(dispatch: Caller) -> None:
    job = run_to_end(dispatch, "pass")

    kinds = [event["kind"] for event in dispatch.json("events", job)]

    assert kinds[0] == "submitted"
    assert {"opened", "admitted", "running", "succeeded"} <= set(kinds)
    assert dispatch("events", NOBODY).code == 4


def test_the_backend_is_proved(dispatch: Caller) -> None:
    found, can = dispatch.json("preflight"), dispatch.json("capabilities")

    assert found["is_proved"]
    assert found["checks"]["store"]["value"] == "yes"
    assert can == found["capabilities"]
    assert dispatch("preflight").out.splitlines()[-1] == "jobs may be started here"


def test_garbage_is_shown_first_and_removed_when_told(dispatch: Caller) -> None:
    ended, young = run_to_end(dispatch, "pass"), begin(dispatch)

    shown = dispatch("gc", "--ended", "0s", ended, young)
    still_there = dispatch.json("inspect", ended)["state"]
    removed = dispatch.json("gc", ended, young, "--ended", "0s", "--yes")
    left = dispatch.json("inspect", ended)["state"], dispatch.json("inspect", young)["state"]
    dispatch("stop", young)

    assert "may be removed" in shown.out
    assert "--yes" in shown.err
    assert still_there == "succeeded"
    assert [(row["job"], row["outcome"]) for row in removed] == [(ended, "removed")]
    assert left == ("gone", "running")


def test_nobody_has_heard_of_a_job(dispatch: Caller) -> None:
    answers = [dispatch(verb, NOBODY) for verb in ("inspect", "find", "open", "watch", "logs", "release", "stop")]

    assert {answer.code for answer in answers} == {4}
    assert all(f"there is no job {NOBODY} in " in answer.err for answer in answers)
    assert dispatch("hold", NOBODY).code == 4


def test_a_job_of_another_place_is_refused(dispatch: Caller) -> None:
    answer = dispatch("inspect", f"elsewhere@host/dj-{NOBODY.lower()}-s1")

    assert (answer.code, "lives in local elsewhere@host" in answer.err) == (4, True)


def test_the_same_start_twice_is_one_start(dispatch: Caller) -> None:
    words = ("start", "--job", new_job(), "--submission", "1")

    first, again = (dispatch.json(*words, "--", "true") for _ in range(2))
    other = dispatch(*words, "--", "false")
    next_one = dispatch(*words[:3], "--", "true")

    assert first == again
    assert (other.code, next_one.code) == (4, 4)


def test_a_spec_comes_from_a_file_and_options_override_it(dispatch: Caller, tmp_path: Path) -> None:
    spec = tmp_path / "job.yaml"
    spec.write_text(yaml.safe_dump({"command": ["true"], "nodes": 3, "queue": "slow", "env": {"TOKEN": "hush"}}))

    job = dispatch.json("start", "--file", str(spec), "--queue", "fast", "--priority", "-5")["job"]
    found = dispatch("find", job, "-o", "json")
    spec_found = found.data["submissions"][0]["spec"]

    assert (spec_found["queue"], spec_found["priority"], spec_found["roles"][0]["nodes"]) == ("fast", -5, 3)
    assert spec_found["roles"][0]["env"] == {"TOKEN": "(hidden)"}
    assert "hush" not in found.out


def test_a_command_that_is_typed_runs_in_the_folder_it_was_typed_in(dispatch: Caller, tmp_path: Path) -> None:
    program = "import os; print(os.getcwd())"
    spec = tmp_path / "job.yaml"
    spec.write_text(yaml.safe_dump({"command": [*PYTHON, program]}))

    def read_folder(*words: str) -> str:
        job = dispatch("start", "--open", "--wait", "-o", "json", *words).data["ref"]["job"]
        return dispatch("logs", job).out.strip()

    typed = read_folder("--", *PYTHON, program)
    elsewhere = read_folder("--working-dir", str(tmp_path), "--", *PYTHON, program)
    from_a_file = read_folder("--file", str(spec))

    assert (typed, elsewhere) == (os.getcwd(), str(tmp_path))
    assert from_a_file.endswith("/state")


def test_a_wait_that_takes_too_long_may_be_made_again(dispatch: Caller) -> None:
    job = dispatch.json("start", "--", "true")["job"]

    answer = dispatch("watch", job, "--timeout", "0.2s")

    assert answer.code == 3
    assert "not finished within" in answer.err
    assert "gated: waiting for its gate to be opened" in answer.err


def test_several_jobs_are_watched_at_once(dispatch: Caller) -> None:
    good, bad = (dispatch.json("start", "--open", "--", word)["job"] for word in ("true", "false"))

    answer = dispatch("watch", good, bad, "--timeout", "30s")

    assert answer.code == 1
    assert f"{good} 1  succeeded" in answer.out
    assert "exited with code 1" in answer.err


# -- Ctrl-C ------------------------------------------------------------------------------------------------------------


def read_until(stream: IO[str], is_there: Callable[[str], bool]) -> str:
    for line in stream:
        if is_there(line):
            return line
    raise AssertionError("the output ended early")


@pytest.mark.parametrize(("words", "sign"), [(["watch"], "running:"), (["logs", "-f"], "epoch 1000001")])
def test_ctrl_c_ends_the_look_and_never_the_job(dispatch: Caller, words: list[str], sign: str) -> None:
    job = begin(dispatch)
    looking = dispatch.spawn(*words, job)
    try:
        assert looking.stdout is not None
        read_until(looking.stdout, lambda line: sign in line)
        looking.send_signal(signal.SIGINT)
        _, said = looking.communicate(timeout=PATIENCE_SECONDS)
    finally:
        looking.kill()
        looking.wait()

    state = dispatch.json("inspect", job)["state"]
    dispatch("stop", job)
    assert (looking.returncode, state) == (130, "running")
    assert said == "interrupted: the job goes on untouched\n"


STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf'); time.sleep(60)"


@pytest.mark.parametrize(
    ("words", "state", "told"),
    [
        (["hold", "--wait"], "holding", "what was asked for stands and is carried out"),
        (["stop"], "stopping", "the stop may or may not have begun; the same call again goes on with it"),
    ],
)
def test_ctrl_c_in_a_wait_leaves_what_was_asked_for(dispatch: Caller, words: list[str], state: str, told: str) -> None:
    job = dispatch.json("start", "--open", "--grace-period", "1h", "--", *PYTHON, STUBBORN)["job"]
    assert "deaf" in dispatch("logs", "-f", "--lines", "1", job).out
    waiting = dispatch.spawn(*words, job)
    try:
        while dispatch.json("inspect", job)["state"] == "running":
            assert waiting.poll() is None
        waiting.send_signal(signal.SIGINT)
        _, said = waiting.communicate(timeout=PATIENCE_SECONDS)
    finally:
        waiting.kill()
        waiting.wait()

    left = dispatch.json("inspect", job)["state"]
    dispatch("stop", job, "--timeout", "0.1s")
    assert (waiting.returncode, left) == (130, state)
    assert said == f"interrupted: {told}\n"


def test_ctrl_c_does_not_reach_the_agent_that_a_call_started(dispatch: Caller, world: World) -> None:
    """The whole process group gets the signal from a terminal, and a new agent must not be in it."""
    world.end_agent()
    waiting = dispatch.spawn("start", "--open", "--wait", "--job", job := new_job(), "--", *PYTHON, WAIT)
    try:
        assert dispatch("list").code == 0
        while dispatch("watch", job, "--until", "running", "--timeout", "30s").code == 4:
            assert waiting.poll() is None
        os.killpg(waiting.pid, signal.SIGINT)
        _, said = waiting.communicate(timeout=PATIENCE_SECONDS)
    finally:
        waiting.kill()
        waiting.wait()

    state = dispatch.json("inspect", job)["state"]
    dispatch("stop", job)
    assert (waiting.returncode, state) == (130, "running")
    assert f"dispatch inspect {job}" in said
