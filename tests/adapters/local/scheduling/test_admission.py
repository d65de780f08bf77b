# SPDX-License-Identifier: Apache-2.0
"""Who starts: gangs, quotas, the order in a queue and between queues, stopped and unknown queues."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_dispatch.adapters.local.scheduling.admission import decide_admission
from airflow_provider_dispatch.adapters.local.scheduling.model import (
    RANKS,
    AdmissionState,
    Node,
    Plan,
    Queue,
    Reason,
    ReasonCode,
)
from tests.adapters.local.scheduling.builders import NOW, ask, build_state, ending, placed, waiting


def decide(*jobs, now: float = NOW, **rest) -> Plan:
    return decide_admission(build_state(*jobs, **rest), now)


def test_nothing_waits() -> None:
    assert decide() == Plan({}, (), (), {}, None)


def test_of_two_gangs_of_four_on_five_slots_one_runs_and_the_other_waits_whole() -> None:
    plan = decide(waiting("app1", ask(4, cpu=1000)), waiting("app2", ask(4, cpu=1000), since=NOW + 1), now=NOW + 2)
    assert plan == Plan(
        admit={"app1": (("host", {"cpu": 4000}),)},
        preempt=(),
        reservations=(),
        reasons={"app2": Reason(ReasonCode.NODES, "needs 4 x 1 cpu on host, 1 free")},
        wake_at=NOW + 61,
    )


def test_a_gang_larger_than_the_machine_is_told_so_and_keeps_nobody_waiting() -> None:
    plan = decide(waiting("app2", ask(6, cpu=1000), since=0), waiting("app1", ask(4, cpu=1000)))
    assert plan == Plan(
        admit={"app1": (("host", {"cpu": 4000}),)},
        preempt=(),
        reservations=(),
        reasons={"app2": Reason(ReasonCode.NEVER_FITS_NODES, "needs 6 x 1 cpu on host, which has 5")},
        wake_at=None,
    )


def test_two_gangs_that_are_both_too_large_wait_with_their_reasons() -> None:
    plan = decide(waiting("app1", ask(6, cpu=1000)), waiting("app2", ask(7, cpu=1000)))
    assert plan.admit == {}
    assert {key: reason.message for key, reason in plan.reasons.items()} == {
        "app1": "needs 6 x 1 cpu on host, which has 5",
        "app2": "needs 7 x 1 cpu on host, which has 5",
    }


def test_a_tenth_of_a_cpu_can_be_asked_for() -> None:
    queue = Queue("team-a", nominal={"cpu": 250})
    jobs = [waiting(f"j{number}", ask(1, cpu=100), since=NOW + number) for number in range(3)]
    plan = decide(*jobs, queues=(queue,))
    assert plan.admit == {"j0": (("host", {"cpu": 100}),), "j1": (("host", {"cpu": 100}),)}
    assert plan.reasons == {"j2": Reason(ReasonCode.QUOTA, "needs 1 x 100m cpu in team-a, 50m free")}


def test_all_roles_of_a_job_count() -> None:
    job = waiting("job", ask(1, cpu=1000, memory=64), ask(2, cpu=1500, gpu=1))
    exact = Node("host", {"cpu": 4000, "memory": 64, "gpu": 2})
    assert decide(job, nodes=[exact]).admit == {"job": (("host", {"cpu": 4000, "memory": 64, "gpu": 2}),)}
    for resource, amount in exact.capacity.items():
        scarce = replace(exact, capacity={**exact.capacity, resource: amount - 1})
        assert decide(job, nodes=[scarce]).admit == {}


def test_a_resource_that_the_node_does_not_name_is_not_there_unless_none_is_asked_for() -> None:
    assert decide(waiting("none", ask(1, cpu=0, gpu=0))).admit == {"none": (("host", {"cpu": 0, "gpu": 0}),)}
    plan = decide(waiting("one", ask(1, gpu=1)))
    advice = "correct the name gpu, or say in node.capacity how many there are"
    said = f"needs 1 x 1 gpu on host, which has 0; {advice}"
    assert plan.reasons["one"] == Reason(ReasonCode.NEVER_FITS_NODES, said)
    # One that it does name isn't unknown, however few there are.
    plan = decide(waiting("one", ask(1, gpu=1)), nodes=[Node("host", {"cpu": 4000, "gpu": 0})])
    assert plan.reasons["one"].message == "needs 1 x 1 gpu on host, which has 0"


def test_a_resource_that_the_quota_does_not_name_is_not_limited() -> None:
    jobs = (waiting("job", ask(1, cpu=5000)), placed("old", gpu=9))
    assert [*decide(*jobs, queues=(Queue("team-a", nominal={"gpu": 1}),)).admit] == ["job"]


def test_the_quota_counts_what_runs_and_what_is_still_ending() -> None:
    queue = Queue("team-a", nominal={"cpu": 3000})
    job = waiting("job", ask(2, cpu=500))
    for old, is_admitted in ((placed("old", cpu=2000), True), (placed("old", cpu=2001), False)):
        assert bool(decide(job, old, queues=(queue,)).admit) == is_admitted
        assert bool(decide(job, ending(old), queues=(queue,)).admit) == is_admitted


def test_a_quota_that_shrank_lets_finish_what_runs() -> None:
    queue = Queue("team-a", nominal={"cpu": 1000})
    plan = decide(
        waiting("job", ask(1, cpu=500)), waiting("free", ask(1, gpu=0)), placed("old", cpu=3000), queues=(queue,)
    )
    assert [*plan.admit] == ["free"]
    assert plan.preempt == ()
    assert plan.reasons == {"job": Reason(ReasonCode.QUOTA, "needs 1 x 500m cpu in team-a, 0 free")}


def test_a_queue_above_limits_its_queues_together() -> None:
    queues = (
        Queue("dept", nominal={"cpu": 3000}),
        Queue("x", parent="dept"),
        Queue("y", "dept", nominal={"cpu": 2000}),
    )
    jobs = (
        waiting("x1", ask(1, cpu=2000), queue="x"),
        waiting("y1", ask(1, cpu=2000), queue="y", since=NOW + 1),
        waiting("y2", ask(1, cpu=2001), queue="y"),
    )
    plan = decide(*jobs, queues=queues)
    assert [*plan.admit] == ["x1"]
    assert plan.reasons == {
        "y1": Reason(ReasonCode.QUOTA, "needs 1 x 2 cpu in dept, 1 free"),
        "y2": Reason(ReasonCode.NEVER_FITS_QUOTA, "needs 1 x 2001m cpu in y, whose quota is 2"),
    }


def test_between_branches_of_the_tree_the_branch_with_the_lesser_share_goes_first() -> None:
    queues = (Queue("left"), Queue("l1", "left"), Queue("l2", "left"), Queue("right"), Queue("r1", "right"))
    jobs = [waiting(f"{name}-{n}", ask(1, cpu=1000), queue=name) for name in ("l1", "l2", "r1") for n in range(3)]
    assert [*decide(*jobs, queues=queues, nodes=[Node("host", {"cpu": 6000})]).admit] == [
        *("l1-0", "r1-0", "l2-0", "r1-1", "l1-1", "r1-2"),
    ]


def test_a_circle_of_queues_is_survived() -> None:
    queues = (Queue("team-a", "b", nominal={"cpu": 2000}), Queue("b", "team-a", nominal={"cpu": 1000}))
    plan = decide(waiting("one", ask(1, cpu=1000)), waiting("two", ask(1, cpu=1001)), queues=queues)
    assert [*plan.admit] == ["one"]
    assert plan.reasons["two"].message == "needs 1 x 1001m cpu in b, whose quota is 1"


def test_in_a_queue_priority_goes_before_time_and_time_before_key() -> None:
    jobs = (
        waiting("d-late", ask(1, cpu=1000), since=NOW),
        waiting("c-early", ask(1, cpu=1000), since=NOW - 9),
        waiting("b-early", ask(1, cpu=1000), since=NOW - 9),
        waiting("e-high", ask(1, cpu=1000), priority=1),
        waiting("a-low", ask(1, cpu=1000), priority=-1, since=0),
    )
    assert [*decide(*jobs, starvation_after=1e9).admit] == ["e-high", "b-early", "c-early", "d-late", "a-low"]


def test_priority_does_not_reach_into_another_queue() -> None:
    jobs = (
        waiting("high", ask(1, cpu=1000), queue="a", priority=9),
        waiting("low", ask(1, cpu=1000), queue="b", priority=-9, since=NOW),
        placed("old", queue="a", cpu=4000),
    )
    assert [*decide(*jobs).admit] == ["low"]


def test_of_equal_shares_the_one_whose_head_is_older_goes_first_then_the_name() -> None:
    one = Node("host", {"cpu": 1000})
    older = (waiting("x", ask(1, cpu=1000), queue="a"), waiting("y", ask(1, cpu=1000), queue="b", since=NOW - 1))
    assert [*decide(*older, nodes=[one]).admit] == ["y"]
    alike = (waiting("x", ask(1, cpu=1000), queue="b"), waiting("y", ask(1, cpu=1000), queue="a"))
    assert [*decide(*alike, nodes=[one]).admit] == ["y"]


def test_a_queue_that_uses_nothing_and_one_that_never_ran_have_the_same_share() -> None:
    jobs = (placed("z", queue="a", cpu=0), waiting("x", ask(1, cpu=1000), queue="a", since=NOW - 1))
    one = Node("host", {"cpu": 1000})
    assert [*decide(*jobs, waiting("y", ask(1, cpu=1000), queue="b"), nodes=[one]).admit] == ["x"]


def test_shares_count_what_is_ending_and_all_nodes() -> None:
    jobs = (
        ending(placed("a0", queue="a", cpu=1000)),
        placed("b0", queue="b", node="gone", cpu=2000, tape=4),
        waiting("a1", ask(1, cpu=1000), queue="a"),
        waiting("b1", ask(1, cpu=1000), queue="b"),
    )
    nodes = [Node("host", {"cpu": 2000}), Node("other", {"cpu": 0})]
    assert [*decide(*jobs, nodes=nodes).admit] == ["a1"]


def test_a_blocked_head_lets_others_of_its_queue_pass() -> None:
    jobs = (
        placed("old", queue="b", cpu=3000),
        waiting("large", ask(3, cpu=1000), since=NOW - 2),
        waiting("large-too", ask(3, cpu=1000), since=NOW - 1),
        waiting("small", ask(2, cpu=1000)),
    )
    plan = decide(*jobs)
    assert plan.admit == {"small": (("host", {"cpu": 2000}),)}
    assert plan.reservations == ()
    assert plan.reasons["large"] == Reason(ReasonCode.NODES, "needs 3 x 1 cpu on host, 0 free")
    assert plan.reasons["large-too"] is plan.reasons["large"]
    assert plan.wake_at == NOW + 58


def test_the_same_demand_is_looked_at_again_in_another_queue() -> None:
    queues = (Queue("team-a", nominal={"cpu": 1000}), Queue("team-b", nominal={"cpu": 2000}))
    jobs = [waiting(f"{name}{n}", ask(1, cpu=1000), queue=f"team-{name}") for name in "ab" for n in range(3)]
    plan = decide(*jobs, queues=queues)
    assert [*plan.admit] == ["a0", "b0", "b1"]
    assert {key: reason.message for key, reason in plan.reasons.items()} == {
        "a1": "needs 1 x 1 cpu in team-a, 0 free",
        "a2": "needs 1 x 1 cpu in team-a, 0 free",
        "b2": "needs 1 x 1 cpu in team-b, 0 free",
    }


def test_a_stopped_queue_admits_nothing_and_keeps_what_runs() -> None:
    queues = (Queue("team-a", is_stopped=True), Queue("child", "team-a"))
    jobs = (placed("old", cpu=1000), waiting("high", ask(1, cpu=5000), priority=5), waiting("c", ask(1), queue="child"))
    plan = decide(*jobs, queues=queues)
    stopped = Reason(ReasonCode.QUEUE_STOPPED, "queue team-a is stopped")
    assert plan == Plan({}, (), (), {"high": stopped, "c": stopped}, None)


def test_an_unknown_queue_is_an_open_one_or_none() -> None:
    job = waiting("job", ask(1, cpu=1000), queue="nowhere")
    assert [*decide(job).admit] == ["job"]
    plan = decide(job, queues=(Queue("z"), Queue("a")), has_open_queues=False)
    assert plan.admit == {}
    assert plan.reasons == {"job": Reason(ReasonCode.UNKNOWN_QUEUE, "there is no queue 'nowhere'; known: a, z")}
    assert decide(job, has_open_queues=False).reasons["job"].message == "there is no queue 'nowhere'; known: none"


def test_a_job_of_a_queue_that_was_deleted_still_uses_its_node() -> None:
    jobs = (placed("old", queue="gone", cpu=4500), waiting("job", ask(1, cpu=1000)))
    plan = decide(*jobs, queues=(Queue("team-a"),), has_open_queues=False)
    assert plan.reasons["job"] == Reason(ReasonCode.NODES, "needs 1 x 1 cpu on host, 500m free")


def test_ten_thousand_ranks_are_refused_by_the_places_of_the_machine() -> None:
    host = Node("host", {"cpu": 8000, RANKS: 256})
    plan = decide(waiting("job", ask(10_000, ranks=1)), nodes=[host])
    assert plan.reasons["job"] == Reason(ReasonCode.NEVER_FITS_NODES, "needs 10000 x 1 ranks on host, which has 256")


def test_a_demand_above_the_quota_is_known_at_once_even_while_everything_is_full() -> None:
    jobs = (placed("old", cpu=5000), waiting("job", ask(3, cpu=1000)))
    plan = decide(*jobs, queues=(Queue("team-a", nominal={"cpu": 2000}),))
    assert plan.reasons["job"] == Reason(ReasonCode.NEVER_FITS_QUOTA, "needs 3 x 1 cpu in team-a, whose quota is 2")


@pytest.mark.parametrize("count", [1, 7])
def test_jobs_that_share_their_shapes_and_jobs_that_have_equal_ones_are_treated_alike(count: int) -> None:
    shared = ask(1, cpu=1000, memory=1)
    reordered = ask(1, memory=1, cpu=1000)
    node = Node("host", {"cpu": 3000, "memory": 9})

    def build(shapes) -> AdmissionState:
        jobs = (waiting(f"j{number}", shapes[number % len(shapes)], since=NOW + number) for number in range(count))
        return build_state(*jobs, nodes=[node])

    one = waiting("j", shared)
    jobs = (replace(one, key=f"j{number}", queued_since=NOW + number) for number in range(count))
    expected = decide_admission(build_state(*jobs, nodes=[node]), NOW)
    assert len(expected.admit) == min(count, 3)
    assert decide_admission(build([shared]), NOW) == expected
    assert decide_admission(build([replace(shared) for _ in range(count)]), NOW) == expected
    assert decide_admission(build([shared, reordered]), NOW) == expected
