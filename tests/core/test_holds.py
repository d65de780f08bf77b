# SPDX-License-Identifier: Apache-2.0
"""A job is held while somebody holds it: instances grow by one, one key is one hold, only that hold is ever lifted."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_dispatch.core.holds import (
    Actor,
    ActorKind,
    Hold,
    HoldBook,
    HoldRequest,
    check_request,
    lift_expired,
    next_expiry,
    place_hold,
    release_hold,
)
from airflow_provider_dispatch.exceptions import SpecError, StaleHoldError
from tests.core.strategies import NOW, at

ANN = Actor(ActorKind.HUMAN, "ann")
SINCE = NOW.isoformat()
EARLIER = datetime(2001, 1, 1, tzinfo=UTC)


def request(key: str, until: datetime | None = None) -> HoldRequest:
    return HoldRequest(key, ANN, f"because of {key}", until)


def build_book(*keys: str) -> tuple[HoldBook, list[Hold]]:
    book, holds = HoldBook(), []
    for key in keys:
        book, hold = place_hold(book, request(key), NOW)
        holds.append(hold)
    return book, holds


def test_actors_are_people_policies_and_the_system() -> None:
    assert [*ActorKind] == ["human", "policy", "system"]


def test_an_empty_book_holds_nothing() -> None:
    assert HoldBook() == HoldBook((), 0)
    assert not HoldBook().is_held
    assert HoldRequest("key", ANN) == HoldRequest("key", ANN, "", None)


def test_a_hold_records_who_asked_why_and_when() -> None:
    book, hold = place_hold(HoldBook(), HoldRequest("key", ANN, "maintenance", at(60)), NOW)

    assert hold == Hold(1, "key", ANN, "maintenance", NOW, at(60))
    assert book == HoldBook((hold,), 1)
    assert book.is_held


def test_another_key_adds_a_holder() -> None:
    book, (first, second) = build_book("a", "b")

    assert (first.instance, second.instance) == (1, 2)
    assert book == HoldBook((first, second), 2)


def test_the_same_key_is_the_same_hold() -> None:
    book, (first, _) = build_book("a", "b")

    again, hold = place_hold(book, HoldRequest("a", Actor(ActorKind.POLICY, "other"), "other", at(9)), at(5))

    assert again is book
    assert hold is first


def test_the_same_key_is_answered_even_with_a_wrong_end() -> None:
    """A retried task repeats its request, whose end may have passed since."""
    book, (first,) = build_book("a")

    assert place_hold(book, request("a", at(-1)), NOW) == (book, first)


def test_a_key_that_was_released_makes_a_new_hold() -> None:
    book, (first,) = build_book("a")

    again, hold = place_hold(release_hold(book, first), request("a"), NOW)

    assert hold.instance == 2
    assert again == HoldBook((hold,), 2)


def test_a_hold_whose_time_is_over_answers_no_more() -> None:
    book, first = place_hold(HoldBook(), request("a", at(10)), NOW)

    assert place_hold(book, request("a", at(20)), at(9.999))[1] == first
    later, second = place_hold(book, request("a", at(20)), at(10))
    assert second == Hold(2, "a", ANN, "because of a", at(10), at(20))
    assert lift_expired(later, at(10)) == (HoldBook((second,), 2), (first,))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (request(""), "hold.key: must not be empty"),
        (request("a", at(0)), "hold.until = '2026-03-01T12:00:00+00:00': lies in the past"),
        (request("a", at(-1)), "hold.until = '2026-03-01T11:59:59+00:00': lies in the past"),
        (request("a", datetime.fromisoformat("2030-01-01")), "hold.until = '2030-01-01T00:00:00': needs a time zone"),
    ],
)
def test_a_hold_that_could_hold_nothing_is_refused(wrong: HoldRequest, message: str) -> None:
    for refuse in (lambda: check_request(wrong, NOW), lambda: place_hold(HoldBook(), wrong, NOW)):
        with pytest.raises(SpecError) as caught:
            refuse()
        assert str(caught.value) == message


@pytest.mark.parametrize("until", [None, at(0.000001), at(10**6)])
def test_a_sound_request_is_accepted(until: datetime | None) -> None:
    check_request(request("a", until), NOW)

    assert place_hold(HoldBook(), request("a", until), NOW)[1].until == until


def test_a_release_lifts_exactly_that_hold() -> None:
    book, (first, second, third) = build_book("a", "b", "c")

    assert release_hold(book, second) == HoldBook((first, third), 3)


def test_a_released_hold_may_be_released_again() -> None:
    book, (first, _) = build_book("a", "b")
    once = release_hold(book, first)

    assert release_hold(once, first) == once


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"instance": 0}, "hold 0 was never placed on this job; its last is 2"),
        ({"instance": -1}, "hold -1 was never placed on this job; its last is 2"),
        ({"instance": 3}, "hold 3 was never placed on this job; its last is 2"),
        ({"instance": 2}, f"hold 2 belongs to 'b' since {SINCE}, not that of 'a' since {SINCE}"),
        ({"key": "other"}, f"hold 1 belongs to 'a' since {SINCE}, not that of 'other' since {SINCE}"),
        ({"since": EARLIER}, f"hold 1 belongs to 'a' since {SINCE}, not that of 'a' since 2001-01-01T00:00:00+00:00"),
    ],
)
def test_a_hold_of_somebody_else_is_never_lifted(changes: dict, message: str) -> None:
    book, (first, _) = build_book("a", "b")

    with pytest.raises(StaleHoldError) as caught:
        release_hold(book, replace(first, **changes))

    assert str(caught.value) == message


def test_a_book_without_holds_knows_none() -> None:
    _, (hold,) = build_book("a")

    with pytest.raises(StaleHoldError, match="its last is 0"):
        release_hold(HoldBook(), hold)


def test_holds_are_lifted_when_their_time_is_over() -> None:
    book, (unlimited,) = build_book("a")
    book, short = place_hold(book, request("b", at(10)), NOW)
    book, long = place_hold(book, request("c", at(20)), NOW)

    assert next_expiry(book) == at(10)
    assert lift_expired(book, at(9.999)) == (book, ())
    assert lift_expired(book, at(10)) == (HoldBook((unlimited, long), 3), (short,))
    assert lift_expired(book, at(99)) == (HoldBook((unlimited,), 3), (short, long))
    assert next_expiry(HoldBook((unlimited,), 3)) is None
    assert next_expiry(HoldBook()) is None


operations = st.lists(
    st.one_of(
        st.tuples(st.just("place"), st.sampled_from("abc"), st.none() | st.integers(1, 20)),
        st.tuples(st.just("release"), st.integers(1, 12), st.none()),
        st.tuples(st.just("lift"), st.integers(0, 5), st.none()),
    ),
    max_size=40,
)


@given(operations)
def test_a_book_after_any_history(history: list[tuple]) -> None:
    """Against a plain record of who holds."""
    book, placed, holding, now = HoldBook(), list[Hold](), dict[int, Hold](), NOW
    for what, value, lasts in history:
        if what == "place":
            held = [hold for hold in holding.values() if hold.key == value and (not hold.until or hold.until > now)]
            book, hold = place_hold(book, request(value, at(lasts) + (now - NOW) if lasts else None), now)
            if held:
                assert [hold] == held
            else:
                assert hold.instance == len(placed) + 1
                placed.append(hold)
                holding[hold.instance] = hold
        elif what == "release" and value <= len(placed):
            book = release_hold(book, placed[value - 1])
            holding.pop(value, None)
        elif what == "lift":
            now += at(value) - NOW
            book, lifted = lift_expired(book, now)
            assert [*lifted] == [hold for hold in holding.values() if hold.until and hold.until <= now]
            holding = {number: hold for number, hold in holding.items() if hold not in lifted}
        assert book == HoldBook(tuple(holding.values()), len(placed))
        assert book.is_held is bool(holding)
        assert next_expiry(book) == min((hold.until for hold in holding.values() if hold.until), default=None)
