# SPDX-License-Identifier: Apache-2.0
"""Which job a task means: by the task that owns it, by a reference, or by its id. The same three ways everywhere.

Operators and sensors check the way when a DAG is parsed and resolve it when they run. It reads the DAG at most, asks no
backend and fetches nothing.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, cast

from airflow_provider_dispatch.exceptions import SpecError
from airflow_provider_dispatch.hooks.deferred_import import deferred

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator

    from airflow_provider_dispatch.core import identity, job_ref, wire
    from airflow_provider_dispatch.core.identity import JobID
    from airflow_provider_dispatch.core.job_ref import JobRef
else:
    identity = deferred("airflow_provider_dispatch.core.identity")
    job_ref = deferred("airflow_provider_dispatch.core.job_ref")
    wire = deferred("airflow_provider_dispatch.core.wire")

MapIndex = int | Literal["all"] | None
NOT_MAPPED = -1


class JobTarget:
    """One job, named in exactly one way.

    :param job_task_id: full id of the task of this DAG run that owns the job (templated).
    :param job_ref: a :class:`JobRef`, or one as a dict or its text, for instance from XCom (templated).
    :param job_id: the job's own id (templated).
    :param job_map_index: of *job_task_id*, when that is mapped: an index, ``"all"``, or None for the own index inside
        the same mapped group.

    :raises SpecError: none or several ways, or a value that can be told to be wrong before it is rendered.
    """

    __slots__ = ("job_id", "job_map_index", "job_ref", "job_task_id")

    def __init__(
        self,
        *,
        job_task_id: object = None,
        job_ref: object = None,
        job_id: object = None,
        job_map_index: object = None,
    ) -> None:
        self.job_task_id, self.job_ref, self.job_id = job_task_id, job_ref, job_id
        self.job_map_index = job_map_index
        given = [name for name in ("job_task_id", "job_ref", "job_id") if getattr(self, name) is not None]
        if len(given) != 1:
            got = " and ".join(given) or "none"
            raise SpecError("job_task_id", f"give exactly one of job_task_id, job_ref and job_id, not {got}")
        if job_map_index is not None and job_task_id is None:
            raise SpecError("job_map_index", "goes with job_task_id only")
        if _is_rendered(job_id):
            identity.parse_job_id(cast("str", job_id))
        if job_task_id == "":
            raise SpecError("job_task_id", "must not be empty")
        if _is_rendered(job_map_index):
            parse_map_index(job_map_index)

    def resolve(self, *, deployment: str, dag_id: str, run_id: str, own_map_index: int = NOT_MAPPED) -> JobID | JobRef:
        """The job, once every template is rendered.

        :param own_map_index: stands for a map index of None; see :func:`derive_own_map_index`.
        :raises SpecError: a rendered value is wrong, or ``"all"`` where one job is meant.
        """
        if self.job_id is not None:
            return identity.parse_job_id(str(self.job_id))
        if self.job_ref is not None:
            return parse_job_ref(self.job_ref)
        index = parse_map_index(self.job_map_index)
        if index == "all":
            raise SpecError("job_map_index", "'all' names several jobs, and one is meant here")
        return identity.build_task_job_id(
            deployment, dag_id, run_id, str(self.job_task_id), own_map_index if index is None else index
        )


def get_job_id(named: JobID | JobRef) -> JobID:
    """The job of either."""
    return named.job if isinstance(named, job_ref.JobRef) else named


def get_submission(named: JobID | JobRef) -> int | None:
    """The submission that was named, if one was."""
    return named.submission if isinstance(named, job_ref.JobRef) else None


def get_address(named: JobID | JobRef) -> JobID | JobRef:
    """What a backend is asked about: the reference, or the bare id where it doesn't say where the job lives."""
    return named if isinstance(named, job_ref.JobRef) and named.place else get_job_id(named)


def parse_map_index(value: object) -> MapIndex:
    """Read a map index.

    :raises SpecError: neither None, ``"all"`` nor a number from 0.
    """
    if value is None or value == "all":
        return cast("MapIndex", value)
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise SpecError("job_map_index", "must be a number from 0, 'all' or None", value)
    return value


def parse_job_ref(value: object) -> JobRef:
    """Read a reference as XCom or a template hands it over: an object, a dict, or text of a dict.

    :raises SpecError: something else.
    """
    if isinstance(value, job_ref.JobRef):
        return value
    fields = read_mapping(value)
    if fields is None:
        raise SpecError("job_ref", "must be a job reference as DispatchStartJobOperator returns it", str(value))
    # A finished training task returns more than a reference; what names the job is all that counts here.
    found = wire.load(job_ref.JobRef, {"backend": "", "place": ""} | dict(fields))
    identity.parse_job_id(found.job, field="job_ref.job")
    return found


def read_mapping(value: object) -> Mapping[str, object] | None:
    """A mapping, or one that a template has written out, as JSON or as Python does; None when it is neither."""
    if isinstance(value, str):
        value = _read_literal(value)
    return value if isinstance(value, Mapping) else None


def _read_literal(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None


def derive_own_map_index(task: BaseOperator, job_task_id: str, map_index: int) -> int:
    """The index that a map index of None means: the own one inside the same mapped group, else none.

    :param map_index: of the task instance that asks.
    :raises SpecError: the DAG has no such task, or it is mapped in a way that leaves the index open.
    """
    dag = task.get_dag()
    if dag is None or job_task_id not in dag.task_dict:
        raise SpecError("job_task_id", "the DAG has no task of that id; give it in full, with its groups", job_task_id)
    target = dag.task_dict[job_task_id]
    group = target.get_closest_mapped_task_group()
    if target.is_mapped or (group is not None and group is not task.get_closest_mapped_task_group()):
        raise SpecError("job_map_index", f"is needed, because {job_task_id} is mapped")
    return NOT_MAPPED if group is None else map_index


def _is_rendered(value: object) -> bool:
    """Known already when the DAG is parsed."""
    return isinstance(value, int) or (isinstance(value, str) and "{{" not in value and "{%" not in value)
