# SPDX-License-Identifier: Apache-2.0
"""What people, broken nodes and crashing adapters do to the world: the adversary, who pays for each action."""

from __future__ import annotations

from collections.abc import Iterator

from tests.adapters.kubeflow.model.fence_explorer import invariants
from tests.adapters.kubeflow.model.fence_explorer.cluster import (
    change_node,
    delete,
    is_recorded,
    is_whole,
    remove_object,
)
from tests.adapters.kubeflow.model.fence_explorer.controllers import Controllers
from tests.adapters.kubeflow.model.fence_explorer.world import (
    ADMITTED,
    ALIVE,
    BOUND,
    BY_HAND,
    COUNTED_BY_KUEUE,
    ENDED,
    FAILED,
    GATED,
    LIFTED,
    QUEUED,
    RESERVED,
    TERMINATING,
    Adapter,
    Bounds,
    Entry,
    JobSet,
    Monitor,
    Node,
    Pod,
    Step,
    TrainJob,
    Workload,
    World,
)


def steps(world: World, bounds: Bounds, controllers: Controllers) -> Iterator[Step]:
    if world.can("new-submission"):
        ledger = controllers.leave_ledger(world)
        yield _bad("user stops and starts a new submission", _resubmit(world.pay("new-submission"), ledger))
    if world.can("delete-trainjob"):
        after = _resubmit(world.pay("delete-trainjob"), world.ledger)
        yield _bad("user deletes the TrainJob and starts a new submission", after)
    for number, node in enumerate(world.nodes, 1):
        if node.up and world.can("pause"):
            silent = change_node(world.pay("pause"), number, Node(up=False, ready=node.ready))
            yield _bad(f"node {number} goes silent", silent)
    for pod in world.pods:
        yield from _harm_pod(world, pod, controllers)
    if not world.trainjob.finished:
        yield from _harm_objects(world, bounds)
        yield from _adapter_holds(world, controllers)
        yield from _adapter_releases(world, controllers)


def _bad(label: str, world: World) -> Step:
    return Step(label, "adversary", world)


def _resubmit(world: World, ledger: tuple[Entry, ...]) -> World:
    """Stop, then start: all objects but pods go at once, and the ledger is all that is remembered."""
    after = world.write_trainjob(**TrainJob()._asdict()).write_workload(**Workload()._asdict())
    pods = tuple(pod._replace(object=TERMINATING) if pod.object == BOUND else pod for pod in world.pods)
    monitor = Monitor(world.monitor.epoch, world.monitor.slots)
    return after._replace(
        jobset=None, adapter=Adapter(), pods=pods, monitor=monitor, submission=world.submission + 1, ledger=ledger
    ).begin_reservation()


def _harm_pod(world: World, pod: Pod, controllers: Controllers) -> Iterator[Step]:
    if pod.object in COUNTED_BY_KUEUE and world.can("delete-pod") and not world.trainjob.finished:
        for word, after in delete(world.pay("delete-pod"), pod, controllers):
            yield _bad(f"user deletes pod {pod.uid}{word}", after)
    if pod.object == GATED and world.can("by-hand"):
        opened = world.pay("by-hand").change_pod(pod.uid, object=LIFTED, epoch=BY_HAND)
        yield _bad(f"user removes the gate of pod {pod.uid}", opened)
    if not pod.node:
        return
    is_up = world.nodes[pod.node - 1].up
    if is_up and pod.object == BOUND and pod.process == ALIVE and world.can("fail"):
        yield _bad(f"pod {pod.uid} fails", world.pay("fail").change_pod(pod.uid, object=FAILED, process=ENDED, epoch=0))
    if pod.object not in (BOUND, TERMINATING):
        return
    if world.can("force-delete"):
        yield _bad(
            f"user force-deletes pod {pod.uid}",
            remove_object(world.pay("force-delete"), pod, controllers, is_seen=True),
        )
        if world.can("force-delete", "miss") and is_recorded(world, pod):
            unseen = remove_object(world.pay("force-delete", "miss"), pod, controllers, is_seen=False)
            yield _bad(f"user force-deletes pod {pod.uid} (last state missed)", unseen)
    if not is_up and world.can("gc"):
        removed = remove_object(world.pay("gc"), pod, controllers, is_seen=True, failed_by_gc=True)
        yield _bad(f"pod gc marks pod {pod.uid} Failed and removes it", removed)


