# SPDX-License-Identifier: Apache-2.0
"""The verbs over a store: refusals in the contract's words, nothing half-made, output by cursor, an honest stop."""

from __future__ import annotations

import asyncio
import fcntl
import signal
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from airflow_provider_dispatch.adapters.local import preflight
from airflow_provider_dispatch.adapters.local.adapter import LocalAdapter
from airflow_provider_dispatch.adapters.local.settings import parse_settings
from airflow_provider_dispatch.adapters.local.stopping import build_stop_report
from airflow_provider_dispatch.adapters.local.store.reading import JobView
from airflow_provider_dispatch.adapters.protocol import OutputRequest
from airflow_provider_dispatch.adapters.registry import build_adapter
from airflow_provider_dispatch.core.capabilities import Answer, Capability, check_may_start
from airflow_provider_dispatch.core.decision import Supervision
from airflow_provider_dispatch.core.holds import Hold
from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.owner import Owner
from airflow_provider_dispatch.core.records import JobSelector, StartRequest
from airflow_provider_dispatch.core.state import Cause, State
from airflow_provider_dispatch.exceptions import (
    AdapterError,
    ConflictError,
    JobNotFoundError,
    RefusedError,
    SpecError,
    StaleHoldError,
    UnavailableError,
)
from tests.adapters.local.world import ANN, WAIT, World, new_job, python_job, soon

QUICK = python_job("pass")
NAIVE = datetime(2030, 1, 1)  # noqa: DTZ001 - what is tested


async def read(at: World, ref: JobRef, **request: Any) -> list[str]:
    return [line.text async for line in at.adapter.output(ref, OutputRequest(**request))]


# -- settings ----------------------------------------------------------------------------------------------------------


def test_what_means_nothing_here_is_said_once(world, caplog) -> None:
    async def scenario(at: World) -> None:
        for _ in range(2):
            await at.start(python_job("pass", image="trainer:1", queue="team-a"))

    with caplog.at_level("INFO"):
        world.play(scenario)

    for text in ("an image means nothing", "every queue is without limit"):
        assert sum(text in message for message in caplog.messages) == 1


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "root"),
        ({"root": "relative"}, "root"),
        ({"root": "/x", "store": "../y"}, "store"),
        ({"root": "/x", "store": ""}, "store"),
        ({"root": "/x", "secret": "hush"}, "secret"),
        ({"root": "/x", "retire_after_seconds": -1}, "retire_after_seconds"),
    ],
)
def test_a_wrong_setting_is_named_and_never_shown(fields, field) -> None:
    with pytest.raises(SpecError) as caught:
        build_adapter("local", fields)
    assert caught.value.field == field
    assert "hush" not in str(caught.value)


def test_the_registry_makes_one_and_touches_nothing(tmp_path) -> None:
    adapter = build_adapter("local", {"root": str(tmp_path / "dispatch")})
    assert isinstance(adapter, LocalAdapter)
    assert list(tmp_path.iterdir()) == []


# -- start -------------------------------------------------------------------------------------------------------------


def test_start_is_the_same_call_again_or_a_conflict(shared_world) -> None:
    async def scenario(at: World) -> None:
        ref = await at.start(QUICK)
        assert await at.start(QUICK, job=ref.job) == ref
        assert await at.start(QUICK, job=JobID(ref.job.lower())) == ref
        others: list[tuple[JobSpec, dict[str, Any]]] = [
            (QUICK, {"submission": 2}),
            (python_job("print(1)"), {}),
            (QUICK, {"owner": Owner("elsewhere")}),
        ]
        for spec, fields in others:
            with pytest.raises(ConflictError):
                await at.start(spec, job=ref.job, **fields)
        assert (await at.adapter.find(ref.job)).ledger == 1
        await at.adapter.stop(ref.job, reason="r", deadline=soon())
        with pytest.raises(ConflictError, match="used before"):
            await at.start(QUICK, job=ref.job)
        assert (await at.start(QUICK, job=ref.job, submission=2)).submission == 2

    shared_world.play(scenario)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        ({"job": "short"}, "job_id"),
        ({"submission": 0}, "submission"),
        ({"submission": -1}, "submission"),
        ({"submission": 2**70}, "submission"),
        ({"not_before": NAIVE}, "not_before"),
        ({"supervision": Supervision(deadline=NAIVE)}, "supervision.deadline"),
        ({"spec": python_job("pass", working_dir="relative")}, "working_dir"),
        ({"spec": python_job("pass", priority="urgent-ish")}, "priority"),
        ({"spec": python_job("pass", priority=2**80)}, "priority"),
        ({"owner": Owner(dag_id="half \ud800")}, "owner.dag_id"),
    ],
)
def test_start_refuses_what_it_cannot_carry_before_anything_is_written(shared_world, request_, field) -> None:
    async def scenario(at: World) -> None:
        job = new_job()
        fields = {"job": job, "submission": 1, "attempt": 1, "spec": QUICK} | request_
        with pytest.raises(SpecError) as caught:
            await at.adapter.start(StartRequest(**fields), deadline=soon())
        assert caught.value.field == field
        assert (await at.adapter.find(job)).ledger == 0

    shared_world.play(scenario)


