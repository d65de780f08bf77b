# SPDX-License-Identifier: Apache-2.0
"""Room that is set aside for whoever has waited too long: when, how much, for whom, and what others may still have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_dispatch.adapters.local.scheduling.admission import decide_admission
from airflow_provider_dispatch.adapters.local.scheduling.model import (
    Node,
    Plan,
    Queue,
    Reason,
    ReasonCode,
    Reservation,
)
from tests.adapters.local.scheduling.builders import NOW, ask, build_state, ending, placed, waiting

OLD = placed("old", queue="b", cpu=3000)
GANG = waiting("gang", ask(4, cpu=1000), since=NOW - 60)
ROOM = (("host", {"cpu": 4000}),)
NEXT = "; it has waited longest and what becomes free is set aside for it"


def decide(*jobs, now: float = NOW, **rest) -> Plan:
    return decide_admission(build_state(*jobs, **rest), now)


def test_the_whole_plan_of_a_starving_gang() -> None:
    plan = decide(OLD, GANG, waiting("fits", ask(1, cpu=1000)), waiting("not", ask(2, cpu=1000)))
    assert plan == Plan(
        admit={},
        preempt=(),
        reservations=(Reservation("gang", NOW, room=ROOM),),
        reasons={
            "gang": Reason(ReasonCode.NODES, "needs 4 x 1 cpu on host, 2 free" + NEXT),
            "fits": Reason(ReasonCode.RESERVED, "needs 1 x 1 cpu on host, 0 free beside what is set aside for gang"),
            "not": Reason(ReasonCode.RESERVED, "needs 2 x 1 cpu on host, 0 free beside what is set aside for gang"),
        },
        wake_at=None,
    )


def test_before_its_patience_ends_others_pass() -> None:
    plan = decide(OLD, GANG, waiting("fits", ask(1, cpu=1000)), now=NOW - 0.5)
    assert [*plan.admit] == ["fits"]
    assert plan.reservations == ()
    assert plan.wake_at == NOW


def test_patience_is_a_setting() -> None:
    assert decide(OLD, GANG, starvation_after=61.0).wake_at == NOW + 1
    assert decide(OLD, GANG, starvation_after=0.0).reservations == (Reservation("gang", NOW, room=ROOM),)


def test_the_next_wake_is_for_the_first_whose_patience_ends() -> None:
    jobs = [waiting(f"j{n}", ask(5, cpu=1000), queue=f"q{n}", since=NOW - n) for n in (5, 9, 7)]
    assert decide(OLD, *jobs).wake_at == NOW + 51


def test_what_is_left_beside_the_reservation_is_given_out() -> None:
    held = Reservation("gang", NOW - 9, room=ROOM)
    jobs = (
        placed("r", queue="b", cpu=500),
        waiting("a", ask(1, cpu=500)),
        waiting("b", ask(1, cpu=500), since=NOW + 1),
    )
    busy = placed("busy", queue="b", gpu=1, cpu=0)
    nodes = [Node("host", {"cpu": 5000, "gpu": 1})]
    gang = waiting("gang", replace(ask(4, cpu=1000), request={"cpu": 1000}), ask(1, gpu=1), since=NOW - 60)
    room = (("host", {"cpu": 4000, "gpu": 1}),)
    plan = decide(gang, *jobs, busy, nodes=nodes, reservations=(replace(held, room=room),))
    assert [*plan.admit] == ["a"]
    assert plan.reservations == (replace(held, room=room),)
    assert plan.reasons == {
        "gang": Reason(ReasonCode.NODES, "needs 1 x 1 gpu on host, 0 free" + NEXT),
        "b": Reason(ReasonCode.RESERVED, "needs 1 x 500m cpu on host, 0 free beside what is set aside for gang"),
    }


def test_the_reservation_is_redeemed_before_anybody_else_is_looked_at() -> None:
    held = Reservation("gang", NOW - 9, room=ROOM)
    first = waiting("first", ask(2, cpu=1000), queue="b", priority=9, since=0)
    plan = decide(GANG, first, placed("r", queue="b", cpu=1000), reservations=(held,))
    assert plan.admit == {"gang": ROOM}
    assert plan.reservations == (Reservation("first", NOW, room=(("host", {"cpu": 2000}),)),)


def test_only_one_has_room_set_aside_and_it_is_the_one_that_waits_longest() -> None:
    full = placed("full", queue="z", cpu=5000)
    jobs = [waiting(f"j{n}", ask(1, cpu=1000), queue=f"q{n}", since=NOW - 60 - n) for n in (3, 9, 6)]
    assert [one.key for one in decide(full, *jobs).reservations] == ["j9"]
    alike = [waiting(key, ask(1, cpu=1000), queue=key, since=NOW - 60) for key in ("y", "x")]
    assert [one.key for one in decide(full, *alike).reservations] == ["x"]
    held = Reservation("j3", NOW - 1, room=(("host", {"cpu": 1000}),))
    assert decide(full, *jobs, reservations=(held,)).reservations == (held,)


def test_only_the_head_of_a_queue_starves() -> None:
    full = placed("full", queue="z", cpu=5000)
    head = waiting("head", ask(1, cpu=1000), priority=5, since=NOW - 59)
    plan = decide(full, head, waiting("behind", ask(1, cpu=1000), since=0))
    assert plan.reservations == ()
    assert plan.wake_at == NOW + 1


def test_a_starving_head_that_fits_starts_and_the_one_behind_it_is_next() -> None:
    jobs = (waiting("a", ask(3, cpu=1000), since=0), waiting("b", ask(3, cpu=1000), since=1))
    plan = decide(*jobs)
    assert [*plan.admit] == ["a"]
    assert plan.reservations == (Reservation("b", NOW, room=(("host", {"cpu": 3000}),)),)


def test_room_is_set_aside_before_what_is_left_is_given_out() -> None:
    jobs = (placed("r", queue="c", cpu=2000), GANG, waiting("small", ask(2, cpu=1000), queue="b", since=NOW - 1))
    plan = decide(*jobs)
    assert plan.admit == {}
    assert [one.key for one in plan.reservations] == ["gang"]


def test_a_head_that_can_preempt_needs_no_patience() -> None:
    urgent = replace(GANG, priority=1)
    plan = decide(placed("low", cpu=3000), urgent)
    assert plan.reservations == (Reservation("gang", NOW, is_for_preemption=True, room=ROOM, victims=("low",)),)


def test_who_has_room_set_aside_and_can_preempt_now_does() -> None:
    held = Reservation("gang", NOW - 9, room=ROOM)
    starving = waiting("starving", ask(1, cpu=1000), queue="c", since=NOW - 61)
    plan = decide(placed("low", cpu=4500), replace(GANG, priority=1), starving, reservations=(held,))
    assert [(one.victim, one.preemptor) for one in plan.preempt] == [("low", "gang")]
    assert plan.reservations == (
        replace(held, is_for_preemption=True, victims=("low",)),
        Reservation("starving", NOW, room=(("host", {"cpu": 1000}),)),
    )


def test_room_is_set_aside_within_the_quota_only_and_kept_there() -> None:
    queues = (Queue("team-a", nominal={"cpu": 4500}),)
    jobs = (
        placed("mine", cpu=1000),
        GANG,
        waiting("small", ask(1, cpu=500)),
        waiting("far", ask(1, cpu=500), queue="b"),
    )
    plan = decide(*jobs, queues=queues, nodes=[Node("host", {"cpu": 9000})])
    assert [*plan.admit] == ["far"]
    assert plan.reasons == {
        "gang": Reason(ReasonCode.QUOTA, "needs 4 x 1 cpu in team-a, 3500m free" + NEXT),
        "small": Reason(ReasonCode.RESERVED, "needs 1 x 500m cpu in team-a, 0 free beside what is set aside for gang"),
    }


def test_the_oldest_waits_for_promises_rather_than_being_passed_over() -> None:
    held = Reservation("high", NOW - 5, is_for_preemption=True, room=(("host", {"cpu": 2000}),), victims=("low",))
    jobs = (
        ending(placed("low", cpu=4500)),
        waiting("high", ask(2, cpu=1000), priority=1),
        waiting("gang", ask(4, cpu=1000), queue="c", since=NOW - 90),
        waiting("younger", ask(1, cpu=1000), queue="d", since=NOW - 80),
    )
    plan = decide(*jobs, reservations=(held,))
    assert plan.reservations == (held,)
    assert plan.wake_at is None


def test_who_fits_no_packing_of_empty_nodes_does_not_block_the_others() -> None:
    nodes = (Node("big", {"cpu": 8}), Node("mid", {"cpu": 4}), Node("low", {"cpu": 2}))
    puzzle = waiting("puzzle", ask(1, cpu=8), ask(2, cpu=3), queue="p", since=0)
    jobs = (puzzle, placed("r", node="big", queue="r", cpu=5), waiting("next", ask(1, cpu=6), since=1))
    plan = decide(*jobs, nodes=nodes)
    assert plan.reservations == (Reservation("next", NOW, room=(("big", {"cpu": 6}),)),)


@pytest.mark.parametrize(
    ("capacity", "room", "expected"),
    [
        pytest.param(5000, ROOM, ROOM, id="stands"),
        pytest.param(5000, (), ROOM, id="never chosen"),
        pytest.param(5000, (("gone", {"cpu": 4000}),), ROOM, id="its node is gone"),
        pytest.param(5000, (("host", {"tape": 1}),), ROOM, id="the node has no such thing"),
        pytest.param(3999, ROOM, None, id="no longer possible"),
    ],
)
def test_a_reservation_of_an_earlier_pass_is_checked(capacity, room, expected) -> None:
    held = Reservation("gang", NOW - 9, room=room)
    plan = decide(OLD, GANG, nodes=[Node("host", {"cpu": capacity})], reservations=(held,))
    assert plan.reservations == (() if expected is None else (replace(held, room=expected),))


def test_promises_that_together_no_longer_fit_are_cut_down_to_those_that_do() -> None:
    full = placed("full", queue="z", cpu=4000)
    jobs = [waiting(key, ask(2, cpu=1000), queue=key) for key in ("a", "b", "c")]
    room = (("host", {"cpu": 2000}),)
    nodes = [Node("host", {"cpu": 4000})]
    given = {
        "a": Reservation("a", NOW - 7, room=room),
        "b": Reservation("b", NOW - 8, is_for_preemption=True, room=room),
        "c": Reservation("c", NOW - 6, is_for_preemption=True, room=room),
    }

    def keep(*keys: str) -> list[str]:
        plan = decide(full, *jobs, nodes=nodes, reservations=tuple(given[key] for key in keys))
        return [one.key for one in plan.reservations]

    assert keep("a", "b") == ["b", "a"]
    assert keep("a", "b", "c") == ["b", "c"]
    assert keep("b", "b", "a") == ["b", "a"]


def test_of_two_for_starving_heads_the_older_stays() -> None:
    jobs = [waiting(key, ask(1, cpu=1000), queue=key) for key in ("a", "b")]
    room = (("host", {"cpu": 1000}),)
    older, younger = Reservation("b", NOW - 9, room=room), Reservation("a", NOW - 8, room=room)
    full = placed("full", queue="z", cpu=5000)
    assert decide(full, *jobs, reservations=(younger, older)).reservations == (older,)


def test_a_quota_that_shrank_ends_a_promise() -> None:
    held = Reservation("gang", NOW - 9, room=ROOM)
    high = waiting("high", ask(1, cpu=1000), priority=1)
    other = Reservation("high", NOW - 8, is_for_preemption=True, room=(("host", {"cpu": 1000}),))
    full = placed("full", queue="z", cpu=5000)
    for nominal, kept in ((5000, (held, other)), (4999, (other,))):
        plan = decide(full, GANG, high, queues=(Queue("team-a", nominal={"cpu": nominal}),), reservations=(held, other))
        assert plan.reservations == kept


def test_a_stopped_queue_holds_no_room() -> None:
    held = Reservation("gang", NOW - 9, room=ROOM)
    other = waiting("other", ask(2, cpu=1000), queue="b")
    plan = decide(OLD, GANG, other, queues=(Queue("team-a", is_stopped=True), Queue("b")), reservations=(held,))
    assert [*plan.admit] == ["other"]
    assert plan.reservations == ()


def test_promises_are_redeemed_until_none_can_be() -> None:
    """What one job leaves when it starts elsewhere than promised is enough for another's promise."""
    nodes = (Node("n1", {"cpu": 2, "gpu": 0}), Node("n2", {"cpu": 4, "gpu": 0}))
    jobs = (waiting("a", ask(1, cpu=4)), waiting("b", ask(1, cpu=2), queue="b"))
    given = (
        Reservation("a", NOW - 9, is_for_preemption=True, room=(("n2", {"cpu": 4}),)),
        Reservation("b", NOW - 8, room=(("n1", {"cpu": 2}),)),
    )
    plan = decide(*jobs, nodes=nodes, reservations=given)
    assert plan.admit == {"a": (("n2", {"cpu": 4}),), "b": (("n1", {"cpu": 2}),)}
    assert plan.reservations == ()


