# SPDX-License-Identifier: Apache-2.0
"""What holds of the fence whatever the cluster shows, over whole histories of a job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from airflow_provider_dispatch.adapters.kubeflow.model.controller_view import LedgerView, NodeView, PodView
from airflow_provider_dispatch.adapters.kubeflow.model.execution_record import ExecutionRecord
from airflow_provider_dispatch.adapters.kubeflow.model.fence import FencePlan, decide_fence
from airflow_provider_dispatch.core.identity import build_epoch
from tests.adapters.kubeflow.model.controller_views import (
    GATED,
    HELD,
    NODE,
    NOW,
    RELEASED,
    RUNNING,
    SECOND,
    SETTINGS,
    TRAINJOB,
    record_of,
)

POOL = [
    replace(
        GATED,
        uid=f"{slot}{jobset}{restart}{twin}{submission}",
        completion_index=slot,
        jobset_uid=jobset,
        restart=restart,
        submission=submission,
    )
    for slot in (0, 1)
    for jobset, restart, submission in (("js", 0, 2), ("js", 1, 2), ("other", 0, 2), ("old", 0, 1))
    for twin in "ab"
]

sights: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "phase": st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]),
        "has_fence": st.booleans(),
        "is_deleting": st.booleans(),
        "is_gone": st.booleans(),
        "node": st.sampled_from([None, "node-1"]),
        "failed_by_gc": st.booleans(),
    }
)
pods = st.lists(st.tuples(st.sampled_from(POOL), sights), max_size=5, unique_by=lambda seen: seen[0].uid).map(
    lambda seen: tuple(replace(pod, **facts) for pod, facts in seen)
)
trainjobs = st.builds(
    lambda changes: replace(TRAINJOB, **changes),
    st.fixed_dictionaries(
        {
            "admissions": st.integers(0, 3),
            "holds": st.sampled_from([HELD, RELEASED, RELEASED, RELEASED]),
            "jobset_uid": st.sampled_from(["js", "js", "other", None]),
            "restart": st.integers(0, 1),
        }
    ),
)
nodes = st.sampled_from([(NODE,), (), (NodeView("node-1", is_ready=False),)])
moments = st.tuples(trainjobs, pods, nodes)


def ask(trainjob, seen, present=(NODE,), now=NOW):
    return decide_fence(
        trainjob, workload=RUNNING, pods=seen, nodes=present, ledger=LedgerView(), now=now, settings=SETTINGS
    )


EVENTS = (
    "make",
    "make",
    "make and die",
    "succeed",
    "fail",
    "terminate",
    "vanish",
    "restart",
    "recreate",
    "readmit",
    "hold",
)
histories = st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 1)), min_size=1, max_size=16)


class Job:
    """A job to which things happen."""

    def __init__(self) -> None:
        self.trainjob = TRAINJOB
        self.pods: dict[str, PodView] = {}
        self.now = NOW

    def happen(self, event: str, slot: int) -> None:
        self.now += 300 * SECOND
        job = self.trainjob
        match event:
            case "make" | "make and die":
                made = replace(GATED, uid=f"u{len(self.pods)}-{self.now}", completion_index=slot)
                self.pods[made.uid] = replace(made, jobset_uid=job.jobset_uid or "", restart=job.restart)
            case "restart":
                self.trainjob = replace(job, restart=job.restart + 1)
            case "recreate":
                self.trainjob = replace(job, jobset_uid=f"js-{self.now}", restart=0)
            case "readmit":
                self.trainjob = replace(job, admissions=job.admissions + 1)
            case "hold":
                self.trainjob = replace(job, holds=RELEASED if job.holds.is_held else HELD)
            case _:
                self._harm(event, slot)

    def _harm(self, event: str, slot: int) -> None:
        for pod in [one for one in self.pods.values() if one.completion_index == slot and not one.has_fence][:1]:
            if event == "vanish":
                del self.pods[pod.uid]
            elif not pod.is_ended:
                phase = "Succeeded" if event == "succeed" else "Failed" if event == "fail" else pod.phase
                self.pods[pod.uid] = replace(pod, phase=phase, is_deleting=event == "terminate")

    def obey(self, plan: FencePlan, *, dies: bool) -> None:
        """Carry the plan out; a controller that dies has written the record and lifted nothing."""
        self.trainjob = replace(self.trainjob, record=plan.record or self.trainjob.record)
        for lift in () if dies else plan.lifts:
            pod = self.pods[lift.uid]
            self.pods[lift.uid] = replace(pod, has_fence=False, phase="Running", node="node-1", epoch=lift.epoch)


def play(history):
    """Live through *history*; yields each plan with what it was made of."""
    job = Job()
    for event, slot in history:
        job.happen(event, slot)
        judged, seen = job.trainjob, tuple(job.pods.values())
        plan = ask(judged, seen, now=job.now)
        yield judged, seen, plan
        job.obey(plan, dies=event == "make and die")


@given(histories)
def test_epochs_grow_and_a_slot_is_filled_once_under_each(history):
    filled: dict[tuple[int, object], str] = {}
    highest = 0
    for _, seen, plan in play(history):
        slots = {pod.uid: pod.slot for pod in seen}
        for lift in plan.lifts:
            assert lift.epoch >= highest
            highest = lift.epoch
            assert filled.setdefault((lift.epoch, slots[lift.uid]), lift.uid) == lift.uid


@given(histories)
def test_r_never_falls_and_a_new_execution_has_a_new_one(history):
    for judged, _, plan in play(history):
        if plan.record is None:
            continue
        old, new = judged.record, plan.record
        assert new.r >= old.r
        is_same = (new.jobset_uid, new.restart, new.a) == (old.jobset_uid, old.restart, old.a)
        assert new.r > old.r or (is_same and {pod.uid for pod in old.pods} <= {pod.uid for pod in new.pods})


@given(histories)
def test_only_recorded_pods_that_wait_at_the_fence_are_lifted(history):
    for judged, seen, plan in play(history):
        by_uid = {pod.uid: pod for pod in seen}
        record = plan.record or judged.record
        recorded = {pod.uid for pod in record.pods}
        assert len(recorded) == len({pod.slot for pod in record.pods}) == len(record.pods)
        assert {lift.uid for lift in plan.lifts} <= recorded
        for lift in plan.lifts:
            pod = by_uid[lift.uid]
            assert pod.has_fence
            assert (pod.jobset_uid, pod.restart) == (judged.jobset_uid, judged.restart)
            assert (lift.a, lift.j, lift.epoch) == (record.a, record.restart, build_epoch(2, record.r))


@given(histories)
def test_nothing_is_lifted_while_anybody_holds(history):
    for judged, _, plan in play(history):
        assert not (judged.holds.is_held and plan.lifts)
        assert bool(plan.reason) == (not plan.lifts)


@given(histories)
def test_no_new_execution_begins_beside_anything_that_may_live(history):
    for judged, seen, plan in play(history):
        if plan.record is None or plan.record.r == judged.record.r:
            continue
        recorded = {pod.uid for pod in judged.record.pods}
        assert not any(_may_live(pod, recorded) for pod in seen)


def _may_live(pod: PodView, recorded: set[str]) -> bool:
    return pod.is_left and (not pod.has_fence or pod.submission != 2 or pod.uid in recorded)


DEAD_STRANGER = replace(POOL[1], has_fence=False, node="node-1", is_gone=True)
"""Its node is destroyed, and its last state is still to be seen."""


@given(moments, st.integers(0, 3))
@example((TRAINJOB, (POOL[0], DEAD_STRANGER), ()), 0)
def test_to_decide_again_changes_nothing(moment, r):
    trainjob, seen, present = moment
    trainjob = replace(trainjob, record=record_of(*seen[:2], r=r) if r else ExecutionRecord())
    first = ask(trainjob, seen, present)
    second = ask(replace(trainjob, record=first.record or trainjob.record), seen, present)
    assert second.record is None
    assert second.lifts == first.lifts


@given(moments)
def test_the_order_of_what_is_seen_means_nothing(moment):
    trainjob, seen, present = moment
    assert ask(trainjob, seen, present).lifts == ask(trainjob, seen[::-1], present[::-1]).lifts
