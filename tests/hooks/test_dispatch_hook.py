# SPDX-License-Identifier: Apache-2.0
"""The hook: connections, the verbs as plain calls, and the test button of the form."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest

from airflow_provider_dispatch.adapters import registry
from airflow_provider_dispatch.core.capabilities import Answer, Capability, Finding, Source
from airflow_provider_dispatch.core.decision import Supervision
from airflow_provider_dispatch.core.holds import Actor, ActorKind, HoldRequest
from airflow_provider_dispatch.core.identity import build_task_job_id
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.owner import Owner
from airflow_provider_dispatch.core.records import JobSelector, StartRequest
from airflow_provider_dispatch.core.state import State
from airflow_provider_dispatch.exceptions import SpecError, UnavailableError
from airflow_provider_dispatch.hooks import dispatch
from airflow_provider_dispatch.hooks.dispatch import DispatchHook
from airflow_provider_dispatch.testing.fake_adapter import FakeAdapter
from airflow_provider_dispatch.testing.fake_backend import FakeBackend

JOB = build_task_job_id("airflow", "dag", "run", "train")
OWNER = Owner("airflow", "dag", "run", "train", -1, 1, "ti-1")
REQUEST = StartRequest(JOB, 1, 1, JobSpec(command=["run"]), OWNER, Supervision())


class ClosingAdapter(FakeAdapter):
    """Tells whether it was closed."""

    is_closed = False

    async def close(self) -> None:
        self.is_closed = True


class Made:
    """A backend and every adapter that was made for it."""

    def __init__(self) -> None:
        self.backend = FakeBackend()
        self.adapters: list[ClosingAdapter] = []
        self.failures: list[UnavailableError] = []
        self.changes: dict[Capability, Finding] = {}

    def build(self, _settings: object) -> ClosingAdapter:
        adapter = ClosingAdapter(self.backend)
        adapter.failures.extend(self.failures)
        adapter.capabilities = {**adapter.capabilities, **self.changes}
        self.adapters.append(adapter)
        return adapter


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    world = Made()
    registry.register_adapter("fake", world.build)
    extra = {"backend": "fake", "queue": "hidden-words"}
    monkeypatch.setenv("AIRFLOW_CONN_FAKE", json.dumps({"conn_type": "dispatch", "extra": extra}))
    yield world
    assert all(adapter.is_closed for adapter in world.adapters)


def test_the_verbs_are_plain_calls(made: Made) -> None:
    hook = DispatchHook("fake")

    ref = hook.start(REQUEST)
    hook.open(ref)
    hold = hook.hold(ref, HoldRequest("key", Actor(ActorKind.HUMAN, "ann"), "maintenance"))
    state = hook.inspect(JOB).state
    remaining = hook.release(ref, hold)
    hook.adopt(ref, replace(OWNER, instance_id="ti-2"), expected=OWNER)
    report = hook.stop(JOB, reason="done", if_owner=replace(OWNER, instance_id="ti-2"))

    assert state in {State.HOLDING, State.HELD}
    assert remaining == ()
    assert report.job == JOB
    assert len(made.adapters) == 7


def test_the_reading_verbs_are_plain_calls(made: Made) -> None:
    hook = DispatchHook("fake")
    ref = hook.start(REQUEST)

    assert [record.ref for record in hook.find(JOB).submissions] == [ref]
    assert [record.ref for record in hook.list()] == [ref]
    assert hook.list(JobSelector(dag_id="other")) == ()
    assert isinstance(hook.events(ref), tuple)
    assert hook.preflight().checks


def test_a_call_works_where_a_loop_runs_already(made: Made) -> None:
    async def notebook() -> State:
        return DispatchHook("fake").inspect(JOB).state

    assert asyncio.run(notebook()) is State.GONE


def test_an_error_reaches_the_caller_from_the_other_thread(made: Made) -> None:
    made.failures.append(UnavailableError("away"))

    async def notebook() -> None:
        DispatchHook("fake").inspect(JOB)

    with pytest.raises(UnavailableError, match="away"):
        asyncio.run(notebook())


def test_a_traceback_tells_of_nothing_that_was_only_looked_at(made: Made) -> None:
    """No "no running event loop" below the error that people look for."""
    made.failures.append(UnavailableError("away"))

    with pytest.raises(UnavailableError, match="away") as caught:
        DispatchHook("fake").inspect(JOB)

    assert caught.value.__context__ is None


def test_settings_are_the_same_either_way(made: Made) -> None:
    hook = DispatchHook("fake")

    assert hook.settings() == asyncio.run(hook.asettings())
    assert hook.settings().queue == "hidden-words"


def test_without_the_default_connection_jobs_run_here_and_the_log_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    dispatch._announce_local_backend.cache_clear()
    caplog.set_level(logging.INFO, logger=dispatch.__name__)

    settings = [DispatchHook().settings(), DispatchHook().settings(), asyncio.run(DispatchHook().asettings())]

    assert {found.backend for found in settings} == {"local"}
    assert len([record for record in caplog.records if "processes of this machine" in record.getMessage()]) == 1


def test_any_other_missing_connection_is_an_error() -> None:
    """A typo in production must not train on a worker."""
    with pytest.raises(SpecError, match=r"dispatch_conn_id = 'prodd'"):
        DispatchHook("prodd").settings()
    with pytest.raises(SpecError, match=r"dispatch_conn_id = 'prodd'"):
        asyncio.run(DispatchHook("prodd").asettings())


def test_the_test_button_says_one_line_a_check_and_repeats_nothing(made: Made) -> None:
    is_fine, message = DispatchHook("fake").test_connection()

    assert is_fine
    assert len(message.splitlines()) == 1 + len(Capability) + 1
    assert "hold: yes (the fake can)" in message
    assert message.endswith("checked 0 s ago")
    assert "hidden-words" not in message


@pytest.mark.parametrize(
    ("capability", "expected"), [(Capability.HOLD, False), (Capability.QUEUE_POSITION, True), (Capability.LOGS, True)]
)
def test_the_test_button_is_red_when_nothing_could_be_started(
    made: Made, capability: Capability, *, expected: bool
) -> None:
    made.changes[capability] = Finding(Answer.NO, Source.PROBED, "not seen")

    is_fine, message = DispatchHook("fake").test_connection()

    assert is_fine is expected
    assert f"{capability}: no (not seen)" in message


def test_the_test_button_shows_the_error_of_a_backend_that_is_away(made: Made) -> None:
    made.failures.append(UnavailableError("no answer within 60 s"))

    assert DispatchHook("fake").test_connection() == (False, "UnavailableError: no answer within 60 s")


def test_the_test_button_shows_what_is_wrong_with_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_ODD", json.dumps({"conn_type": "dispatch", "extra": {"nonsense": "hush"}}))

    is_fine, message = DispatchHook("odd").test_connection()

    assert not is_fine
    assert "nonsense" in message
    assert "hush" not in message
