# SPDX-License-Identifier: Apache-2.0
"""Every write of the controller. Each asks first whether this replica may still act.

The loop calls it with what the decisions said about the objects that they judged. Writes of a TrainJob, Workload or
ledger carry the resourceVersion that was judged and are refused on any other; the loop then judges again. Decides
nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import assert_never

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.ledgers import write_ledger
from airflow_provider_dispatch.adapters.kubeflow.model import fields, hold_record
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.execution_record import ExecutionRecord
from airflow_provider_dispatch.adapters.kubeflow.model.fence import Lift
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.hold_sync import (
    ActivateWorkload,
    DeactivateWorkload,
    EndWorkload,
    HoldAction,
    SuspendTrainJob,
    WriteHolds,
)
from airflow_provider_dispatch.adapters.kubeflow.model.json_patch import build_patch
from airflow_provider_dispatch.adapters.kubeflow.model.ledger import Ledger
from airflow_provider_dispatch.adapters.kubeflow.model.readmission import (
    CheckAction,
    RaiseAdmissions,
    SetCheckPending,
    SetCheckReady,
    SetCheckRetry,
    Wait,
)
from airflow_provider_dispatch.adapters.kubeflow.model.resources import (
    PODS,
    TRAINJOBS,
    WORKLOADS,
    Resource,
)
from airflow_provider_dispatch.adapters.kubeflow.model.submission import read_ref, read_submission_number
from airflow_provider_dispatch.adapters.kubeflow.runtimes import patch_trainjob
from airflow_provider_dispatch.controller.cache import ObjectCache, place
from airflow_provider_dispatch.controller.events import Decision, Journal
from airflow_provider_dispatch.controller.lease import LeaseKeeper
from airflow_provider_dispatch.controller.views import find_fence
from airflow_provider_dispatch.core.identity import Identity
from airflow_provider_dispatch.exceptions import AdapterError, ConflictError, UnavailableError


class LeaseLostError(UnavailableError):
    """Another replica may act by now, so this one doesn't."""