def test_odd_names_and_long_ones_are_carried(shared_world) -> None:
    async def scenario(at: World) -> None:
        owner = Owner("größe", "dag \N{SNOWMAN}\0", "run '\"; --", "t" * 300, 7, 2, "id")
        ref = await at.start(QUICK, owner=owner)
        assert [record.owner for record in (await at.adapter.find(ref.job)).submissions] == [owner]
        (found,) = await at.adapter.list(JobSelector(dag_id=owner.dag_id))
        assert found.ref == ref

    shared_world.play(scenario)


def test_a_queue_that_the_file_does_not_have_is_refused_with_those_it_has(make_world) -> None:
    async def scenario(at: World) -> None:
        at.layout.folder.mkdir(parents=True)
        at.layout.queues.write_text("[priorities]\nurgent = 7\n[queues.team-a]\n[queues.team-b]\n")
        job = new_job()
        with pytest.raises(SpecError, match="team-a, team-b"):
            await at.start(python_job("pass", queue="team-c"), job=job)
        ref = await at.start(python_job("pass", queue="team-a", priority="urgent"), job=job)
        assert [record.queue for record in (await at.adapter.find(ref.job)).submissions] == ["team-a"]
        for broken in ("queues = 3", "[queues", "\xff", "[queues.a]\nnominal = 3"):
            at.layout.queues.write_text(broken, encoding="latin-1")
            with pytest.raises(SpecError, match="queues"):
                await at.start(QUICK)

    make_world().play(scenario)


def test_a_connection_serves_its_deployment_alone(make_world) -> None:
    async def scenario(at: World) -> None:
        with pytest.raises(ConflictError, match="'ours', not 'theirs'"):
            await at.start(QUICK, owner=Owner("theirs"))
        assert (await at.start(QUICK, owner=Owner("ours"))).submission == 1

    make_world(deployment="ours").play(scenario)


@pytest.mark.parametrize("verb", ["start", "open", "hold", "release", "stop", "adopt"])
def test_after_its_deadline_no_verb_writes(shared_world, verb) -> None:
    async def scenario(at: World) -> None:
        ref, late = await at.start(QUICK), soon(-1)
        before = await at.adapter.inspect(ref)
        calls = {
            "start": lambda: at.adapter.start(StartRequest(new_job(), 1, 1, QUICK), deadline=late),
            "open": lambda: at.adapter.open(ref, deadline=late),
            "hold": lambda: at.adapter.hold(ref, at.hold_request(), deadline=late),
            "release": lambda: at.adapter.release(ref, Hold(1, "k", ANN, "", late), deadline=late),
            "stop": lambda: at.adapter.stop(ref.job, reason="r", deadline=late),
            "adopt": lambda: at.adapter.adopt(ref, Owner(), expected=Owner(), deadline=late),
        }
        with pytest.raises(UnavailableError):
            await calls[verb]()
        after = await at.adapter.inspect(ref)
        assert (after.state, after.gates, after.holds) == (before.state, before.gates, before.holds)

    shared_world.play(scenario)


def test_a_deadline_without_a_time_zone_is_a_mistake_in_the_program(shared_world) -> None:
    async def scenario(at: World) -> None:
        with pytest.raises(ValueError, match="time zone"):
            await at.adapter.stop(new_job(), reason="r", deadline=NAIVE)

    shared_world.play(scenario)


# -- refs --------------------------------------------------------------------------------------------------------------


def test_an_unknown_job_is_gone_without_a_cause_and_cannot_be_changed(shared_world) -> None:
    async def scenario(at: World) -> None:
        known = await at.start(QUICK)
        job = new_job()
        for target in (job, replace(known, job=job), replace(known, submission=2)):
            assert (await at.adapter.inspect(target)).is_unheard_of
            with pytest.raises(JobNotFoundError):
                await at.adapter.hold(target, at.hold_request(), deadline=soon())
        with pytest.raises(JobNotFoundError):
            await at.adapter.open(replace(known, submission=2), deadline=soon())
        assert (await at.adapter.stop(job, reason="r", deadline=soon())).is_complete
        assert await at.adapter.events(job) == ()
        assert (await at.adapter.find(job)).submissions == ()
        with pytest.raises(JobNotFoundError):
            await read(at, replace(known, job=job))

    shared_world.play(scenario)


