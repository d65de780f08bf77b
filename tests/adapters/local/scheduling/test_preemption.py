# SPDX-License-Identifier: Apache-2.0
"""Who is ended for whom, and what becomes of the room."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_dispatch.adapters.local.scheduling.admission import decide_admission
from airflow_provider_dispatch.adapters.local.scheduling.model import (
    Node,
    Plan,
    Preemption,
    Queue,
    Reason,
    ReasonCode,
    Reservation,
)
from tests.adapters.local.scheduling.builders import (
    NOW,
    apply,
    ask,
    build_state,
    ending,
    placed,
    protected,
    waiting,
)

HIGH = waiting("high", ask(2, cpu=1000), priority=10)


def decide(*jobs, **rest) -> Plan:
    return decide_admission(build_state(*jobs, **rest), NOW)


def find_victims(*jobs, **rest) -> list[str]:
    return [preemption.victim for preemption in decide(*jobs, **rest).preempt]


def test_the_whole_plan_of_a_preemption() -> None:
    plan = decide(HIGH, placed("low", cpu=4000, priority=-1))
    assert plan == Plan(
        admit={},
        preempt=(Preemption("low", "high", "makes room in team-a for high, priority 10 over -1"),),
        reservations=(
            Reservation("high", NOW, is_for_preemption=True, room=(("host", {"cpu": 2000}),), victims=("low",)),
        ),
        reasons={"high": Reason(ReasonCode.PREEMPTING, "takes the room of low, which is ending")},
        wake_at=None,
    )


@pytest.mark.parametrize(
    ("running", "victims"),
    [
        pytest.param([placed("low", cpu=3000)], [], id="there is room without"),
        pytest.param([placed("same", cpu=4000, priority=10)], [], id="of the same priority"),
        pytest.param([placed("less", cpu=4000, priority=9)], ["less"], id="of the next lower priority"),
        pytest.param([placed("other", queue="b", cpu=4000)], [], id="of another queue"),
        pytest.param([protected(placed("low", cpu=4000))], [], id="protected"),
        pytest.param([placed("a", cpu=500), placed("b", queue="b", cpu=4000)], [], id="no complete set"),
        pytest.param([placed("a", cpu=2000, priority=1), placed("b", cpu=2000, priority=0)], ["b"], id="the lower"),
        pytest.param([placed("a", cpu=2000, at=5), placed("b", cpu=2000, at=6)], ["b"], id="the shorter run"),
        pytest.param([placed("b", cpu=2000, at=5), placed("a", cpu=2000, at=5)], ["a"], id="the key"),
        pytest.param(
            [placed("a", cpu=1000, at=9, priority=1), placed("b", cpu=3500, at=2, priority=0)],
            ["b"],
            id="priority goes before the run",
        ),
        pytest.param(
            [placed("a", cpu=600), placed("b", cpu=600), placed("c", cpu=3800, priority=1)],
            ["c"],
            id="whoever isn't needed in the end is given back",
        ),
        pytest.param(
            [placed("a", cpu=1000), placed("b", cpu=1000), placed("c", cpu=2500, priority=1)],
            ["a", "b"],
            id="as many as needed",
        ),
        pytest.param(
            [placed("gpu", gpu=1, priority=-9), placed("a", cpu=4500)], ["a"], id="nobody who has nothing to give"
        ),
    ],
)
def test_victims(running, victims) -> None:
    assert find_victims(HIGH, *running) == victims


def test_a_quota_is_made_room_in_as_well() -> None:
    queues = (Queue("team-a", nominal={"cpu": 2000}),)
    plan = decide(HIGH, placed("low", cpu=500), placed("big", cpu=1500, at=1), queues=queues)
    assert [preemption.victim for preemption in plan.preempt] == ["big", "low"]
    assert find_victims(HIGH, placed("low", cpu=500), placed("big", cpu=1500, at=1)) == []


def test_the_room_goes_to_the_preemptor_and_to_nobody_else() -> None:
    state = build_state(HIGH, waiting("other", ask(1, cpu=1000), queue="b", since=0), placed("low", cpu=4000))
    # The other queue goes first and takes what is free; the victim's room is the preemptor's.
    plan = decide_admission(state, NOW)
    assert [*plan.admit] == ["other"]
    assert [preemption.victim for preemption in plan.preempt] == ["low"]
    state = apply(state, plan, NOW)
    late = waiting("late", ask(3, cpu=1000), queue="c", since=NOW)
    state = replace(state, waiting=(*state.waiting, late))
    assert decide_admission(state, NOW).reasons == {
        "high": Reason(ReasonCode.PREEMPTING, "takes the room of low, which is ending"),
        "late": Reason(ReasonCode.NODES, "needs 3 x 1 cpu on host, 0 free"),
    }
    # Before the preemptor's turn comes, its room is set aside; what the victim held beyond it is anybody's.
    gone = replace(state, placed=tuple(job for job in state.placed if job.key != "low"))
    plan = decide_admission(gone, NOW + 1)
    assert plan.admit == {"high": (("host", {"cpu": 2000}),)}
    assert plan.reservations == ()
    assert plan.reasons == {"late": Reason(ReasonCode.NODES, "needs 3 x 1 cpu on host, 2 free")}


def test_what_is_free_beside_the_room_is_given_out_while_victims_end() -> None:
    running = ending(placed("low", cpu=2000))
    held = Reservation("high", NOW - 5, is_for_preemption=True, room=(("host", {"cpu": 2000}),), victims=("low",))
    small = waiting("small", ask(3, cpu=1000))
    plan = decide(HIGH, running, small, reservations=(held,), starvation_after=1e9)
    # Three are free: the reservation lies on the two that the victim still holds... unless high fits already.
    assert [*plan.admit] == ["high"]
    full = placed("full", queue="b", cpu=2000)
    plan = decide(HIGH, running, full, waiting("small", ask(1, cpu=1000)), reservations=(held,))
    assert plan.admit == {"small": (("host", {"cpu": 1000}),)}
    assert plan.reservations == (held,)
    assert plan.preempt == ()


def test_of_a_room_only_what_the_victims_do_not_hold_is_kept_from_others() -> None:
    queues = (Queue("team-a"), Queue("b"))
    victims = (ending(placed("v1", cpu=1000)), ending(placed("v2", cpu=1500, gpu=1)))
    room = (("host", {"cpu": 4000}),)
    held = Reservation("high", NOW, is_for_preemption=True, room=room, victims=("v1", "v2"))
    high = waiting("high", ask(4, cpu=1000), priority=10)
    jobs = (waiting("fits", ask(1, cpu=1000), queue="b"), waiting("more", ask(1, cpu=1001), queue="b", since=0))
    plan = decide(high, *victims, *jobs, queues=queues, reservations=(held,), starvation_after=1e9)
    assert plan.admit == {"fits": (("host", {"cpu": 1000}),)}
    assert plan.reasons == {
        "high": Reason(ReasonCode.PREEMPTING, "takes the room of v1, v2, which are ending"),
        "more": Reason(ReasonCode.RESERVED, "needs 1 x 1001m cpu on host, 0 free beside what is set aside for high"),
    }


def test_the_room_is_kept_in_the_quota_too() -> None:
    queues = (Queue("team-a", nominal={"cpu": 3000}),)
    held = Reservation("high", NOW, is_for_preemption=True, room=(("host", {"cpu": 2000}),))
    jobs = (placed("old", cpu=1000), placed("far", queue="b", cpu=3000))
    late = waiting("late", ask(1, cpu=500))
    plan = decide(HIGH, *jobs, late, queues=queues, reservations=(held,), nodes=[Node("host", {"cpu": 9000})])
    assert [*plan.admit] == ["high"]
    plan = decide(HIGH, *jobs, late, queues=queues, reservations=(held,))
    assert plan.admit == {}
    assert plan.reasons == {
        "high": Reason(ReasonCode.NODES, "needs 2 x 1 cpu on host, 1 free"),
        "late": Reason(ReasonCode.RESERVED, "needs 1 x 500m cpu in team-a, 0 free beside what is set aside for high"),
    }


def test_two_preemptors_take_different_victims_in_one_pass() -> None:
    jobs = [placed(f"low{number}", cpu=2500, at=number) for number in range(2)]
    highs = [waiting(f"h{number}", ask(1, cpu=2500), priority=1, since=NOW + number) for number in range(3)]
    plan = decide(*jobs, *highs)
    assert plan.preempt == (
        Preemption("low1", "h0", "makes room in team-a for h0, priority 1 over 0"),
        Preemption("low0", "h1", "makes room in team-a for h1, priority 1 over 0"),
    )
    assert [one.key for one in plan.reservations] == ["h0", "h1"]
    assert plan.reasons["h2"] == Reason(ReasonCode.NODES, "needs 1 x 2500m cpu on host, 0 free")
    assert plan.wake_at == NOW + 62


def test_what_is_ending_anyway_spares_a_victim() -> None:
    jobs = (ending(placed("stopped", cpu=2000)), placed("low", cpu=3000))
    plan = decide(HIGH, *jobs)
    assert plan.preempt == ()
    assert plan.reservations == (
        Reservation("high", NOW, is_for_preemption=True, room=(("host", {"cpu": 2000}),), victims=("stopped",)),
    )
    assert plan.reasons == {"high": Reason(ReasonCode.PREEMPTING, "takes the room of stopped, which is ending")}
    # One whose end is counted on by somebody else spares nobody.
    second = waiting("second", ask(2, cpu=1000), priority=10, since=NOW + 1)
    assert find_victims(HIGH, second, *jobs) == ["low"]
    # Nor does one that is too small alone, but it does its part.
    lows = (placed("low1", cpu=1000), placed("low2", cpu=3000, at=-1))
    plan = decide(HIGH, ending(placed("stopped", cpu=1000)), *lows)
    assert [preemption.victim for preemption in plan.preempt] == ["low1"]
    assert plan.reservations[0].victims == ("low1", "stopped")


def test_who_could_not_take_the_room_by_force_has_no_claim_on_what_is_ending() -> None:
    jobs = (ending(placed("stopped", cpu=2000)), placed("same", cpu=3000, priority=10), placed("low", gpu=1))
    plan = decide(HIGH, *jobs)
    assert (plan.preempt, plan.reservations) == ((), ())
    assert plan.reasons["high"] == Reason(ReasonCode.NODES, "needs 2 x 1 cpu on host, 0 free")


def test_a_preemption_is_not_asked_for_twice() -> None:
    held = Reservation("high", NOW - 5, is_for_preemption=True, room=(("host", {"cpu": 2000}),), victims=("gone",))
    plan = decide(HIGH, placed("low", cpu=4000), reservations=(held,))
    assert plan.preempt == ()
    assert plan.reservations == (replace(held, victims=()),)
    assert plan.reasons == {"high": Reason(ReasonCode.NODES, "needs 2 x 1 cpu on host, 1 free")}


def test_victims_that_do_not_end_are_not_counted_as_ending() -> None:
    held = Reservation("high", NOW - 5, is_for_preemption=True, room=(("host", {"cpu": 2000}),), victims=("a", "b"))
    plan = decide(HIGH, placed("a", cpu=2000), ending(placed("b", cpu=2000)), reservations=(held,))
    assert plan.reservations == (replace(held, victims=("b",)),)


def test_a_preemptor_that_no_longer_waits_leaves_its_room() -> None:
    held = Reservation("high", NOW - 5, is_for_preemption=True, room=(("host", {"cpu": 2000}),))
    plan = decide(waiting("other", ask(5, cpu=1000)), reservations=(held,))
    assert [*plan.admit] == ["other"]
    assert plan.reservations == ()


def test_the_largest_names_are_cut_short() -> None:
    jobs = [placed(f"low{number}", cpu=700) for number in range(7)]
    plan = decide(waiting("high", ask(1, cpu=5000), priority=1), *jobs)
    assert plan.reasons["high"].message == (
        "takes the room of low0, low1, low2, low3, low4 and 2 more, which are ending"
    )


def test_on_several_nodes_the_room_is_where_the_victim_was() -> None:
    nodes = (Node("n1", {"cpu": 4000}), Node("n2", {"cpu": 4000}))
    jobs = (placed("low", node="n2", cpu=4000), protected(placed("kept", node="n1", cpu=3000)))
    high = waiting("high", ask(1, cpu=2000), priority=1)
    plan = decide(high, *jobs, waiting("late", ask(1, cpu=1000)), nodes=nodes)
    assert plan.reservations[0].room == (("n2", {"cpu": 2000}),)
    assert plan.admit == {"late": (("n1", {"cpu": 1000}),)}
