# SPDX-License-Identifier: Apache-2.0
"""Which jobs a task means: one, named as everywhere, or many by their tasks or by what they have in common.

Checked by hand when the DAG is parsed, resolved when the task runs. It reads the DAG, the states of its tasks and, for
``select``, the backend's list; it changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from airflow_provider_dispatch.exceptions import SpecError
from airflow_provider_dispatch.hooks.deferred_import import deferred
from airflow_provider_dispatch.hooks.naming import (
    JobTarget,
    derive_own_map_index,
    get_address,
    get_job_id,
    parse_map_index,
)

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator

    from airflow_provider_dispatch.adapters.protocol import DispatchAdapter
    from airflow_provider_dispatch.core import identity, job_ref, records, state, wire
    from airflow_provider_dispatch.core.records import JobSelector
    from airflow_provider_dispatch.operators import errand, task_states
    from airflow_provider_dispatch.operators.errand import Item
    from airflow_provider_dispatch.operators.leg import Leg
else:
    identity = deferred("airflow_provider_dispatch.core.identity")
    job_ref = deferred("airflow_provider_dispatch.core.job_ref")
    records = deferred("airflow_provider_dispatch.core.records")
    state = deferred("airflow_provider_dispatch.core.state")
    wire = deferred("airflow_provider_dispatch.core.wire")
    errand = deferred("airflow_provider_dispatch.operators.errand")
    task_states = deferred("airflow_provider_dispatch.operators.task_states")

ONE = ("job_task_id", "job_ref", "job_id")
MANY = ("job_task_ids", "select")
SELECTORS = ("queue", "dag_id", "run_id", "labels", "states")


def check_targets(names: Mapping[str, object]) -> None:
    """Refuse none or several ways to name jobs, and a name that can be told to be wrong already.

    :param names: the arguments that are given.
    :raises SpecError: naming the argument.
    """
    if len(names) == 1 and names.keys() <= {"job_task_id"} and names["job_task_id"] != "":
        return
    many = [name for name in MANY if name in names]
    one = [name for name in ONE if name in names]
    if not many and len(one) == 1:
        JobTarget(**{name: names[name] for name in (*ONE, "job_map_index") if name in names})
        return
    if len(many) != 1 or one:
        got = " and ".join((*one, *many)) or "none"
        raise SpecError("job_task_id", f"give exactly one of {', '.join((*ONE, *MANY))}, not {got}")
    if many == ["select"]:
        _check_select(names["select"])
        if "job_map_index" in names:
            raise SpecError("job_map_index", "goes with job_task_id and job_task_ids only")
    elif isinstance(names["job_task_ids"], str) and "{{" not in names["job_task_ids"]:
        raise SpecError("job_task_ids", "must be a list", names["job_task_ids"])


def is_single(names: Mapping[str, object]) -> bool:
    """True when the task means exactly one job, so that its result needs no list."""
    return any(name in names for name in ONE) and names.get("job_map_index") != "all"


async def resolve_targets(
    names: Mapping[str, object], task: BaseOperator, leg: Leg, adapter: DispatchAdapter
) -> list[Item]:
    """The jobs meant at this moment.

    :param names: rendered.
    :raises SpecError: a rendered value is wrong, or it is open which instance of a mapped task is meant.
    """
    if "select" in names:
        found = await adapter.list(build_selector(names["select"], leg.owner.deployment))
        return [errand.Item(record.ref.id, record.ref.job, is_known=True) for record in found]
    task_ids = [names["job_task_id"]] if "job_task_id" in names else names.get("job_task_ids")
    if task_ids is None:
        target = JobTarget(**{name: names[name] for name in ONE if name in names})
        owner = leg.owner
        named = target.resolve(deployment=owner.deployment, dag_id=owner.dag_id, run_id=owner.run_id)
        address = get_address(named)
        ref = wire.dump(address) if isinstance(address, job_ref.JobRef) else None
        return [errand.Item(f"job {get_job_id(named)}", get_job_id(named), ref)]
    if not isinstance(task_ids, Sequence) or isinstance(task_ids, str):
        raise SpecError("job_task_ids", "must be a list", str(task_ids))
    wanted = names.get("job_map_index")
    return [item for task_id in task_ids for item in _resolve_task(str(task_id), wanted, task, leg)]


def build_selector(select: object, deployment: str) -> JobSelector:
    """The live jobs of this Airflow that have something in common.

    :raises SpecError: naming the wrong part.
    """
    _check_select(select)
    assert isinstance(select, Mapping)
    names = select.get("states")
    live = frozenset(state.State) - state.OVER
    chosen = live if names is None else frozenset(map(_read_state, names))
    return records.JobSelector(
        queue=select.get("queue"),
        deployment=deployment,
        dag_id=select.get("dag_id"),
        run_id=select.get("run_id"),
        labels=select.get("labels") or {},
        states=chosen,
    )


def _read_state(name: object) -> state.State:
    try:
        return state.State(str(name))
    except ValueError:
        raise SpecError("select.states", f"must be some of {', '.join(state.State)}", name) from None


def _check_select(select: object) -> None:
    if isinstance(select, str) and "{{" in select:
        return
    if not isinstance(select, Mapping) or not select:
        raise SpecError("select", f"must be a mapping with some of {', '.join(SELECTORS)}", select)
    for name in select:
        if name not in SELECTORS:
            raise SpecError(f"select.{name}", f"is not one of {', '.join(SELECTORS)}")


def _resolve_task(task_id: str, wanted: object, task: BaseOperator, leg: Leg) -> list[Item]:
    owner = leg.owner
    index = parse_map_index(wanted)
    if index is None:
        indexes = [derive_own_map_index(task, task_id, owner.map_index)]
    elif index == "all":
        indexes = _fetch_indexes(task_id, leg)
    else:
        indexes = [index]
    return [_build_item(task_id, index, leg) for index in indexes]


def _fetch_indexes(task_id: str, leg: Leg) -> list[int]:
    owner = leg.owner
    found = sorted(index for index in task_states.fetch_task_states(owner.dag_id, owner.run_id, task_id) if index >= 0)
    if not found:
        raise SpecError("job_map_index", f"{task_id} has no mapped instances yet; run after what it is mapped over")
    return found


def _build_item(task_id: str, map_index: int, leg: Leg) -> Item:
    owner = leg.owner
    job = identity.build_task_job_id(owner.deployment, owner.dag_id, owner.run_id, task_id, map_index)
    name = task_id if map_index == identity.NOT_MAPPED else f"{task_id}[{map_index}]"
    return errand.Item(name, job, starter=[owner.dag_id, owner.run_id, task_id, map_index])
