# SPDX-License-Identifier: Apache-2.0
"""Gangs, priorities and fair shares, all by Kueue's own means: the adapter only hands on what it says.

The contract suite has the scenarios that every backend plays; these look at what only a cluster shows: Kueue's words,
its arithmetic told before it judges, grace given to real processes, and queues that lend to each other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.core.state import Cause, State
from tests.cluster.testbed import objects
from tests.cluster.testbed.api import Manifest
from tests.cluster.testbed.bed import Bed
from tests.contract.stage import Difference, soon
from tests.contract.stage_kubeflow import KubeflowStage

SMALL = {"cpu": "100m", "memory": "32Mi"}
QUIET_SECONDS = 5.0
"""Long enough for Kueue to admit what it wants to admit."""
FAIR_SHARING = {"fairSharing": {"preemptionStrategies": ["LessThanOrEqualToFinalShare", "LessThanInitialShare"]}}


class QueueStage(KubeflowStage):
    """With the amounts that a scenario names: what is told of them is compared."""

    cpu_parts = 1


class CohortStage(QueueStage):
    """Its queues lend to each other what they don't use, and take it back."""

    def _build_queues(self) -> list[Manifest]:
        manifests = super()._build_queues()
        for manifest in manifests:
            if manifest["kind"] == "ClusterQueue":
                manifest["spec"]["cohortName"] = self.namespace
                manifest["spec"]["preemption"] = {
                    "withinClusterQueue": "LowerPriority",
                    "reclaimWithinCohort": "Any",
                }
        return manifests


@pytest.fixture
def four_rooms(controlled_bed: Bed) -> QueueStage:
    """A queue with room for four small ranks."""
    return QueueStage(controlled_bed, {"q": {"cpu": "400m"}})


async def start(at: QueueStage, *behaviour: str, nodes: int = 1, **more: Any) -> JobRef:
    """A job of small ranks, its gate open."""
    spec = at.spec(*(behaviour or ("run",)), **({"queue": "q", "resources": SMALL, "nodes": nodes} | more))
    ref = await at.start(spec)
    await at.adapter.open(ref, deadline=soon())
    return ref


async def finish(at: QueueStage, ref: JobRef, nodes: int) -> None:
    for rank in range(nodes):
        await at.tell(ref, "exit 0", rank=rank)
    await at.reach(ref, State.SUCCEEDED)


def count_pods(at: QueueStage, ref: JobRef) -> int:
    """Pods of the job, gated ones included: a pod that waits for its gang holds a place in it."""
    label = f"labelSelector=dispatch.phpboyscout.uk/job={ref.job.lower()}"
    return len(at.bed.api.get("Pod", namespace=at.namespace, query=label)["items"])


def read_usage(at: QueueStage, queue: str = "q") -> Mapping[str, str]:
    """What Kueue counts as used: resource → amount."""
    status = at.bed.api.get("ClusterQueue", f"{at.namespace}-{queue}", version=objects.KUEUE_VERSION)["status"]
    (flavor,) = status["flavorsReservation"]
    return {row["name"]: row["total"] for row in flavor["resources"]}


def is_waiting_for(part: str) -> Any:
    return lambda seen: seen.pending is not None and part in seen.pending.message