def test_the_promised_room_is_taken_when_the_search_finds_no_other() -> None:
    nodes = (Node("n1", {"cpu": 4}), Node("n2", {"cpu": 5}))
    job = waiting("job", ask(1, cpu=2), ask(1, cpu=3), ask(1, cpu=3))
    assert decide(job, nodes=nodes).reasons["job"].message.endswith("where the free pieces don't match")
    room = (("n1", {"cpu": 3}), ("n2", {"cpu": 5}))
    held = Reservation("job", NOW - 9, room=room)
    assert decide(job, nodes=nodes, reservations=(held,)).admit == {"job": room}


def test_several_holders_are_named_in_their_order() -> None:
    jobs = (
        ending(placed("v", queue="p", cpu=1000)),
        placed("full", queue="z", cpu=3000),
        waiting("p1", ask(2, cpu=1000), queue="p", priority=1, since=NOW),
        replace(GANG, shapes=(ask(2, cpu=1000),)),
        waiting("late", ask(1, cpu=1000), queue="c"),
    )
    given = (
        Reservation("gang", NOW - 1, room=(("host", {"cpu": 2000}),)),
        Reservation("p1", NOW - 2, is_for_preemption=True, room=(("host", {"cpu": 2000}),), victims=("v",)),
    )
    plan = decide(*jobs, reservations=given)
    assert plan.reasons == {
        "p1": Reason(ReasonCode.PREEMPTING, "takes the room of v, which is ending"),
        "gang": Reason(ReasonCode.NODES, "needs 2 x 1 cpu on host, 1 free" + NEXT),
        "late": Reason(ReasonCode.RESERVED, "needs 1 x 1 cpu on host, 0 free beside what is set aside for p1, gang"),
    }


