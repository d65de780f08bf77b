# SPDX-License-Identifier: Apache-2.0
"""What verbs take and give besides observations: requests, records, selectors, reports, results, capabilities."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given

from airflow_provider_dispatch.core import wire
from airflow_provider_dispatch.core.capabilities import (
    REQUIRED,
    Answer,
    Capability,
    Finding,
    Preflight,
    Source,
    check_may_start,
    check_proved,
    describe_age,
    may_start,
)
from airflow_provider_dispatch.core.decision import Supervision
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.core.owner import Owner
from airflow_provider_dispatch.core.records import (
    JobEvent,
    JobRecord,
    JobSelector,
    ObjectReport,
    StartRequest,
    StopReport,
    SubmissionRecord,
)
from airflow_provider_dispatch.core.result import DEEPEST_RESULT, LARGEST_RESULT_BYTES, parse_result
from airflow_provider_dispatch.core.state import State
from airflow_provider_dispatch.exceptions import CapabilityError, ProtocolError
from tests.core.strategies import JOB, NOW, plain_json

YES = Finding(Answer.YES, Source.PROBED, "seen")
SPEC = JobSpec(command=["a"], labels={"team": "a", "tier": "1"})
OWNER = Owner("airflow", "dag", "run", "task")


def record(submission: int = 1) -> SubmissionRecord:
    ref = JobRef(JOB, submission, "local", "store@host")
    return SubmissionRecord(ref, State.QUEUED, SPEC, OWNER, Supervision(), queue="q")


def test_what_records_are_unless_told() -> None:
    request = StartRequest(JOB, 1, 1, SPEC)

    assert (request.owner, request.supervision) == (Owner(), Supervision())
    plain = SubmissionRecord(record().ref, State.QUEUED, SPEC, OWNER, Supervision())
    assert (plain.attempt, plain.cause, plain.queue, plain.created_at) == (1, None, "", None)
    assert JobEvent(1, NOW, 1, "admitted", "in").epoch is None
    assert ObjectReport("rank 0").detail == ""


def test_a_job_never_heard_of_has_no_submission() -> None:
    assert JobRecord(JOB) == JobRecord(JOB, 0, (), ())
    assert JobRecord(JOB).newest is None


def test_the_newest_submission_has_the_highest_number() -> None:
    newest = record(3)

    assert JobRecord(JOB, 3, (record(1), newest, record(2))).newest is newest


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ({}, True),
        ({"queue": "q"}, True),
        ({"queue": "other"}, False),
        ({"queue": ""}, False),
        ({"deployment": "airflow"}, True),
        ({"deployment": "other"}, False),
        ({"dag_id": "dag"}, True),
        ({"dag_id": "other"}, False),
        ({"run_id": "run"}, True),
        ({"run_id": "other"}, False),
        ({"labels": {"team": "a"}}, True),
        ({"labels": {"team": "b"}}, False),
        ({"labels": {"team": "a", "tier": "1"}}, True),
        ({"labels": {"team": "a", "tier": "2"}}, False),
        ({"labels": {"missing": "a"}}, False),
        ({"states": frozenset({State.QUEUED, State.HELD})}, True),
        ({"states": frozenset({State.HELD})}, False),
        ({"queue": "q", "dag_id": "dag", "labels": {"team": "a"}, "states": frozenset({State.QUEUED})}, True),
        ({"queue": "q", "dag_id": "dag", "labels": {"team": "a"}, "states": frozenset({State.HELD})}, False),
        ({"queue": "other", "states": frozenset({State.QUEUED})}, False),
    ],
)
def test_a_selector_wants_every_field_that_is_set(selector: dict[str, Any], matches: bool) -> None:
    assert JobSelector(**selector).matches(record()) is matches


@pytest.mark.parametrize(
    ("fields", "is_complete"),
    [
        ({}, True),
        ({"stopped": (ObjectReport("a"),)}, True),
        ({"alive": (ObjectReport("a"),)}, False),
        ({"unproven": (ObjectReport("a"),)}, False),
        ({"stopped": (ObjectReport("a"),), "alive": (ObjectReport("b"),), "unproven": (ObjectReport("c"),)}, False),
    ],
)
def test_a_stop_is_complete_when_nothing_lives(fields: dict[str, Any], is_complete: bool) -> None:
    assert StopReport(JOB, **fields).is_complete is is_complete


@given(plain_json)
def test_a_result_is_what_the_rank_wrote(value: object) -> None:
    content = json.dumps(value).encode()

    if len(content) <= LARGEST_RESULT_BYTES:
        assert parse_result(content) == value


@pytest.mark.parametrize("content", [b"", b" \n", b" " * 4000])
def test_an_empty_document_is_no_result(content: bytes) -> None:
    assert parse_result(content) is None


def test_the_largest_result() -> None:
    assert LARGEST_RESULT_BYTES == 4000
    assert parse_result(b'"' + b"x" * 3998 + b'"') == "x" * 3998


@pytest.mark.parametrize("content", [b'"' + b"x" * 3999 + b'"', b" " * 4001, b'"' + "ü".encode() * 2000])
def test_a_larger_result_is_refused_with_its_size(content: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_result(content)

    assert str(caught.value) == f"the result has {len(content)} bytes; at most 4000 are carried"


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"{'a': 1}",
        b"NaN",
        b"[Infinity]",
        b"-Infinity",
        b"1e999",
        b"\xff",
        b'"\\ud800"',
        b'{"\\udfff": 1}',
        b"[" * 4000,
        b"1 2",
        b"undefined",
        b"\x00",
    ],
)
def test_what_is_no_json_is_refused_with_its_size(content: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_result(content)

    assert str(caught.value).startswith(f"the result of {len(content)} bytes is not JSON: ")
    assert caught.value.__suppress_context__


def nest(depth: int) -> bytes:
    """Lists and mappings by turns around an empty one."""
    opened = [b'{"a":', b"["] * depth
    closed = [b"}", b"]"] * depth
    return b"".join(opened[: depth - 1]) + b"[]" + b"".join(reversed(closed[: depth - 1]))


def test_as_deep_as_64_and_as_wide_as_64_bits_is_carried() -> None:
    numbers = f"[{-(2**63)}, {2**64 - 1}, true, 1e300]".encode()

    assert parse_result(nest(DEEPEST_RESULT)) == json.loads(nest(64))
    assert parse_result(numbers) == [-(2**63), 2**64 - 1, True, 1e300]
    # Nothing that is taken here fails those who carry it on.
    for content in (nest(64), numbers):
        seen = Observation(State.SUCCEEDED, record().ref, result=parse_result(content))
        assert wire.load(Observation, wire.dump(seen)) == seen


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (nest(65), "more than 64 lists and mappings are in one another"),
        (nest(300), "more than 64 lists and mappings are in one another"),
        (b"[" * 900 + b"]" * 900, "more than 64 lists and mappings are in one another"),
        (f"{2**64}".encode(), "an integer has more than 64 bits; write it as a text"),
        (f'{{"steps": [{-(2**63) - 1}]}}'.encode(), "an integer has more than 64 bits; write it as a text"),
        (b"9" * 3000, "an integer has more than 64 bits; write it as a text"),
    ],
)
def test_a_result_that_somebody_could_not_carry_is_refused(content: bytes, problem: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_result(content)

    assert str(caught.value) == f"the result of {len(content)} bytes can't be carried: {problem}"


def test_the_capabilities_are_those_of_the_contract() -> None:
    names = "readmission_gate attempt_injection hold start_gate pod_fence logs queue_position progress memory_limit"

    assert [*Capability] == names.split()
    assert tuple(Capability)[:4] == REQUIRED
    assert ([*Answer], [*Source]) == (["yes", "no", "unknown"], ["probed", "declared"])


def test_a_proved_backend_may_start_jobs() -> None:
    assert check_may_start(dict.fromkeys(REQUIRED, YES)) is None  # type: ignore[func-returns-value]  # it returns


@pytest.mark.parametrize("missing", REQUIRED)
@pytest.mark.parametrize("answer", [Answer.NO, Answer.UNKNOWN])
def test_a_backend_that_lacks_a_required_capability_is_refused_with_the_reason(missing: str, answer: Answer) -> None:
    found = dict.fromkeys(Capability, YES) | {Capability(missing): Finding(answer, Source.PROBED, "no webhook")}

    with pytest.raises(CapabilityError) as caught:
        check_may_start(found)

    assert str(caught.value) == f"{missing} is {answer} (probed): no webhook"


def test_a_refusal_names_the_cure() -> None:
    found = dict.fromkeys(Capability, YES) | {
        Capability.HOLD: Finding(Answer.NO, Source.PROBED, "no right", "grant it")
    }

    with pytest.raises(CapabilityError, match=re.escape("hold is no (probed): no right; grant it")):
        check_may_start(found)
    assert not may_start(found)


def test_a_failed_preflight_refuses_with_each_of_its_lines_that_is_not_yes_and_its_age() -> None:
    lacks, unsure = (
        Finding(Answer.NO, Source.PROBED, "no right", "grant it"),
        Finding(Answer.UNKNOWN, Source.PROBED, "?"),
    )
    capabilities = dict.fromkeys(Capability, YES)
    checks = {"entry": YES, "permissions": lacks, "odd": unsure}
    found = Preflight(checks, capabilities | {Capability.HOLD: lacks}, NOW - timedelta(seconds=40))

    with pytest.raises(CapabilityError) as caught:
        check_proved(found, NOW)
    check_proved(Preflight(checks, capabilities), NOW)

    assert str(caught.value).splitlines() == [
        "hold is no (probed): no right; grant it (checked 40 s ago)",
        "permissions: no: no right; grant it",
        "odd: unknown: ?",
    ]


@pytest.mark.parametrize(("value", "is_proved"), [(Answer.YES, True), (Answer.UNKNOWN, True), (Answer.NO, False)])
def test_what_is_unknown_and_not_needed_does_not_count(value: Answer, *, is_proved: bool) -> None:
    checks = {"one": YES, "other": Finding(value, Source.PROBED, "?")}

    assert Preflight(checks, dict.fromkeys(Capability, YES)).is_proved is is_proved
    assert not Preflight({"one": YES}, {}).is_proved


def test_an_age_is_told_where_it_is_known() -> None:
    assert describe_age(Preflight({}, {}), NOW) == "checked at an unknown time"
    assert describe_age(Preflight({}, {}, NOW + timedelta(seconds=1)), NOW) == "checked 0 s ago"


@pytest.mark.parametrize("missing", REQUIRED)
def test_silence_counts_as_no(missing: Capability) -> None:
    with pytest.raises(CapabilityError) as caught:
        check_may_start({capability: YES for capability in Capability if capability is not missing})

    assert str(caught.value) == f"{missing} is unknown (declared): preflight says nothing of it"
