# SPDX-License-Identifier: Apache-2.0
"""What must never happen, judged by the processes on the nodes and not by what the controller believes.

one-execution     two live processes never have different epochs, never share a slot, and come of one JobSet and restart
none-beside       no new execution is decided while a process of an earlier one, or one without epoch, is alive
epochs-grow       epochs of started executions strictly rise; a slot starts at most once under one epoch
held-is-quiet     no pod enters the record while a hold stands; after HELD nothing starts until the release
a-grows           the A of an execution lies above every A that earlier admissions of the submission used
a-rises-once      A rises once for each reservation, however often the check is asked
a-of-its-own      no pod enters the record under a reservation that A was not raised for
only-admitted     no pod enters the record under a reservation that is not admitted at the time of the decision
joins-the-whole   no pod takes a free slot of an execution that another pod has left: it never becomes whole
told-at-start     a lift writes no epoch on a pod whose process runs under another, or under none
released-is-over  a hold that was released doesn't come back
ready-is-true     the check calls nothing Ready while a process or an object of an earlier pod is left
ready-is-asked    the check calls nothing Ready that is held, inactive, evicted or without a reservation
ready-is-fresh    Ready lands on the reservation that was judged
live              from every state, calm steps can lead to a complete running gang or to the end of the job
hold-ends         from every state with a standing hold, calm steps without a release can lead to HELD

Processes whose gate somebody else removed have no epoch and are exempt from the first two.
"""

from __future__ import annotations

from tests.adapters.kubeflow.model.fence_explorer.world import (
    ADMITTED,
    ALIVE,
    BOUND,
    BY_HAND,
    GATED,
    KNOWN,
    LIFTED,
    LIVE,
    RESERVED,
    SUCCEEDED,
    TERMINATING,
    Operation,
    Pod,
    Record,
    Violation,
    World,
)


def judge_start(world: World, pod: Pod) -> Violation | None:
    """The process of *pod* starts."""
    if pod.epoch == BY_HAND:
        return None
    monitor = world.monitor
    for other in world.pods:
        if other.uid == pod.uid or other.process != ALIVE or other.epoch == BY_HAND:
            continue
        if other.epoch != pod.epoch:
            text = f"{pod.epoch} starts in slot {pod.slot} while {other.epoch} is alive in slot {other.slot}"
            return Violation("one-execution", text)
        if other.slot == pod.slot:
            return Violation("one-execution", f"two processes of slot {pod.slot} under {pod.epoch}")
        if (other.jobset, other.restart) != (pod.jobset, pod.restart):
            return Violation("one-execution", f"a restarted and a replaced process share {pod.epoch}")
    if pod.epoch < monitor.epoch:
        return Violation("epochs-grow", f"{pod.epoch} starts after {monitor.epoch}")
    if pod.epoch == monitor.epoch and pod.slot in monitor.slots:
        return Violation("epochs-grow", f"{pod.epoch} is used twice for slot {pod.slot}")
    return Violation("held-is-quiet", "a process starts after HELD, before a release") if monitor.held else None


def judge_plan(world: World, operation: Operation, record: Record | None, known: Record) -> Violation | None:
    """The fence plans *record*, having read *known*. When that has changed, the write will fail."""
    if record is None or operation.trainjob_changed:
        return None
    if record.r == known.r:
        return _judge_joining(world, record, known)
    if any(pod.process in (KNOWN, ALIVE) or pod.object in (LIFTED, BOUND, TERMINATING) for pod in world.pods):
        return Violation("none-beside", f"R {record.r} is planned while an earlier process may be alive")
    return None


def _judge_joining(world: World, record: Record, known: Record) -> Violation | None:
    """Pods join the execution *known*, or deaths are noted."""
    there = {pod.uid for pod in world.pods if pod.object in (GATED, LIFTED, BOUND, SUCCEEDED)}
    left = [entry.uid for entry in known.pods if entry.uid not in there]
    if left and {entry.slot for entry in record.pods} - {entry.slot for entry in known.pods}:
        return Violation("joins-the-whole", f"a pod joins R {record.r}, which pod {left[0]} has left")
    return None


def judge_record(world: World, operation: Operation, record: Record) -> Violation | None:
    """The record of an execution is written."""
    workload = world.workload
    if world.trainjob.held:
        return Violation("held-is-quiet", "a pod enters the record while a hold stands")
    is_admitted = workload.status == ADMITTED and workload.active and not workload.evicted
    if not is_admitted and not operation.workload_changed:
        return Violation("only-admitted", "a pod enters the record without an admission")
    if not world.trainjob.raised and not operation.workload_changed:
        return Violation("a-of-its-own", "a pod enters the record under a reservation that A was not raised for")
    if record.a <= world.monitor.a_before:
        return Violation("a-grows", f"A={record.a} was used by an earlier admission")
    return None


def judge_raise(world: World, operation: Operation, a: int) -> Violation | None:
    """A is written for the reservation that was judged."""
    if world.trainjob.raised and not operation.other_reservation and a > world.trainjob.a:
        return Violation("a-rises-once", "A is raised again for the same reservation")
    return None


def judge_lift(pod: Pod, epoch: int) -> Violation | None:
    """The lift of *pod* writes *epoch*."""
    if pod.process == ALIVE and pod.epoch != epoch:
        return Violation("told-at-start", f"{epoch} is written on pod {pod.uid}, which runs without it")
    return None


def judge_hold(world: World, instance: int) -> Violation | None:
    """The hold of this number is written on the TrainJob."""
    if not world.trainjob.held and instance <= world.trainjob.instance:
        return Violation("released-is-over", f"hold {instance} is back after its release")
    return None


def judge_ready(world: World, operation: Operation) -> Violation | None:
    """The check decides that the reservation may be admitted; what changed since it was read isn't its fault."""
    workload = world.workload
    if not operation.workload_changed and any(
        pod.process in (KNOWN, ALIVE) or pod.object in LIVE for pod in world.pods
    ):
        return Violation("ready-is-true", "Ready while an earlier pod is left")
    if world.trainjob.held and not operation.trainjob_changed:
        return Violation("ready-is-asked", "Ready while a hold stands")
    is_asked = workload.status == RESERVED and workload.active and not workload.evicted
    if not is_asked and not operation.workload_changed:
        return Violation("ready-is-asked", "Ready though no reservation waits for it")
    return None


def judge_written_ready(operation: Operation) -> Violation | None:
    """Ready is written."""
    if operation.other_reservation:
        return Violation("ready-is-fresh", "Ready lands on a reservation that nobody judged")
    return None
