# SPDX-License-Identifier: Apache-2.0
"""The JSON of every verb keeps its keys and their types, from one version to the next.

``frozen/`` has a file for each version that was released, never edited then, and one for the version to come. A key
that is new is added there on purpose; one that is gone or changes its type breaks somebody's program.
"""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path

import pytest

import airflow_provider_dispatch
from airflow_provider_dispatch.adapters import registry
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.ledger import Ledger, build_ledger
from airflow_provider_dispatch.adapters.kubeflow.model.resources import (
    CONFIG_MAPS,
    NODES,
    TRAINING_RUNTIMES,
    TRAINJOBS,
)
from airflow_provider_dispatch.adapters.local.scheduling.model import Queue
from airflow_provider_dispatch.cli.app import GROUPS, VERBS
from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.testing.fake_adapter import FakeAdapter
from airflow_provider_dispatch.testing.fake_backend import FakeBackend
from tests.adapters.kubeflow.api_server import ApiServer
from tests.adapters.kubeflow.objects import JOB, build_runtime, build_trainjob
from tests.adapters.kubeflow.setup.cluster import SetupClient, build_client, keep
from tests.adapters.kubeflow.test_vouching import RECORD
from tests.adapters.local.world import new_job
from tests.cli.calling import Answer, Caller
from tests.cli.conftest import FakeWorld, write_settings
from tests.cli.shapes import Shape, list_broken, merge, read_shape

FROZEN = Path(__file__).with_name("frozen")
PATIENCE_SECONDS = 60.0
HERE = airflow_provider_dispatch.__version__


def read_answers(answers: list[Answer]) -> Shape:
    """What covers the answers of all calls; of several lines, too."""
    documents = [document for answer in answers for document in read_documents(answer.out)]
    return reduce(merge, map(read_shape, documents))


def read_documents(text: str) -> list[object]:
    try:
        return [json.loads(text)]
    except ValueError:
        return [json.loads(line) for line in text.splitlines()]


class Verbs:
    """Calls the verbs over jobs in many states, and keeps what each has answered."""

    def __init__(self, call: Caller) -> None:
        self.call = call
        self.answers: dict[str, list[Answer]] = {}

    def __call__(self, verb: str, *words: str) -> None:
        answer = self.call(*verb.split(), "-o", "json", *words)
        assert answer.out, (verb, words, answer.err)
        self.answers.setdefault(verb, []).append(answer)

    def read_all(self, job: str) -> None:
        for verb in ("inspect", "find", "events", "explain", "list"):
            self(verb, *([] if verb == "list" else [job]))

    @property
    def shapes(self) -> dict[str, Shape]:
        return {verb: read_answers(answers) for verb, answers in self.answers.items()}


def live_through(fake: FakeWorld) -> dict[str, Shape]:
    """Jobs that wait, run, are held, fail, succeed and are stopped."""
    fake.adapter = FakeAdapter(
        FakeBackend(queues=[Queue("a", nominal={"cpu": 1000}), Queue("b")]), patience=timedelta(seconds=1)
    )
    world, verbs = fake.fake.backend, Verbs(fake.dispatch)
    world.now = datetime.now(UTC) - timedelta(hours=1)
    ended, failed, waiting = new_job(), new_job(), new_job()
    cpu = ("--queue", "a", "--resource", "cpu=1", "--label", "team=x", "--env", "A=b", "--secret", "C=team/c")
    verbs("start", "--job", ended, *cpu, "--priority", "high", "--max-preemptions", "3", "--", "run")
    verbs("open", ended)
    verbs("start", "--job", waiting, *cpu, "--open", "--", "run")
    verbs.read_all(ended)
    verbs.read_all(waiting)
    world.print_line((ended, 1), "hello")
    verbs("logs", ended)
    verbs("hold", ended, "--until", "2040-01-01T00:00+00:00", "--reason", "why")
    verbs.read_all(ended)
    verbs("hold", ended, "--key", "other")
    verbs("release", ended)
    verbs("adopt", ended, "--instance-id", "ti-1")
    world.advance(timedelta(minutes=1))
    verbs.read_all(ended)
    return live_on(verbs, world, ended, failed)


def live_on(verbs: Verbs, world: FakeBackend, ended: JobID, failed: JobID) -> dict[str, Shape]:
    """How they end, and what is asked of the backend itself."""
    verbs("stop", ended)
    verbs("start", "--job", failed, "--queue", "b", "--open", "--", "run")
    world.print_line((failed, 1), "no data")
    world.exit_rank((failed, 1), code=3)
    verbs.read_all(failed)
    verbs("watch", failed)
    verbs("gc", "--ended", "0s")
    verbs("preflight")
    verbs("capabilities")
    verbs("stop", failed)
    return verbs.shapes