class Writer:
    """Carries decisions out.

    :param check: name of our AdmissionCheck.
    :param lifts: pods lifted at the same time.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        lease: LeaseKeeper,
        cache: ObjectCache,
        journal: Journal,
        check: str,
        wall: Callable[[], datetime],
        lifts: int = 32,
    ) -> None:
        self._client, self._lease, self._cache = client, lease, cache
        self._journal, self._check, self._wall = journal, check, wall
        self._room = asyncio.Semaphore(lifts)

    # -- any write ---------------------------------------------------------------------------------------------------

    def require_lease(self) -> None:
        """Refuse to go on without the Lease.

        :raises LeaseLostError: it could not be renewed in time.
        """
        if not self._lease.is_held:
            raise LeaseLostError("the Lease is not held, nothing is written")

    async def patch(self, resource: Resource, raw: Raw, patch: Sequence[Raw] | Raw, *, subresource: str = "") -> Raw:
        """Change an object, unless the patch is empty; the object after it.

        :raises ConflictError: it has changed since it was read.
        :raises LeaseLostError: see :meth:`require_lease`.
        """
        if not patch:
            return raw
        self.require_lease()
        name, namespace = fields.name(raw), place(raw) or None
        if resource is TRAINJOBS and isinstance(patch, list):
            written = await patch_trainjob(self._client, raw, patch)
        else:
            written = await self._client.patch(resource, name, patch, namespace, subresource=subresource)
        self._cache.note(resource, written)
        return written

    async def annotate(
        self, trainjob: Raw, annotations: Mapping[str, str | None], spec: Mapping[str, object] | None = None
    ) -> Raw:
        """Write annotations, and fields of the spec, of the TrainJob that was judged."""
        return await self.patch(TRAINJOBS, trainjob, build_patch(trainjob, annotations=annotations, spec=spec))

    async def delete(self, resource: Resource, raw: Raw) -> bool:
        """Remove the very state of an object that was judged, with all it owns.

        :return: False when it is gone, or has changed since.
        :raises LeaseLostError: see :meth:`require_lease`.
        """
        self.require_lease()
        version = fields.text(raw, "metadata", "resourceVersion")
        return await self._client.delete(
            resource, fields.name(raw), place(raw), uid=fields.uid(raw), resource_version=version
        )

    # -- holds -------------------------------------------------------------------------------------------------------

    async def apply_hold(self, action: HoldAction, trainjob: Raw, workload: Raw | None) -> None:
        """Write the half of a hold or release that is missing."""
        match action:
            case WriteHolds(book, _, resume):
                patch = hold_record.build_hold_patch(trainjob, book, is_suspended=False if resume else None)
                await self.patch(TRAINJOBS, trainjob, patch)
                held = ", ".join(f"{hold.instance} ({hold.key})" for hold in book.active) or "nobody"
                self._journal.tell(trainjob, Decision.HOLDS_CHANGED, f"held by {held}")
            case SuspendTrainJob(_, reason):
                await self.annotate(trainjob, {}, {"suspend": True})
                self._journal.tell(trainjob, Decision.SUSPENDED, reason)
            case _:
                await self._apply_to_workload(action, trainjob, _demand(workload))

    async def _apply_to_workload(
        self,
        action: DeactivateWorkload | ActivateWorkload | EndWorkload | SetCheckPending,
        trainjob: Raw,
        workload: Raw,
    ) -> None:
        match action:
            case DeactivateWorkload(hold):
                notes = hold_record.build_hold_annotations(hold)
                patch = build_patch(workload, annotations=notes, spec={"active": False})
                await self.patch(WORKLOADS, workload, patch)
                self._journal.tell(trainjob, Decision.WORKLOAD_HELD, f"hold {hold.instance}: {hold.reason}")
            case ActivateWorkload():
                await self.patch(WORKLOADS, workload, hold_record.build_workload_release_patch(workload))
                self._journal.tell(trainjob, Decision.WORKLOAD_RELEASED, "nobody holds the job any more")
            case EndWorkload():
                await self.patch(WORKLOADS, workload, hold_record.build_workload_end_patch(workload))
                self._journal.tell(trainjob, Decision.WORKLOAD_ENDED, "the job has failed")
            case SetCheckPending(message):
                await self._set_check(workload, words.CHECK_PENDING, message)
                self._journal.tell(trainjob, Decision.CHECK_WAITS, message)
            case _:
                assert_never(action)

    # -- the check ---------------------------------------------------------------------------------------------------

    async def apply_check(self, actions: Sequence[CheckAction], trainjob: Raw, workload: Raw) -> None:
        """Say what the check has to say; A, if it is raised, was written before."""
        for action in actions:
            match action:
                case SetCheckReady(message):
                    await self._set_check(workload, words.CHECK_READY, message)
                    self._journal.tell(trainjob, Decision.CHECK_READY, message)
                case SetCheckPending(message):
                    await self._set_check(workload, words.CHECK_PENDING, message)
                    self._journal.tell(trainjob, Decision.CHECK_WAITS, message)
                case SetCheckRetry(message):
                    await self._set_check(workload, words.CHECK_RETRY, message)
                    self._journal.tell(trainjob, Decision.CHECK_RETRY, message)
                case RaiseAdmissions() | Wait():
                    pass
                case _:
                    assert_never(action)

    async def _set_check(self, workload: Raw, state: str, message: str) -> None:
        await self.patch(WORKLOADS, workload, self._build_check_patch(workload, state, message), subresource="status")

    def _build_check_patch(self, workload: Raw, state: str, message: str) -> list[dict[str, object]]:
        """The whole entry anew: what an earlier answer has left in it must not live on, and no updates of pods."""
        entries = fields.items(workload, "status", "admissionChecks")
        for index, entry in enumerate(entries):
            if fields.text(entry, "name") == self._check:
                return [
                    _build_version_step(workload),
                    {
                        "op": "replace",
                        "path": f"/status/admissionChecks/{index}",
                        "value": self._build_check(entry, state, message),
                    },
                ]
        raise ConflictError(f"{fields.name(workload)} carries no check {self._check} any more")

    def _build_check(self, entry: Raw, state: str, message: str) -> dict[str, object]:
        stamp = self._wall().isoformat(timespec="seconds").replace("+00:00", "Z")
        is_same = fields.text(entry, "state") == state
        value: dict[str, object] = {
            "name": self._check,
            "state": state,
            "message": message,
            "lastTransitionTime": fields.text(entry, "lastTransitionTime") if is_same else stamp,
        }
        return value | ({"retryCount": entry["retryCount"]} if "retryCount" in entry else {})

    # -- the record --------------------------------------------------------------------------------------------------

    async def write_record(
        self, trainjob: Raw, record: ExecutionRecord | None, raised: RaiseAdmissions | None = None
    ) -> Raw:
        """Write the execution record and a raised A in one write; the TrainJob after it.

        :param trainjob: that was judged.
        :param record: None where it stays as it is.
        """
        notes = {words.RECORD_ANNOTATION: record.to_json()} if record is not None else {}
        if raised is not None:
            notes |= {words.ADMISSIONS_ANNOTATION: str(raised.a), words.ADMISSION_KEY_ANNOTATION: raised.key}
        if not notes:
            return trainjob
        trainjob = await self.annotate(trainjob, notes)
        if raised is not None:
            said = f"A is {raised.a} for the reservation {raised.key}"
            self._journal.tell(trainjob, Decision.ADMISSION_RAISED, said)
        return trainjob

    async def write_ledger(
        self, trainjob: Raw, ledger_object: Raw | None, ledger: Ledger, record: ExecutionRecord
    ) -> Raw:
        """Keep a copy of the record where a deleted TrainJob can't take it along; the ledger after it."""
        self.require_lease()
        submission = max(ledger.submission, read_submission_number(trainjob))
        copied = replace(ledger, submission=submission, record=record.to_json())
        return await write_ledger(self._client, place(trainjob), read_ref(trainjob).job, ledger_object, copied)

    # -- the fence ---------------------------------------------------------------------------------------------------

    async def lift(self, trainjob: Raw, lifts: Sequence[Lift], pods: Mapping[str, Raw], attempt: int) -> None:
        """Lift all of them side by side. One that can't be lifted hinders no other.

        :param attempt: the caller's own number, part of the identity.
        :raises AdapterError: of one that could not be lifted.
        """
        job = read_ref(trainjob).job

        async def lift_one(lift: Lift) -> None:
            pod = pods[lift.uid]
            identity = Identity(job, read_submission_number(trainjob), attempt, lift.a, lift.j)
            async with self._room:
                self.require_lease()
                patch = build_lift_patch(pod, lift, identity.attempt_id)
                self._cache.note(PODS, await self._client.patch(PODS, lift.name, patch, lift.namespace))
            created = fields.moment(pod, "metadata", "creationTimestamp")
            if created is not None:
                self._journal.metrics.lift_seconds.observe(max(0.0, (self._wall() - created).total_seconds()))

        answers = await asyncio.gather(*(lift_one(lift) for lift in lifts), return_exceptions=True)
        failures = [answer for answer in answers if isinstance(answer, BaseException)]
        if len(failures) < len(lifts):
            epoch = lifts[0].epoch
            note = f"{len(lifts) - len(failures)} of {len(lifts)} pods start under epoch {epoch}"
            self._journal.tell(trainjob, Decision.STARTED, note)
        for failure in sorted(failures, key=lambda failure: isinstance(failure, AdapterError)):
            raise failure


