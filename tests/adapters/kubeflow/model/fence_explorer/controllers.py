# SPDX-License-Identifier: Apache-2.0
"""The controllers: they read, ask the code what to do, and write it in steps between which anything may happen.

Up to two act at once; no Lease is modelled, since one that is delayed past its Lease acts beside its successor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from airflow_provider_dispatch.adapters.kubeflow.model.controller_view import LedgerView, NodeView
from airflow_provider_dispatch.adapters.kubeflow.model.hold_sync import ActivateWorkload, DeactivateWorkload, WriteHolds
from airflow_provider_dispatch.adapters.kubeflow.model.readmission import (
    RaiseAdmissions,
    SetCheckPending,
    SetCheckReady,
    SetCheckRetry,
)
from tests.adapters.kubeflow.model.fence_explorer import invariants, views
from tests.adapters.kubeflow.model.fence_explorer.protocol import Protocol
from tests.adapters.kubeflow.model.fence_explorer.world import (
    BOUND,
    GATED,
    GONE,
    LIFTED,
    TERMINATING,
    Entry,
    JobSet,
    Operation,
    Pod,
    Record,
    Step,
    Ticket,
    TrainJob,
    Violation,
    Workload,
    World,
)

RAISE, READY, RETRY = "raise", "ready", "retry"


class Snapshot(NamedTuple):
    """What a controller read before it listed pods and nodes."""

    trainjob: TrainJob
    workload: Workload
    jobset: JobSet | None


class Plan(NamedTuple):
    """A fence plan: the record to write, or None, and the pods to lift."""

    record: Record | None
    lifts: tuple[Ticket, ...]


class Controllers:
    """Every step that a controller may take. Equal questions are asked once: the decisions are pure."""

    def __init__(self, protocol: Protocol) -> None:
        self.protocol = protocol
        self._answers: dict[tuple, Any] = {}

    def steps(self, world: World) -> Iterator[Step]:
        """All next steps of all replicas."""
        for replica, operation in enumerate(world.operations):
            if replica and operation == world.operations[0]:
                continue
            if operation is None:
                yield from self._begin(world, replica)
                continue
            yield from self._continue(world, replica, operation)
            if world.can("crash"):
                stopped = world.pay("crash").set_operation(replica, None)
                yield Step(f"controller {replica}: crashes inside {operation.kind}", "adversary", stopped)
        yield from self._take_note(world)

    def note_last_state(self, world: World, pod: Pod, *, failed_by_gc: bool) -> World:
        """The watch delivers the last state of a pod whose object is going."""
        others = tuple(one for one in world.pods if one.uid != pod.uid)
        last = views.view_pod(pod._replace(process=0), is_gone=True, failed_by_gc=failed_by_gc)
        return self._note(world, (*views.view_pods(others), last))

    def leave_ledger(self, world: World) -> tuple[Entry, ...]:
        """What a stop writes: the pods that are not proven dead, as the record knows them."""
        if not self.protocol.stop_writes_ledger:
            return ()
        known = {entry.uid for entry in world.trainjob.record.entries}
        carried = tuple(entry for entry in world.ledger if entry.uid not in known)
        return self._unproven(world) + carried

    # -- what the code is asked ---------------------------------------------------------------------------------------

    def _check(self, world: World, seen: Snapshot, *, is_wanted: bool) -> tuple:
        pods, nodes, ledger = views.view_pods(world.pods), views.view_nodes(world), views.view_ledger(world)
        key = ("check", seen, world.submission, pods, nodes, ledger.undead, is_wanted)
        if key not in self._answers:
            self._answers[key] = self._ask_check(seen, world.submission, pods, nodes, ledger, is_wanted=is_wanted)
        return self._answers[key]

    def _ask_check(self, seen: Snapshot, submission: int, pods, nodes, ledger, *, is_wanted: bool) -> tuple:
        trainjob = views.view_trainjob(seen.trainjob, seen.jobset, submission, seen.workload)
        workload = views.view_workload(seen.workload, is_wanted)
        actions = self.protocol.decide_check(
            workload,
            trainjob=trainjob,
            pods=pods,
            nodes=nodes,
            ledger=ledger,
            now=views.NOW,
            settings=views.SETTINGS,
        )
        return tuple(kept for action in actions for kept in _keep_action(action))

    def _fence(self, world: World, seen: Snapshot) -> Plan:
        pods, nodes, ledger = views.view_pods(world.pods), views.view_nodes(world), views.view_ledger(world)
        key = ("fence", seen, world.submission, pods, nodes, ledger.undead)
        if key not in self._answers:
            trainjob = views.view_trainjob(seen.trainjob, seen.jobset, world.submission, seen.workload)
            plan = self._ask_fence(trainjob, seen.workload, pods, nodes, ledger)
            record = views.keep_record(plan.record) if plan.record else None
            self._answers[key] = Plan(record, tuple(Ticket(int(lift.uid), lift.epoch) for lift in plan.lifts))
        return self._answers[key]

    def _ask_fence(self, trainjob, workload: Workload, pods, nodes: tuple[NodeView, ...], ledger: LedgerView):
        return self.protocol.decide_fence(
            trainjob,
            workload=views.view_workload(workload),
            pods=pods,
            nodes=nodes,
            ledger=ledger,
            now=views.NOW,
            settings=views.SETTINGS,
        )

    def _refusal(self, world: World) -> str:
        trainjob = views.view_trainjob(world.trainjob, world.jobset, world.submission, world.workload)
        return self.protocol.derive_refusal(trainjob, views.view_workload(world.workload))

    def _note(self, world: World, pods) -> World:
        """Write what is seen of recorded pods, as the fence does when it may lift nothing."""
        nodes, ledger = views.view_nodes(world), views.view_ledger(world)
        key = ("note", world.trainjob.record, world.submission, pods, nodes, ledger.undead)
        if key not in self._answers:
            trainjob = views.view_trainjob(world.trainjob, world.jobset, world.submission, world.workload)
            plan = self._ask_fence(replace(trainjob, is_stopping=True), world.workload, pods, nodes, ledger)
            self._answers[key] = views.keep_record(plan.record) if plan.record else world.trainjob.record
        record = self._answers[key]
        return world if record == world.trainjob.record else world.write_trainjob(record=record)

    # -- steps --------------------------------------------------------------------------------------------------------

    def _take_note(self, world: World) -> Iterator[Step]:
        noted = self._note(world, views.view_pods(world.pods))
        if noted is not world:
            yield Step("controller: notes what it sees of recorded pods", "controller", noted)

    def _begin(self, world: World, replica: int) -> Iterator[Step]:
        who = f"controller {replica}"
        seen = Snapshot(world.trainjob._replace(suspended=False), world.workload, world.jobset)
        if self._is_check_due(world, seen):
            operation = Operation("check", "list", world.submission, seen._replace(jobset=None))
            yield Step(f"{who}: check reads", "controller", world.set_operation(replica, operation))
        if any(pod.object == GATED for pod in world.pods) and not self._refusal(world):
            operation = Operation("fence", "list", world.submission, seen)
            yield Step(f"{who}: fence reads", "controller", world.set_operation(replica, operation))
        what = self._decide_sync(world)
        if what:
            operation = Operation("sync", "write", world.submission, what)
            yield Step(f"{who}: sync decides {what}", "controller", world.set_operation(replica, operation))

    def _is_check_due(self, world: World, seen: Snapshot) -> bool:
        """With no pod in the way it would do something; whether there is one is seen later."""
        free = seen._replace(trainjob=seen.trainjob._replace(record=Record()))
        nobody = world._replace(pods=(), ledger=())
        return bool(self._check(nobody, free, is_wanted=False))

    def _decide_sync(self, world: World) -> tuple:
        trainjob = views.view_trainjob(world.trainjob, world.jobset, world.submission, world.workload)
        workload = views.view_workload(world.workload)
        match self.protocol.decide_hold_sync(trainjob, workload=workload, now=views.NOW):
            case WriteHolds(book=book):
                return ("copy", book.last_instance)
            case DeactivateWorkload(hold=hold):
                return ("down", hold.instance)
            case ActivateWorkload():
                return ("up", world.workload.instance)
            case SetCheckPending():
                return ("reset", 0)
            case _:
                return ()

    def _continue(self, world: World, replica: int, operation: Operation) -> Iterator[Step]:
        who = f"controller {replica}"
        match operation.kind, operation.step:
            case "check", "list":
                yield from self._list_for_check(world, replica, operation, who)
            case "check", _:
                yield self._write_check(world, replica, operation, who)
            case "fence", "list":
                yield self._list_for_fence(world, replica, operation, who)
            case "fence", "record":
                yield self._write_record(world, replica, operation, who)
            case "fence", "copy":
                after = world.set_operation(replica, operation._replace(step="again"))
                copied = (
                    after._replace(ledger=self._unproven(after)) if operation.submission == world.submission else after
                )
                yield Step(f"{who}: copies the record to the ledger", "controller", copied)
            case "fence", "again":
                goes_on = not self.protocol.reads_again or not self._refusal(world)
                after = world.set_operation(replica, operation._replace(step="lift") if goes_on else None)
                yield Step(f"{who}: reads again: {'go' if goes_on else 'stop'}", "controller", after)
            case "fence", _:
                yield from self._lift(world, replica, operation, who)
            case _:
                yield self._write_sync(world, replica, operation, who)

    def _list_for_check(self, world: World, replica: int, operation: Operation, who: str) -> Iterator[Step]:
        for is_wanted in (False, True) if world.can("wanted") else (False,):
            actions = self._check(world, Snapshot(*operation.data), is_wanted=is_wanted)
            paid = world.pay("wanted") if is_wanted else world
            if is_wanted and (RETRY, 0) not in actions:
                continue
            after = paid.set_operation(replica, operation._replace(step="write", data=actions) if actions else None)
            violation = invariants.judge_ready(world, operation) if (READY, 0) in actions else None
            kind = "adversary" if is_wanted else "controller"
            yield Step(f"{who}: check lists pods: {[name for name, _ in actions]}", kind, after, violation)

    def _write_check(self, world: World, replica: int, operation: Operation, who: str) -> Step:
        (name, a), *rest = operation.data
        conflict = self._conflicts(world, operation, is_trainjob=name == RAISE)
        after, violation = world, None
        if not conflict and name == RAISE:
            violation = invariants.judge_raise(world, operation, a)
            after = world.write_trainjob(a=a, raised=not operation.other_reservation)
            operation = operation._replace(trainjob_changed=False)
        elif not conflict and name == READY:
            violation = invariants.judge_written_ready(operation)
            after = world.write_workload(ready=True)
        elif not conflict:
            after = world.evict()
        goes_on = rest and not conflict
        after = after.set_operation(replica, operation._replace(data=tuple(rest)) if goes_on else None)
        label = f"{who}: check writes {name} {a or ''}: {'conflict' if conflict else 'done'}"
        return Step(label, "controller", after, violation)

    def _list_for_fence(self, world: World, replica: int, operation: Operation, who: str) -> Step:
        plan, violation = Plan(None, ()), None
        if operation.submission == world.submission:
            seen = Snapshot(*operation.data)
            plan = self._fence(world, seen)
            violation = invariants.judge_plan(world, operation, plan.record, seen.trainjob.record)
        step = "record" if plan.record and self.protocol.records_first else self._step_before_lift(world)
        after = world.set_operation(replica, operation._replace(step=step, data=plan) if plan.lifts else None)
        return Step(
            f"{who}: fence lists pods, plans {[tuple(lift) for lift in plan.lifts]}", "controller", after, violation
        )

    def _write_record(self, world: World, replica: int, operation: Operation, who: str) -> Step:
        record, lifts = operation.data
        if self._conflicts(world, operation, is_trainjob=True):
            return Step(f"{who}: record conflicts", "controller", world.set_operation(replica, None))
        violation = invariants.judge_record(world, operation, record)
        monitor = world.monitor._replace(a_now=max(world.monitor.a_now, record.a))
        after = world.write_trainjob(record=record)._replace(monitor=monitor)
        operation = operation._replace(
            step=self._step_before_lift(after), data=Plan(None, lifts), trainjob_changed=False
        )
        label = f"{who}: records R {record.r} for pods {[entry.uid for entry in record.pods]}"
        return Step(label, "controller", after.set_operation(replica, operation if lifts else None), violation)

    def _step_before_lift(self, world: World) -> str:
        """A copy that nobody can come to read is not made: it would only make more worlds."""
        is_due = self.protocol.copies_to_ledger and world.can("delete-trainjob")
        return "copy" if is_due and world.ledger != self._unproven(world) else "again"

    def _unproven(self, world: World) -> tuple[Entry, ...]:
        return views.keep_entries(views.view_record(world.trainjob.record).unproven)

    def _lift(self, world: World, replica: int, operation: Operation, who: str) -> Iterator[Step]:
        record, lifts = operation.data
        for lift in lifts:
            rest = Plan(record, tuple(other for other in lifts if other != lift))
            after, outcome, violation = self._lift_one(world, lift)
            next_step = operation._replace(data=rest) if rest.lifts else None
            if not rest.lifts and record:
                next_step = operation._replace(step="record", data=rest)
            label = f"{who}: lifts pod {lift.uid} under {lift.epoch}: {outcome}"
            yield Step(label, "controller", after.set_operation(replica, next_step), violation)

    def _lift_one(self, world: World, lift: Ticket) -> tuple[World, str, Violation | None]:
        pod = next((one for one in world.pods if one.uid == lift.uid and one.object != GONE), None)
        if pod and pod.object == GATED:
            return world.change_pod(pod.uid, object=LIFTED, epoch=lift.epoch), "done", None
        if pod and not self.protocol.tests_gate and pod.object in (LIFTED, BOUND, TERMINATING):
            written = world.change_pod(pod.uid, epoch=lift.epoch)
            return written, "written over", invariants.judge_lift(pod, lift.epoch)
        return world, "too late", None

    def _write_sync(self, world: World, replica: int, operation: Operation, who: str) -> Step:
        what, instance = operation.data
        conflict = self._conflicts(world, operation, is_trainjob=what == "copy")
        after, violation = world, None
        if not conflict:
            match what:
                case "copy":
                    violation = invariants.judge_hold(world, instance)
                    after = world.write_trainjob(held=True, instance=instance)
                case "reset":
                    after = world.write_workload(ready=False)
                case _:
                    after = world.write_workload(active=what == "up", instance=0 if what == "up" else instance)
        label = f"{who}: sync writes {what}: {'conflict' if conflict else 'done'}"
        return Step(label, "controller", after.set_operation(replica, None), violation)

    def _conflicts(self, world: World, operation: Operation, *, is_trainjob: bool) -> bool:
        if operation.submission != world.submission:
            return True
        if is_trainjob:
            return operation.trainjob_changed and self.protocol.heeds_trainjob_version
        return operation.workload_changed and self.protocol.heeds_workload_version


def _keep_action(action: object) -> tuple[tuple[str, int], ...]:
    """What the world keeps of an action; a message and a wait change nothing."""
    match action:
        case RaiseAdmissions(a=a):
            return ((RAISE, a),)
        case SetCheckReady():
            return ((READY, 0),)
        case SetCheckRetry():
            return ((RETRY, 0),)
        case _:
            return ()
