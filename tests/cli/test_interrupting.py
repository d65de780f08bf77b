# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C at any moment of any verb that writes: what is said is true, and the same call again ends where it would have.

A request is under way when the signal comes, and its answer never does: each request of a call in turn, carried out or
not. The cluster is in memory; `fence lift` runs in a process of its own, against an API server on the loopback.
"""

from __future__ import annotations

import asyncio
import copy
import json
import re
import signal
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from airflow_provider_dispatch.adapters import registry
from airflow_provider_dispatch.adapters.kubeflow.adapter import KubeflowAdapter
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.ledger import Ledger, build_ledger
from airflow_provider_dispatch.adapters.kubeflow.model.resources import (
    CONFIG_MAPS,
    EVENTS,
    JOBSETS,
    NAMESPACES,
    PODS,
    TRAINING_RUNTIMES,
    TRAINJOBS,
    WORKLOADS,
    Resource,
)
from airflow_provider_dispatch.adapters.kubeflow.queue_lookup import QueueMemory
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings, RuntimeSettings
from airflow_provider_dispatch.cli.app import GROUPS, VERBS
from airflow_provider_dispatch.cli.exit_codes import ExitCode
from airflow_provider_dispatch.core.identity import build_object_name
from tests.adapters.kubeflow.api_server import ApiServer, Fault
from tests.adapters.kubeflow.cluster_parts import NOW, build_cluster
from tests.adapters.kubeflow.memory_client import MemoryClient, Object
from tests.adapters.kubeflow.objects import JOB, build_trainjob
from tests.adapters.kubeflow.setup.cluster import SetupClient, keep
from tests.adapters.kubeflow.test_vouching import RECORD
from tests.cli.calling import Caller
from tests.cli.conftest import write_settings

T = TypeVar("T")
NEVER = 0
NOTHING = "nothing was changed"
COMPLETES = "the same call again completes it"
PATIENCE_SECONDS = 60.0
MANY = 12
READS = ("get", "list")
NUMBERS = re.compile(r'uid-\d+|"resourceVersion": "\d+"')


def interrupted(request: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., Coroutine[Any, Any, T]]:
    """The same request, on a wire."""

    async def sent(client: Wire, *args: Any, **more: Any) -> T:
        return await client.carry(request.__name__, request(client, *args, **more))

    return sent


class Wire(SetupClient):
    """The client of somebody who presses Ctrl-C while one of the requests is under way.

    :ivar at: which one, counted from 1.
    :ivar is_carried_out: it was, and only its answer hasn't come.
    """

    at = NEVER
    is_carried_out = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sent: list[str] = []

    async def carry(self, verb: str, request: Coroutine[Any, Any, T]) -> T:
        self.sent.append(verb)
        if len(self.sent) != self.at:
            return await request
        if self.is_carried_out:
            await request
        request.close()
        signal.raise_signal(signal.SIGINT)
        return await _never()

    get = interrupted(SetupClient.get)
    list = interrupted(SetupClient.list)
    create = interrupted(SetupClient.create)
    patch = interrupted(SetupClient.patch)
    apply = interrupted(SetupClient.apply)
    delete = interrupted(SetupClient.delete)


async def _never() -> Any:
    await asyncio.Event().wait()


@dataclass(frozen=True)
class Case:
    """A call, and what it may say of itself.

    :param said: how the last line may end once something may have been written.
    :param before: calls that went well.
    :param again: what completes it; the same call, where nothing else is said.
    :param shown: by which call the outcome is told, where it is no matter how it is written.
    """

    call: Sequence[str]
    said: Sequence[str]
    before: Sequence[Sequence[str]] = ()
    place: Callable[[MemoryClient], object] = field(default=lambda _: None)
    again: Sequence[str] = ()
    shown: Sequence[str] = ()


def place_leftovers(client: MemoryClient) -> None:
    """Private runtimes of two starts that were cut off long ago."""
    for number in (1, 2):
        labels = {words.JOB_LABEL: JOB.lower(), words.SUBMISSION_LABEL: str(number)}
        meta = {"name": build_object_name(JOB, number), "labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z"}
        client.put(TRAINING_RUNTIMES, {"metadata": meta})


def place_doubts(client: MemoryClient) -> None:
    """A job of which two pods have gone and nobody saw how."""
    client.put(TRAINJOBS, build_trainjob(notes={words.RECORD_ANNOTATION: RECORD.to_json()}))
    client.put(CONFIG_MAPS, build_ledger(JOB, Ledger(1, record=RECORD.to_json())))


SETUP = ("setup", "--apply")
CREATE = ("queue", "create", "train", "--cpu", "8", "--memory", "64Gi")
START = ("start", "--job", JOB, "--submission", "1", "--queue", "lq", "--", "true")
OPEN, HOLD = ("open", JOB), ("hold", JOB)
LIFT = ("fence", "lift", JOB, "--timeout", "1s", "-o", "json")
CASES = {
    "setup": Case(SETUP, (COMPLETES, "the controller comes up by itself")),
    "queue create": Case(CREATE, (COMPLETES,), [SETUP]),
    "queue delete": Case(("queue", "delete", "train"), (COMPLETES,), [SETUP, CREATE]),
    "start": Case(START, (f"the same call with --job {JOB} --submission 1 completes it",)),
    "open": Case(OPEN, (COMPLETES,), [START]),
    "hold": Case(HOLD, (COMPLETES,), [START, OPEN]),
    "release": Case(
        ("release", JOB),
        (f"dispatch release {JOB} --instance 1 completes it",),
        [START, OPEN, HOLD],
        again=("release", JOB, "--instance", "1"),
    ),
    "adopt": Case(("adopt", JOB, "--instance-id", "ti-1"), (COMPLETES,), [START]),
    "stop": Case(("stop", JOB), ("the same call again goes on with it",), [START, OPEN]),
    "gc": Case(("gc", "--yes"), ("the same call again goes on with the rest",), place=place_leftovers),
    "fence confirm": Case(
        ("fence", "confirm", JOB, "--node", "n1", "--pod", "pod-1", "--yes"),
        ("dispatch fence show tells",),
        place=place_doubts,
        # Ledger and TrainJob both carry it, and the controller completes the one that lacks it.
        shown=("fence", "show", JOB),
    ),
}
ELSEWHERE = {"fence lift", "preflight"}
"""Below, and with a real cluster's probe."""
READERS = {
    *("capabilities", "inspect", "find", "list", "events", "explain", "watch", "logs"),
    *("queue show", "fence show"),
}


