# SPDX-License-Identifier: Apache-2.0
"""What a TrainJob carries for us: refused where it doesn't fit or isn't ours, guessed where another made it."""

from __future__ import annotations

import pytest

from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.submission import (
    MOST_ANNOTATION_BYTES,
    build_annotations,
    read_ref,
    read_submission,
)
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.records import StartRequest
from airflow_provider_dispatch.exceptions import ProtocolError, SpecError
from tests.adapters.kubeflow.objects import JOB, build_trainjob


def ask(length: int) -> StartRequest:
    return StartRequest(JOB, 1, 1, JobSpec(command=["é" * length]))


def test_a_spec_that_the_cluster_can_not_carry_is_refused_by_its_bytes() -> None:
    few = ask(1)
    spare = MOST_ANNOTATION_BYTES - sum(len(key) + len(value.encode()) for key, value in build_annotations(few).items())
    assert words.SPEC_ANNOTATION in build_annotations(ask(1 + spare // 2))
    with pytest.raises(SpecError, match=f"at most {MOST_ANNOTATION_BYTES} fit"):
        build_annotations(ask(2 + spare // 2))


@pytest.mark.parametrize("label", ["", "not-an-id"])
def test_a_trainjob_of_somebody_else_has_no_address(label: str) -> None:
    trainjob = build_trainjob()
    trainjob["metadata"]["labels"][words.JOB_LABEL] = label
    with pytest.raises(ProtocolError, match=f"carries no job id in label {words.JOB_LABEL}"):
        read_ref(trainjob)


def test_a_trainjob_without_a_spec_is_read_by_its_trainer() -> None:
    trainjob = build_trainjob(trainer={"command": ["a"], "args": ["b"], "numNodes": 3, "image": "i"})
    del trainjob["metadata"]["annotations"][words.SPEC_ANNOTATION]
    runtime = trainjob["spec"]["runtimeRef"]["name"]
    assert read_submission(trainjob).spec == JobSpec(
        command=["a", "b"], nodes=3, image="i", queue="lq", runtime=runtime
    )


def test_a_trainer_that_is_none_is_told_by_its_field() -> None:
    trainjob = build_trainjob(trainer={"command": ["a"], "numNodes": -3})
    del trainjob["metadata"]["annotations"][words.SPEC_ANNOTATION]
    with pytest.raises(ProtocolError, match="carries no spec, and its trainer is none: nodes = -3"):
        read_submission(trainjob)
