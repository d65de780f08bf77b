# SPDX-License-Identifier: Apache-2.0
"""The machine, input by input: what becomes durable, which effects follow, in which order, and what is ignored."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_dispatch.adapters.local.lifecycle import intents, messages
from airflow_provider_dispatch.adapters.local.lifecycle.derive import derive_observation, derive_submission_state
from airflow_provider_dispatch.adapters.local.lifecycle.machine import Machine
from airflow_provider_dispatch.adapters.local.lifecycle.queueing import NodeConfig
from airflow_provider_dispatch.adapters.local.lifecycle.status import Ending, Key, Status, Submission
from airflow_provider_dispatch.adapters.local.scheduling.model import Node, Queue
from airflow_provider_dispatch.core.holds import Actor, ActorKind, HoldRequest
from airflow_provider_dispatch.core.identity import Identity, JobID
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.observation import Pending
from airflow_provider_dispatch.core.records import StartRequest
from airflow_provider_dispatch.core.state import Cause, State
from airflow_provider_dispatch.exceptions import RefusedError

NOW = datetime(2030, 1, 1, tzinfo=UTC)
JOB, OTHER = JobID("0" * 26), JobID("1" * 26)
ANN = Actor(ActorKind.HUMAN, "ann")
ONE_CPU = NodeConfig(Node("here", {"cpu": 1000, "ranks": 9}), starvation_after=60.0)


class Driver:
    """A machine with what an agent keeps beside it."""

    def __init__(self, config: NodeConfig = ONE_CPU) -> None:
        self.now = NOW
        self.config = config
        self.machine = Machine(config, generation=7)
        self.submissions: dict[Key, Submission] = {}
        self.statuses: dict[Key, Status] = {}
        self.notes: list[str] = []

    def apply(self, message: messages.Input) -> tuple[messages.Effect, ...]:
        outcome = self.machine.apply(message, self.now)
        self.statuses.update(outcome.statuses)
        self.notes += [note.kind for note in outcome.notes]
        return outcome.effects

    def want(self, submission: Submission) -> tuple[messages.Effect, ...]:
        self.submissions[submission.key] = submission
        return self.apply(messages.IntentChanged(submission))

    def submit(self, job: JobID = JOB, number: int = 1, *, is_open: bool = True, **fields: object) -> Key:
        more = {name: fields.pop(name) for name in ("not_before",) if name in fields}
        priority = fields.pop("priority_number", 0)
        spec = JobSpec(**({"command": ["run"], "resources": {"cpu": 1}} | fields))
        request = StartRequest(job, number, 1, spec, **more)  # type: ignore[arg-type]  # test
        ref = JobRef(job, number, "local", "x")
        opened = self.now if is_open else None
        self.effects = self.want(Submission(ref, request, self.now, "q", priority, opened))  # type: ignore[arg-type]  # test
        return ref.job, ref.submission

    def identity(self, key: Key) -> Identity:
        identity = self.statuses[key].identity
        assert identity is not None
        return identity

    def bring_up(self, key: Key, role: str = "node", ranks: int = 1) -> None:
        for rank in range(ranks):
            self.apply(messages.RankStarted(key, self.identity(key), role, rank, 100 + rank))
            self.apply(messages.RankReady(key, self.identity(key), role, rank))

    def exit(self, key: Key, code: int | None, *, role: str = "node", rank: int = 0, **more: object):
        more.setdefault("signal", None)
        return self.apply(messages.RankExited(key, self.identity(key), role, rank, code, **more))  # type: ignore[arg-type]  # test

    def gone(self, key: Key) -> tuple[messages.Effect, ...]:
        return self.apply(messages.ExecutionGone(key, self.identity(key)))

    def state(self, key: Key) -> State:
        return derive_submission_state(self.submissions[key], self.statuses[key])

    def hold(self, key: Key) -> tuple[messages.Effect, ...]:
        held, self.placed = intents.hold(self.submissions[key], self.statuses[key], HoldRequest("k", ANN), self.now)
        return self.want(held)

    def stop(self, key: Key) -> tuple[messages.Effect, ...]:
        return self.want(intents.stop(self.submissions[key], "enough", self.now))


@pytest.fixture
def driver() -> Driver:
    return Driver()


def test_admission_makes_a_durable_before_anything_is_started(driver: Driver) -> None:
    key = driver.submit()
    status = driver.statuses[key]
    assert status.identity == Identity(JOB, 1, 1, 1, 0)
    assert (status.executions, status.generation, status.queued_since) == (1, 7, NOW)
    assert status.execution is not None
    assert driver.effects == (
        messages.StartExecution(key, status.identity),
        messages.SpawnRole(key, status.identity, "node"),
    )


def test_inputs_of_an_earlier_execution_and_of_unknown_jobs_are_ignored(driver: Driver) -> None:
    key = driver.submit()
    before = driver.statuses[key]
    old = replace(driver.identity(key), a=0)
    stale = (
        messages.RankStarted(key, old, "node", 0, 1),
        messages.RankExited(key, old, "node", 0, 1),
        messages.ExecutionGone(key, old),
        messages.ExecutionLost((OTHER, 1), old, "x"),
    )
    assert [driver.apply(message) for message in stale] == [()] * 4
    assert driver.statuses == {key: before}


def test_a_process_that_reports_after_everything_is_gone_changes_nothing(driver: Driver) -> None:
    key = driver.submit()
    driver.bring_up(key)
    driver.exit(key, 0)
    driver.gone(key)
    before = driver.statuses[key]
    driver.exit(key, 1)
    driver.gone(key)
    assert driver.statuses[key] == before


def test_a_hold_ends_the_execution_once_and_a_stop_outweighs_it(driver: Driver) -> None:
    key = driver.submit(grace_period=5)
    identity, grace = driver.identity(key), timedelta(seconds=5)
    assert driver.hold(key) == (messages.EndExecution(key, identity, Ending.HOLD, grace),)
    assert driver.apply(messages.Tick()) == ()
    assert driver.stop(key) == (messages.EndExecution(key, identity, Ending.STOP, grace),)
    assert driver.gone(key) == (messages.RemoveSubmission(key),)


def test_a_stop_without_a_process_removes_at_once(driver: Driver) -> None:
    key = driver.submit(is_open=False)
    assert driver.stop(key) == (messages.RemoveSubmission(key),)
    assert driver.notes[-1] == "stopped"
    assert driver.machine.is_idle()
    assert driver.machine.apply(messages.Tick(), NOW).statuses == {}


def test_a_second_bad_exit_does_not_change_who_was_first(driver: Driver) -> None:
    key = driver.submit(nodes=2, resources={}, max_restarts=1)
    driver.bring_up(key, ranks=2)
    driver.exit(key, 3, rank=1, last_lines=("boom",))
    driver.exit(key, 4, rank=0)
    status = driver.statuses[key]
    assert status.failed_rank is not None
    assert (status.failed_rank.rank, status.failed_rank.exit_code, status.last_lines) == (1, 3, ("boom",))
    assert status.execution is not None
    assert status.execution.ending is Ending.RESTART


def test_a_restart_keeps_its_room_while_others_wait(driver: Driver) -> None:
    key = driver.submit(max_restarts=1)
    waiting = driver.submit(OTHER)
    driver.bring_up(key)
    driver.exit(key, 1)
    assert driver.state(key) is State.STARTING
    effects = driver.gone(key)
    identity = Identity(JOB, 1, 1, 1, 1)
    assert effects == (messages.StartExecution(key, identity), messages.SpawnRole(key, identity, "node"))
    assert driver.state(waiting) is State.QUEUED
    assert driver.statuses[key].failed_rank is None


def test_a_hold_outweighs_a_restart_and_costs_no_restart(driver: Driver) -> None:
    key = driver.submit(max_restarts=1)
    driver.bring_up(key)
    driver.exit(key, 1)
    driver.hold(key)
    assert driver.gone(key) == ()
    assert (driver.state(key), driver.statuses[key].restarts) == (State.HELD, 0)


def test_a_lost_execution_that_was_being_held_is_held(driver: Driver) -> None:
    key = driver.submit()
    driver.hold(key)
    driver.apply(messages.ExecutionLost(key, driver.identity(key), "the agent died"))
    assert (driver.state(key), driver.statuses[key].cause) == (State.HELD, None)


@pytest.mark.parametrize("is_restarting", [False, True])
def test_a_lost_execution_fails_the_submission_with_its_proof(driver: Driver, is_restarting: bool) -> None:
    key = driver.submit(max_restarts=3)
    driver.bring_up(key)
    if is_restarting:
        driver.exit(key, 1)
    driver.apply(messages.ExecutionLost(key, driver.identity(key), "the agent died"))
    status = driver.statuses[key]
    assert (status.end, status.cause, status.detail) == (State.FAILED, Cause.NODE_LOST, "the agent died")
    assert (status.evidence[0].object, status.evidence[0].value) == ("execution 1000001", "the agent died")
    assert status.execution is None


def test_an_execution_that_vanished_unasked_is_lost(driver: Driver) -> None:
    key = driver.submit()
    driver.gone(key)
    assert (driver.statuses[key].cause, driver.statuses[key].detail) == (Cause.NODE_LOST, "its processes vanished")


def test_a_lost_execution_that_could_not_begin_says_so(driver: Driver) -> None:
    key = driver.submit()
    lost = messages.ExecutionLost(key, driver.identity(key), "no shim", cause=Cause.MISCONFIGURED)
    driver.apply(lost)
    assert (driver.statuses[key].end, driver.statuses[key].cause) == (State.FAILED, Cause.MISCONFIGURED)


def test_memory_is_told_from_other_signals(driver: Driver) -> None:
    key = driver.submit()
    driver.bring_up(key)
    driver.exit(key, None, signal=9, out_of_memory=True)
    status = driver.statuses[key]
    assert status.cause is Cause.OUT_OF_MEMORY
    assert status.detail == "rank 0 of node was ended by signal 9 (SIGKILL); it used more memory than it asked for"
    assert (status.evidence[0].field, status.evidence[0].value) == ("signal", "9")


def test_a_good_exit_after_our_signal_is_no_success(driver: Driver) -> None:
    key = driver.submit()
    driver.bring_up(key)
    driver.hold(key)
    driver.exit(key, 0, was_signalled=True)
    driver.gone(key)
    assert (driver.state(key), driver.statuses[key].end) == (State.HELD, None)


def test_a_good_exit_before_our_signal_is_success_and_the_hold_is_void(driver: Driver) -> None:
    key = driver.submit()
    driver.bring_up(key)
    driver.hold(key)
    driver.exit(key, 0, result={"loss": 1})
    assert (driver.state(key), driver.statuses[key].result) == (State.SUCCEEDED, {"loss": 1})
    assert derive_observation(driver.submissions[key], driver.statuses[key], NOW).holds == ()


def test_an_ended_job_goes_on_saying_how_its_ranks_ended(driver: Driver) -> None:
    key = driver.submit(nodes=2, resources={})
    driver.bring_up(key, ranks=2)
    driver.exit(key, 0, rank=1)
    driver.exit(key, 3, rank=0)
    driver.gone(key)
    ranks = derive_observation(driver.submissions[key], driver.statuses[key], NOW).ranks[0]
    assert (ranks.running, ranks.ready, ranks.succeeded, ranks.failed) == (0, 0, 1, 1)


def test_a_bad_exit_before_our_signal_is_a_failure(driver: Driver) -> None:
    key = driver.submit()
    driver.bring_up(key)
    driver.hold(key)
    driver.exit(key, 2)
    assert (driver.state(key), driver.statuses[key].cause) == (State.FAILED, Cause.EXITED)


def test_a_command_that_is_missing_after_the_end_changes_nothing(driver: Driver) -> None:
    key = driver.submit(nodes=2, resources={})
    for rank in (0, 1):
        driver.apply(messages.RankNotStarted(key, driver.identity(key), "node", rank, f"no such command ({rank})"))
    status = driver.statuses[key]
    assert (status.cause, status.detail) == (Cause.MISCONFIGURED, "no such command (0)")
    assert status.evidence[0].object == "rank 0 of node"


def test_a_role_is_spawned_once_however_many_become_ready(driver: Driver) -> None:
    roles: list[dict] = [
        {"name": "w", "nodes": 2, "command": ["run"]},
        {"name": "l", "command": ["run"], "after": [{"role": "w"}]},
    ]
    key = _submit_roles(driver, roles)
    spawned: list[messages.Effect] = []
    for rank in (0, 1):
        driver.apply(messages.RankStarted(key, driver.identity(key), "w", rank, 1))
        spawned += driver.apply(messages.RankReady(key, driver.identity(key), "w", rank))
    spawned += driver.apply(messages.RankReady(key, driver.identity(key), "w", 1))
    assert spawned == [messages.SpawnRole(key, driver.identity(key), "l")]


def test_nothing_more_is_spawned_once_the_execution_is_ending(driver: Driver) -> None:
    roles: list[dict] = [
        {"name": "w", "command": ["run"]},
        {"name": "l", "command": ["run"], "after": [{"role": "w"}]},
    ]
    key = _submit_roles(driver, roles)
    driver.hold(key)
    assert driver.apply(messages.RankReady(key, driver.identity(key), "w", 0)) == ()


def _submit_roles(driver: Driver, roles: list[dict]) -> Key:
    spec = JobSpec(roles=roles)
    ref = JobRef(JOB, 1, "local", "x")
    driver.want(Submission(ref, StartRequest(JOB, 1, 1, spec), NOW, "q", 0, NOW))
    return ref.job, ref.submission


def test_a_pause_delays_admission_and_sets_a_timer(driver: Driver) -> None:
    later = NOW + timedelta(seconds=30)
    key = driver.submit(not_before=later)
    assert (driver.state(key), driver.machine.next_timer()) == (State.QUEUED, later)
    pending = driver.statuses[key].pending
    assert pending == Pending("not_before", "it is not to be admitted before 2030-01-01T00:00:30+00:00")
    assert not driver.machine.is_idle()
    driver.now = later
    effects = driver.apply(messages.Tick())
    assert [type(effect) for effect in effects] == [messages.StartExecution, messages.SpawnRole]
    assert driver.machine.next_timer() is None


def test_a_new_submission_waits_for_the_processes_of_the_old_one(driver: Driver) -> None:
    old = driver.submit(resources={})
    driver.bring_up(old)
    driver.exit(old, 1)
    new = driver.submit(number=2, resources={})
    assert (driver.state(old), driver.state(new)) == (State.FAILED, State.QUEUED)
    assert driver.statuses[new].pending == Pending("ending", "processes of submission 1 are still ending")
    driver.gone(old)
    assert driver.identity(new).epoch == 2_000_001


def test_holds_are_lifted_when_their_time_is_over(driver: Driver) -> None:
    key = driver.submit(is_open=False)
    until = NOW + timedelta(minutes=1)
    held, hold = intents.hold(
        driver.submissions[key], driver.statuses[key], HoldRequest("k", ANN, until=until), driver.now
    )
    driver.want(held)
    assert driver.machine.next_timer() == until
    driver.now = until
    assert driver.apply(messages.Tick()) == (messages.LiftHold(key, hold),)


def test_a_hold_of_an_ended_job_sets_no_timer_and_is_not_lifted(driver: Driver) -> None:
    key = driver.submit()
    driver.bring_up(key)
    held, _ = intents.hold(
        driver.submissions[key], driver.statuses[key], HoldRequest("k", ANN, until=NOW + timedelta(1)), driver.now
    )
    driver.want(held)
    driver.exit(key, 0)
    driver.gone(key)
    assert driver.machine.next_timer() is None
    driver.now += timedelta(2)
    assert driver.apply(messages.Tick()) == ()
    assert driver.machine.is_idle()


def test_the_starving_head_sets_a_timer_and_a_reason_is_noted_once(driver: Driver) -> None:
    driver.submit(priority_number=5)
    waiting = driver.submit(OTHER)
    assert driver.machine.next_timer() == NOW + timedelta(seconds=60)
    driver.apply(messages.Tick())
    assert driver.notes.count("waiting") == 1
    pending = driver.statuses[waiting].pending
    assert pending is not None
    assert pending.message == "needs 1 x 1 cpu on here, 0 free"
    assert driver.machine.positions(NOW) == {waiting: 1}


def test_a_job_that_can_never_fit_keeps_no_agent_alive(driver: Driver) -> None:
    key = driver.submit(resources={"cpu": 2})
    assert driver.statuses[key].cause is Cause.NO_CAPACITY
    assert driver.machine.is_idle()
    assert driver.hold(key) == ()
    seen = derive_observation(driver.submissions[key], driver.statuses[key], NOW)
    assert (seen.state, seen.cause, seen.detail) == (State.HELD, None, "")


@pytest.mark.parametrize("max_restarts", [0, 1])
def test_the_last_epoch_of_a_submission_is_the_last(driver: Driver, max_restarts: int) -> None:
    key = driver.submit(is_open=False, max_restarts=max_restarts)
    used_up = replace(driver.statuses[key], identity=Identity(JOB, 1, 1, 999_998 + (1 - max_restarts), 0))
    heir = Driver()
    heir.submissions, heir.statuses = dict(driver.submissions), {key: used_up}
    heir.machine.load([(heir.submissions[key], used_up)])
    heir.want(intents.open_gate(heir.submissions[key], NOW))
    if max_restarts:
        assert heir.identity(key).epoch == 1_999_999
        heir.bring_up(key)
        heir.exit(key, 1)
        heir.gone(key)
    status = heir.statuses[key]
    assert (status.end, status.cause, status.execution) == (State.FAILED, Cause.MISCONFIGURED, None)
    assert status.detail == "it has had 999999 executions; start a new submission"


def test_a_preemption_names_the_victim_and_keeps_its_place_in_the_queue(driver: Driver) -> None:
    victim = driver.submit()
    driver.now += timedelta(seconds=1)
    preemptor = driver.submit(OTHER, priority_number=9)
    assert [effect.reason for effect in driver.effects if isinstance(effect, messages.EndExecution)] == [
        Ending.PREEMPTION
    ]
    assert driver.state(victim) is State.QUEUED
    seen = derive_observation(driver.submissions[victim], driver.statuses[victim], driver.now)
    assert seen.pending is not None
    assert seen.pending.message == "processes of execution 1000001 are still ending"
    driver.gone(victim)
    assert driver.identity(preemptor).epoch == 1_000_001
    assert (driver.statuses[victim].preemptions, driver.statuses[victim].queued_since) == (1, NOW)
    assert "preempted" in driver.notes


def test_a_loaded_execution_keeps_its_room_until_it_is_told_lost(driver: Driver) -> None:
    key = driver.submit()
    driver.bring_up(key)
    heir = Driver()
    heir.submissions, heir.statuses = dict(driver.submissions), dict(driver.statuses)
    heir.machine.load([(heir.submissions[key], heir.statuses[key])])
    waiting = heir.submit(OTHER)
    assert heir.state(waiting) is State.QUEUED
    assert not heir.machine.is_idle()
    heir.apply(messages.ExecutionLost(key, heir.identity(key), "its agent died"))
    assert (heir.state(key), heir.state(waiting)) == (State.FAILED, State.STARTING)


def test_a_loaded_job_without_a_process_goes_on_where_it_was(driver: Driver) -> None:
    key = driver.submit()
    driver.hold(key)
    driver.gone(key)
    heir = Driver()
    heir.submissions, heir.statuses = dict(driver.submissions), dict(driver.statuses)
    heir.machine.load([(heir.submissions[key], heir.statuses[key])])
    heir.want(intents.release(heir.submissions[key], driver.placed))
    assert heir.identity(key) == Identity(JOB, 1, 1, 2, 0)


def test_a_stopping_job_refuses_a_hold_with_the_reason_of_the_stop(driver: Driver) -> None:
    key = driver.submit()
    driver.stop(key)
    with pytest.raises(RefusedError, match="being stopped and can't be held: enough"):
        driver.hold(key)
    seen = derive_observation(driver.submissions[key], driver.statuses[key], NOW)
    assert (seen.state, seen.cause, seen.detail) == (State.STOPPING, Cause.STOPPED, "enough")


def test_queues_limit_and_priorities_resolve() -> None:
    queues = {"a": Queue("a", nominal={"cpu": 1})}
    assert intents.resolve_queue("a", queues) == "a"
    assert intents.resolve_queue(None, None) == intents.DEFAULT_QUEUE
    assert [intents.resolve_priority(named, {"high": 100}) for named in (None, -3, "high")] == [0, -3, 100]


def test_every_note_of_an_execution_carries_its_epoch(driver: Driver) -> None:
    outcome = driver.machine.apply(
        messages.IntentChanged(
            Submission(JobRef(JOB, 1, "l", "x"), StartRequest(JOB, 1, 1, JobSpec(command=["run"])), NOW, "", 0, NOW)
        ),
        NOW,
    )
    assert [(note.kind, note.epoch) for note in outcome.notes] == [
        ("submitted", None),
        ("opened", None),
        ("admitted", 1_000_001),
        ("starting", 1_000_001),
    ]
    assert outcome.notes[2].message == "admitted from the default queue"