@pytest.mark.parametrize("change", [{"place": "other@host"}, {"backend": "kubeflow"}])
def test_a_ref_of_another_place_is_a_conflict_for_every_verb(shared_world, change) -> None:
    async def scenario(at: World) -> None:
        ref = replace(await at.start(QUICK), **change)
        calls = [
            at.adapter.inspect(ref),
            at.adapter.open(ref, deadline=soon()),
            at.adapter.hold(ref, at.hold_request(), deadline=soon()),
            at.adapter.events(ref),
            anext(at.adapter.watch([ref])),
            anext(at.adapter.output(ref, OutputRequest())),
        ]
        for call in calls:
            with pytest.raises(ConflictError, match="lives in"):
                await call

    shared_world.play(scenario)


# -- holds and owners --------------------------------------------------------------------------------------------------


def test_holds_are_checked_and_their_prose_is_mended(shared_world) -> None:
    async def scenario(at: World) -> None:
        ref = await at.start(QUICK)
        request = at.hold_request()
        wrong = [replace(request, key=""), replace(request, key="\udcff"), replace(request, until=NAIVE)]
        for one in wrong:
            with pytest.raises(SpecError):
                await at.adapter.hold(ref, one, deadline=soon())
        hold = await at.adapter.hold(ref, replace(request, reason="half \ud800\0"), deadline=soon())
        assert hold.reason == "half ?\0"
        with pytest.raises(StaleHoldError):
            await at.adapter.release(ref, replace(hold, instance=9), deadline=soon())
        assert await at.adapter.release(ref.job, hold, deadline=soon()) == ()
        assert await at.adapter.release(ref, hold, deadline=soon()) == ()

    shared_world.play(scenario)


def test_what_is_over_cannot_be_held_and_says_how_it_ended(shared_world) -> None:
    async def scenario(at: World) -> None:
        ref = await at.start(python_job("raise SystemExit(4)"))
        await at.adapter.open(ref, deadline=soon())
        await at.reach(ref, State.FAILED)
        with pytest.raises(RefusedError, match="exited with code 4"):
            await at.adapter.hold(ref, at.hold_request(), deadline=soon())
        await at.adapter.open(ref, deadline=soon())

    shared_world.play(scenario)


def test_an_owner_is_changed_only_by_who_knows_the_present_one(shared_world) -> None:
    async def scenario(at: World) -> None:
        one, two = Owner("d", instance_id="1"), Owner("d", instance_id="2")
        ref = await at.start(QUICK, owner=one)
        await at.adapter.adopt(ref, two, expected=one, deadline=soon())
        with pytest.raises(ConflictError):
            await at.adapter.adopt(ref, one, expected=one, deadline=soon())
        with pytest.raises(ConflictError):
            await at.adapter.stop(ref.job, reason="r", deadline=soon(), if_owner=one)
        assert (await at.adapter.inspect(ref)).state is State.GATED
        assert (await at.adapter.stop(ref.job, reason="r", deadline=soon(), if_owner=two)).is_complete

    shared_world.play(scenario)


# -- stop --------------------------------------------------------------------------------------------------------------


def test_a_stop_that_runs_out_of_time_says_what_is_alive_and_goes_on_by_itself(shared_world) -> None:
    stubborn = "import signal; signal.signal(15, signal.SIG_IGN); print('up', flush=True)\nwhile True: signal.pause()"

    async def scenario(at: World) -> None:
        ref = await at.run(python_job(stubborn, grace_period=timedelta(seconds=3)))
        async for line in at.adapter.output(ref, OutputRequest(follow=True)):
            assert line.text == "up"
            break
        report = await at.adapter.stop(ref.job, reason="now", deadline=soon(1))
        assert not report.is_complete
        assert [found.object for found in report.alive] == [
            "submission 1", "execution 1000001", "execution 1000001 rank 0 of node",
        ]  # fmt: skip
        assert (await at.adapter.inspect(ref)).state is State.STOPPING
        gone = await at.reach(ref, State.GONE)
        assert (gone.cause, gone.detail) == (Cause.STOPPED, "now")
        assert (await at.adapter.inspect(ref.job)).cause is Cause.STOPPED

    shared_world.play(scenario)