def build_lift_patch(pod: Raw, lift: Lift, attempt_id: str) -> list[dict[str, object]]:
    """One patch that lifts the fence of exactly this pod and gives its processes their identity.

    :raises ConflictError: it stands at no fence.
    """
    index = find_fence(pod)
    if index is None:
        raise ConflictError(f"pod {lift.name} stands at no fence any more")
    notes = {
        words.ADMISSIONS_ANNOTATION: str(lift.a),
        words.RESTARTS_ANNOTATION: str(lift.j),
        words.EPOCH_ANNOTATION: str(lift.epoch),
        words.ATTEMPT_ANNOTATION: attempt_id,
        **_build_world_rank(pod),
    }
    gate = f"/spec/schedulingGates/{index}"
    has_notes = isinstance(fields.dig(pod, "metadata", "annotations"), Mapping)
    steps: list[dict[str, object]] = [
        {"op": "test", "path": "/metadata/uid", "value": lift.uid},
        {"op": "test", "path": f"{gate}/name", "value": words.FENCE},
        {"op": "remove", "path": gate},
    ]
    if not has_notes:
        steps.append({"op": "add", "path": "/metadata/annotations", "value": {}})
    for key, value in notes.items():
        steps.append({"op": "add", "path": f"/metadata/annotations/{key.replace('/', '~1')}", "value": value})
    return steps


def _build_world_rank(pod: Raw) -> dict[str, str]:
    """Its rank through all roles: the downward API hands on, and can't add."""
    before = fields.whole_number(fields.annotation(pod, words.RANK_OFFSET_ANNOTATION))
    index = fields.whole_number(fields.label(pod, words.COMPLETION_INDEX_LABEL))
    return {} if before is None or index is None else {words.WORLD_RANK_ANNOTATION: str(before + index)}


def _build_version_step(raw: Raw) -> dict[str, object]:
    version = fields.text(raw, "metadata", "resourceVersion")
    return {"op": "replace", "path": "/metadata/resourceVersion", "value": version}


def _demand(workload: Raw | None) -> Raw:
    if workload is None:
        raise ConflictError("the Workload that was judged is gone")
    return workload
