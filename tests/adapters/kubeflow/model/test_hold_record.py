# SPDX-License-Identifier: Apache-2.0
"""The hold book on the TrainJob and the five annotations on the Workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_dispatch.adapters.kubeflow.model import hold_record
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.core.holds import Actor, ActorKind, Hold, HoldBook
from airflow_provider_dispatch.exceptions import ProtocolError

NOW = datetime(2026, 3, 1, 12, 0, 0, 250000, tzinfo=UTC)
ANN = Actor(ActorKind.HUMAN, "ann")
FIRST = Hold(1, "a", ANN, "maintenance", NOW)
SECOND = Hold(2, "b", Actor(ActorKind.POLICY, "dag.hold"), "budget", NOW, NOW + timedelta(hours=1))
BOOK = HoldBook((FIRST, SECOND), 2)


def build_trainjob(**annotations: str) -> dict[str, object]:
    notes = {f"{words.DOMAIN}/{key}": value for key, value in annotations.items()}
    return {"metadata": {"name": "tj", "resourceVersion": "7", "annotations": notes}, "spec": {"suspend": True}}


def build_workload(
    *, active: bool | None = None, evicted: str = "", is_finished: bool = False, notes: Mapping[str, str] = {}
) -> dict[str, object]:
    annotations = {f"{words.DOMAIN}/{key}": value for key, value in notes.items()}
    conditions = [{"type": "Evicted", "status": "True", "reason": evicted}] if evicted else []
    conditions += [{"type": "Finished", "status": "True", "reason": "Succeeded"}] if is_finished else []
    return {
        "metadata": {"name": "wl", "uid": "w-1", "resourceVersion": "9", "annotations": annotations},
        "spec": {} if active is None else {"active": active},
        "status": {"conditions": conditions},
    }


def changes(patch: list[dict[str, object]]) -> dict[object, object]:
    return {change["path"]: change.get("value") for change in patch}


def note(key: str) -> str:
    return f"/metadata/annotations/{words.DOMAIN}~1{key}"


def test_the_book_comes_back_as_it_was_written() -> None:
    patch = changes(hold_record.build_hold_patch(build_trainjob(), BOOK))
    written = patch[note("holds")]
    assert isinstance(written, str)
    assert hold_record.read_hold_book(build_trainjob(holds=written)) == BOOK


def test_a_write_is_bound_to_what_was_read() -> None:
    patch = hold_record.build_hold_patch(build_trainjob(), BOOK)
    assert patch[0] == {"op": "replace", "path": "/metadata/resourceVersion", "value": "7"}


def test_an_object_without_annotations_gets_them_first() -> None:
    patch = hold_record.build_hold_patch({"metadata": {"resourceVersion": "7"}}, BOOK)
    assert [change["path"] for change in patch] == ["/metadata/resourceVersion", "/metadata/annotations", note("holds")]


def test_nothing_is_written_where_the_book_stands_already() -> None:
    written = changes(hold_record.build_hold_patch(build_trainjob(), BOOK))[note("holds")]
    assert hold_record.build_hold_patch(build_trainjob(holds=str(written)), BOOK) == []
    assert hold_record.build_hold_patch(build_trainjob(), HoldBook()) == []


def test_an_unreadable_book_is_an_error_and_no_empty_book() -> None:
    with pytest.raises(ProtocolError):
        hold_record.read_hold_book(build_trainjob(holds="{"))


def test_in_plain_mode_suspend_goes_in_the_same_write() -> None:
    patch = changes(hold_record.build_hold_patch(build_trainjob(), HoldBook((FIRST,), 1), is_suspended=False))
    assert patch["/spec/suspend"] is False
    assert note("holds") in patch


def test_a_held_workload_is_inactive_and_shows_the_newest_holder() -> None:
    patch = changes(hold_record.build_workload_patch(build_workload(), BOOK))
    assert patch["/spec/active"] is False
    assert patch[note("hold-instance")] == "2"
    assert patch[note("hold-who")] == "policy:dag.hold"
    assert patch[note("hold-since")] == "2026-03-01T12:00:00.250000Z"
    assert patch[note("hold-until")] == "2026-03-01T13:00:00.250000Z"
    assert patch[note("hold-reason")] == "budget"


def test_a_hold_without_an_end_takes_the_older_end_away() -> None:
    workload = build_workload(active=False, notes={"hold-instance": "2", "hold-until": "2026-03-01T13:00:00Z"})
    patch = hold_record.build_workload_patch(workload, HoldBook((FIRST,), 2))
    assert {"op": "remove", "path": note("hold-until")} in patch


def test_release_makes_it_active_and_leaves_no_annotation() -> None:
    workload = build_workload(active=False, notes={"hold-instance": "1", "hold-who": "human:ann", "hold-reason": "x"})
    patch = hold_record.build_workload_patch(workload, HoldBook((), 1))
    assert changes(patch)["/spec/active"] is True
    assert sorted(str(change["path"]) for change in patch if change["op"] == "remove") == [
        note("hold-instance"),
        note("hold-reason"),
        note("hold-who"),
    ]


@pytest.mark.parametrize(
    "workload",
    [
        build_workload(active=False),
        build_workload(active=False, evicted="Deactivated"),
        build_workload(active=False, evicted="DeactivatedDueToAdmissionCheck", notes={"hold-instance": "1"}),
        build_workload(active=False, is_finished=True, notes={"hold-instance": "1"}),
        build_workload(active=True),
    ],
    ids=["by hand", "by hand, evicted", "by Kueue itself", "finished", "active"],
)
def test_release_never_makes_active_what_no_hold_of_ours_made_inactive(workload: dict[str, object]) -> None:
    assert "/spec/active" not in changes(hold_record.build_workload_patch(workload, HoldBook((), 1)))


def test_a_finished_workload_is_left_alone() -> None:
    assert hold_record.build_workload_patch(build_workload(is_finished=True), BOOK) == []


def test_the_workload_that_follows_needs_no_write() -> None:
    notes = {key.partition("/")[2]: value for key, value in hold_record.build_hold_annotations(SECOND).items() if value}
    assert hold_record.build_workload_patch(build_workload(active=False, notes=notes), BOOK) == []


@pytest.mark.parametrize(
    ("who", "actor"),
    [
        ("human:ann", ANN),
        ("human/tutorial", Actor(ActorKind.HUMAN, "tutorial")),
        ("policy:a:b", Actor(ActorKind.POLICY, "a:b")),
        ("somebody", Actor(ActorKind.HUMAN, "somebody")),
        ("", Actor(ActorKind.HUMAN, "unknown")),
    ],
)
def test_a_hold_of_another_implementation_is_read(who: str, actor: Actor) -> None:
    notes = {"hold-instance": "3", "hold-who": who, "hold-since": "2026-03-01T12:00:00Z", "hold-reason": "theirs"}
    hold = hold_record.read_workload_hold(build_workload(active=False, notes=notes))
    assert hold == Hold(3, "workload/w-1/3", actor, "theirs", NOW.replace(microsecond=0))


@pytest.mark.parametrize(
    ("book", "workload", "instances"),
    [
        (HoldBook(), build_workload(active=False, notes={"hold-instance": "1"}), [1]),
        (HoldBook((FIRST,), 1), build_workload(active=False, notes={"hold-instance": "4"}), [1, 4]),
        (HoldBook((), 1), build_workload(active=False, notes={"hold-instance": "1"}), []),
        (HoldBook(), build_workload(active=True, notes={"hold-instance": "1"}), []),
        (HoldBook(), build_workload(active=False), []),
        (HoldBook(), build_workload(active=False, is_finished=True, notes={"hold-instance": "1"}), []),
    ],
    ids=["unknown", "beside ours", "released", "active again", "nobody's", "finished"],
)
def test_only_an_unknown_hold_is_taken_up(book: HoldBook, workload: dict[str, object], instances: list[int]) -> None:
    merged = hold_record.merge_workload_hold(book, workload)
    assert [hold.instance for hold in merged.active] == instances
    assert merged.last_instance == max([book.last_instance, *instances])


def test_instances_go_on_after_a_hold_that_was_taken_up() -> None:
    merged = hold_record.merge_workload_hold(HoldBook(), build_workload(active=False, notes={"hold-instance": "4"}))
    assert merged == HoldBook(merged.active, 4)
    assert replace(merged, active=()).is_held is False


def test_the_workload_of_a_failed_job_is_inactive_under_nobodys_name() -> None:
    held = build_workload(active=True, notes={"hold-instance": "1", "hold-who": "human:ann"})
    patch = changes(hold_record.build_workload_end_patch(held))
    assert patch["/spec/active"] is False
    assert {note("hold-instance"), note("hold-who")} <= patch.keys()
    assert hold_record.build_workload_end_patch(build_workload(active=False)) == []


def test_a_hold_leaves_a_workload_alone_that_somebody_else_made_inactive() -> None:
    assert hold_record.build_workload_patch(build_workload(active=False), BOOK) == []


def test_a_deactivation_by_kueue_that_is_older_than_the_hold_does_not_strand_the_job() -> None:
    workload = build_workload(
        active=False,
        evicted="DeactivatedDueToRequeuingLimitExceeded",
        notes={"hold-instance": "1", "hold-since": "2026-03-01T12:00:00Z"},
    )
    conditions = workload["status"]["conditions"]  # type: ignore[index]  # raw object
    conditions[0]["lastTransitionTime"] = "2026-03-01T11:00:00Z"
    assert changes(hold_record.build_workload_patch(workload, HoldBook((), 1)))["/spec/active"] is True
    conditions[0]["lastTransitionTime"] = "2026-03-01T12:00:01Z"
    assert "/spec/active" not in changes(hold_record.build_workload_patch(workload, HoldBook((), 1)))