async def run_and_wait(at: QueueStage, jobs: list[JobRef]) -> tuple[JobRef, JobRef, Observation]:
    """The one of two that Kueue let in, the other, and what is told of that."""
    done = {asyncio.create_task(at.reach(ref, State.RUNNING)): ref for ref in jobs}
    first, rest = await asyncio.wait(done, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    running = done[first.pop()]
    (waiting,) = set(jobs) - {running}
    return running, waiting, await at.until(waiting, is_waiting_for("cpu"))


# -- all or none -------------------------------------------------------------------------------------------------------


def test_two_jobs_that_fit_alone_and_not_together_never_hold_half_of_the_room_each(four_rooms: QueueStage) -> None:
    async def scenario(at: QueueStage) -> None:
        jobs = await asyncio.gather(*(start(at, nodes=3) for _ in range(2)))
        running, waiting, seen = await run_and_wait(at, list(jobs))
        assert (seen.state, seen.cause) == (State.QUEUED, None)
        assert seen.pending is not None
        assert seen.pending.code == "WaitingForQuota"
        assert "insufficient unused quota for cpu" in seen.pending.message
        assert "200m more needed" in seen.pending.message
        await asyncio.sleep(QUIET_SECONDS)
        assert (count_pods(at, running), count_pods(at, waiting)) == (3, 0)
        assert read_usage(at)["cpu"] == "300m"
        await finish(at, running, 3)
        up = await at.reach(waiting, State.RUNNING)
        assert up.ranks[0].running == 3
        assert up.execution is not None
        assert up.execution.epoch == 1_000_001
        assert up.observed_at is not None
        assert up.clocks.queued.elapsed(up.observed_at) >= timedelta(seconds=QUIET_SECONDS)

    four_rooms.play(scenario)


def test_two_gangs_of_four_on_five_nodes_submitted_at_once_do_not_lock_each_other_out(controlled_bed: Bed) -> None:
    """The deadlock that pods scheduled one by one run into: three nodes for one, two for the other, for ever."""

    async def scenario(at: QueueStage) -> None:
        jobs = [await at.start(at.spec("run", queue="q", nodes=4, resources=SMALL)) for _ in range(2)]
        await asyncio.gather(*(at.adapter.open(ref, deadline=soon()) for ref in jobs))
        running, waiting, _ = await run_and_wait(at, jobs)
        await asyncio.sleep(QUIET_SECONDS)
        assert (count_pods(at, running), count_pods(at, waiting)) == (4, 0)
        await finish(at, running, 4)
        await at.reach(waiting, State.RUNNING)
        await finish(at, waiting, 4)

    QueueStage(controlled_bed, {"q": {"cpu": "500m"}}).play(scenario)


def test_a_job_larger_than_the_room_beside_a_smaller_one_starts_none_of_its_ranks(controlled_bed: Bed) -> None:
    """Four and six ranks ask for five slots: the four run, nothing of the six does, and it says why at once."""

    async def scenario(at: QueueStage) -> None:
        began = time.monotonic()
        six, four = await start(at, nodes=6), await start(at, nodes=4)
        seen = await at.until(six, lambda o: o.cause is not None)
        assert time.monotonic() - began < at.patience.total_seconds() / 2
        assert (seen.state, seen.cause) == (State.QUEUED, Cause.NO_CAPACITY)
        assert "600m" in seen.detail
        assert "500m" in seen.detail
        assert "cpu" in seen.detail
        assert seen.evidence
        await at.reach(four, State.RUNNING)
        await finish(at, four, 4)
        await asyncio.sleep(QUIET_SECONDS)
        assert count_pods(at, six) == 0
        assert (await at.adapter.inspect(six)).cause is Cause.NO_CAPACITY

    QueueStage(controlled_bed, {"q": {"cpu": "500m"}}).play(scenario)


def test_a_larger_quota_lets_in_what_could_never_fit(four_rooms: QueueStage) -> None:
    async def scenario(at: QueueStage) -> None:
        ref = await start(at, nodes=6)
        await at.until(ref, lambda o: o.cause is Cause.NO_CAPACITY)
        at.queues = {"q": {"cpu": "600m"}}
        at.bed.api.apply(*at._build_queues())
        up = await at.reach(ref, State.RUNNING)
        assert up.cause is None

    four_rooms.play(scenario)


# -- priorities --------------------------------------------------------------------------------------------------------


def test_a_preempted_job_gets_its_grace_is_queued_again_and_goes_on_under_a_higher_epoch(
    four_rooms: QueueStage,
) -> None:
    async def scenario(at: QueueStage) -> None:
        victim = await start(at, "slow", "3", nodes=3, priority="low", grace_period=20)
        await at.reach(victim, State.RUNNING)
        await at.begun(victim, 1_000_001)
        preemptor = await start(at, nodes=3, priority="high")
        await at.until(victim, lambda o: o.pending is not None and o.pending.evictions == 1)
        await at.reach(preemptor, State.RUNNING)
        seen = await at.until(victim, lambda o: o.pending is not None and "cpu" in o.pending.message)
        assert (seen.state, seen.cause) == (State.QUEUED, None)
        assert seen.pending is not None
        assert (seen.pending.code, seen.pending.evictions) == ("WaitingForQuota", 1)
        for rank in range(3):
            graces = read_graces(at, victim, rank)
            assert graces == [pytest.approx(3, abs=1.5)], "TERM first, and time to end"
        await finish(at, preemptor, 3)
        again = await at.reach(victim, State.RUNNING)
        assert again.execution is not None
        assert (again.execution.epoch, again.execution.a, again.execution.j) == (1_000_002, 2, 0)
        await at.begun(victim, 1_000_002)
        told = " ".join(f"{event.kind} {event.message}" for event in await at.adapter.events(victim)).lower()
        assert "preempt" in told

    four_rooms.play(scenario)


def read_graces(at: QueueStage, ref: JobRef, rank: int) -> list[float]:
    """Seconds from TERM to the end of its own accord, once for each time that it was asked to end."""
    path = at.find_control(ref.job) / f"{ref.job}-node-{rank}.graces"
    return [float(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_more_important_job_overtakes_those_that_wait(four_rooms: QueueStage) -> None:
    async def scenario(at: QueueStage) -> None:
        running = await start(at, nodes=4, priority="high")
        await at.reach(running, State.RUNNING)
        low = await start(at, nodes=4, priority="low")
        await at.until(low, is_waiting_for("cpu"))
        normal = await start(at, nodes=4, priority="normal")
        await at.until(normal, is_waiting_for("cpu"))
        await finish(at, running, 4)
        await at.reach(normal, State.RUNNING)
        assert (await at.adapter.inspect(low)).state is State.QUEUED
        assert (await at.adapter.inspect(low)).executions == 0

    four_rooms.play(scenario)


def test_of_equal_jobs_none_is_preempted(four_rooms: QueueStage) -> None:
    async def scenario(at: QueueStage) -> None:
        first = await start(at, nodes=4, priority="high")
        await at.reach(first, State.RUNNING)
        second = await start(at, nodes=4, priority="high")
        await at.until(second, is_waiting_for("cpu"))
        await asyncio.sleep(QUIET_SECONDS)
        seen = await at.adapter.inspect(first)
        assert (seen.state, seen.executions) == (State.RUNNING, 1)

    four_rooms.play(scenario)


# -- queues that lend to each other ------------------------------------------------------------------------------------


def test_a_queue_borrows_what_the_other_leaves_idle_and_gives_it_back(controlled_bed: Bed) -> None:
    async def scenario(at: CohortStage) -> None:
        ours = await start(at, nodes=3, queue="a")
        theirs = await start(at, nodes=3, queue="a")
        await at.reach(ours, State.RUNNING)
        up = await at.reach(theirs, State.RUNNING)
        assert up.cause is None
        owner = await start(at, nodes=3, queue="b")
        await at.reach(owner, State.RUNNING)
        counts = [(await at.adapter.inspect(ref)).state for ref in (ours, theirs)]
        assert sorted(counts) == sorted([State.QUEUED, State.RUNNING])
        victim = ours if counts[0] is State.QUEUED else theirs
        seen = await at.until(victim, lambda o: o.pending is not None and o.pending.evictions == 1)
        assert seen.pending is not None
        assert seen.pending.queue == "a"
        await finish(at, owner, 3)
        again = await at.reach(victim, State.RUNNING)
        assert again.execution is not None
        assert again.execution.epoch == 1_000_002

    CohortStage(controlled_bed, {"a": {"cpu": "300m"}, "b": {"cpu": "300m"}}).play(scenario)


@pytest.fixture
def fair_bed(controlled_bed: Bed) -> Iterator[Bed]:
    """Kueue with fair sharing."""
    controlled_bed.configure_kueue(FAIR_SHARING)
    yield controlled_bed
    controlled_bed.configure_kueue({})


@pytest.mark.matrix
def test_two_queues_of_a_cohort_share_fairly_what_belongs_to_neither(fair_bed: Bed) -> None:
    """One queue has taken all of the cohort's idle room; the other, which borrows too, gets its half of it."""

    async def scenario(at: CohortStage) -> None:
        assert Difference.NO_QUEUES not in at.differences
        greedy = [await start(at, queue="a") for _ in range(4)]
        for ref in greedy:
            await at.reach(ref, State.RUNNING)
        late = [await start(at, queue="b") for _ in range(4)]
        await at.until(late[0], lambda o: o.state is State.RUNNING)
        await at.until(late[1], lambda o: o.state is State.RUNNING)
        await asyncio.sleep(QUIET_SECONDS)
        assert [await count_running(at, jobs) for jobs in (greedy, late)] == [2, 2]
        preempted = [ref for ref in greedy if (await at.adapter.inspect(ref)).state is State.QUEUED]
        for ref in preempted:
            seen = await at.adapter.inspect(ref)
            assert seen.cause is None
            assert seen.pending is not None
            assert seen.pending.evictions == 1

    CohortStage(fair_bed, {"a": {"cpu": "0"}, "b": {"cpu": "0"}, "idle": {"cpu": "400m"}}).play(scenario)


async def count_running(at: QueueStage, jobs: list[JobRef]) -> int:
    return sum([(await at.adapter.inspect(ref)).state is State.RUNNING for ref in jobs])
