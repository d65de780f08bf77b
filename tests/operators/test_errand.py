# SPDX-License-Identifier: Apache-2.0
"""One verb on many jobs: waiting in the worker, jobs not yet heard of, limits, and what travels between legs."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_dispatch.core import wire
from airflow_provider_dispatch.core.goals import Goal
from airflow_provider_dispatch.core.holds import Actor, ActorKind, HoldRequest
from airflow_provider_dispatch.core.identity import build_task_job_id
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.records import ObjectReport, StopReport
from airflow_provider_dispatch.core.state import State
from airflow_provider_dispatch.exceptions import RefusedError, SpecError
from airflow_provider_dispatch.hooks.naming import NOT_MAPPED
from airflow_provider_dispatch.operators import errand, targets
from airflow_provider_dispatch.operators.errand import Errand, Item, Patience, Round
from airflow_provider_dispatch.operators.task_states import parse_task_states
from airflow_provider_dispatch.operators.verbs import HoldErrand, ReleaseErrand, StopErrand, merge_reports
from tests.operators.stage import JOB, Stage, run

REQUEST = HoldRequest("d/r/hold/-1", Actor(ActorKind.POLICY, "d/hold"), "maintenance")
OTHER = build_task_job_id("airflow", "d", "r", "other")
REF = JobRef(JOB, 1, "fake", "fake")


class Refused(Errand):
    """A verb that the backend refuses for the first of two."""

    wanted = frozenset({State.GONE})

    async def act(self, adapter, item: Item, observation) -> bool:
        if item.name == "first":
            raise RefusedError("not this one")
        item.result = "done"
        return True


def training(spec: JobSpec | None = None, patience: timedelta | None = None) -> Stage:
    """A running job, seen by a task that waits in its worker."""
    stage = Stage()
    stage.begin(spec or JobSpec(command=["slow", "5"]))
    stage.keep()
    stage.patience = patience
    return stage


def do(stage: Stage, doing: Errand, items: list[Item], **options: Any) -> Item | None:
    return run(Round(stage.adapter, doing, stage.leg, **options).run(items))


def result_of(item: Item) -> Any:
    return item.result


def state_of(stage: Stage) -> State:
    return run(stage.adapter.inspect(JOB)).state


def test_a_worker_waits_until_the_job_is_held() -> None:
    stage = training()
    item = Item("train", JOB)

    assert do(stage, HoldErrand(stage.leg, REQUEST), [item]) is None
    assert (item.is_done, item.error, state_of(stage)) == (True, "", State.HELD)


def test_a_short_patience_leaves_the_rest_to_a_trigger() -> None:
    stage = training(patience=timedelta(seconds=2))
    item = Item("train", JOB)

    assert do(stage, HoldErrand(stage.leg, REQUEST), [item]) is item
    assert (item.is_acted, item.is_done, state_of(stage)) == (True, False, State.HOLDING)


def test_waiting_has_a_limit_and_the_hold_stays() -> None:
    stage = training()
    item = Item("train", JOB)

    do(stage, HoldErrand(stage.leg, REQUEST), [item], give_up_at=stage.now() + timedelta(seconds=1))

    assert "time is over" in item.error
    assert state_of(stage) is State.HOLDING


def test_a_worker_waits_until_a_released_job_runs() -> None:
    stage = training()
    item, release = Item("train", JOB), Item("train", JOB)
    do(stage, HoldErrand(stage.leg, REQUEST), [item])

    do(stage, ReleaseErrand(stage.leg, "d/r/", goal=Goal.RUNNING), [release])

    assert (release.result, release.error, state_of(stage)) == ([], "", State.RUNNING)


def test_a_release_does_not_wait_while_others_hold() -> None:
    stage = training()
    other = HoldRequest("someone", Actor(ActorKind.HUMAN, "ann"))
    for request in (REQUEST, other):
        do(stage, HoldErrand(stage.leg, request), [Item("train", JOB)])
    item = Item("train", JOB)

    do(stage, ReleaseErrand(stage.leg, "d/r/", goal=Goal.RUNNING), [item])

    assert [hold["key"] for hold in result_of(item)] == ["someone"]
    assert state_of(stage) is State.HELD


def test_a_release_of_a_failed_job_says_so() -> None:
    stage = training(JobSpec(command=["run"]))
    stage.world.exit_rank((JOB, 1), code=1)
    item = Item("train", JOB)

    do(stage, ReleaseErrand(stage.leg, "d/r/"), [item])

    assert "failed" in item.error


def test_a_worker_waits_until_all_is_gone() -> None:
    stage = training()
    item = Item("train", JOB)

    do(stage, StopErrand(stage.leg, "enough"), [item])

    assert (item.is_done, item.error, state_of(stage)) == (True, "", State.GONE)
    assert [found["object"] for found in result_of(item)["stopped"]] == ["submission 1"]
    assert result_of(item)["alive"] == []


def test_a_stop_can_be_left_to_itself() -> None:
    stage = training()
    item = Item("train", JOB)

    do(stage, StopErrand(stage.leg, "enough", is_waiting=False), [item])

    assert (item.is_done, len(result_of(item)["alive"]), state_of(stage)) == (True, 1, State.STOPPING)


def test_a_stop_gives_up_with_its_report() -> None:
    stage = training(JobSpec(command=["stubborn"], grace_period=timedelta(hours=1)))
    item = Item("train", JOB)

    do(stage, StopErrand(stage.leg, "enough"), [item], give_up_at=stage.now() + timedelta(minutes=1))

    assert "time is over" in item.error
    assert len(result_of(item)["alive"]) == 1


def test_one_failure_does_not_stop_the_rest() -> None:
    stage = training()
    items = [Item("first", JOB), Item("second", JOB)]

    do(stage, Refused(), items)

    assert [item.result for item in items] == [None, "done"]
    assert str(errand.build_failure(items)) == "1 of 2 jobs failed:\nfirst: RefusedError: not this one"
    assert [entry["error"] for entry in errand.build_report(items)] == ["RefusedError: not this one", None]


def test_a_reference_means_its_submission_and_no_later_one() -> None:
    stage = training()
    run(stage.adapter.stop(JOB, reason="over", deadline=stage.leg.call_deadline()))
    stage.world.advance(timedelta(seconds=10))
    stage.begin()
    old, newest = Item("old", JOB, wire.dump(REF)), Item("newest", JOB)

    do(stage, HoldErrand(stage.leg, REQUEST), [old, newest])

    assert "no such job" in old.error
    assert state_of(stage) is State.HELD


def test_a_reference_to_a_job_of_another_store_is_not_waited_for() -> None:
    stage = training()
    item = Item("train", JOB, wire.dump(replace(REF, place="elsewhere")))

    do(stage, HoldErrand(stage.leg, REQUEST), [item])

    assert "lives in fake elsewhere" in item.error


def test_a_job_nobody_has_heard_of() -> None:
    stage = Stage(patience=None)
    doing = HoldErrand(stage.leg, REQUEST)
    late, refused, ignored = (Item(name, JOB) for name in ("late", "refused", "ignored"))

    do(stage, doing, [late], patience=Patience("wait", stage.now() + timedelta(minutes=1)))
    do(stage, doing, [refused], patience=Patience("fail"))
    do(stage, doing, [ignored], patience=Patience("ignore"))

    assert "unknown_timeout" in late.error
    assert "nobody has heard of it" in refused.error
    assert (ignored.is_done, ignored.result) == (True, None)


def test_a_worker_gives_up_with_the_task_that_never_started_a_job() -> None:
    stage = Stage(patience=None)
    item = Item("train", JOB, starter=["d", "r", "train", -1])

    async def probe() -> str:
        return "upstream_failed"

    do(stage, HoldErrand(stage.leg, REQUEST), [item], build_probe=lambda _: probe)

    assert "ended without" in item.error


def test_the_execution_timeout_ends_waiting_too() -> None:
    stage = Stage(patience=None, execution_timeout=timedelta(minutes=1))
    item = Item("train", JOB)

    do(stage, HoldErrand(stage.leg, REQUEST), [item])

    assert "time is over" in item.error


def test_a_hold_that_was_lifted_is_no_more_waited_for() -> None:
    stage = training(patience=timedelta(seconds=1))
    item, release = Item("train", JOB), Item("train", JOB)
    do(stage, HoldErrand(stage.leg, REQUEST), [item])
    do(stage, ReleaseErrand(stage.leg, "d/r/"), [release])

    do(stage, HoldErrand(stage.leg, REQUEST), [item])

    assert "lifted" in item.error


def test_items_travel_as_json() -> None:
    items = [Item("a", JOB, wire.dump(REF), ["d", "r", "a", -1], {"x": 1}, is_acted=True), Item("b", OTHER, error="no")]
    record = json.loads(json.dumps(errand.dump_items(items)))

    assert errand.load_items(record) == items
    assert errand.load_items([record, record]) == items * 2
    assert errand.load_items({"items": [{"name": "a", "job": JOB, "new_field": 1}]}) == [Item("a", JOB)]
    assert errand.load_items(None) == errand.load_items("text") == []


def test_reports_of_a_stop_add_up() -> None:
    one, two = ObjectReport("one"), ObjectReport("two")
    first = StopReport(JOB, stopped=(), alive=(one,), unproven=(two,))

    merged = merge_reports(first, StopReport(JOB, alive=(two,)))
    last = merge_reports(merged, StopReport(JOB))

    assert (merged.stopped, merged.alive, merged.unproven) == ((one,), (two,), ())
    assert {found.object for found in last.stopped} == {"one", "two"}
    assert merge_reports(None, first) is first


def test_states_of_tasks_by_map_index() -> None:
    states = {"train": "running", "train_0": "failed", "train_12": None, "train_x": "success", "other_1": "success"}

    assert parse_task_states("train", states) == {NOT_MAPPED: "running", 0: "failed", 12: None}


def test_selectors_mean_the_live_jobs_of_this_airflow() -> None:
    selector = targets.build_selector({"queue": "team-a", "labels": {"a": "b"}}, "airflow")
    chosen = targets.build_selector({"states": ["held"]}, "airflow")

    assert (selector.queue, selector.deployment, selector.labels) == ("team-a", "airflow", {"a": "b"})
    assert State.RUNNING in selector.states
    assert State.FAILED not in selector.states
    assert chosen.states == {State.HELD}
    with pytest.raises(SpecError, match=r"select\.states"):
        targets.build_selector({"states": ["happy"]}, "airflow")
