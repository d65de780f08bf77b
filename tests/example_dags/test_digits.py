# SPDX-License-Identifier: Apache-2.0
"""The training program of the examples, as real processes: what it promises about epochs, signals and lost ranks."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np
import pytest

FIRST, SECOND = 1000001, 1000002
PATIENCE_SECONDS = 60


class Rank:
    """One process of the program, read line by line, so that a test waits for what it says, never for time."""

    def __init__(self, program: Path, environment: dict[str, str], *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(program), *arguments],
            env={"PATH": os.environ["PATH"], **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []

    def read_until(self, text: str) -> str:
        for line in self._stdout:
            self.lines.append(line)
            if text in line:
                return line
        raise AssertionError(f"ended without saying {text!r}: {self.lines} {self.complaint}")

    def end(self) -> int:
        self.lines += self._stdout.readlines()
        return self.process.wait(PATIENCE_SECONDS)

    @property
    def complaint(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read()

    @property
    def _stdout(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


StartGang = Callable[..., list[Rank]]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def start_gang(repository: Path, tmp_path: Path, state: Path) -> Iterator[StartGang]:
    """Starts the ranks of one execution, as a scheduler would."""
    started: list[Rank] = []

    def start(
        epoch: int = FIRST,
        *arguments: str,
        ranks: int = 2,
        only: Sequence[int] | None = None,
        port: int | None = None,
        folder: Path = state,
    ) -> list[Rank]:
        port = port or free_port()
        gang = [
            Rank(
                repository / "example_dags/training/digits.py",
                {
                    "DISPATCH_EPOCH": str(epoch),
                    "DISPATCH_RANK": str(rank),
                    "DISPATCH_NODES": str(ranks),
                    "DISPATCH_LEADER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    "DISPATCH_STATE_DIR": str(folder),
                    "DISPATCH_RESULT_PATH": str(tmp_path / "result.json"),
                },
                *arguments,
            )
            for rank in (range(ranks) if only is None else only)
        ]
        started.extend(gang)
        return gang

    yield start
    for rank in started:
        rank.process.kill()
        rank.process.communicate()


@pytest.fixture
def result(tmp_path: Path) -> Callable[[], dict[str, object]]:
    return lambda: json.loads((tmp_path / "result.json").read_text())


def checkpoints(state: Path) -> set[str]:
    return {path.name for path in state.glob("checkpoint-*.npz")}


def assert_same_weights(one: Path, other: Path) -> None:
    """To the last bit, so that no accident of rounding can hide a different path through the data."""
    with np.load(one) as first, np.load(other) as second:
        assert np.array_equal(first["weights"], second["weights"])


def term(gang: list[Rank]) -> None:
    for rank in gang:
        rank.process.send_signal(signal.SIGTERM)


def test_two_ranks_learn_to_read(start_gang, result):
    gang = start_gang()

    assert [rank.end() for rank in gang] == [0, 0]
    assert result()["accuracy"] > 0.94
    assert result() | {"accuracy": 0} == {"accuracy": 0, "steps": 400, "resumed_from": None, "epoch": FIRST}
    assert gang[1].lines == []
    assert "epoch 1000001 step 40/400 loss 0.7" in "".join(gang[0].lines)


def test_one_process_without_a_scheduler_keeps_its_state_in_the_current_folder(repository, tmp_path):
    program = repository / "example_dags/training/digits.py"
    done = subprocess.run(
        [sys.executable, str(program), "--steps=20"], cwd=tmp_path, env={}, capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 0, done.stderr
    assert checkpoints(tmp_path / "state") == {"checkpoint-e0-20.npz"}


def test_interrupted_and_resumed_it_ends_where_it_would_have_ended(start_gang, result, tmp_path, state):
    for rank in start_gang(FIRST, folder=tmp_path / "undisturbed"):
        rank.end()
    undisturbed = result()

    gang = start_gang(FIRST, "--step-delay=0.01")
    gang[0].read_until("step 100/400")
    term(gang)
    assert [rank.end() for rank in gang] == [0, 0]
    saved = gang[0].lines[-1].split()[-1]
    again = start_gang(SECOND)
    assert [rank.end() for rank in again] == [0, 0]

    assert saved.startswith("checkpoint-e1000001-")
    assert f"resumed from {saved}" in again[0].lines[0]
    assert result() == undisturbed | {"resumed_from": saved, "epoch": SECOND}
    assert_same_weights(tmp_path / "undisturbed/checkpoint-e1000001-400.npz", state / "checkpoint-e1000002-400.npz")


def test_term_is_obeyed_at_once_even_in_a_long_step(start_gang, state):
    gang = start_gang(FIRST, "--step-delay=30", "--checkpoint-every=1")
    gang[0].read_until("step 1/400")
    before = time.monotonic()
    term(gang)

    assert [rank.end() for rank in gang] == [0, 0]
    assert time.monotonic() - before < 5  # it takes a tenth of a second; a busy machine may take longer
    assert checkpoints(state) == {"checkpoint-e1000001-1.npz"}
    assert "interrupted at step 1: saved" in gang[0].lines[-1]


def test_a_rank_that_obeys_term_a_moment_earlier_is_no_lost_peer(start_gang):
    gang = start_gang(FIRST, "--step-delay=0.01")
    gang[0].read_until("step 20/400")
    term(gang[1:])
    gang[1].end()
    term(gang[:1])

    assert gang[0].end() == 0


def test_the_newest_checkpoint_is_the_greatest_by_number(start_gang, state):
    for rank in start_gang(999, "--steps=100", ranks=1):
        rank.end()
    for rank in start_gang(1000, "--steps=120", ranks=1):
        rank.end()
    assert {"checkpoint-e999-80.npz", "checkpoint-e999-100.npz", "checkpoint-e1000-120.npz"} <= checkpoints(state)

    [third] = start_gang(1001, "--steps=120", ranks=1)

    assert "resumed from checkpoint-e1000-120.npz" in third.read_until("begins at step 120")


def test_an_older_execution_is_refused_at_its_start(start_gang, state):
    for rank in start_gang(SECOND, "--steps=20", ranks=1):
        rank.end()

    [stale] = start_gang(FIRST, ranks=1)

    assert stale.end() == 3
    assert "epoch 1000001 may not write: epoch 1000002 has claimed" in stale.complaint
    assert checkpoints(state) == {"checkpoint-e1000002-20.npz"}


@pytest.mark.parametrize("by_term", [True, False], ids=["when it saves on TERM", "at its next checkpoint"])
def test_an_older_execution_that_still_runs_writes_nothing_more(start_gang, state, by_term):
    [stale] = start_gang(FIRST, "--step-delay=0.02", ranks=1)
    stale.read_until("step 20/400")
    for rank in start_gang(SECOND, "--steps=20", ranks=1):
        rank.end()
    before = checkpoints(state)
    if by_term:
        term([stale])

    assert stale.end() == 3
    assert "refused" in stale.complaint
    assert checkpoints(state) == before


@pytest.mark.parametrize("victim", [0, 1])
def test_when_a_rank_vanishes_the_other_ends_and_says_so(start_gang, state, victim):
    gang = start_gang(FIRST, "--step-delay=0.02", "--checkpoint-every=30")
    gang[0].read_until("step 30/400")
    gang[victim].process.kill()
    survivor = gang[1 - victim]

    assert survivor.end() == 4
    assert "lost a peer" in survivor.complaint
    if survivor is gang[0]:
        saved = survivor.lines[-1].split()[-1]
        assert survivor.lines[-1].startswith("epoch 1000001 interrupted at step 3")
        assert saved in checkpoints(state)


def test_a_readiness_check_that_only_knocks_disturbs_nobody(start_gang):
    port = free_port()
    [leader] = start_gang(FIRST, "--steps=20", only=[0], port=port)
    leader.read_until("begins at step 0")
    knock(port)
    [follower] = start_gang(FIRST, "--steps=20", only=[1], port=port)

    assert [leader.end(), follower.end()] == [0, 0]


def test_a_straggler_of_an_older_execution_is_not_taken_in(start_gang):
    port = free_port()
    [leader] = start_gang(SECOND, "--steps=20", only=[0], port=port)
    [straggler] = start_gang(FIRST, "--steps=20", only=[1], port=port)
    assert straggler.end() == 4
    [follower] = start_gang(SECOND, "--steps=20", only=[1], port=port)

    assert [leader.end(), follower.end()] == [0, 0]


def knock(port: int) -> None:
    """Connects and closes again, as a TCP readiness check does; the port may open a moment later than we come."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            continue
        return
    raise AssertionError("rank 0 never listened")
