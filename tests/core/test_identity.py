# SPDX-License-Identifier: Apache-2.0
"""Job ids known beforehand, submissions and epochs that never repeat and never fall."""

from __future__ import annotations

import hashlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_dispatch.core.identity import (
    Identity,
    build_epoch,
    build_identity_environment,
    build_job_id,
    build_object_name,
    build_task_job_id,
    next_execution,
    next_submission,
    parse_job_id,
)
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.owner import Owner
from airflow_provider_dispatch.exceptions import SpecError
from tests.core.strategies import JOB, job_ids

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
texts = st.text(st.characters(), max_size=20)
a_task = st.tuples(texts, texts, texts, texts, st.integers(-1, 10_000))


def decode(job_id: str) -> int:
    number = 0
    for character in job_id:
        number = number * 32 + ALPHABET.index(character)
    return number


def test_the_first_ulid_of_the_specification_is_read_and_written() -> None:
    """The example of the ULID specification: 2016-07-30T23:54:10.259Z."""
    randomness = (decode("01ARZ3NDEKTSV4RRFFQ69G5FAV") % 2**80).to_bytes(10, "big")

    assert build_job_id(1_469_922_850_259, randomness) == "01ARZ3NDEKTSV4RRFFQ69G5FAV"


@pytest.mark.parametrize(
    ("key", "canonical"),
    [
        (("airflow", "train", "run", "t", -1), b'["dispatch/1","airflow","train","run","t",-1]'),
        (("airflow", "train", "run", "t", 7), b'["dispatch/1","airflow","train","run","t",7]'),
        (("a", "größe", "日", "\U0001f680", 0), '["dispatch/1","a","größe","日","\U0001f680",0]'.encode()),
        (("", 'quo"te', "back\\slash", "new\nline", 0), b'["dispatch/1","","quo\\"te","back\\\\slash","new\\nline",0]'),
        (("a", "b", "c", "lone \ud800", 0), b'["dispatch/1","a","b","c","lone \xed\xa0\x80",0]'),
    ],
)
def test_the_id_of_a_task_is_the_first_80_bits_of_a_hash_over_canonical_json(key: tuple, canonical: bytes) -> None:
    job_id = build_task_job_id(*key)

    assert decode(job_id) == int.from_bytes(hashlib.sha256(canonical).digest(), "big") >> 176
    assert job_id.startswith("0000000000")
    assert len(job_id) == 26


def test_the_id_of_a_task_is_the_same_for_ever() -> None:
    """Changing this loses every running job of everybody who upgrades."""
    assert build_task_job_id("airflow", "train", "manual__2026-01-01T00:00:00+00:00", "train") == (
        "0000000000" + crockford(b'["dispatch/1","airflow","train","manual__2026-01-01T00:00:00+00:00","train",-1]')
    )
    assert build_task_job_id("airflow", "train", "run", "t") == "0000000000YRBR2AFTS7J1G50E"


def crockford(canonical: bytes) -> str:
    number = int(hashlib.sha256(canonical).hexdigest()[:20], 16)
    return "".join(ALPHABET[int(f"{number:080b}"[place : place + 5], 2)] for place in range(0, 80, 5))


@given(a_task, a_task)
def test_different_tasks_have_different_jobs(one: tuple, other: tuple) -> None:
    assert (build_task_job_id(*one) == build_task_job_id(*other)) == (one == other)


@given(st.integers(0, 2**48 - 1), st.binary(min_size=10, max_size=10))
def test_a_ulid_holds_time_and_randomness(time_milliseconds: int, randomness: bytes) -> None:
    job_id = build_job_id(time_milliseconds, randomness)

    assert decode(job_id) == time_milliseconds << 80 | int.from_bytes(randomness, "big")
    assert parse_job_id(job_id) == parse_job_id(job_id.lower()) == job_id