def test_what_no_agent_can_tell_is_unproven(make_world) -> None:
    async def scenario(at: World) -> None:
        ref = await at.run(python_job(WAIT))
        hopeless = LocalAdapter(at.settings.model_copy(update={"agent_start_seconds": 0.001}))
        at.end_agent(signal.SIGKILL)
        with at.layout.agent_lock.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # so that no agent can begin
            await _stop_in_vain(hopeless, ref)
        assert (await at.adapter.stop(ref.job, reason="r", deadline=soon())).is_complete

    make_world().play(scenario)


async def _stop_in_vain(adapter: LocalAdapter, ref: JobRef) -> None:
    assert (await adapter.inspect(ref)).state is State.RUNNING  # the last that was written down
    report = await adapter.stop(ref.job, reason="r", deadline=soon(1))
    assert report.alive == ()
    assert report.unproven[0].object == "submission 1"


def test_without_an_agent_a_start_is_written_down_and_may_be_made_again(make_world) -> None:
    async def scenario(at: World) -> None:
        hopeless = LocalAdapter(at.settings.model_copy(update={"agent_start_seconds": 0.001}))
        request = StartRequest(new_job(), 1, 1, QUICK)
        with pytest.raises(UnavailableError, match="agent"):
            await hopeless.start(request, deadline=soon())
        assert (await at.adapter.start(request, deadline=soon())).submission == 1

    make_world().play(scenario)


def test_a_report_counts_what_is_gone_from_what_was_there() -> None:
    job = new_job()
    report = build_stop_report(JobView(job, 1), JobView(job, 1), is_agent_alive=True)
    assert (report.stopped, report.is_complete) == ((), True)


def test_orphans_are_found(make_world) -> None:
    async def scenario(at: World) -> None:
        ref = await at.run(python_job(WAIT))
        assert (await at.adapter.find(ref.job)).orphans == ()
        state_dir = str(at.layout.state_dir(ref.job))
        environment = {"DISPATCH_ATTEMPT": f"{ref.job}.1.1.9.0", "DISPATCH_STATE_DIR": state_dir}
        orphan = await asyncio.create_subprocess_exec("/bin/sleep", "60", env=environment)
        try:
            (found,) = (await at.adapter.find(ref.job)).orphans
            assert found == f"process {orphan.pid} of attempt {ref.job}.1.1.9.0"
        finally:
            orphan.kill()
            await orphan.wait()

    make_world().play(scenario)


# -- lists and events --------------------------------------------------------------------------------------------------


async def _list(at: World, selector: JobSelector) -> list[JobRef]:
    return [record.ref for record in await at.adapter.list(selector)]


def test_lists_narrow_by_state_queue_and_label(make_world) -> None:
    async def scenario(at: World) -> None:
        one = await at.start(python_job("pass", queue="a", labels={"k": "v"}))
        two = await at.start(python_job("pass", queue="b"))
        assert await _list(at, JobSelector()) == [one, two]
        assert await _list(at, JobSelector(queue="b")) == [two]
        assert await _list(at, JobSelector(labels={"k": "v"})) == [one]
        await at.adapter.open(two, deadline=soon())
        await at.reach(two, State.SUCCEEDED)
        assert await _list(at, JobSelector(states=frozenset({State.SUCCEEDED}))) == [two]
        events = await at.adapter.events(two)
        assert [event.sequence for event in events] == sorted(event.sequence for event in events)
        assert {event.submission for event in events} == {1}
        assert events[0].kind == "submitted"

    make_world().play(scenario)


# -- output ------------------------------------------------------------------------------------------------------------

EPOCHS = (
    "import os, signal, sys\nsignal.signal(15, lambda *_: sys.exit(0))\n"
    "for n in range(3): print(os.environ['DISPATCH_EPOCH'], n)\n"
)


def test_following_begins_before_the_execution_and_goes_on_into_the_next(shared_world) -> None:
    async def scenario(at: World) -> None:
        ref = await at.start(python_job(f"{EPOCHS}\nsignal.pause()"))
        following = asyncio.ensure_future(read(at, ref, follow=True))
        await at.adapter.open(ref, deadline=soon())
        await _until_printed(at, ref, "1000001 2")
        hold = await at.adapter.hold(ref, at.hold_request(), deadline=soon())
        await at.reach(ref, State.HELD)
        await at.adapter.release(ref, hold, deadline=soon())
        await _until_printed(at, ref, "1000002 2")
        await at.adapter.stop(ref.job, reason="r", deadline=soon())
        assert await asyncio.wait_for(following, 20) == [f"{e} {n}" for e in (1000001, 1000002) for n in range(3)]
        assert await read(at, ref, role="node", epoch=1_000_001) == [f"1000001 {n}" for n in range(3)]
        assert await read(at, ref, role="node") == [f"1000002 {n}" for n in range(3)]
        assert await asyncio.wait_for(read(at, ref, role="node", epoch=1_000_001, follow=True), 20) == [
            f"1000001 {n}" for n in range(3)
        ]
        with pytest.raises(JobNotFoundError, match="name the role"):
            await read(at, ref)

    shared_world.play(scenario)


