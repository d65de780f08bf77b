# SPDX-License-Identifier: Apache-2.0
"""Holds on the cluster: the book on the TrainJob that decides, and the Workload that follows it.

`hold`, `release` and the controller call it. Always the record first and the Workload second, both ways; whoever dies
in between leaves a state that says what is missing, and the controller completes it by instance. In plain mode, without
a Workload, ``spec.suspend`` follows the book in the same write. Never asks whether the job has ended.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.json_patch import Patch, build_patch
from airflow_provider_dispatch.adapters.kubeflow.model.submission import dump, load
from airflow_provider_dispatch.core.holds import Actor, ActorKind, Hold, HoldBook

HOLD_ANNOTATIONS = (
    words.HOLD_INSTANCE_ANNOTATION,
    words.HOLD_SINCE_ANNOTATION,
    words.HOLD_WHO_ANNOTATION,
    words.HOLD_UNTIL_ANNOTATION,
    words.HOLD_REASON_ANNOTATION,
)
_KUEUES_OWN = "DeactivatedDueTo"
_EPOCH = datetime.fromtimestamp(0, UTC)
_WHOLE_SECONDS = timedelta(seconds=1)
"""Conditions are stamped in whole seconds, cut off."""


def read_hold_book(trainjob: Raw) -> HoldBook:
    """The record.

    :raises ProtocolError: something else is written there.
    """
    return load(HoldBook, fields.annotation(trainjob, words.HOLDS_ANNOTATION)) or HoldBook()


def build_hold_patch(trainjob: Raw, book: HoldBook, *, is_suspended: bool | None = None) -> Patch:
    """Writes the book on the TrainJob that was read; empty when it stands there.

    :param is_suspended: plain mode: ``spec.suspend`` in the same write; None leaves it alone.
    """
    spec = {} if is_suspended is None else {"suspend": is_suspended}
    is_empty = book == HoldBook() and not fields.annotation(trainjob, words.HOLDS_ANNOTATION)
    return build_patch(trainjob, annotations={} if is_empty else {words.HOLDS_ANNOTATION: dump(book)}, spec=spec)


def build_workload_patch(workload: Raw, book: HoldBook) -> Patch:
    """Makes the Workload follow the book; empty when it does.

    A finished one is left alone: inactive means nothing there.
    """
    if fields.is_true(workload, words.FINISHED):
        return []
    return build_workload_hold_patch(workload, book) if book.is_held else build_workload_release_patch(workload)


def build_workload_hold_patch(workload: Raw, book: HoldBook) -> Patch:
    """Makes the Workload inactive and shows the newest holder on it.

    One that is inactive by somebody else's doing is left alone: with our name on it a release would lift theirs.
    """
    if not is_active(workload) and not has_hold_instance(workload):
        return []
    return build_patch(workload, annotations=build_hold_annotations(book.active[-1]), spec={"active": False})


def build_workload_release_patch(workload: Raw) -> Patch:
    """Takes our hold off the Workload.

    What Kueue or a person made inactive stays so: only a hold of ours is undone. Its annotations go in the same write,
    else they would claim the next deactivation for us.
    """
    is_undone = has_hold_instance(workload) and not is_deactivated_by_kueue(workload)
    return build_patch(
        workload,
        annotations=dict.fromkeys(HOLD_ANNOTATIONS),
        spec={"active": True} if is_undone and not is_active(workload) else {},
    )


def build_workload_end_patch(workload: Raw) -> Patch:
    """Makes the Workload of a failed job inactive, under nobody's name: what is shown there could be released."""
    return build_patch(workload, annotations=dict.fromkeys(HOLD_ANNOTATIONS), spec={"active": False})


def build_hold_annotations(hold: Hold) -> dict[str, str | None]:
    """The five annotations; None takes one away."""
    return {
        words.HOLD_INSTANCE_ANNOTATION: str(hold.instance),
        words.HOLD_SINCE_ANNOTATION: fields.format_time(hold.since),
        words.HOLD_WHO_ANNOTATION: f"{hold.actor.kind}:{hold.actor.id}",
        words.HOLD_UNTIL_ANNOTATION: fields.format_time(hold.until) if hold.until is not None else None,
        words.HOLD_REASON_ANNOTATION: hold.reason,
    }


def is_active(workload: Raw) -> bool:
    """``spec.active``, which is true when it is missing."""
    return fields.flag(workload, "spec", "active", default=True)


def has_hold_instance(workload: Raw) -> bool:
    """A hold, ours or another implementation's, last made it inactive."""
    return fields.whole_number(fields.annotation(workload, words.HOLD_INSTANCE_ANNOTATION)) is not None


def is_deactivated_by_kueue(workload: Raw) -> bool:
    """Kueue itself made it inactive: a check refused, it was requeued too often, or ran too long.

    The condition stays until the next reservation, also after a person made the Workload active again: one that is
    older than a hold is not why the Workload is inactive now.
    """
    evicted = fields.conditions(workload).get(words.EVICTED)
    if is_active(workload) or evicted is None or not evicted.is_true or not evicted.reason.startswith(_KUEUES_OWN):
        return False
    since = fields.parse_time(fields.annotation(workload, words.HOLD_SINCE_ANNOTATION))
    return since is None or evicted.at is None or evicted.at + _WHOLE_SECONDS >= since


def read_workload_hold(workload: Raw) -> Hold | None:
    """The hold that stands on an inactive Workload; None when none does.

    One that another implementation placed has no key; it gets one that tells it from every other.
    """
    instance = fields.whole_number(fields.annotation(workload, words.HOLD_INSTANCE_ANNOTATION))
    if is_active(workload) or not instance:
        return None
    return Hold(
        instance,
        f"workload/{fields.uid(workload)}/{instance}",
        _read_actor(fields.annotation(workload, words.HOLD_WHO_ANNOTATION)),
        fields.annotation(workload, words.HOLD_REASON_ANNOTATION),
        fields.parse_time(fields.annotation(workload, words.HOLD_SINCE_ANNOTATION)) or _EPOCH,
        fields.parse_time(fields.annotation(workload, words.HOLD_UNTIL_ANNOTATION)),
    )


def merge_workload_hold(book: HoldBook, workload: Raw | None) -> HoldBook:
    """The book with a hold that stands on the Workload alone.

    An instance that the book has given out is either active there or released; it isn't taken up again.
    """
    hold = (
        read_workload_hold(workload) if workload is not None and not fields.is_true(workload, words.FINISHED) else None
    )
    if hold is None or hold.instance <= book.last_instance:
        return book
    return HoldBook((*book.active, hold), hold.instance)


def _read_actor(stamp: str) -> Actor:
    """``kind:id``, also with a slash as another implementation writes it; anything else is a person's name."""
    for separator in (":", "/"):
        kind, found, name = stamp.partition(separator)
        if found and kind in tuple(ActorKind):
            return Actor(ActorKind(kind), name)
    return Actor(ActorKind.HUMAN, stamp or "unknown")
