# SPDX-License-Identifier: Apache-2.0
"""The three ways to name a job."""

from __future__ import annotations

import json

import pytest
from airflow.sdk import DAG, BaseOperator, task_group

from airflow_provider_dispatch.core import wire
from airflow_provider_dispatch.core.identity import build_task_job_id
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.exceptions import DispatchError, SpecError
from airflow_provider_dispatch.hooks.naming import (
    JobTarget,
    derive_own_map_index,
    get_job_id,
    get_submission,
    parse_job_ref,
)

HERE: dict = {"deployment": "airflow", "dag_id": "dag", "run_id": "run"}
JOB = build_task_job_id("airflow", "dag", "run", "group.train")
REF = JobRef(JOB, 2, "local", "store@host")


def test_a_task_names_the_job_it_owns_before_it_has_run() -> None:
    assert JobTarget(job_task_id="group.train").resolve(**HERE) == JOB


def test_a_mapped_task_names_one_job_each() -> None:
    target = JobTarget(job_task_id="group.train", job_map_index=3)

    assert target.resolve(**HERE) == build_task_job_id("airflow", "dag", "run", "group.train", 3)
    assert JobTarget(job_task_id="group.train").resolve(**HERE, own_map_index=3) == target.resolve(**HERE)


def test_a_rendered_map_index_is_a_number() -> None:
    target = JobTarget(job_task_id="group.train", job_map_index="3")

    assert target.resolve(**HERE) == build_task_job_id("airflow", "dag", "run", "group.train", 3)


@pytest.mark.parametrize(
    "value",
    [REF, wire.dump(REF), json.dumps(wire.dump(REF)), str(wire.dump(REF)), wire.dump(REF) | {"result": 0.9}],
    ids=["object", "dict", "JSON", "rendered dict", "result of a training task"],
)
def test_a_reference_is_understood_in_every_form_it_arrives_in(value: object) -> None:
    assert JobTarget(job_ref=value).resolve(**HERE) == REF


def test_what_a_finished_task_returned_names_its_job() -> None:
    assert parse_job_ref({"job": JOB, "submission": 2, "epoch": 2000001}).submission == 2


def test_an_id_is_taken_in_either_case() -> None:
    assert JobTarget(job_id=JOB.lower()).resolve(**HERE) == JOB


def test_job_and_submission_of_whatever_was_named() -> None:
    assert (get_job_id(REF), get_submission(REF)) == (JOB, 2)
    assert (get_job_id(JOB), get_submission(JOB)) == (JOB, None)


@pytest.mark.parametrize(
    "names",
    [
        {},
        {"job_task_id": "train", "job_id": JOB},
        {"job_task_id": "train", "job_ref": REF},
        {"job_task_id": "train", "job_ref": REF, "job_id": JOB},
        {"job_id": JOB, "job_map_index": 0},
        {"job_task_id": ""},
        {"job_id": "short"},
        {"job_task_id": "train", "job_map_index": -2},
        {"job_task_id": "train", "job_map_index": "first"},
        {"job_task_id": "train", "job_map_index": True},
    ],
)
def test_what_can_be_told_to_be_wrong_is_refused_before_a_task_runs(names: dict) -> None:
    with pytest.raises(SpecError, match="job_"):
        JobTarget(**names)


def test_a_template_is_judged_when_it_is_rendered() -> None:
    template = JobTarget(job_id="{{ params.job }}")

    with pytest.raises(SpecError, match="26 characters"):
        template.resolve(**HERE)


@pytest.mark.parametrize(
    "value", ["nonsense", "[1]", 7, {"submission": 1}, {"job": "short", "submission": 1}, "{'job'"]
)
def test_something_else_is_no_reference(value: object) -> None:
    with pytest.raises(DispatchError):
        parse_job_ref(value)


def test_all_is_not_one_job() -> None:
    with pytest.raises(SpecError, match="several"):
        JobTarget(job_task_id="train", job_map_index="all").resolve(**HERE)


@pytest.fixture(scope="module")
def dag() -> DAG:
    with DAG("dag", schedule=None) as made:
        BaseOperator(task_id="plain")
        BaseOperator.partial(task_id="mapped").expand(doc=["a", "b"])

        @task_group
        def each(number: int) -> None:
            BaseOperator(task_id="train", doc=str(number))
            BaseOperator(task_id="watch")

        each.expand(number=[1, 2])
        BaseOperator(task_id="outside")
    return made


def get_task(dag: DAG, task_id: str) -> BaseOperator:
    """As it is when it runs: a task in a mapped group is a plain operator then."""
    task = dag.get_task(task_id)
    assert isinstance(task, BaseOperator)
    return task


def test_no_index_means_the_own_one_in_the_same_mapped_group(dag: DAG) -> None:
    assert derive_own_map_index(get_task(dag, "each.watch"), "each.train", 1) == 1


def test_no_index_means_none_for_a_task_that_is_not_mapped(dag: DAG) -> None:
    assert derive_own_map_index(get_task(dag, "outside"), "plain", -1) == -1
    assert derive_own_map_index(get_task(dag, "each.watch"), "plain", 1) == -1


@pytest.mark.parametrize("target", ["mapped", "each.train"])
def test_an_index_is_needed_for_a_task_that_is_mapped_otherwise(dag: DAG, target: str) -> None:
    with pytest.raises(SpecError, match="job_map_index: is needed"):
        derive_own_map_index(get_task(dag, "outside"), target, -1)


def test_a_task_that_the_dag_does_not_have_is_named(dag: DAG) -> None:
    with pytest.raises(SpecError, match=r"train.*in full"):
        derive_own_map_index(get_task(dag, "outside"), "train", -1)
