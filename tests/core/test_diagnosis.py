# SPDX-License-Identifier: Apache-2.0
"""Every cause has a sentence to act on and an exception of its own; what is found is told in full."""

from __future__ import annotations

import pytest

from airflow_provider_dispatch import exceptions
from airflow_provider_dispatch.core.diagnosis import (
    ADVICE,
    ERROR_OF_CAUSE,
    Diagnosis,
    build_error,
    derive_exit_cause,
    describe_rank,
    diagnose,
)
from airflow_provider_dispatch.core.observation import Evidence, FailedRank
from airflow_provider_dispatch.core.state import Cause, State
from tests.core.strategies import NOW, REF, observe

NAMES = {
    Cause.PREEMPTED: "JobPreemptedError",
    Cause.NODE_LOST: "NodeLostError",
    Cause.OUT_OF_MEMORY: "JobOutOfMemoryError",
    Cause.EVICTED: "JobEvictedError",
    Cause.TIMEOUT: "JobTimeoutError",
    Cause.NO_CAPACITY: "NoCapacityError",
    Cause.IMAGE: "JobImageError",
    Cause.EXITED: "JobExitedError",
    Cause.MISCONFIGURED: "JobMisconfiguredError",
    Cause.DEPENDENCY_FAILED: "JobDependencyError",
    Cause.STOPPED: "JobStoppedError",
    Cause.DELETED: "JobDeletedError",
    Cause.UNKNOWN: "JobFailedUnknownError",
}
JOB = f"job {REF.id}"


def test_every_cause_has_advice() -> None:
    assert set(ADVICE) == set(Cause)
    assert len(set(ADVICE.values())) == len(Cause)


@pytest.mark.parametrize("cause", Cause)
def test_advice_reads_on_from_what_to_do(cause: Cause) -> None:
    assert ADVICE[cause][0].islower()
    assert not ADVICE[cause].endswith(".")


@pytest.mark.parametrize("cause", Cause)
def test_every_cause_has_an_exception_of_its_own(cause: Cause) -> None:
    seen = observe(State.FAILED, cause=cause, detail="so it was")

    error = build_error(seen, diagnose(seen))

    assert type(error) is ERROR_OF_CAUSE[cause] is getattr(exceptions, NAMES[cause])
    assert str(error) == f"{JOB}: {cause.replace('_', ' ')}: so it was. What to do: {ADVICE[cause]}."
    assert error.observation is seen
    assert error.diagnosis == diagnose(seen)


@pytest.mark.parametrize(
    ("rank", "words"),
    [
        (FailedRank("worker", 1, exit_code=3), "rank 1 of worker exited with code 3"),
        (FailedRank("worker", 0, exit_code=0), "rank 0 of worker exited with code 0"),
        (FailedRank("node", 0, signal=9), "rank 0 of node was ended by signal 9 (SIGKILL)"),
        (FailedRank("node", 0, exit_code=1, signal=15), "rank 0 of node was ended by signal 15 (SIGTERM)"),
        (FailedRank("node", 2, signal=999), "rank 2 of node was ended by signal 999"),
        (FailedRank("node", 2), "rank 2 of node failed"),
    ],
)
def test_a_rank_is_told_by_how_it_ended(rank: FailedRank, words: str) -> None:
    assert describe_rank(rank) == words


@pytest.mark.parametrize(
    ("rank", "out_of_memory", "cause"),
    [
        (FailedRank("node", 0, signal=9), True, Cause.OUT_OF_MEMORY),
        (FailedRank("node", 0), True, Cause.OUT_OF_MEMORY),
        (FailedRank("node", 0, signal=9), False, Cause.EXITED),
        (FailedRank("node", 0, exit_code=3), False, Cause.EXITED),
        (FailedRank("node", 0), False, Cause.UNKNOWN),
    ],
)
def test_the_cause_when_a_rank_s_end_is_all_there_is(rank: FailedRank, out_of_memory: bool, cause: Cause) -> None:
    assert derive_exit_cause(rank, out_of_memory=out_of_memory) is cause


def test_a_diagnosis_tells_all_that_was_seen() -> None:
    rank = FailedRank("worker", 1, exit_code=3)
    evidence = (Evidence("pod/x", "exitCode", "3", NOW), Evidence("pod/x", "reason", "Error"))
    seen = observe(
        State.FAILED, cause=Cause.EXITED, detail="it broke", evidence=evidence, failed_rank=rank, last_lines=("a", "b")
    )

    found = diagnose(seen)

    summary = f"{JOB}: exited: rank 1 of worker exited with code 3; it broke"
    assert found == Diagnosis(Cause.EXITED, summary, ADVICE[Cause.EXITED], evidence, rank, ("a", "b"))
    assert found.to_text().splitlines() == [
        f"{summary}. What to do: read the last lines of the rank that failed first.",
        "  pod/x exitCode = 3",
        "  pod/x reason = Error",
        "  | a",
        "  | b",
    ]


def test_nothing_is_told_twice() -> None:
    rank = FailedRank("node", 0, exit_code=3)
    seen = observe(State.FAILED, cause=Cause.EXITED, detail=describe_rank(rank), failed_rank=rank)

    assert diagnose(seen).summary == f"{JOB}: exited: rank 0 of node exited with code 3"


def test_nothing_known_is_told_as_such() -> None:
    assert diagnose(observe(State.FAILED)) == Diagnosis(Cause.UNKNOWN, f"{JOB}: unknown", ADVICE[Cause.UNKNOWN])


def test_the_caller_may_know_better() -> None:
    seen = observe(State.QUEUED, cause=Cause.NO_CAPACITY, detail="no room")

    found = diagnose(seen, Cause.TIMEOUT, "the queued clock ran out")

    assert (found.cause, found.summary) == (Cause.TIMEOUT, f"{JOB}: timeout: the queued clock ran out")
    assert diagnose(seen, Cause.TIMEOUT).summary == f"{JOB}: timeout: no room"
    assert diagnose(seen, reason="so").summary == f"{JOB}: no capacity: so"


def test_text_from_outside_is_cut() -> None:
    long = "x" * 600
    seen = observe(State.FAILED, detail=long, evidence=(Evidence("o", "f", long),), last_lines=(long,))

    lines = diagnose(seen).to_text().splitlines()

    cut = "x" * 500 + "… (100 more characters)"
    assert lines[0].startswith(f"{JOB}: unknown: {cut}. What")
    assert lines[1:] == [f"  o f = {cut}", f"  | {cut}"]