def _harm_objects(world: World, bounds: Bounds) -> Iterator[Step]:
    workload, trainjob, jobset = world.workload, world.trainjob, world.jobset
    if workload.status != QUEUED and not workload.evicted and world.can("preempt"):
        yield _bad("kueue preempts", world.pay("preempt").evict())
    is_running = workload.status == ADMITTED and not workload.evicted and not trainjob.suspended
    if is_running and world.can("timeout") and not is_whole(world, bounds):
        yield _bad("kueue evicts: pods not ready in time", world.pay("timeout").evict())
    if workload.status == RESERVED and world.can("unreserve"):
        lost = world.pay("unreserve").write_workload(status=QUEUED)
        yield _bad("the reservation is lost without an eviction", lost)
    if world.can("toggle"):
        toggled = world.pay("toggle").write_trainjob(suspended=not trainjob.suspended)
        yield _bad(f"user sets suspend to {not trainjob.suspended}", toggled)
    if world.can("delete-workload"):
        made_again = world.pay("delete-workload").write_workload(**Workload()._asdict()).begin_reservation()
        yield _bad("user deletes the Workload, Kueue makes it again", made_again)
    if jobset and world.can("delete-jobset"):
        yield _bad("user deletes the JobSet", world.pay("delete-jobset")._replace(jobset=None))
    here = [pod for pod in world.pods if jobset and (pod.jobset, pod.restart) == jobset]
    if jobset and here and not trainjob.suspended and world.can("restart"):
        yield _bad("jobset restarts", world.pay("restart")._replace(jobset=JobSet(jobset.uid, jobset.restart + 1)))


def _adapter_holds(world: World, controllers: Controllers) -> Iterator[Step]:
    """Record first, Workload second; it may die in between."""
    trainjob, adapter = world.trainjob, world.adapter
    record_first = controllers.protocol.holds_in_record_first
    if not trainjob.held and not adapter.holding and world.can("hold"):
        instance = trainjob.instance + 1
        begun = world.pay("hold")._replace(adapter=adapter._replace(holding=instance))
        after = _write_hold(begun, instance, on_trainjob=record_first)
        yield _bad("adapter writes the first half of a hold", after)
    if adapter.holding:
        rest = world._replace(adapter=adapter._replace(holding=0))
        done = _write_hold(rest, adapter.holding, on_trainjob=not record_first)
        violation = None if record_first else invariants.judge_hold(world, adapter.holding)
        yield Step("adapter writes the second half of the hold", "calm", done, violation)
        if world.can("adapter-crash"):
            yield _bad("adapter dies inside hold", rest.pay("adapter-crash"))


def _write_hold(world: World, instance: int, *, on_trainjob: bool) -> World:
    if on_trainjob:
        return world.write_trainjob(held=True, instance=instance)
    return world.write_workload(active=False, instance=instance)


def _adapter_releases(world: World, controllers: Controllers) -> Iterator[Step]:
    trainjob, adapter = world.trainjob, world.adapter
    record_first = controllers.protocol.holds_in_record_first
    if trainjob.held and not adapter.releasing:
        begun = world._replace(adapter=adapter._replace(releasing=trainjob.instance))
        after = _write_release(begun, trainjob.instance, on_trainjob=record_first)
        yield Step("adapter writes the first half of a release", "release", after)
    if adapter.releasing:
        rest = world._replace(adapter=adapter._replace(releasing=0))
        done = _write_release(rest, adapter.releasing, on_trainjob=not record_first)
        yield Step("adapter writes the second half of the release", "release", done)
        if world.can("adapter-crash"):
            yield _bad("adapter dies inside release", rest.pay("adapter-crash"))


def _write_release(world: World, instance: int, *, on_trainjob: bool) -> World:
    if on_trainjob:
        return world.write_trainjob(held=False)
    is_ours = world.workload.instance == instance and not world.workload.active
    return world.write_workload(active=True, instance=0) if is_ours else world
