# SPDX-License-Identifier: Apache-2.0
"""Which job is meant, what a moment is, and other words that people write."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_dispatch.cli.naming import JobName, NamedJob, parse_job
from airflow_provider_dispatch.cli.values import read_duration, read_moment, read_pairs
from airflow_provider_dispatch.core.identity import build_job_id, build_task_job_id
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.exceptions import SpecError

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
JOB = build_task_job_id("airflow", "dag", "run", "train")


@given(st.binary(min_size=10, max_size=10), st.integers(1, 2**31 - 1), st.sampled_from(["store@host", "a/b", ""]))
def test_a_job_is_known_by_its_id_and_by_its_reference_in_either_case(bits: bytes, submission: int, place: str) -> None:
    job = build_job_id(0, bits)
    reference = JobRef(job, submission, "local", place).id.lstrip("/")

    assert parse_job(job) == parse_job(job.lower()) == NamedJob(job)
    assert parse_job(reference) == NamedJob(job, submission, place)
    assert parse_job(reference.replace("dj-", "DJ-").replace(job.lower(), job)) == NamedJob(job, submission, place)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "dj-",
        f"{JOB}0",
        f"dj-{JOB}",
        f"dj-{JOB}-s0",
        f"dj-{JOB}-s1x",
        f"/dj-{JOB}-s1",
        f"dj-{JOB[1:]}-s1",
        f"x{JOB}",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_job(text)
    assert caught.value.field == "JOB"


def test_the_job_of_a_task_is_found_by_the_task() -> None:
    name = JobName(dag="dag", run="run", task="train")

    assert name.parse("airflow") == NamedJob(JOB)
    assert name.parse("other") != NamedJob(JOB)
    assert JobName(dag="dag", run="run", task="train", map_index=0).parse("airflow") != NamedJob(JOB)


@pytest.mark.parametrize("more", [{"dag": "dag"}, {"map_index": 3}])
def test_a_job_is_named_in_one_way(more: dict) -> None:
    with pytest.raises(SpecError, match="not both"):
        JobName(job=JOB, **more).parse("airflow")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("1.5", 1.5), ("15m", 900), ("1h30m", 5400), ("2d", 172_800), (" 0 ", 0)],
)
def test_a_length_of_time(text: str, seconds: float) -> None:
    assert read_duration("--x", text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", " ", "soon", "-1", "1w", "30m1h", "1h30", "4000d", "9" * 400 + "d", "١s"])
def test_no_length_of_time(text: str) -> None:
    with pytest.raises(SpecError):
        read_duration("--x", text)


def test_a_moment_is_told_from_now_or_by_the_calendar() -> None:
    assert read_moment("--until", "2h", NOW) == NOW + timedelta(hours=2)
    assert read_moment("--until", "2030-01-01T18:00+02:00", NOW) == datetime(2030, 1, 1, 16, tzinfo=UTC)
    here = read_moment("--until", "2030-01-01 18:00", NOW)
    assert here.tzinfo is not None
    assert here.replace(tzinfo=None) == datetime(2030, 1, 1, 18)  # noqa: DTZ001 - what the clock on the wall shows
    with pytest.raises(SpecError, match="or a moment"):
        read_moment("--until", "noon", NOW)


def test_pairs_keep_what_follows_the_first_sign() -> None:
    assert read_pairs("--label", ["a=b=c", "d="]) == {"a": "b=c", "d": ""}
    with pytest.raises(SpecError):
        read_pairs("--label", ["=b"])