@pytest.fixture(autouse=True)
def _hears_ctrl_c() -> Iterator[None]:
    """A process that somebody else has started may be deaf to it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def build_wire(case: Case) -> Wire:
    client = Wire()
    build_cluster(client)
    client.reactions.append(collect_garbage)
    client.put(NAMESPACES, {"metadata": {"name": "default"}})
    case.place(client)
    return client


def collect_garbage(client: MemoryClient, verb: str, resource: Resource, _body: Object) -> None:
    """What belongs to a TrainJob goes with it."""
    if (verb, resource) == ("delete", TRAINJOBS):
        for kind in (WORKLOADS, JOBSETS, PODS):
            for one in client.peek_all(kind):
                client.drop(kind, one["metadata"]["name"])


class Desk:
    """Somebody's command over a cluster that can be put back to how it was.

    :ivar client: the cluster as it is now.
    """

    def __init__(self, case: Case, tmp_path: Path) -> None:
        self.client = build_wire(case)
        registry.register_adapter("wire", self._build_adapter)
        registry.register_keeper("wire", lambda _: keep(self.client))
        self.dispatch = Caller(write_settings(tmp_path / "wire.yaml", {"backend": "wire"}))
        for call in case.before:
            assert self.dispatch(*call).code == ExitCode.OK, call
        self.client.sent.clear()
        self._begun = copy.deepcopy(self.client)

    def reset(self, at: int, *, is_carried_out: bool) -> None:
        self.client = copy.deepcopy(self._begun)
        self.client.at, self.client.is_carried_out = at, is_carried_out

    def _build_adapter(self, _given: Mapping[str, object]) -> KubeflowAdapter:
        settings = KubeflowSettings(queue="lq", runtime=RuntimeSettings(name="plain"))
        return KubeflowAdapter(settings, open_client=self._connect, memory=QueueMemory(), clock=lambda: NOW)

    async def _connect(self, _settings: KubeflowSettings) -> Wire:
        return self.client


def read_state(desk: Desk, case: Case) -> list[str]:
    """All objects, without what differs from one run to the next, and without Events: nobody waits for those."""
    if case.shown:
        return desk.dispatch(*case.shown).out.splitlines()
    counted = (body for body in desk.client.everything if body["kind"] != EVENTS.kind)
    return sorted(NUMBERS.sub("*", json.dumps(body, sort_keys=True)) for body in counted)


def choose_moments(verbs: Sequence[str], *, is_carried_out: bool) -> list[int]:
    """Each request of a short call that makes a difference; of a long one the first, the last and some between."""
    moments = [at for at, verb in enumerate(verbs, start=1) if not is_carried_out or verb not in READS]
    chosen = range(0, len(moments), 1 + len(moments) // MANY)
    return [*(moments[index] for index in chosen), moments[-1]]


@pytest.mark.parametrize("is_carried_out", [False, True], ids=["lost", "carried out"])
@pytest.mark.parametrize("name", CASES)
def test_what_is_said_is_true_and_the_same_call_completes_it(
    tmp_path: Path, name: str, *, is_carried_out: bool
) -> None:
    case = CASES[name]
    desk = Desk(case, tmp_path)
    untouched = read_state(desk, case)
    desk.reset(NEVER, is_carried_out=False)
    assert desk.dispatch(*case.call).code == ExitCode.OK
    sent = tuple(desk.client.sent)
    complete = read_state(desk, case)
    assert complete != untouched

    for number in choose_moments(sent, is_carried_out=is_carried_out):
        desk.reset(number, is_carried_out=is_carried_out)
        answer = desk.dispatch(*case.call)
        said = answer.err.splitlines()[-1].removeprefix("interrupted: ")
        left = read_state(desk, case)
        desk.client.at = NEVER
        again = desk.dispatch(*(case.again or case.call))

        moment = (number, sent[number - 1], said, again)
        assert answer.code == ExitCode.INTERRUPTED, moment
        assert said == NOTHING or any(said.endswith(words) for words in case.said), moment
        assert said != NOTHING or left == untouched, moment
        assert read_state(desk, case) == complete, moment


# -- fence lift --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "requests", "holders"),
    [("leases", 2, []), ("workloads", 1, [""])],
    ids=["as it takes the Lease", "as it looks"],
)
def test_a_lift_that_is_interrupted_gives_the_lease_back(
    tmp_path: Path, kind: str, requests: int, holders: list[str]
) -> None:
    async def scenario() -> None:
        async with ApiServer() as server, asyncio.timeout(2 * PATIENCE_SECONDS):
            trainjob = build_trainjob()
            server.put(TRAINJOBS, trainjob["metadata"].pop("name"), "default", **trainjob)
            settings: dict[str, object] = {
                "backend": "kubeflow",
                "kubeconfig": server.write_kubeconfig(tmp_path),
                "namespace": "default",
            }
            dispatch = Caller(write_settings(tmp_path / "server.yaml", settings))
            server.faults.append(Fault(hangs=True, method="POST" if kind == "leases" else "GET", part_of_path=kind))
            lifting = dispatch.spawn(*LIFT)
            try:
                await server.wait_for_requests(requests, kind, patience_seconds=PATIENCE_SECONDS)
                lifting.send_signal(signal.SIGINT)
                _, said = await asyncio.to_thread(lifting.communicate, timeout=PATIENCE_SECONDS)
            finally:
                lifting.kill()
                lifting.wait()
            assert lifting.returncode == ExitCode.INTERRUPTED, said
            assert said.endswith("the same call again goes on\n")
            assert list_holders(server) == holders

            again = dispatch.spawn(*LIFT)
            try:
                out, said = await asyncio.to_thread(again.communicate, timeout=PATIENCE_SECONDS)
            finally:
                again.kill()
                again.wait()
            assert (again.returncode, json.loads(out)) == (ExitCode.OK, {"decided": [], "doubts": []}), said

    asyncio.run(scenario())


def list_holders(server: ApiServer) -> list[str]:
    return [raw["spec"]["holderIdentity"] for (_, _, plural, _), raw in server.objects.items() if plural == "leases"]


def test_every_verb_that_writes_is_interrupted_here() -> None:
    groups = {f"{name} {verb.name}" for name, group in GROUPS.items() for verb in group.registered_commands}
    assert {*CASES, *ELSEWHERE, *READERS} == {*VERBS, *groups}