def test_a_higher_priority_of_the_same_queue_goes_before_the_holder() -> None:
    """Else the holder would be started, and ended for the other one at once."""
    held = Reservation("gang", NOW - 9, room=ROOM)
    high = waiting("high", ask(1, cpu=5000), priority=1)
    plan = decide(GANG, high, reservations=(held,), now=NOW - 1)
    assert plan.admit == {"high": (("host", {"cpu": 5000}),)}
    assert plan.reservations == ()
    # Who has room beside what is set aside leaves it alone.
    beside = waiting("beside", ask(1, cpu=1000), priority=1)
    plan = decide(OLD, GANG, beside, nodes=[Node("host", {"cpu": 8000})], reservations=(held,), now=NOW - 1)
    assert [*plan.admit] == ["beside", "gang"]
    plan = decide(OLD, GANG, beside, nodes=[Node("host", {"cpu": 6000})], reservations=(held,))
    assert [*plan.admit] == ["beside"]
    # It waits longest still, so that what becomes free next is set aside for it again.
    assert plan.reservations == (replace(held, since=NOW),)


@pytest.mark.parametrize(
    "rival",
    [
        pytest.param(waiting("rival", ask(1, cpu=2500), queue="c", priority=1, since=NOW), id="another queue"),
        pytest.param(waiting("rival", ask(1, cpu=2500), priority=0), id="the same priority"),
        pytest.param(waiting("rival", ask(1, cpu=6000), priority=1), id="hopeless"),
        pytest.param(waiting("rival", ask(1, cpu=4500), priority=1), id="no room for it either"),
    ],
)
def test_nobody_else_does(rival) -> None:
    held = Reservation("gang", NOW - 9, room=ROOM)
    jobs = (placed("r", queue="b", cpu=1000), GANG, rival)
    plan = decide(*jobs, reservations=(held,))
    assert plan.admit == {"gang": ROOM}


