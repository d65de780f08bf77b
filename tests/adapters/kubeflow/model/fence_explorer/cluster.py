# SPDX-License-Identifier: Apache-2.0
"""What Kueue, Trainer, JobSet, the scheduler and the kubelets do by themselves, as the real ones were seen to."""

from __future__ import annotations

from collections.abc import Iterator

from tests.adapters.kubeflow.model.fence_explorer import invariants
from tests.adapters.kubeflow.model.fence_explorer.controllers import Controllers
from tests.adapters.kubeflow.model.fence_explorer.world import (
    ADMITTED,
    ALIVE,
    BOUND,
    COUNTED_BY_KUEUE,
    ENDED,
    FAILED,
    GATED,
    GONE,
    KNOWN,
    LIFTED,
    QUEUED,
    RESERVED,
    SUCCEEDED,
    TERMINATING,
    Bounds,
    JobSet,
    Node,
    Pod,
    Step,
    World,
    find_fresh,
    find_used_jobsets,
    find_used_uids,
)


def steps(world: World, bounds: Bounds, controllers: Controllers) -> Iterator[Step]:
    if not world.trainjob.finished:
        yield from _kueue(world)
        yield from _jobset(world, bounds)
    for pod in world.pods:
        yield from _clear_up(world, pod, controllers)
        yield from _run(world, pod, controllers)
    for number, node in enumerate(world.nodes, 1):
        if not node.up:
            yield Step(f"node {number} is back", "calm", change_node(world, number, Node(up=True, ready=node.ready)))
        if node.up != node.ready:
            word = "Ready" if node.up else "NotReady"
            marked = change_node(world, number, Node(node.up, node.up))
            yield Step(f"node {number} is marked {word}", "calm", marked)


def change_node(world: World, number: int, node: Node) -> World:
    return world._replace(nodes=(*world.nodes[: number - 1], node, *world.nodes[number:]))


def remove_object(
    world: World, pod: Pod, controllers: Controllers, *, is_seen: bool, failed_by_gc: bool = False
) -> World:
    """The pod's object goes, its process stays. Unless it is missed, the watch delivers its last state."""
    if is_seen:
        world = controllers.note_last_state(world, pod, failed_by_gc=failed_by_gc)
    return world.change_pod(pod.uid, object=GONE)


def is_recorded(world: World, pod: Pod) -> bool:
    return any(entry.uid == pod.uid for entry in world.trainjob.record.entries)


def delete(world: World, pod: Pod, controllers: Controllers) -> Iterator[tuple[str, World]]:
    """Delete a pod's object: one that no node has goes at once, another begins to terminate."""
    if pod.object == BOUND:
        yield "", world.change_pod(pod.uid, object=TERMINATING)
    elif pod.object in (GATED, LIFTED):
        yield "", remove_object(world, pod, controllers, is_seen=True)
        if world.can("miss") and is_recorded(world, pod):
            yield " (last state missed)", remove_object(world.pay("miss"), pod, controllers, is_seen=False)


def is_whole(world: World, bounds: Bounds) -> bool:
    """A complete gang runs under one epoch; ranks that have succeeded count."""
    jobset = world.jobset
    running: dict[int, int | None] = {}
    for pod in world.pods:
        if pod.object == BOUND and pod.process == ALIVE and pod.submission == world.submission:
            running[pod.slot] = pod.epoch
        elif pod.object == SUCCEEDED and jobset and (pod.jobset, pod.restart) == jobset:
            running.setdefault(pod.slot, None)
    return len(running) == bounds.slots and len(set(running.values()) - {None}) <= 1


def _kueue(world: World) -> Iterator[Step]:
    workload, trainjob, monitor = world.workload, world.trainjob, world.monitor
    may_run = workload.active and not workload.evicted
    if workload.status == QUEUED and workload.active:
        reserved = world.write_workload(status=RESERVED, evicted=False).begin_reservation()
        yield Step("kueue reserves quota", "calm", reserved)
    if workload.status == RESERVED and workload.ready and may_run:
        remembered = monitor._replace(a_before=max(monitor.a_before, monitor.a_now), a_now=trainjob.a)
        yield Step("kueue admits", "calm", world.write_workload(status=ADMITTED)._replace(monitor=remembered))
    is_running = workload.status == ADMITTED and not workload.evicted
    if is_running == trainjob.suspended:
        word = "resumes" if trainjob.suspended else "suspends"
        yield Step(f"kueue {word} the TrainJob", "calm", world.write_trainjob(suspended=not trainjob.suspended))
    if not workload.active and not workload.evicted:
        yield Step("kueue evicts the inactive Workload", "calm", world.evict())
    is_quiet = trainjob.suspended and not any(pod.object in COUNTED_BY_KUEUE for pod in world.pods)
    if workload.evicted and workload.status != QUEUED and is_quiet:
        yield Step("kueue frees the quota", "calm", world.write_workload(status=QUEUED))


