# SPDX-License-Identifier: Apache-2.0
"""One ladder puts the states in order: it is total, it keeps to the order, and an end stays an end."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import fields

import pytest

from airflow_provider_dispatch.core.state import ENDED, OVER, Cause, Signals, State, derive_state
from tests.core.strategies import observe

CONTRACT_STATES = "succeeded failed stopping holding held gated queued starting running gone unknown"
CONTRACT_CAUSES = (
    "preempted node_lost out_of_memory evicted timeout no_capacity image exited misconfigured dependency_failed stopped"
    " deleted unknown"
)
ENDS = (None, State.SUCCEEDED, State.FAILED)
BOOLEANS = [field.name for field in fields(Signals) if field.name != "end"]
ALL_SIGNALS = [
    Signals(end, **dict(zip(BOOLEANS, flags, strict=True)))
    for end in ENDS
    for flags in itertools.product([False, True], repeat=len(BOOLEANS))
]

# When each state fits, in its own words and without a thought of the others.
FITS: dict[State, Callable[[Signals], bool]] = {
    State.SUCCEEDED: lambda seen: seen.has_objects and seen.end is State.SUCCEEDED,
    State.FAILED: lambda seen: seen.has_objects and seen.end is State.FAILED,
    State.STOPPING: lambda seen: seen.has_objects and seen.is_stopping,
    State.HOLDING: lambda seen: seen.has_objects and seen.is_held and seen.has_processes,
    State.HELD: lambda seen: seen.has_objects and seen.is_held and not seen.has_processes,
    State.GATED: lambda seen: seen.has_objects and seen.is_recognised and seen.is_gated,
    State.QUEUED: lambda seen: seen.has_objects and seen.is_recognised and not seen.is_admitted,
    State.STARTING: lambda seen: seen.has_objects and seen.is_recognised and not seen.is_ready,
    State.RUNNING: lambda seen: seen.has_objects and seen.is_recognised and seen.is_ready,
    State.GONE: lambda seen: not seen.has_objects,
    State.UNKNOWN: lambda seen: True,
}


def test_the_states_are_those_of_the_contract_in_the_order_of_precedence() -> None:
    assert [*State] == CONTRACT_STATES.split()
    assert [*FITS] == [*State]


def test_the_causes_are_those_of_the_contract() -> None:
    assert [*Cause] == CONTRACT_CAUSES.split()


def test_of_all_states_that_fit_the_first_in_the_order_counts() -> None:
    wrong = {
        seen: (derive_state(seen), expected)
        for seen in ALL_SIGNALS
        if derive_state(seen) is not (expected := next(state for state in State if FITS[state](seen)))
    }

    assert len(ALL_SIGNALS) == 3 * 2**8
    assert wrong == {}


def test_every_state_is_reached() -> None:
    assert {derive_state(seen) for seen in ALL_SIGNALS} == set(State)


def test_nothing_later_ends_an_end() -> None:
    later = {derive_state(seen) for seen in ALL_SIGNALS if seen.end is State.SUCCEEDED and seen.has_objects}

    assert later == {State.SUCCEEDED}


def test_a_job_of_which_nothing_else_is_known_is_queued() -> None:
    assert derive_state(Signals()) is State.QUEUED
    assert Signals() == Signals(
        end=None,
        has_objects=True,
        is_stopping=False,
        is_held=False,
        has_processes=False,
        is_gated=False,
        is_admitted=False,
        is_ready=False,
        is_recognised=True,
    )


def test_two_states_are_ends_and_a_third_is_over() -> None:
    assert {State.SUCCEEDED, State.FAILED} == ENDED
    assert {State.SUCCEEDED, State.FAILED, State.GONE} == OVER


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("cause", [None, *Cause])
def test_what_an_observation_says_of_its_end(state: State, cause: Cause | None) -> None:
    seen = observe(state, cause=cause)

    assert seen.has_ended is (state in {State.SUCCEEDED, State.FAILED})
    assert seen.is_unheard_of is (state is State.GONE and cause is None)
    assert seen.is_over is (seen.has_ended or (state is State.GONE and cause is not None))


def test_an_observation_of_a_state_alone_claims_nothing_more() -> None:
    seen = observe(State.GATED)

    assert (seen.cause, seen.detail, seen.evidence, seen.execution, seen.executions) == (None, "", (), None, 0)
    assert (seen.gates.is_open, seen.gates.others, seen.holds, seen.pending, seen.ranks) == (False, (), (), None, ())
    assert (seen.waiting_role, seen.failed_rank, seen.last_lines, seen.progress) == (None, None, (), None)
    assert (seen.result, seen.observed_at, seen.clocks.running.since) == (None, None, None)