def test_a_higher_priority_takes_over_what_victims_leave() -> None:
    held = Reservation("high", NOW - 5, is_for_preemption=True, room=ROOM, victims=("v",))
    jobs = (
        ending(placed("v", cpu=4000)),
        placed("low", cpu=1000, priority=-1),
        waiting("high", ask(4, cpu=1000), priority=1),
        waiting("higher", ask(1, cpu=1000), priority=2),
    )
    plan = decide(*jobs, reservations=(held,))
    assert [(one.victim, one.preemptor) for one in plan.preempt] == [("low", "higher")]
    assert [(one.key, one.victims) for one in plan.reservations] == [("high", ("v",)), ("higher", ("low",))]
    gone = decide(*jobs[1:], reservations=(held,))
    assert gone.admit == {"high": ROOM}
    assert [(one.victim, one.preemptor) for one in gone.preempt] == [("low", "higher")]
    higher = waiting("higher", ask(1, cpu=2000), priority=2)
    gone = decide(jobs[2], higher, reservations=(held,))
    assert gone.admit == {"higher": (("host", {"cpu": 2000}),)}
    assert gone.reservations == ()
    assert gone.reasons == {"high": Reason(ReasonCode.NODES, "needs 4 x 1 cpu on host, 3 free")}


def test_all_of_a_higher_priority_are_asked_in_their_order() -> None:
    held = Reservation("gang", NOW - 9, room=ROOM)
    jobs = (
        waiting("elsewhere", ask(1, cpu=3000), queue="b", priority=9),
        waiting("hopeless", ask(1, cpu=6000), priority=8),
        waiting("large", ask(1, cpu=4500), priority=7),
        waiting("able", ask(1, cpu=3500), priority=6),
        waiting("late", ask(1, cpu=3400), priority=5),
        GANG,
    )
    plan = decide(placed("r", queue="c", cpu=1000), *jobs, reservations=(held,))
    assert plan.admit == {"able": (("host", {"cpu": 3500}),)}


def test_of_several_holders_each_is_outranked_in_its_own_queue() -> None:
    room = (("host", {"cpu": 2000}),)
    held = [Reservation(key, NOW - 9, is_for_preemption=True, room=room) for key in ("a", "b")]
    jobs = [waiting(key, ask(2, cpu=1000), queue=key, priority=1) for key in ("a", "b")]
    rival = waiting("rival", ask(2, cpu=1000), queue="b", priority=2)
    plan = decide(*jobs, rival, placed("r", queue="c", cpu=1000), reservations=tuple(held))
    assert [*plan.admit] == ["a", "rival"]
    assert plan.reservations == ()
    assert plan.reasons == {"b": Reason(ReasonCode.NODES, "needs 2 x 1 cpu on host, 0 free")}
