# SPDX-License-Identifier: Apache-2.0
"""`hold` and `release`: the record on the TrainJob first, the Workload second, both by compare-and-swap.

The adapter calls it. A call that is cut off between the two leaves a record that already forbids admission, or allows
it; the controller, or the same call again, completes the Workload. Never waits for processes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import datetime

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.deadlines import within
from airflow_provider_dispatch.adapters.kubeflow.errors import ObjectGoneError, StaleObjectError
from airflow_provider_dispatch.adapters.kubeflow.fetching import fetch_objects
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model.derive import derive_observation
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.hold_record import (
    build_hold_patch,
    build_workload_patch,
    merge_workload_hold,
    read_hold_book,
)
from airflow_provider_dispatch.adapters.kubeflow.model.json_patch import Patch
from airflow_provider_dispatch.adapters.kubeflow.model.object_set import ObjectSet
from airflow_provider_dispatch.adapters.kubeflow.model.resources import TRAINJOBS, WORKLOADS
from airflow_provider_dispatch.adapters.kubeflow.model.resuming import is_plain
from airflow_provider_dispatch.adapters.kubeflow.model.submission import read_ref, read_submission
from airflow_provider_dispatch.adapters.kubeflow.plain_mode import advance
from airflow_provider_dispatch.adapters.kubeflow.recording import record_decision
from airflow_provider_dispatch.adapters.kubeflow.runtimes import patch_trainjob
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings
from airflow_provider_dispatch.adapters.kubeflow.targets import Target, check_place, fetch_trainjob, fetch_workload
from airflow_provider_dispatch.core.holds import Hold, HoldBook, HoldRequest, place_hold, release_hold
from airflow_provider_dispatch.exceptions import RefusedError, SpecError

Change = Callable[[HoldBook], HoldBook]


async def hold(
    client: KubeClient,
    settings: KubeflowSettings,
    target: Target,
    request: HoldRequest,
    *,
    deadline: datetime,
    now: datetime,
) -> Hold:
    """Write the hold down; the execution ends after that.

    :raises RefusedError: the job has ended, or is being stopped.
    :raises JobNotFoundError: no such job.
    :raises SpecError: an empty key, or an ``until`` that has passed or that nobody would look after.
    """
    placed: list[Hold] = []

    def place(book: HoldBook) -> HoldBook:
        changed, found = place_hold(book, request, now)
        placed.append(found)
        return changed

    async with within(deadline, now, "a hold"):
        while True:
            trainjob, objects = await _fetch_whole(client, settings, target)
            _check_end_is_kept(settings, trainjob, request)
            _check_holdable(trainjob, objects, now)
            if await _change_book(client, trainjob, objects.workload, place):
                break
        given = placed[-1]
        said = f"{given.actor.kind} {given.actor.id}: {given.reason}"
        await record_decision(client, trainjob, "held", said, at=now, key=str(given.instance))
    return given


async def release(
    client: KubeClient, settings: KubeflowSettings, target: Target, held: Hold, *, deadline: datetime, now: datetime
) -> tuple[Hold, ...]:
    """Lift exactly that hold; those that remain.

    In plain mode the job runs again once its old pods are gone: the controller sees to it, or :mod:`.plain_mode`.

    :raises StaleHoldError: this submission never had that hold.
    :raises JobNotFoundError: no such job.
    """
    left: list[HoldBook] = []

    def lift(book: HoldBook) -> HoldBook:
        left.append(release_hold(book, held))
        return left[-1]

    async with within(deadline, now, "a release"):
        while True:
            trainjob = await fetch_trainjob(client, settings, target)
            workload = None if is_plain(trainjob) else await fetch_workload(client, trainjob)
            if await _change_book(client, trainjob, workload, lift):
                break
        await record_decision(client, trainjob, "released", f"hold {held.instance}", at=now, key=str(held.instance))
        if is_plain(trainjob) and not left[-1].is_held:
            await advance(client, settings, read_ref(trainjob), now=now)
    return left[-1].active


async def apply_hold_book(client: KubeClient, trainjob: Raw, book: HoldBook, workload: Raw | None) -> None:
    """Make the Workload follow the book, also one that changes meanwhile.

    No Workload, as after somebody deleted it, is no error: the record alone keeps the next one from being admitted.

    :param book: as it stands on the TrainJob.
    :param workload: as it was last read.
    """
    namespace = fields.text(trainjob, "metadata", "namespace")
    while workload is not None:
        patch = build_workload_patch(workload, book)
        if not patch:
            return
        with contextlib.suppress(StaleObjectError, ObjectGoneError):
            await client.patch(WORKLOADS, fields.name(workload), patch, namespace)
        # A hold and a release at once: whoever writes the Workload last must have seen the last record.
        latest = await client.get(TRAINJOBS, fields.name(trainjob), namespace)
        if latest is None or fields.uid(latest) != fields.uid(trainjob):
            return
        book = read_hold_book(latest)
        workload = await fetch_workload(client, trainjob)


async def _fetch_whole(client: KubeClient, settings: KubeflowSettings, target: Target) -> tuple[Raw, ObjectSet]:
    """The submission with everything that tells whether it has ended.

    :raises JobNotFoundError: no such job.
    """
    check_place(target, settings)
    objects = await fetch_objects(client, settings.namespace, target)
    if objects.trainjob is not None:
        return objects.trainjob, objects
    # What a later submission left behind may hide the newest that can be held.
    trainjob = await fetch_trainjob(client, settings, target)
    return trainjob, await fetch_objects(client, settings.namespace, read_ref(trainjob))


async def _change_book(client: KubeClient, trainjob: Raw, workload: Raw | None, change: Change) -> bool:
    """Write the changed book and let the Workload follow; False when the TrainJob has changed since it was read."""
    book = change(merge_workload_hold(read_hold_book(trainjob), workload))
    try:
        changed = await patch_trainjob(client, trainjob, _build_patch(trainjob, book))
    except StaleObjectError:
        return False
    await apply_hold_book(client, changed, book, workload)
    return True


def _build_patch(trainjob: Raw, book: HoldBook) -> Patch:
    """The book and, in plain mode, what a hold means for the TrainJob itself. A release resumes nothing by itself."""
    return build_hold_patch(trainjob, book, is_suspended=True if is_plain(trainjob) and book.is_held else None)


def _check_holdable(trainjob: Raw, objects: ObjectSet, now: datetime) -> None:
    """Look for an end first: an inactive Workload that has finished means nothing."""
    submission = read_submission(trainjob)
    ref = submission.ref
    if submission.stop is not None or fields.is_deleting(trainjob):
        reason = submission.stop.reason if submission.stop is not None else "it is being deleted"
        raise RefusedError(f"{ref.id} is being stopped and can't be held: {reason}")
    seen = derive_observation(objects, now, ref=ref)
    if seen.has_ended:
        cause = f", {seen.cause}" if seen.cause else ""
        raise RefusedError(f"{ref.id} has ended and can't be held: {seen.state}{cause} {seen.detail}".strip())


def _check_end_is_kept(settings: KubeflowSettings, trainjob: Raw, request: HoldRequest) -> None:
    if request.until is not None and is_plain(trainjob) and not settings.has_controller:
        raise SpecError("hold.until", "needs the controller, which ends holds, or a queue; release it by hand")