def _jobset(world: World, bounds: Bounds) -> Iterator[Step]:
    jobset = world.jobset
    if jobset is None:
        made = world._replace(jobset=JobSet(find_fresh(find_used_jobsets(world))))
        yield Step("trainer makes the JobSet", "calm", made)
        return
    if world.trainjob.suspended:
        return
    here = [pod for pod in world.pods if _is_of(pod, world)]
    filled = {pod.slot for pod in here if pod.object in (*COUNTED_BY_KUEUE, SUCCEEDED, FAILED)}
    for slot in sorted(set(range(bounds.slots)) - filled if len(world.pods) < 2 * bounds.slots + 2 else ()):
        pod = Pod(find_fresh(find_used_uids(world)), slot, world.submission, *jobset)
        yield Step(f"jobset makes gated pod {pod.uid} (J={jobset.restart})", "calm", _add(world, pod))
    if any(pod.object == FAILED for pod in here):
        if jobset.restart < bounds.restarts:
            yield Step("jobset restarts", "calm", world._replace(jobset=JobSet(jobset.uid, jobset.restart + 1)))
        else:
            yield Step("jobset fails", "calm", world.write_trainjob(finished=True))
    if {pod.slot for pod in here if pod.object == SUCCEEDED} == set(range(bounds.slots)):
        yield Step("jobset completes", "calm", world.write_trainjob(finished=True))


def _add(world: World, pod: Pod) -> World:
    return world._replace(pods=(*world.pods, pod))


def _is_of(pod: Pod, world: World) -> bool:
    return pod.submission == world.submission and (pod.jobset, pod.restart) == world.jobset


def _clear_up(world: World, pod: Pod, controllers: Controllers) -> Iterator[Step]:
    """JobSet and the garbage collector take pods away that nobody wants any more."""
    is_stale = world.trainjob.finished or not _is_of(pod, world)
    if pod.object in COUNTED_BY_KUEUE and (is_stale or world.trainjob.suspended):
        for word, after in delete(world, pod, controllers):
            yield Step(f"jobset deletes pod {pod.uid}{word}", "adversary" if word else "calm", after)
    elif pod.object in (SUCCEEDED, FAILED) and is_stale:
        gone = remove_object(world, pod, controllers, is_seen=True)
        yield Step(f"jobset removes ended pod {pod.uid}", "calm", gone)
        if world.can("miss") and is_recorded(world, pod):
            gone = remove_object(world.pay("miss"), pod, controllers, is_seen=False)
            yield Step(f"jobset removes ended pod {pod.uid} (last state missed)", "adversary", gone)


def _run(world: World, pod: Pod, controllers: Controllers) -> Iterator[Step]:
    """The scheduler binds, the kubelet starts and ends."""
    if pod.object == LIFTED:
        for number, node in enumerate(world.nodes, 1):
            if all(node):
                bound = world.change_pod(pod.uid, object=BOUND, process=KNOWN, node=number)
                yield Step(f"scheduler binds pod {pod.uid} to node {number}", "calm", bound)
    if not pod.node:
        return
    is_up = world.nodes[pod.node - 1].up
    if pod.process == KNOWN and (pod.object == BOUND or not is_up):
        yield _start(world, pod)
    if not is_up:
        return
    if pod.object == BOUND and pod.process == ALIVE:
        ended = world.change_pod(pod.uid, object=SUCCEEDED, process=ENDED, epoch=0)
        yield Step(f"pod {pod.uid} succeeds", "calm", ended)
    elif pod.object == TERMINATING:
        yield from _end(world, pod, controllers)
    elif pod.object == GONE and pod.process in (KNOWN, ALIVE):
        ended = world.change_pod(pod.uid, process=ENDED)
        yield Step(f"kubelet ends the orphaned process of pod {pod.uid}", "calm", ended)


def _start(world: World, pod: Pod) -> Step:
    monitor = world.monitor
    slots = (monitor.slots if pod.epoch == monitor.epoch else frozenset()) | {pod.slot}
    after = world.change_pod(pod.uid, process=ALIVE)
    if pod.epoch > 0:
        after = after._replace(monitor=monitor._replace(epoch=pod.epoch, slots=slots))
    label = f"kubelet starts pod {pod.uid} (slot {pod.slot}, epoch {pod.epoch})"
    return Step(label, "calm", after, invariants.judge_start(world, pod))


def _end(world: World, pod: Pod, controllers: Controllers) -> Iterator[Step]:
    """A kubelet reports the end of all containers before the object goes."""
    ended = pod._replace(object=SUCCEEDED)
    calm = remove_object(world, ended, controllers, is_seen=True).change_pod(pod.uid, process=ENDED)
    yield Step(f"kubelet ends pod {pod.uid}, its object goes", "calm", calm)
    if world.can("miss") and is_recorded(world, pod):
        missed = remove_object(world.pay("miss"), ended, controllers, is_seen=False)
        label = f"kubelet ends pod {pod.uid}, its object goes (last state missed)"
        yield Step(label, "adversary", missed.change_pod(pod.uid, process=ENDED))
