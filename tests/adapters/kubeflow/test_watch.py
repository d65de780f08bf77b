# SPDX-License-Identifier: Apache-2.0
"""One watch for all: the present state at once, each change, the same cost for one waiter and for a hundred, no death
in silence."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from airflow_provider_dispatch.adapters.kubeflow import errors
from airflow_provider_dispatch.adapters.kubeflow.client import open_client
from airflow_provider_dispatch.adapters.kubeflow.job_cache import SELECTORS
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.resources import CONFIG_MAPS, JOBSETS, PODS, TRAINJOBS, WORKLOADS
from airflow_provider_dispatch.adapters.kubeflow.reflecting import Pace
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings
from airflow_provider_dispatch.adapters.kubeflow.watch import ClusterWatch, Subscription, find_watch
from airflow_provider_dispatch.core.identity import build_job_id, build_object_name
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.exceptions import RefusedError, SpecError, UnavailableError
from tests.adapters.kubeflow.api_server import ApiServer, Fault, run, status

NS = "dispatch"
KINDS = len(SELECTORS)
QUICK: dict[str, Any] = {
    "first_pause_seconds": 0.01,
    "longest_pause_seconds": 0.05,
    "coalesce_seconds": 0.001,
    "draw": lambda: 0.5,
}
JOB, OTHER = build_job_id(0, b"0123456789"), build_job_id(0, b"abcdefghij")


async def hurry(seconds: float) -> None:
    """A sleeper with little patience."""
    await asyncio.sleep(min(seconds, 0.001))


def add_trainjob(server: ApiServer, job=JOB, number=1, **rest):
    labels = {words.JOB_LABEL: job.lower(), words.SUBMISSION_LABEL: str(number)}
    trainjob = server.put(TRAINJOBS, build_object_name(job, number), NS, labels=labels, **rest)
    return JobRef(job, number, words.BACKEND, NS, fields.uid(trainjob))


def add_beneath(server: ApiServer, ref: JobRef, resource, name, **rest):
    """What is made for a TrainJob."""
    labels = {words.JOB_LABEL: ref.job.lower(), words.SUBMISSION_LABEL: str(ref.submission)}
    if resource is WORKLOADS:
        labels = {words.JOB_UID_LABEL: ref.uid}
    owners = [{"kind": "TrainJob", "uid": ref.uid, "controller": True}]
    server.put(resource, name, NS, labels=labels, metadata={"ownerReferences": owners}, **rest)


@dataclass
class World:
    server: ApiServer
    watch: ClusterWatch

    async def settle(self) -> None:
        """Until the watches are open."""
        await self.server.wait_for_watches(KINDS)


@pytest.fixture
def world(tmp_path):
    """Enter for a server and the watch of its namespace; *prepare* fills the server."""

    @asynccontextmanager
    async def enter(prepare=lambda server: None, **pace):
        async with ApiServer() as server:
            settings = KubeflowSettings(
                namespace=NS, kubeconfig=server.write_kubeconfig(tmp_path), request_timeout_seconds=5
            )
            prepare(server)
            yield World(server, ClusterWatch(lambda: open_client(settings, sleep=hurry), NS, pace=Pace(**QUICK | pace)))

    return enter


async def take_until(subscription: Subscription, target, fits):
    """The first objects of a target that fit."""
    while True:
        told = await subscription.take()
        if target in told and fits(told[target]):
            return told[target]


def names(raws):
    return sorted(fields.name(raw) for raw in raws)


def test_the_present_state_comes_at_once_and_then_each_change(world):
    async def scenario():
        refs = []

        def prepare(server):
            refs.append(add_trainjob(server))
            add_beneath(server, refs[0], WORKLOADS, "w")
            add_beneath(server, refs[0], PODS, "p0")
            add_beneath(server, add_trainjob(server, OTHER), PODS, "of-another")

        async with world(prepare) as here:
            (ref,) = refs
            with here.watch.subscribe([ref]) as subscription:
                first = await take_until(subscription, ref, lambda _: True)
                await here.settle()
                add_beneath(here.server, ref, PODS, "p1")
                second = await take_until(subscription, ref, lambda found: len(found.pods) == 2)
                here.server.remove(PODS, "p0", NS)
                third = await take_until(subscription, ref, lambda found: len(found.pods) == 1)
            return first, second, third

    first, second, third = run(scenario())
    assert (fields.name(first.workload), names(first.pods), first.ledger) == ("w", ["p0"], None)
    assert [names(one.pods) for one in (second, third)] == [["p0", "p1"], ["p1"]]


def test_what_no_watch_has_told_is_found_by_listing_again(world):
    async def scenario():
        now = 0.0
        refs = []

        def prepare(server):
            refs.append(add_trainjob(server))
            add_beneath(server, refs[0], PODS, "p0")

        async with world(prepare, relist_seconds=1000.0, monotonic=lambda: now) as here:
            with here.watch.subscribe(refs) as subscription:
                await take_until(subscription, refs[0], lambda found: len(found.pods) == 1)
                await here.settle()
                here.server.lose(PODS, "p0", NS)
                lists = []
                for moment in (500.0, 1001.0):
                    now = moment
                    before = here.server.count("/")
                    here.server.end_watches()
                    await here.server.wait_for_watches(0)
                    await here.settle()
                    lists.append(here.server.count("/") - before)
                last = await take_until(subscription, refs[0], lambda found: not found.pods)
            return lists, last

    lists, last = run(scenario())
    assert lists == [0, KINDS]
    assert last.trainjob is not None


def test_a_hundred_waiters_cost_what_one_does(world):
    async def scenario(number):
        refs: list[JobRef] = []

        def prepare(server):
            refs.extend(add_trainjob(server, build_job_id(at, b"0" * 10)) for at in range(number))

        async with world(prepare) as here:
            subscriptions = [here.watch.subscribe([ref]) for ref in refs]
            for ref, subscription in zip(refs, subscriptions, strict=True):
                await take_until(subscription, ref, lambda found: found.trainjob is not None)
            await here.settle()
            seen = len(here.server.seen)
            for subscription in subscriptions:
                subscription.close()
            return seen

    assert run(scenario(1)) == run(scenario(100)) == 2 * KINDS


def test_who_comes_late_is_told_at_once_and_never_that_a_new_job_is_gone(world):
    async def scenario():
        async with world(add_trainjob) as here:
            with here.watch.subscribe([JOB]) as early:
                await early.take()
                await here.settle()
                here.server.is_mute = True
                late = add_trainjob(here.server, OTHER)
                before = here.server.count()
                with here.watch.subscribe([late]) as subscription:
                    told = await subscription.take()
                return told[late].trainjob, here.server.count() - before

    trainjob, requests = run(scenario())
    assert fields.name(trainjob) == build_object_name(OTHER, 1)
    assert requests == 1


def test_many_newcomers_are_looked_for_in_one_list(world):
    async def scenario():
        async with world(add_trainjob) as here:
            with here.watch.subscribe([JOB]) as early:
                await early.take()
                await here.settle()
                refs = [add_trainjob(here.server, build_job_id(at, b"0" * 10)) for at in range(50)]
                before = here.server.count()
                with here.watch.subscribe(refs) as subscription:
                    told: set[JobRef] = set()
                    while len(told) < 50:
                        told |= (await subscription.take()).keys()
                return here.server.count() - before

    assert run(scenario()) == 1


def test_of_a_job_that_is_gone_the_ledger_is_told(world):
    async def scenario():
        async with world() as here:
            ref = add_trainjob(here.server)
            with here.watch.subscribe([ref, OTHER]) as subscription:
                nothing = await take_until(subscription, OTHER, lambda _: True)
                await here.settle()
                here.server.put(CONFIG_MAPS, f"dj-{JOB.lower()}", NS)
                here.server.remove(TRAINJOBS, build_object_name(JOB, 1), NS)
                gone = await take_until(subscription, ref, lambda found: found.trainjob is None)
            return nothing, gone

    nothing, gone = run(scenario())
    assert (nothing.trainjob, nothing.ledger) == (None, None)
    assert fields.name(gone.ledger) == f"dj-{JOB.lower()}"


def test_a_bare_id_follows_the_job_and_a_ref_its_own_submission(world):
    async def scenario():
        async with world() as here:
            ref = add_trainjob(here.server)
            with here.watch.subscribe([ref, JOB]) as subscription:
                await take_until(subscription, JOB, lambda _: True)
                await here.settle()
                second = add_trainjob(here.server, JOB, 2)
                newest = await take_until(subscription, JOB, lambda found: fields.uid(found.trainjob) == second.uid)
                add_beneath(here.server, second, JOBSETS, "j")
                told = await subscription.take()
            return newest, told.get(ref)

    newest, first = run(scenario())
    assert fields.name(newest.trainjob) == build_object_name(JOB, 2)
    assert first is None or fields.name(first.trainjob) == build_object_name(JOB, 1)


@pytest.mark.parametrize("form", ["answer", "event"])
def test_a_version_that_is_too_old_is_mended_by_a_list(world, form):
    async def scenario():
        async with world(add_trainjob) as here:
            with here.watch.subscribe([JOB]) as subscription:
                await subscription.take()
                await here.settle()
                here.server.is_mute = True
                add_trainjob(here.server, JOB, 2)
                here.server.compact()
                here.server.is_mute = False
                if form == "answer":
                    here.server.end_watches()
                else:
                    gone = {"type": "ERROR", "object": status(410, "Expired")}
                    here.server.send_to_watches(json.dumps(gone).encode() + b"\n")
                found = await take_until(subscription, JOB, lambda found: _number(found) == 2)
                await here.settle()
                return found is not None, here.server.count("trainjobs")

    assert run(scenario()) == (True, 2)


def _number(found):
    return int(fields.label(found.trainjob, words.SUBMISSION_LABEL) or 0)


def test_a_silent_watch_is_noticed_and_goes_on_from_its_version_without_a_list(world):
    async def scenario():
        async with world(add_trainjob, silence_seconds=0.1) as here:
            with here.watch.subscribe([JOB]) as subscription:
                await subscription.take()
                await here.settle()
                here.server.is_mute = True
                add_trainjob(here.server, JOB, 2)
                here.server.is_mute = False
                found = await take_until(subscription, JOB, lambda found: _number(found) == 2)
                return found is not None, here.server.count("trainjobs")

    assert run(scenario()) == (True, 1)


def test_a_bookmark_moves_the_version_from_which_a_broken_watch_goes_on(world):
    async def scenario():
        async with world(add_trainjob) as here:
            with here.watch.subscribe([JOB]) as subscription:
                await subscription.take()
                await here.settle()
                add_trainjob(here.server, OTHER)
                here.server.send_bookmarks(7777)
                here.server.end_watches()
                await here.server.wait_for_requests(2, "trainjobs", watches=True)
            return [seen.query["resourceVersion"] for seen in here.server.seen if seen.is_watch]

    versions = run(scenario())
    assert versions[-1] == "7777"


def test_faults_of_the_server_are_waited_out(world, caplog):
    def prepare(server):
        add_trainjob(server)
        server.faults += [
            Fault(500, part_of_path="trainjobs", times=2), Fault(429, part_of_path="pods", times=6),
            Fault(part_of_path="jobsets", times=3), Fault(403, part_of_path="configmaps", times=1),
        ]  # fmt: skip

    async def scenario():
        async with world(prepare) as here:
            with here.watch.subscribe([JOB]) as subscription:
                told = await subscription.take()
            return told[JOB]

    with caplog.at_level(logging.INFO):
        assert run(scenario()).trainjob is not None
    assert "the watch of trainjobs in dispatch goes on in" in caplog.text


def test_pauses_grow_and_differ(world):
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.sleep(0.001)

    async def scenario():
        def prepare(server):
            server.faults.append(Fault(500, part_of_path="trainjobs", times=6))

        lots = iter([0.0, 1.0] * 99)
        pace = {"first_pause_seconds": 1.0, "longest_pause_seconds": 8.0, "sleep": sleep, "draw": lambda: next(lots)}
        async with world(prepare, **pace, refresh_seconds=100.0) as here:
            with here.watch.subscribe([JOB]) as subscription:
                await subscription.take()

    run(scenario())
    assert [pause for pause in pauses if 0.7 < pause < 10.1][:6] == [0.75, 2.5, 3.0, 10.0, 6.0, 10.0]


def test_a_cluster_without_kueue_is_watched_all_the_same(world):
    def prepare(server):
        add_trainjob(server)
        server.served = {"trainjobs", "jobsets", "jobs", "pods"}

    async def scenario():
        async with world(prepare) as here:
            with here.watch.subscribe([JOB]) as subscription:
                return (await subscription.take())[JOB]

    found = run(scenario())
    assert found.trainjob is not None
    assert found.workload is None


def test_a_refusal_from_the_beginning_is_told(world):
    def prepare(server):
        server.faults.append(Fault(403, status(403, "Forbidden", "no"), part_of_path="pods", times=99))

    async def scenario():
        async with world(prepare) as here:
            with here.watch.subscribe([JOB]) as subscription, pytest.raises(RefusedError, match="list pods"):
                await subscription.take()
            here.server.faults.clear()
            add_trainjob(here.server)
            with here.watch.subscribe([JOB]) as again:
                return (await again.take())[JOB].trainjob

    assert run(scenario()) is not None


def test_a_refusal_later_is_borne_for_a_while(world):
    async def scenario(patience_seconds):
        async with world(add_trainjob, patience_seconds=patience_seconds) as here:
            with here.watch.subscribe([JOB]) as subscription:
                await subscription.take()
                await here.settle()
                here.server.token = "renewed"
                here.server.end_watches()
                if patience_seconds < 1:
                    with pytest.raises(errors.UnauthorizedError):
                        await take_until(subscription, JOB, lambda found: _number(found) == 2)
                    return True
                await here.server.wait_for_requests(3, "trainjobs")
                here.server.token = ""
                add_trainjob(here.server, JOB, 2)
                return await take_until(subscription, JOB, lambda found: _number(found) == 2) is not None

    assert run(scenario(60.0))
    assert run(scenario(0.05))


def test_a_connection_that_can_not_be_opened_is_told(tmp_path):
    async def scenario():
        settings = KubeflowSettings(kubeconfig=str(tmp_path / "missing"))
        with find_watch(settings).subscribe([JOB]) as subscription:
            await subscription.take()

    with pytest.raises(SpecError, match="no such file"):
        run(scenario())


def test_a_death_of_the_watch_is_told(caplog):
    async def scenario():
        async def open_wrongly():
            raise ZeroDivisionError

        with ClusterWatch(open_wrongly, NS).subscribe([JOB]) as subscription:
            await subscription.take()

    with pytest.raises(UnavailableError, match="the log says why"):
        run(scenario())
    assert "ZeroDivisionError" in caplog.text


def test_the_last_subscriber_ends_it_and_the_next_begins_anew(world):
    async def scenario():
        async with world(add_trainjob) as here:
            for _ in range(2):
                with here.watch.subscribe([JOB]) as subscription, here.watch.subscribe([OTHER]):
                    await subscription.take()
                    await here.settle()
                await here.server.wait_for_watches(0)
            return here.server.count("trainjobs")

    assert run(scenario()) == 2


def test_nothing_is_looked_at_for_nobody(world):
    async def scenario():
        async with world() as here:
            with here.watch.subscribe([]):
                await asyncio.sleep(0)
            return here.server.seen

    assert run(scenario()) == []


def test_what_time_alone_changes_is_told_again(world):
    async def scenario():
        async with world(add_trainjob, refresh_seconds=0.1) as here:
            with here.watch.subscribe([JOB]) as subscription:
                first = await subscription.take()
                before = here.server.count()
                return first == await subscription.take(), here.server.count() - before

    assert run(scenario()) == (True, 0)


def test_one_place_has_one_watch_in_each_loop(tmp_path):
    settings = KubeflowSettings(namespace=NS, kubeconfig=str(tmp_path / "k"))

    async def scenario():
        same = find_watch(settings), find_watch(settings.model_copy(update={"deployment": "another"}))
        other = find_watch(settings.model_copy(update={"namespace": "elsewhere"}))
        return (*same, other)

    first, second, other = run(scenario())
    assert first is second
    assert other is not first
    assert run(scenario())[0] is not first


def test_old_states_and_what_was_deleted_never_come_back(world):
    async def scenario():
        async with world() as here:
            ref = add_trainjob(here.server)
            with here.watch.subscribe([ref]) as subscription:
                await subscription.take()
                await here.settle()
                old = json.dumps({"type": "MODIFIED", "object": here.server.objects[_key(ref)] | {"spec": "old"}})
                add_trainjob(here.server, spec="new")
                await take_until(subscription, ref, lambda found: found.trainjob["spec"] == "new")
                here.server.send_to_watches(old.encode() + b"\n", "trainjobs")
                add_beneath(here.server, ref, PODS, "p")
                kept = await take_until(subscription, ref, lambda found: len(found.pods) == 1)
                here.server.remove(TRAINJOBS, build_object_name(JOB, 1), NS)
                await take_until(subscription, ref, lambda found: found.trainjob is None)
                here.server.send_to_watches(old.encode() + b"\n", "trainjobs")
                add_beneath(here.server, ref, PODS, "q")
                last = await take_until(subscription, ref, lambda found: len(found.pods) == 2)
            return kept.trainjob["spec"], last.trainjob

    assert run(scenario()) == ("new", None)


def _key(ref):
    return (TRAINJOBS.api_version, NS, TRAINJOBS.plural, build_object_name(ref.job, ref.submission))