def look_after(client: SetupClient, tmp_path: Path) -> dict[str, Shape]:
    """A cluster, a queue, and a job of which pods have gone without anybody seeing how."""
    backend = f"in-memory-{id(client)}"
    registry.register_adapter(backend, lambda _: FakeAdapter(FakeBackend()))
    registry.register_keeper(backend, lambda given: keep(client, clock=lambda: datetime.now(UTC), **given))
    verbs = Verbs(Caller(write_settings(tmp_path / "cluster.yaml", {"backend": backend, "namespace": "team-a"})))
    client.put(TRAINJOBS, build_trainjob(notes={words.RECORD_ANNOTATION: RECORD.to_json()}), "team-a")
    client.put(CONFIG_MAPS, build_ledger(JOB, Ledger(1, record=RECORD.to_json())), "team-a")
    client.put(NODES, {"metadata": {"name": "n1"}})
    verbs("setup", "--apply")
    verbs("queue create", "train", "--cpu", "8", "--memory", "64Gi")
    verbs("queue show")
    verbs("queue delete", "train")
    verbs("fence show", JOB)
    verbs("fence confirm", JOB, "--node", "n1")
    return verbs.shapes


def lift_fence(tmp_path: Path) -> dict[str, Shape]:
    """By a process of its own, which asks a server: pods are in doubt, and a runtime has lost its owner."""

    async def look() -> Answer:
        async with ApiServer() as server:
            settings: dict[str, object] = {
                "backend": "kubeflow",
                "kubeconfig": server.write_kubeconfig(tmp_path),
                "namespace": "default",
            }
            trainjob, runtime = build_trainjob(notes={words.RECORD_ANNOTATION: RECORD.to_json()}), build_runtime()
            server.put(TRAINJOBS, trainjob["metadata"].pop("name"), "default", **trainjob)
            server.put(TRAINING_RUNTIMES, runtime["metadata"].pop("name"), "default", **runtime)
            server.put(NODES, "n1")
            call = Caller(write_settings(tmp_path / "server.yaml", settings))
            lifting = call.spawn("fence", "lift", JOB, "--timeout", "1s", "-o", "json")
            try:
                out, err = await asyncio.to_thread(lifting.communicate, timeout=PATIENCE_SECONDS)
            finally:
                lifting.kill()
                lifting.wait()
            return Answer(lifting.returncode, out, err)

    answer = asyncio.run(look())
    assert (answer.code, answer.err) == (1, "")
    assert "owner-repaired" in answer.data["decided"]
    return {"fence lift": read_answers([answer])}


@pytest.fixture(scope="module")
def lifted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Shape]:
    return lift_fence(tmp_path_factory.mktemp("lift"))


@pytest.fixture
def shapes(fake: FakeWorld, tmp_path: Path, lifted: dict[str, Shape]) -> dict[str, Shape]:
    """Verb to the shape of what it answers."""
    return live_through(fake) | look_after(build_client("team-a"), tmp_path) | lifted


def read_frozen(version: str) -> dict[str, Shape]:
    found: dict[str, Shape] = json.loads((FROZEN / f"{version}.json").read_text())
    return found


def test_every_verb_has_its_shape() -> None:
    groups = {f"{name} {verb.name}" for name, group in GROUPS.items() for verb in group.registered_commands}
    assert set(read_frozen(HERE)) == VERBS.keys() | groups


def test_the_answers_of_this_version_are_written_down(shapes: dict[str, Shape]) -> None:
    assert shapes == read_frozen(HERE)


@pytest.mark.parametrize("version", [path.stem for path in sorted(FROZEN.glob("*.json"))])
def test_what_a_version_has_promised_is_kept(shapes: dict[str, Shape], version: str) -> None:
    assert list_broken(read_frozen(version), shapes) == []


def test_a_broken_promise_would_be_seen() -> None:
    promised = {"state": "text", "at": "nothing or text", "ranks": [{"role": "text"}], "more": {"n": "number"}}
    given = {
        "state": "text",
        "at": "text",
        "ranks": [{"role": "text", "new": "text"}],
        "more": {"n": "number"},
        "x": "text",
    }

    assert list_broken(promised, given) == []
    assert list_broken(promised, given | {"state": "nothing or text"}) == [".state was text and is nothing or text"]
    assert list_broken(promised, given | {"ranks": [{}], "more": {}}) == [".more.n is gone", ".ranks[].role is gone"]
    assert list_broken(promised, given | {"more": "text"}) == [".more was {'n': 'number'} and is text"]
