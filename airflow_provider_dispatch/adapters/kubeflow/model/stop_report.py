# SPDX-License-Identifier: Apache-2.0
"""What a stop leaves in the ledger, and what it has come to. Pure; `stopping` reads and writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.execution_record import (
    EMPTY_RECORD,
    ExecutionRecord,
    RecordedPod,
    build_undead,
    confirm_dead,
)
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.resources import JOBS, JOBSETS, PODS, TRAINJOBS, Resource
from airflow_provider_dispatch.adapters.kubeflow.model.resuming import is_left
from airflow_provider_dispatch.adapters.kubeflow.model.submission import read_submission_number
from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.core.records import ObjectReport, StopReport
from airflow_provider_dispatch.exceptions import ProtocolError

_ABOVE_PODS = (TRAINJOBS, JOBSETS, JOBS)


@dataclass(slots=True)
class Witness:
    """What was seen of the objects of a job since a stop began.

    :param seen: every object by UID, as it was last seen.
    :param gone: UIDs of those that are there no more.
    :param final: UIDs of pods whose very last state was seen, as a watch delivers it.
    """

    seen: dict[str, tuple[Resource, Raw]] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    final: set[str] = field(default_factory=set)

    def note(self, resource: Resource, raw: Raw) -> None:
        """An object as it is now; nothing comes back under the same UID."""
        if fields.uid(raw) not in self.gone:
            self.seen[fields.uid(raw)] = (resource, raw)

    def note_deleted(self, resource: Resource, raw: Raw) -> None:
        """An object as it was when it went."""
        self.seen[fields.uid(raw)] = (resource, raw)
        self.final.add(fields.uid(raw))
        self.gone.add(fields.uid(raw))

    def note_all(self, objects: Iterable[tuple[Resource, Raw]]) -> None:
        """Everything that is there; what isn't among it has gone."""
        there = set()
        for resource, raw in objects:
            there.add(fields.uid(raw))
            self.note(resource, raw)
        self.gone |= self.seen.keys() - there

    @property
    def dead(self) -> frozenset[str]:
        """UIDs of pods that are proven dead: a kubelet said so, or none ever had them."""
        pods = {uid: raw for uid, (resource, raw) in self.seen.items() if resource == PODS}
        return frozenset(uid for uid, raw in pods.items() if not is_left(raw) or self._never_ran(uid, raw))

    @property
    def lost(self) -> tuple[Raw, ...]:
        """Pods that went without anybody seeing their end."""
        pods = (self.seen[uid] for uid in self.gone - self.dead if uid in self.seen)
        return tuple(raw for resource, raw in pods if resource == PODS)

    def _never_ran(self, uid: str, raw: Raw) -> bool:
        return uid in self.final and not fields.text(raw, "spec", "nodeName")


def build_left_record(trainjobs: Iterable[Raw], carried: ExecutionRecord) -> ExecutionRecord:
    """The execution record that outlives the TrainJobs: the newest one's, with every pod that may live.

    :param trainjobs: the oldest submission first. One whose record somebody has spoilt must be stoppable too; the
        ledger has the controller's copy of it.
    :param carried: what the ledger holds.
    """
    left = carried
    for trainjob in trainjobs:
        record = _read_record(trainjob)
        if record != EMPTY_RECORD:
            undead = build_undead(record, (*left.undead, *left.pods), read_submission_number(trainjob))
            left = replace(record, undead=undead)
    return left


def _read_record(trainjob: Raw) -> ExecutionRecord:
    stamp = fields.annotation(trainjob, words.RECORD_ANNOTATION)
    try:
        return ExecutionRecord.from_json(stamp) if stamp else EMPTY_RECORD
    except ProtocolError:
        return EMPTY_RECORD


def build_confirmed(record: ExecutionRecord, witness: Witness) -> ExecutionRecord:
    """The record with the deaths that were seen."""
    return confirm_dead(record, witness.dead)


def build_stop_report(job: JobID, witness: Witness, unproven: Iterable[RecordedPod]) -> StopReport:
    """What is gone, what lives, and what nobody knows.

    :param unproven: pods of the ledger that aren't proven dead.
    """
    alive = {uid: _describe_left(raw) for uid, (_, raw) in witness.seen.items() if uid not in witness.gone}
    lost = {pod.uid: _report_lost(pod.name, pod.node or "") for pod in unproven if pod.uid not in alive}
    lost |= {fields.uid(pod): _report_lost(fields.name(pod), _node_of(pod)) for pod in witness.lost}
    reports: Mapping[str, list[ObjectReport]] = {"stopped": [], "alive": [], "unproven": list(lost.values())}
    for uid, (resource, raw) in witness.seen.items():
        name = f"{resource.kind} {fields.name(raw)}"
        if uid in alive:
            reports["alive"].append(ObjectReport(name, alive[uid]))
        elif uid not in lost:
            kind, detail = _judge_gone(resource, raw, witness, lost)
            reports[kind].append(ObjectReport(name, detail))
    return StopReport(job, *(tuple(reports[kind]) for kind in ("stopped", "alive", "unproven")))


def _judge_gone(resource: Resource, raw: Raw, witness: Witness, lost: Mapping[str, ObjectReport]) -> tuple[str, str]:
    """A gone object counts as stopped only when every pod beneath it does."""
    if resource not in _ABOVE_PODS:
        return "stopped", ""
    beneath = {
        uid: pod
        for uid, (kind, pod) in witness.seen.items()
        if kind == PODS and read_submission_number(pod) == read_submission_number(raw)
    }
    living = [fields.name(pod) for uid, pod in beneath.items() if uid not in witness.gone]
    if living:
        return "alive", f"the object is gone, pod {living[0]} beneath it is not"
    unproven = [fields.name(pod) for uid, pod in beneath.items() if uid in lost]
    return ("unproven", f"the end of pod {unproven[0]} beneath it was not seen") if unproven else ("stopped", "")


def _report_lost(name: str, node: str) -> ObjectReport:
    return ObjectReport(f"Pod {name}", f"its end on {f'node {node}' if node else 'an unknown node'} was not seen")


def _describe_left(raw: Raw) -> str:
    doing = "ending" if fields.is_deleting(raw) else "still there"
    node = _node_of(raw)
    return f"{doing} on node {node}" if node else doing


def _node_of(raw: Raw) -> str:
    return fields.text(raw, "spec", "nodeName")
