# SPDX-License-Identifier: Apache-2.0
"""What a person may say about pods whose end nobody saw: shows them with their nodes, and writes down that one is dead.

The command calls it under a person's rights. A pod that is vouched for no longer keeps an execution from starting, so
only one whose object is gone can be: while it is there, the cluster may still start it or tell how it ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient
from airflow_provider_dispatch.adapters.kubeflow.errors import StaleObjectError
from airflow_provider_dispatch.adapters.kubeflow.fetching import fetch_ledger
from airflow_provider_dispatch.adapters.kubeflow.ledgers import change_ledger
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.execution_record import (
    EMPTY_RECORD,
    ExecutionRecord,
    RecordedPod,
)
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.json_patch import build_patch
from airflow_provider_dispatch.adapters.kubeflow.model.ledger import Ledger, read_ledger
from airflow_provider_dispatch.adapters.kubeflow.model.resources import NODES, PODS
from airflow_provider_dispatch.adapters.kubeflow.recording import record_decision
from airflow_provider_dispatch.adapters.kubeflow.runtimes import patch_trainjob
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings
from airflow_provider_dispatch.adapters.kubeflow.targets import build_job_selector, fetch_trainjobs
from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.exceptions import JobNotFoundError, RefusedError, SpecError

READY = "Ready"


@dataclass(frozen=True, slots=True)
class Doubt:
    """A recorded pod that isn't proven dead.

    :param node: where it was last seen; None when nobody saw it bound.
    :param since: when it was first missed, or recorded when it is there still.
    :param is_there: its object is.
    :param pod_says: its phase, or that its object is gone.
    :param node_says: what is known of the node now.
    """

    pod: str
    uid: str
    submission: int
    role: str
    node: str | None
    since: datetime | None
    is_there: bool
    pod_says: str
    node_says: str


async def fetch_doubts(client: KubeClient, settings: KubeflowSettings, job: JobID) -> list[Doubt]:
    """The recorded pods of all submissions of a job that are not proven dead, oldest submission first.

    :raises JobNotFoundError: nobody has heard of the job.
    """
    trainjobs, ledger, pods = await asyncio.gather(
        fetch_trainjobs(client, settings, job),
        fetch_ledger(client, settings.namespace, job),
        client.list(PODS, settings.namespace, labels=build_job_selector(job)),
    )
    if not trainjobs and ledger is None:
        raise JobNotFoundError(f"there is no job {job} in {settings.namespace}; dispatch list shows what there is")
    records = [*map(_read_record, trainjobs), _parse_record(read_ledger(ledger).record)]
    # What one record knows to be dead is dead, whatever an older copy of it says.
    dead = {pod.uid for record in records for pod in (*record.pods, *record.undead) if pod.is_dead}
    unproven = {pod.uid: pod for record in reversed(records) for pod in record.unproven if pod.uid not in dead}
    there = {fields.uid(pod): pod for pod in pods.items}
    ordered = sorted(unproven.values(), key=lambda pod: (pod.submission, pod.slot, pod.uid))
    nodes = await _fetch_nodes(client, {pod.node for pod in ordered if pod.node})
    return [_build_doubt(pod, there.get(pod.uid), nodes) for pod in ordered]


async def confirm_deaths(
    client: KubeClient, settings: KubeflowSettings, job: JobID, uids: Collection[str], *, by: str, now: datetime
) -> None:
    """Write down that a person vouches for the death of these pods.

    :param uids: of pods whose objects are gone.
    :param by: who.
    :raises RefusedError: the object of one is there.
    """
    doubts = {doubt.uid: doubt for doubt in await fetch_doubts(client, settings, job)}
    for uid in uids:
        if uid not in doubts:
            raise SpecError("pod", f"is none of the unproven pods of job {job}", uid)
        if doubts[uid].is_there:
            name = doubts[uid].pod
            raise RefusedError(
                f"the object of pod {name} is there ({doubts[uid].pod_says}); when its machine is surely off, remove "
                f"it first: kubectl delete pod {name} --namespace {settings.namespace} --force"
            )

    def bury(record: ExecutionRecord) -> ExecutionRecord:
        return replace(record, pods=_mark(record.pods, uids), undead=_mark(record.undead, uids))

    await _change_records(client, settings, job, bury)
    await change_ledger(client, settings.namespace, job, lambda ledger: _change_ledger(ledger, bury))
    names = ", ".join(sorted(doubts[uid].pod for uid in uids))
    for trainjob in await fetch_trainjobs(client, settings, job):
        await record_decision(
            client, trainjob, "death-confirmed", f"{by} vouches that {names} is dead", at=now, key=names
        )


async def _change_records(
    client: KubeClient, settings: KubeflowSettings, job: JobID, change: Callable[[ExecutionRecord], ExecutionRecord]
) -> None:
    """On every TrainJob, again when the controller writes at the same time."""
    while True:
        try:
            for trainjob in await fetch_trainjobs(client, settings, job):
                before = _read_record(trainjob)
                after = change(before)
                if after != before:
                    notes = {words.RECORD_ANNOTATION: after.to_json()}
                    await patch_trainjob(client, trainjob, build_patch(trainjob, annotations=notes))
        except StaleObjectError:
            continue
        return


def _change_ledger(ledger: Ledger, change: Callable[[ExecutionRecord], ExecutionRecord]) -> Ledger:
    before = _parse_record(ledger.record)
    after = change(before)
    return ledger if after == before else replace(ledger, record=after.to_json())


def _mark(pods: tuple[RecordedPod, ...], uids: Collection[str]) -> tuple[RecordedPod, ...]:
    return tuple(replace(pod, is_dead=True) if pod.uid in uids else pod for pod in pods)


def _read_record(trainjob: Raw) -> ExecutionRecord:
    return _parse_record(fields.annotation(trainjob, words.RECORD_ANNOTATION))


def _parse_record(stamp: str) -> ExecutionRecord:
    return ExecutionRecord.from_json(stamp) if stamp else EMPTY_RECORD


async def _fetch_nodes(client: KubeClient, names: Collection[str]) -> Mapping[str, str]:
    """What can be said of each; a person may not be allowed to look."""

    async def look(name: str) -> str:
        try:
            return _describe_node(await client.get(NODES, name))
        except RefusedError as error:
            return f"can't be looked at: {error}"

    ordered = sorted(names)
    return dict(zip(ordered, await asyncio.gather(*map(look, ordered)), strict=True))


def _describe_node(node: Raw | None) -> str:
    if node is None:
        return "gone"
    taints = {fields.text(taint, "key") for taint in fields.items(node, "spec", "taints")}
    ready = fields.conditions(node).get(READY)
    said = (
        "out of service" if words.OUT_OF_SERVICE_TAINT in taints else "Ready" if ready and ready.is_true else "silent"
    )
    return f"{said} since {ready.at:%Y-%m-%d %H:%M:%S %Z}" if ready is not None and ready.at is not None else said


def _build_doubt(pod: RecordedPod, raw: Raw | None, nodes: Mapping[str, str]) -> Doubt:
    node = pod.node or fields.text(raw, "spec", "nodeName") or None
    ending = "ending" if fields.is_deleting(raw) else fields.text(raw, "status", "phase").lower()
    return Doubt(
        pod=pod.name,
        uid=pod.uid,
        submission=pod.submission,
        role=pod.slot.role,
        node=node,
        since=pod.vanished_at or pod.recorded_at,
        is_there=raw is not None,
        pod_says="its object is gone" if raw is None else ending,
        node_says=nodes.get(node, "") if node else "nobody saw which node had it",
    )
