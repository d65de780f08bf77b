# SPDX-License-Identifier: Apache-2.0
"""Which nodes a gang gets: all ranks or none, labels, best fit, and what is said when it can't be."""

from __future__ import annotations

import pytest

from airflow_provider_dispatch.adapters.local.scheduling.admission import decide_admission
from airflow_provider_dispatch.adapters.local.scheduling.model import (
    Node,
    Placement,
    Reason,
    ReasonCode,
    Shape,
)
from tests.adapters.local.scheduling.builders import NOW, ask, build_state, placed, waiting

BIG = Node("big", {"cpu": 8, "gpu": 1}, {"zone": "a", "disk": "ssd"})
MID = Node("mid", {"cpu": 4}, {"zone": "b"})
LOW = Node("low", {"cpu": 2}, {"zone": "a"})
NODES = (BIG, MID, LOW)


def find_place(*shapes: Shape, nodes=NODES, running=()) -> Placement | Reason:
    plan = decide_admission(build_state(waiting("job", *shapes), *running, nodes=nodes), NOW)
    return plan.admit["job"] if plan.admit else plan.reasons["job"]


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        pytest.param([ask(1, cpu=2)], {"low": {"cpu": 2}}, id="the fullest node that has room"),
        pytest.param([ask(1, cpu=3)], {"mid": {"cpu": 3}}, id="not one that is too small"),
        pytest.param([ask(1, cpu=1, gpu=1)], {"big": {"cpu": 1, "gpu": 1}}, id="the one that has the resource"),
        pytest.param([ask(5, cpu=1)], {"low": {"cpu": 2}, "mid": {"cpu": 3}}, id="from the fullest on"),
        pytest.param([ask(3, cpu=3)], {"big": {"cpu": 6}, "mid": {"cpu": 3}}, id="as many as fit on each"),
        pytest.param([ask(14, cpu=1)], {"big": {"cpu": 8}, "low": {"cpu": 2}, "mid": {"cpu": 4}}, id="all of it"),
        pytest.param([ask(2)], {"big": {}}, id="nothing asked: any node, by name"),
        pytest.param([ask(1, cpu=1), ask(1, cpu=1)], {"low": {"cpu": 2}}, id="two roles on one node"),
        pytest.param([Shape(1, {"cpu": 1}, required={"zone": "b"})], {"mid": {"cpu": 1}}, id="required label"),
        pytest.param(
            [Shape(3, {"cpu": 1}, required={"zone": "a"})], {"big": {"cpu": 1}, "low": {"cpu": 2}}, id="required by all"
        ),
        pytest.param(
            [Shape(1, {"cpu": 1}, required={"zone": "a", "disk": "ssd"})], {"big": {"cpu": 1}}, id="two labels"
        ),
        pytest.param([Shape(1, {"cpu": 1}, preferred={"zone": "b"})], {"mid": {"cpu": 1}}, id="preferred label"),
        pytest.param(
            [Shape(1, {"cpu": 1}, preferred={"zone": "a", "disk": "ssd"})], {"big": {"cpu": 1}}, id="more of them"
        ),
        pytest.param([Shape(1, {"cpu": 1}, preferred={"zone": "x"})], {"low": {"cpu": 1}}, id="preferred by none"),
        pytest.param(
            [Shape(5, {"cpu": 1}, preferred={"zone": "b"})], {"low": {"cpu": 1}, "mid": {"cpu": 4}}, id="then others"
        ),
        pytest.param(
            [ask(1, cpu=2), Shape(1, {"cpu": 1}, priority=1)],
            {"low": {"cpu": 1}, "mid": {"cpu": 2}},
            id="the role of the higher priority chooses first",
        ),
        pytest.param(
            [Shape(4, {"cpu": 1}, preferred={"disk": "ssd"}), ask(1, cpu=6)],
            {"big": {"cpu": 8}, "low": {"cpu": 2}},
            id="a preference gives way when else nothing fits",
        ),
        pytest.param(
            [ask(3, cpu=1), Shape(1, {"cpu": 2}, required={"zone": "a"}), ask(1, cpu=7)],
            {"big": {"cpu": 8}, "low": {"cpu": 2}, "mid": {"cpu": 2}},
            id="hardest first when else nothing fits",
        ),
    ],
)
def test_a_gang_is_placed(shapes, expected) -> None:
    assert find_place(*shapes) == tuple(sorted(expected.items()))


def test_what_runs_makes_a_node_fuller() -> None:
    running = (placed("r", node="mid", cpu=3), placed("lost", node="no-more", cpu=9))
    assert find_place(ask(1, cpu=1), running=running) == (("mid", {"cpu": 1}),)
    assert find_place(ask(1, cpu=2), running=running) == (("low", {"cpu": 2}),)


def test_an_overcommitted_node_has_nothing_left_and_takes_nothing_from_others() -> None:
    running = (placed("r", node="mid", cpu=9), placed("s", node="big", cpu=7))
    assert find_place(ask(4, cpu=1), running=running) == Reason(
        ReasonCode.NODES, "needs 4 x 1m cpu on 3 nodes, 3m free"
    )
    assert find_place(ask(3, cpu=1), running=running) == (("big", {"cpu": 1}), ("low", {"cpu": 2}))


@pytest.mark.parametrize(
    ("shapes", "nodes", "message"),
    [
        ([ask(15, cpu=1)], NODES, "needs 15 x 1m cpu on 3 nodes, which have 14m"),
        ([ask(2, cpu=5)], NODES, "needs 2 x (5m cpu) on 3 nodes, which have room for 1"),
        ([ask(2, cpu=1, gpu=1)], NODES, "needs 2 x 1 gpu on 3 nodes, which have 1"),
        ([ask(2, cpu=1, gpu=0), ask(1, gpu=2)], NODES, "needs 1 x 2 gpu on 3 nodes, which have 1"),
        (
            [Shape(2, {"cpu": 3, "gpu": 0}, required={"zone": "b", "a": "1"})],
            NODES,
            "needs 2 x (3m cpu, 0 gpu) with a=1,zone=b on 3 nodes, which have room for 0",
        ),
        (
            [Shape(1, {}, required={"zone": "x"})],
            (LOW,),
            "needs 1 x (nothing) with zone=x on low, which has room for 0",
        ),
        ([ask(1, cpu=1)], (), "needs 1 x 1m cpu on 0 nodes, which have 0"),
        ([ask(1)], (), "needs 1 x (nothing) on 0 nodes, which have room for 0"),
    ],
)
def test_what_no_packing_can_place_never_fits(shapes, nodes, message) -> None:
    assert find_place(*shapes, nodes=nodes) == Reason(ReasonCode.NEVER_FITS_NODES, message)


def test_what_is_in_the_way_is_told_by_the_pieces() -> None:
    running = (placed("r", node="mid", cpu=3), placed("s", node="big", cpu=5))
    assert find_place(ask(2, cpu=3), running=running) == Reason(
        ReasonCode.NODES, "needs 2 x (3m cpu) on 3 nodes, room for 1 now"
    )
    assert find_place(ask(1, cpu=8), ask(2, cpu=3, gpu=0)) == Reason(
        ReasonCode.NODES, "needs 1 x (8m cpu) + 2 x (3m cpu, 0 gpu) on 3 nodes, where the free pieces don't match"
    )