def test_the_borders_of_a_ulid() -> None:
    assert build_job_id(0, bytes(10)) == "0" * 26
    assert build_job_id(2**48 - 1, b"\xff" * 10) == "7" + "Z" * 25
    assert build_job_id(1, bytes(10)) == "0000000001" + "0" * 16
    assert build_job_id(0, bytes(9) + b"\x01") == "0" * 25 + "1"


@pytest.mark.parametrize(
    ("time_milliseconds", "randomness", "message"),
    [
        (-1, bytes(10), "time_milliseconds = -1: must lie in 48 bits"),
        (2**48, bytes(10), "time_milliseconds = 281474976710656: must lie in 48 bits"),
        (0, bytes(9), "randomness = 9: must be ten bytes"),
        (0, bytes(11), "randomness = 11: must be ten bytes"),
    ],
)
def test_a_ulid_of_other_sizes_is_refused(time_milliseconds: int, randomness: bytes, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        build_job_id(time_milliseconds, randomness)

    assert str(caught.value) == message


WRONG_LENGTHS = ["", "0" * 25, "0" * 27]
TOO_LARGE = ["8" + "0" * 25, "Z" * 26]
WRONG_LETTERS = ["0" * 25 + letter for letter in "ILOUilou-_ *éſ"] + ["ſ" * 26, "0" * 24 + "ß"]


@pytest.mark.parametrize("text", WRONG_LENGTHS + TOO_LARGE + WRONG_LETTERS)
def test_what_is_no_job_id_is_refused(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_job_id(text, field="job")

    assert str(caught.value) == (
        f"job = {text!r}: a job id has 26 characters of Crockford's base 32 and begins with 0 to 7"
    )
    with pytest.raises(SpecError, match=r"^job_id = "):
        parse_job_id(text)


@given(job_ids, st.integers(1, 10**30))
def test_an_object_name_is_a_dns_label(job: str, submission: int) -> None:
    name = build_object_name(parse_job_id(job), submission)

    assert name == f"dj-{job.lower()}-s{submission}"
    assert len(name) <= 63
    assert name.replace("-", "").isalnum()
    assert name == name.lower()


def test_a_ref_is_shown_with_its_place() -> None:
    assert JobRef(JOB, 3, "local", "store@host").id == f"store@host/dj-{JOB.lower()}-s3"


@pytest.mark.parametrize(
    ("submission", "r", "epoch"),
    [(1, 0, 1_000_000), (1, 1, 1_000_001), (1, 999_999, 1_999_999), (2, 0, 2_000_000), (17, 42, 17_000_042)],
)
def test_the_epoch_is_the_submission_and_r_padded_to_six_digits(submission: int, r: int, epoch: int) -> None:
    assert build_epoch(submission, r) == epoch == int(f"{submission}{r:06}")


@pytest.mark.parametrize(
    ("submission", "r", "message"),
    [
        (1, 1_000_000, "R = 1000000: must lie between 0 and 999999; start a new submission"),
        (1, -1, "R = -1: must lie between 0 and 999999; start a new submission"),
        (0, 1, "submission = 0: counts from 1"),
    ],
)
def test_an_epoch_beyond_its_digits_is_refused(submission: int, r: int, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        build_epoch(submission, r)

    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("ledger", "found", "try_number", "number"),
    [
        (0, (), 1, 1),
        (0, (), 3, 3),
        (4, (), 1, 5),
        (0, (2, 7, 3), 1, 8),
        (4, (3,), 9, 9),
        (4, (9,), 6, 10),
        (0, (), 0, 1),
        (0, (), -5, 1),
        (-1, (), 0, 1),
    ],
)
def test_a_new_submission_is_above_all_that_was_used(ledger: int, found: tuple, try_number: int, number: int) -> None:
    assert next_submission(ledger, found, try_number) == number


def test_a_new_submission_needs_the_ledger_alone() -> None:
    assert next_submission(4) == 5


@given(st.integers(0, 99), st.lists(st.integers(1, 99)), st.integers(1, 99))
def test_a_submission_is_never_used_twice(ledger: int, found: list[int], try_number: int) -> None:
    number = next_submission(ledger, iter(found), try_number)

    assert number > ledger
    assert number not in found
    assert number >= try_number
    assert number in {1, ledger + 1, try_number} | {used + 1 for used in found}


@pytest.mark.parametrize(
    ("last", "j", "admitted", "expected"),
    [
        ((0, 0), 0, True, (1, 0)),
        ((1, 0), 1, False, (1, 1)),
        ((1, 1), 1, True, (2, 1)),
        ((1, 1), 0, True, (3, 0)),
        ((1, 1), 0, False, (3, 0)),
        ((1, 0), 0, False, (2, 0)),
        ((2, 3), 4, True, (3, 4)),
        ((2, 3), 9, False, (2, 9)),
    ],
)
def test_the_next_execution(last: tuple, j: int, admitted: bool, expected: tuple) -> None:
    assert next_execution(Identity(JOB, 2, 5, *last), j=j, admitted=admitted) == Identity(JOB, 2, 5, *expected)


steps = st.lists(
    st.tuples(st.sampled_from(["execution", "submission"]), st.integers(0, 30), st.booleans(), st.integers(1, 4)),
    max_size=40,
)


@given(steps)
def test_epochs_strictly_grow_over_any_history(history: list[tuple[str, int, bool, int]]) -> None:
    """Whatever the backend counts: restarts may fall back, submissions may leave no trace."""
    identity = Identity(JOB, 1, 1, 0, 0)
    epochs, ledger = [identity.epoch], 1
    for what, j, admitted, try_number in history:
        before = identity
        if what == "submission":
            ledger = next_submission(ledger, try_number=try_number)
            identity = Identity(JOB, ledger, try_number, 0, 0)
        else:
            identity = next_execution(identity, j=j, admitted=admitted)
            assert identity.a >= before.a + admitted
            assert identity.j == j
            assert identity > before
        epochs.append(identity.epoch)

    assert epochs == sorted(set(epochs))


def test_the_identity_tells_itself() -> None:
    identity = Identity(JOB, 2, 5, 3, 4)

    assert identity.r == 7
    assert identity.epoch == 2_000_007
    assert identity.attempt_id == f"{JOB}.2.5.3.4"


def test_identities_sort_in_the_order_they_happened() -> None:
    history = [(1, 1, 0), (1, 1, 1), (1, 3, 0), (2, 1, 0)]
    happened = [Identity(JOB, submission, 1, a, j) for submission, a, j in history]

    assert all(earlier < later for earlier, later in itertools.pairwise(happened))
    assert all(earlier.epoch < later.epoch for earlier, later in itertools.pairwise(happened))


def test_an_identity_beyond_the_epoch_is_refused_when_asked() -> None:
    with pytest.raises(SpecError, match="start a new submission"):
        _ = Identity(JOB, 1, 1, 999_999, 1).epoch


def test_a_process_learns_who_it_is() -> None:
    identity = Identity(JOB, 1, 2, 1, 0)

    assert build_identity_environment(identity, role="worker", rank=3, nodes=4) == {
        "DISPATCH_JOB_ID": JOB,
        "DISPATCH_SUBMISSION": "1",
        "DISPATCH_ATTEMPT": f"{JOB}.1.2.1.0",
        "DISPATCH_EPOCH": "1000001",
        "DISPATCH_ROLE": "worker",
        "DISPATCH_RANK": "3",
        "DISPATCH_NODES": "4",
    }


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        (Owner("a", "d", "r", "t", 0, 1, "id"), True),
        (Owner("a", "other", "other", "other", 9, 7, "id"), True),
        (Owner("a", "d", "r", "t", 0, 1, "other"), False),
        (Owner("other", "d", "r", "t", 0, 1, "id"), False),
    ],
)
def test_the_same_caller_is_the_same_try_of_the_same_deployment(other: Owner, is_same: bool) -> None:
    assert Owner("a", "d", "r", "t", 0, 1, "id").is_same_caller(other) is is_same


def test_an_owner_is_a_program_unless_told() -> None:
    assert Owner() == Owner("", "", "", "", -1, 1, "")
