# SPDX-License-Identifier: Apache-2.0
"""What people and programs see: golden answers over the fake, whose clock and places don't change."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from airflow_provider_dispatch.adapters.local.scheduling.model import Queue
from airflow_provider_dispatch.cli.explaining import Explanation, explain
from airflow_provider_dispatch.cli.screen import OutputForm, Screen, View
from airflow_provider_dispatch.cli.session import fetch_person
from airflow_provider_dispatch.cli.views import describe_hold, describe_owner, view_observation, view_stop
from airflow_provider_dispatch.core.capabilities import Answer, Capability, Finding, Source
from airflow_provider_dispatch.core.clocks import ClockReading, Clocks
from airflow_provider_dispatch.core.holds import Actor, ActorKind, Hold
from airflow_provider_dispatch.core.identity import Identity, build_task_job_id
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.observation import (
    Evidence,
    FailedRank,
    Gates,
    Observation,
    Pending,
    RoleRanks,
)
from airflow_provider_dispatch.core.output import OutputLine
from airflow_provider_dispatch.core.owner import Owner
from airflow_provider_dispatch.core.records import JobEvent, ObjectReport, StopReport
from airflow_provider_dispatch.core.state import Cause, State
from airflow_provider_dispatch.exceptions import UnavailableError
from airflow_provider_dispatch.testing.fake_adapter import FakeAdapter
from tests.cli.conftest import FakeWorld

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
JOB = build_task_job_id("airflow", "dag", "run", "train")
REF = JobRef(JOB, 1, "fake", "fake")
HOLD = Hold(1, "k", Actor(ActorKind.HUMAN, "ann"), "maintenance", NOW - timedelta(minutes=5), NOW + timedelta(hours=1))
YES = Finding(Answer.YES, Source.PROBED, "seen")
NO = Finding(Answer.NO, Source.PROBED, "the check is missing; add it")


def table(view: View) -> list[list[str]]:
    return [list(row) for row in view.rows]


def test_a_running_job_at_a_glance() -> None:
    seen = Observation(
        State.RUNNING,
        REF,
        execution=Identity(JOB, 1, 1, 1, 0),
        executions=1,
        gates=Gates(is_open=True),
        ranks=(RoleRanks("node", 2, 2, 2),),
        clocks=Clocks(queued=ClockReading(None, timedelta(minutes=2)), running=ClockReading(NOW - timedelta(hours=3))),
        result={"loss": 0.5},
    )

    view = view_observation(seen, NOW)

    assert table(view) == [
        ["reference", REF.id],
        ["state", "running"],
        ["", "running: 2 of 2 ranks, epoch 1000001"],
        ["epoch", "1000001"],
        ["executions", "1"],
        ["ranks", "node: 2 in all, 2 ready, 2 running, 0 succeeded, 0 failed"],
        ["times", "queued 2 min, running 3 h"],
        ["result", "{'loss': 0.5}"],
    ]
    assert isinstance(view.plain, dict)
    assert (view.plain["epoch"], view.plain["ref"]["id"], view.plain["result"]) == (1000001, REF.id, {"loss": 0.5})


def test_the_keys_of_an_observation_are_promised() -> None:
    plain = view_observation(Observation(State.QUEUED, REF), NOW).plain

    assert isinstance(plain, dict)
    assert sorted(plain) == [
        "cause", "clocks", "description", "detail", "epoch", "evidence", "execution", "executions", "failed_rank",
        "gates", "holds", "last_lines", "observed_at", "pending", "progress", "ranks", "ref", "result", "state",
        "waiting_role",
    ]  # fmt: skip
    assert json.loads(json.dumps(plain)) == plain


def test_a_hold_and_an_owner_in_words() -> None:
    assert describe_hold(HOLD) == "1: ann since 2030-01-01 11:55:00 UTC until 2030-01-01 13:00:00 UTC: maintenance"
    assert describe_hold(replace(HOLD, until=None, reason="")) == "1: ann since 2030-01-01 11:55:00 UTC"
    assert describe_owner(Owner("a", "dag", "run", "group.task", 3)) == "dag/run/group.task[3]"
    assert describe_owner(Owner("a")) == ""


def test_a_stop_that_left_something_says_what() -> None:
    report = StopReport(JOB, (ObjectReport("submission 1"),), (ObjectReport("rank 0", "ending"),))

    view = view_stop(report)

    assert table(view) == [["stopped", "submission 1", ""], ["alive", "rank 0", "ending"]]
    assert isinstance(view.plain, dict)
    assert view.plain["is_complete"] is False


# -- explain -----------------------------------------------------------------------------------------------------------

EVENTS = [JobEvent(n, NOW, 1, f"kind{n}", "", None) for n in range(9)]
OTHERS = Gates(is_open=True, others=("other.example/gate",))


@pytest.mark.parametrize(
    ("seen", "advice"),
    [
        (Observation(State.GATED, REF), f"open its gate: dispatch open {JOB}"),
        (Observation(State.GATED, REF, gates=OTHERS), "ask whoever owns other.example/gate to lift it"),
        (Observation(State.QUEUED, REF, gates=OTHERS), "ask whoever owns other.example/gate to lift it"),
        (Observation(State.QUEUED, REF), "wait for room, or see who has it: dispatch list --state running"),
        (
            Observation(State.QUEUED, REF, cause=Cause.NO_CAPACITY),
            "do as the reason says; else ask for less, or send it to a queue that has more",
        ),
        (Observation(State.HELD, REF, holds=(HOLD,)), f"lift the hold: dispatch release {JOB} --instance 1"),
        (Observation(State.HELD, REF), ""),
        (Observation(State.HOLDING, REF), "wait until its processes have ended"),
        (Observation(State.STOPPING, REF), "wait until its processes have ended"),
        (Observation(State.STARTING, REF), f"read what its ranks print: dispatch logs -f {JOB}"),
        (Observation(State.RUNNING, REF), ""),
        (Observation(State.SUCCEEDED, REF), ""),
        (Observation(State.GONE, REF, cause=Cause.STOPPED), "it was asked for; start it again if that was a mistake"),
    ],
)
def test_every_state_has_its_advice(seen: Observation, advice: str) -> None:
    assert explain(seen, (), NOW).advice == advice


def test_a_waiting_job_is_explained_by_what_the_scheduler_says() -> None:
    pending = Pending("QuotaExceeded", "insufficient quota for cpu", "team-a", 3, 2)

    answer = explain(Observation(State.QUEUED, REF, pending=pending), EVENTS, NOW)

    assert answer.summary == "queued in team-a, position 3: insufficient quota for cpu"
    assert dict(answer.facts) == {
        "reason": "QuotaExceeded",
        "message": "insufficient quota for cpu",
        "queue": "team-a",
        "position": "3",
        "evictions": "2",
    }
    assert [event.split()[1] for event in answer.events] == ["kind4", "kind5", "kind6", "kind7", "kind8"]


def test_a_failed_job_is_explained_by_its_evidence() -> None:
    seen = Observation(
        State.FAILED,
        REF,
        cause=Cause.OUT_OF_MEMORY,
        evidence=(Evidence("rank 1 of node", "memory", "3 GiB"),),
        failed_rank=FailedRank("node", 1, signal=9),
        last_lines=("allocating",),
    )

    answer = explain(seen, (), NOW)

    assert isinstance(answer, Explanation)
    assert "rank 1 of node was ended by signal 9 (SIGKILL)" in answer.summary
    assert answer.facts == (("rank 1 of node memory", "3 GiB"),)
    assert answer.last_lines == ("allocating",)


# -- the verbs over the fake -------------------------------------------------------------------------------------------


def test_the_list_is_a_table_that_other_programs_read(fake: FakeWorld) -> None:
    job = fake.dispatch.json("start", "--queue", "team-a", "--open", "--", "run")["job"]

    answer = fake.dispatch("list", "--queue", "team-a")

    assert answer.rows[0] == ["JOB", "SUBMISSION", "STATE", "CAUSE", "QUEUE", "OWNER", "AGE"]
    assert answer.rows[1][:6] == [job, "1", "running", "-", "team-a", "-"]
    assert all(line == line.rstrip() for line in answer.out.splitlines())
    assert fake.dispatch("list", "--queue", "nobody").out == "no jobs\n"


@pytest.mark.parametrize(
    ("changes", "codes"),
    [({}, (0, 0)), ({Capability.HOLD: NO}, (1, 1)), ({Capability.PROGRESS: NO}, (0, 0))],
)
def test_what_is_not_proved_is_no_success(fake: FakeWorld, changes: dict, codes: tuple[int, int]) -> None:
    fake.fake.capabilities = {**dict.fromkeys(Capability, YES), **changes}

    answers = fake.dispatch("preflight"), fake.dispatch("capabilities")

    assert tuple(answer.code for answer in answers) == codes
    assert ("not proved" in answers[0].out) == bool(codes[0])
    assert answers[0].out.splitlines()[-2] == "checked 0 s ago"
    assert all(finding.reason in answers[1].out for finding in changes.values())


def test_what_is_not_so_has_its_cure_beneath(fake: FakeWorld) -> None:
    fake.fake.capabilities[Capability.HOLD] = Finding(Answer.NO, Source.PROBED, "no right", "grant it")

    lines = fake.dispatch("preflight").out.splitlines()

    (at,) = (number for number, line in enumerate(lines) if line.startswith("hold"))
    assert lines[at].split() == ["hold", "no", "probed", "no", "right"]
    assert lines[at + 1].strip() == "cure: grant it"
    plain = json.loads(fake.dispatch("preflight", "--output", "json").out)
    assert plain["capabilities"]["hold"]["cure"] == "grant it"
    assert datetime.fromisoformat(plain["checked_at"]).tzinfo is not None


def test_a_job_is_judged_that_a_file_describes(fake: FakeWorld, tmp_path: Path) -> None:
    spec = tmp_path / "job.yaml"
    spec.write_text("{command: [train], nodes: 3}")

    assert fake.dispatch("preflight", "--file", str(spec)).code == 0
    assert fake.fake.judged is not None
    assert fake.fake.judged.nodes == 3
    assert fake.dispatch("preflight", "--file", str(tmp_path / "missing.yaml")).code == 2


def test_a_start_on_an_unproved_backend_says_what_is_missing(fake: FakeWorld) -> None:
    fake.fake.capabilities[Capability.HOLD] = NO

    answer = fake.dispatch("start", "--", "run")

    assert (answer.code, answer.err) == (5, "error: hold is no (probed): the check is missing; add it\n")


def test_the_default_queue_and_priority_are_those_of_the_settings(fake: FakeWorld) -> None:
    fake.path.write_text("{backend: fake, queue: team-a, priority: 7}")

    fake.dispatch.json("start", "--", "run")
    fake.dispatch.json("start", "--queue", "own", "--priority", "high", "--", "run")

    specs = [record["spec"] for record in fake.dispatch.json("list")]
    assert [(spec["queue"], spec["priority"]) for spec in specs] == [("team-a", 7), ("own", "high")]


def test_a_queue_nobody_knows_is_named_with_those_there_are(fake: FakeWorld) -> None:
    world = type(fake.backend)(queues=[Queue("team-a")])
    fake.adapter = FakeAdapter(world)

    answer = fake.dispatch("start", "--queue", "team-b", "--", "run")

    assert (answer.code, answer.err) == (2, "error: queue = 'team-b': is not one of team-a\n")


def test_a_variable_of_ones_own_goes_to_the_job_without_being_shown(
    fake: FakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "hush")

    job = fake.dispatch.json("start", "--env", "MY_TOKEN", "--env", "MODE=fast", "--", "run")["job"]

    (submission,) = fake.backend.submissions.values()
    assert submission.request.spec.leader.env == {"MY_TOKEN": "hush", "MODE": "fast"}
    for verb in ("find", "inspect", "events", "explain"):
        for form in OutputForm:
            assert "hush" not in fake.dispatch(verb, job, "-o", form).out


def test_a_secret_is_shown_by_its_name(fake: FakeWorld) -> None:
    job = fake.dispatch.json("start", "--secret", "TOKEN=team/token", "--env", "MODE=fast", "--", "run")["job"]

    (role,) = fake.dispatch.json("find", job)["submissions"][0]["spec"]["roles"]

    assert (role["secrets"], role["env"]) == ({"TOKEN": "team/token"}, {"MODE": "(hidden)"})


def test_a_spec_is_read_from_standard_input(fake: FakeWorld) -> None:
    spec = {"roles": [{"name": "leader", "command": ["run"]}, {"name": "worker", "nodes": 2, "command": ["run"]}]}

    answer = fake.dispatch("start", "--file", "-", "-o", "json", stdin=json.dumps(spec))

    assert answer.code == 0
    assert [role["nodes"] for role in fake.dispatch.json("list")[0]["spec"]["roles"]] == [1, 2]


@pytest.mark.parametrize("text", ["[run]", "run", "1"])
def test_a_spec_is_a_mapping(fake: FakeWorld, text: str) -> None:
    answer = fake.dispatch("start", "--file", "-", stdin=text)

    assert (answer.code, "must hold a mapping" in answer.err) == (2, True)


def test_a_submission_is_named_without_its_place(fake: FakeWorld) -> None:
    job = fake.dispatch.json("start", "--", "run")["job"]

    assert fake.dispatch.json("inspect", f"dj-{job.lower()}-s1")["state"] == "gated"
    assert fake.dispatch("inspect", f"dj-{job.lower()}-s2").code == 4


def test_a_stop_that_is_not_complete_is_no_success(fake: FakeWorld) -> None:
    job = fake.dispatch.json("start", "--open", "--", "run")["job"]

    answer = fake.dispatch("stop", job)

    assert answer.code == 1
    assert "the stop goes on" in answer.err
    assert "alive" in answer.out


@pytest.mark.parametrize(("goal", "said"), [("gated", "its gate is open already"), ("held", "it will never be held")])
def test_a_goal_that_will_never_be_reached_ends_the_watch(fake: FakeWorld, goal: str, said: str) -> None:
    job = fake.dispatch.json("start", "--open", "--", "run")["job"]
    if goal == "held":
        fake.backend.finish((job, 1))

    answer = fake.dispatch("watch", job, "--until", goal)

    assert (answer.code, said in answer.err) == (1, True)


class NoticingAdapter(FakeAdapter):
    """Its output begins with a notice."""

    async def output(self, ref, request):
        yield OutputLine(NOW, "node", 0, 1, 0, "notice", "3 lines were left out", notice=True)
        yield OutputLine(NOW, "node", 0, 1, 3, "stdout", "later")


def test_a_notice_is_no_line_of_the_job(fake: FakeWorld) -> None:
    job = fake.dispatch.json("start", "--open", "--", "run")["job"]
    fake.adapter = NoticingAdapter(fake.backend)

    people, programs = fake.dispatch("logs", job), fake.dispatch("logs", job, "-o", "json")

    assert (people.out, people.err) == ("later\n", "3 lines were left out\n")
    assert [json.loads(line)["notice"] for line in programs.out.splitlines()] == [True, False]


def test_text_of_others_moves_no_cursor_and_forges_no_line(fake: FakeWorld) -> None:
    job = fake.dispatch.json("start", "--", "run")["job"]
    fake.dispatch("hold", job, "--reason", "a\x1b[2J\nreleased: hold 1\x07")

    shown = [fake.dispatch(verb, job).out for verb in ("inspect", "explain")]

    assert not any("\x1b" in text or "\x07" in text for text in shown)
    assert not any(line.startswith("released") for text in shown for line in text.splitlines())


def test_a_person_without_a_name_has_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ann")
    assert fetch_person() == Actor(ActorKind.HUMAN, "ann")


def test_progress_is_for_people_who_wait(capsys: pytest.CaptureFixture[str]) -> None:
    for is_shown in (False, True):
        Screen(is_progress_shown=is_shown).tell_progress("queued")

    assert capsys.readouterr().err == "queued\n"


def test_an_unavailable_backend_may_be_asked_again(fake: FakeWorld) -> None:
    fake.fake.failures.append(UnavailableError("the disk is full"))

    assert [fake.dispatch("list").code for _ in range(2)] == [3, 0]
    assert os.environ.get("DISPATCH_SETTINGS") is None
