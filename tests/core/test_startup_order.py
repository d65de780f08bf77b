# SPDX-License-Identifier: Apache-2.0
"""Roles start in their order, all of them in the end, none before what it waits for."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_dispatch.core.job_spec import JobSpec, RoleSpec
from airflow_provider_dispatch.core.startup_order import (
    RoleProgress,
    check_order,
    decide_startable,
    derive_blockers,
    derive_waiting_role,
)


def build_role(name: str, *after: tuple[str, str], nodes: int = 2) -> RoleSpec:
    waits_for = tuple({"role": role, "when": when} for role, when in after)
    return RoleSpec.model_validate({"name": name, "command": ["x"], "nodes": nodes, "after": waits_for})


FRESH = RoleProgress(2)
STARTED = RoleProgress(2, started=2)
HALF_READY = RoleProgress(2, started=2, ready=1)
READY = RoleProgress(2, started=2, ready=2)
HALF_DONE = RoleProgress(2, started=2, ready=2, succeeded=1)
DONE = RoleProgress(2, started=2, ready=2, succeeded=2)


@pytest.mark.parametrize(
    ("progress", "is_ready", "is_complete"),
    [
        (FRESH, False, False),
        (STARTED, False, False),
        (HALF_READY, False, False),
        (READY, True, False),
        (HALF_DONE, True, False),
        (DONE, True, True),
    ],
)
def test_how_far_a_role_is(progress: RoleProgress, is_ready: bool, is_complete: bool) -> None:
    assert (progress.is_ready, progress.is_complete) == (is_ready, is_complete)
    assert RoleProgress(2) == RoleProgress(2, 0, 0, 0)


@pytest.mark.parametrize(
    ("when", "leader", "blockers"),
    [
        ("ready", FRESH, ("leader ready",)),
        ("ready", HALF_READY, ("leader ready",)),
        ("ready", READY, ()),
        ("ready", DONE, ()),
        ("complete", READY, ("leader complete",)),
        ("complete", HALF_DONE, ("leader complete",)),
        ("complete", DONE, ()),
    ],
)
def test_a_role_waits_for_another(when: str, leader: RoleProgress, blockers: tuple) -> None:
    roles = (build_role("leader"), build_role("worker", ("leader", when)))
    progress = {"leader": leader, "worker": FRESH}

    assert derive_blockers(roles[1], progress) == blockers
    startable = {"leader"} if leader is FRESH else set()
    assert set(decide_startable(roles, progress)) == startable | (set() if blockers else {"worker"})


def test_every_condition_must_hold() -> None:
    role = build_role("c", ("a", "ready"), ("b", "complete"))

    assert derive_blockers(role, {"a": FRESH, "b": READY}) == ("a ready", "b complete")
    assert derive_blockers(role, {"a": READY, "b": READY}) == ("b complete",)
    assert derive_blockers(role, {"a": READY, "b": DONE}) == ()


def test_roles_without_a_condition_start_together_in_the_order_of_the_spec() -> None:
    roles = (build_role("b"), build_role("a"), build_role("c", ("a", "ready")))

    assert decide_startable(roles, {"a": FRESH, "b": FRESH, "c": FRESH}) == ("b", "a")
    assert decide_startable(roles, {"a": RoleProgress(2, started=1), "b": FRESH, "c": FRESH}) == ("b",)


@pytest.mark.parametrize(
    ("first", "second", "blamed"),
    [
        (FRESH, FRESH, "first"),
        (STARTED, FRESH, "first"),
        (HALF_READY, HALF_READY, "first"),
        (READY, STARTED, "second"),
        (READY, FRESH, "second"),
        (FRESH, STARTED, "second"),
        (READY, READY, None),
        (DONE, HALF_DONE, None),
    ],
)
def test_the_role_that_keeps_the_start_waiting(first: RoleProgress, second: RoleProgress, blamed: str | None) -> None:
    roles = (build_role("first"), build_role("second"))

    assert derive_waiting_role(roles, {"first": first, "second": second}) == blamed


@pytest.mark.parametrize(
    ("waits_for", "count", "message"),
    [
        ({"a": ()}, 2, "two roles have the same name"),
        ({"a": ("z", "y")}, 1, "role 'a' waits for 'y', which is not one of a"),
        ({"b": ("a",), "a": ("c",)}, 2, "role 'a' waits for 'c', which is not one of a, b"),
        ({"a": ("a",)}, 1, "the startup order has a cycle: a → a"),
        ({"a": ("b",), "b": ("a",)}, 2, "the startup order has a cycle: a → b → a"),
    ],
)
def test_an_order_that_cannot_be_kept_is_refused(waits_for: dict, count: int, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is compared below
        check_order(waits_for, count)

    assert str(caught.value) == message
    assert caught.value.__suppress_context__ == ("cycle" in message)


def test_a_cycle_is_told_in_the_direction_of_waiting() -> None:
    waits_for = {"a": ("b",), "b": ("c",), "c": ("a",), "d": ("a",)}

    with pytest.raises(ValueError, match="cycle") as caught:
        check_order(waits_for, 4)

    told = str(caught.value).split(": ")[1].split(" → ")
    assert told[0] == told[-1]
    assert all(later in waits_for[earlier] for earlier, later in itertools.pairwise(told))


@pytest.mark.parametrize(
    "waits_for", [{}, {"a": ()}, {"a": ("b", "b"), "b": ()}, {"c": ("a", "b"), "b": ("a",), "a": ()}]
)
def test_an_order_that_can_be_kept_is_accepted(waits_for: dict) -> None:
    assert check_order(waits_for, len(waits_for)) is None  # type: ignore[func-returns-value]  # that it returns counts


@st.composite
def orders(draw: st.DrawFn) -> tuple[RoleSpec, ...]:
    """Acyclic: each role waits for some of those before it; then in any order."""
    names = "abcdef"[: draw(st.integers(1, 6))]
    edges = st.sampled_from(["ready", "complete", None])
    roles = [
        build_role(
            name, *((other, when) for other in names[:index] if (when := draw(edges))), nodes=draw(st.integers(1, 3))
        )
        for index, name in enumerate(names)
    ]
    return JobSpec(roles=draw(st.permutations(roles))).roles


@given(orders(), st.randoms(use_true_random=False))
def test_every_role_starts_in_the_end_and_none_too_early(roles: tuple[RoleSpec, ...], chance) -> None:
    progress = {role.name: RoleProgress(role.nodes) for role in roles}
    by_name = {role.name: role for role in roles}
    for _ in range(200):
        for name in decide_startable(roles, progress):
            for after in by_name[name].after:
                assert progress[after.role].is_ready if after.when == "ready" else progress[after.role].is_complete
            progress[name] = RoleProgress(by_name[name].nodes, by_name[name].nodes)
        moving = [name for name, so_far in progress.items() if so_far.started and not so_far.is_complete]
        if not moving:
            break
        assert derive_waiting_role(roles, progress) is None or not all(so_far.is_ready for so_far in progress.values())
        name = chance.choice(moving)
        so_far = progress[name]
        step = (1, 0) if so_far.ready < so_far.nodes else (0, 1)
        progress[name] = RoleProgress(so_far.nodes, so_far.started, so_far.ready + step[0], so_far.succeeded + step[1])

    assert all(so_far.is_complete for so_far in progress.values())
    assert decide_startable(roles, progress) == ()
    assert derive_waiting_role(roles, progress) is None