async def _until_printed(at: World, ref: JobRef, text: str) -> None:
    async def look() -> None:
        async for line in at.adapter.output(ref, OutputRequest(follow=True)):
            if line.text == text:
                return

    await asyncio.wait_for(look(), 20)


def test_reading_goes_on_where_the_cursor_says_also_in_the_next_execution(shared_world) -> None:
    async def scenario(at: World) -> None:
        program = f"{EPOCHS}\nsys.exit(int(os.environ['DISPATCH_EPOCH'][-1]) == 1)"
        ref = await at.start(python_job(program, max_restarts=1))
        await at.adapter.open(ref, deadline=soon())
        await at.reach(ref, State.SUCCEEDED)
        first = [line async for line in at.adapter.output(ref, OutputRequest(epoch=1_000_001, most_lines=2))]
        rest = [line async for line in at.adapter.output(ref, OutputRequest(cursor=first[-1].cursor))]
        assert [line.text for line in first + rest] == [f"{e} {n}" for e in (1000001, 1000002) for n in range(3)]
        assert await read(at, ref, cursor=rest[-1].cursor) == []

    shared_world.play(scenario)


def test_following_a_job_that_never_ran_ends_with_it(shared_world) -> None:
    async def scenario(at: World) -> None:
        ref = await at.start(QUICK)
        following = asyncio.ensure_future(read(at, ref, follow=True))
        await at.adapter.stop(ref.job, reason="r", deadline=soon())
        assert await asyncio.wait_for(following, 20) == []

    shared_world.play(scenario)


# -- preflight ---------------------------------------------------------------------------------------------------------


def test_preflight_proves_a_place_and_leaves_nothing(make_world) -> None:
    async def scenario(at: World) -> None:
        at.layout.folder.parent.parent.mkdir(exist_ok=True)
        before = sorted(at.layout.folder.parent.parent.rglob("*"))
        found = await at.adapter.preflight()
        assert sorted(at.layout.folder.parent.parent.rglob("*")) == before
        check_may_start(found.capabilities)
        assert set(found.capabilities) == set(Capability)
        assert found.capabilities[Capability.PROGRESS].value is Answer.NO
        await at.start(QUICK)
        again = await at.adapter.preflight()
        assert again.checks["agent"].reason == "one listens"
        assert "can be written" in again.checks["store"].reason

    make_world().play(scenario)


def test_preflight_says_whether_a_job_could_ever_run_here(make_world) -> None:
    async def scenario(at: World) -> None:
        at.layout.folder.mkdir(parents=True)
        at.layout.queues.write_text('[queues.small]\nquota = {cpu = "500m"}\n')
        small = JobSpec(command=["a"], queue="small", resources={"cpu": "400m"})
        assert (await at.adapter.preflight(small)).checks["quota"].is_yes
        large = JobSpec(command=["a"], queue="small", nodes=2, resources={"cpu": "400m"})
        found = await at.adapter.preflight(large)
        assert found.checks["quota"].value is Answer.NO
        assert "needs 2 x 400m cpu in small, whose quota is 500m" in found.checks["quota"].advice
        check_may_start(found.capabilities)
        assert not found.is_proved
        assert "quota" not in (await at.adapter.preflight()).checks
        with pytest.raises(SpecError, match="queue"):
            await at.adapter.preflight(JobSpec(command=["a"], queue="unknown"))

    make_world().play(scenario)


def test_preflight_on_a_damaged_store_says_that_nothing_can_start(make_world) -> None:
    at = make_world()
    at.layout.folder.mkdir(parents=True)
    at.layout.database.write_bytes(b"no database" * 1000)
    at.layout.queues.write_text("broken")
    found = preflight.run_preflight(at.settings)
    assert found.checks["queues"].value is Answer.NO
    with pytest.raises(AdapterError, match="no database"):
        check_may_start(found.capabilities)


def test_settings_are_read_from_what_a_connection_holds(tmp_path) -> None:
    settings = parse_settings({"root": str(tmp_path), "store": "a.b-c_1", "pass_env": ["CUDA_VISIBLE_DEVICES"]})
    assert settings.layout.folder == tmp_path / "a.b-c_1"
    assert settings.pass_env == ("CUDA_VISIBLE_DEVICES",)
