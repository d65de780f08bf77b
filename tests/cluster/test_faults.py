# SPDX-License-Identifier: Apache-2.0
"""Wrong settings, refusals, parts of the cluster that are away, and objects that others made, edited or deleted.

What comes of it is a typed error or a true state; nothing is doubled and nothing lost. Where a part of the cluster is
stopped, the test starts it again, also when it fails.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.ledger import build_ledger_name
from airflow_provider_dispatch.adapters.protocol import DispatchAdapter, OutputRequest
from airflow_provider_dispatch.adapters.registry import build_adapter
from airflow_provider_dispatch.core.holds import HoldRequest
from airflow_provider_dispatch.core.identity import JobID, build_object_name
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.core.output import OutputLine
from airflow_provider_dispatch.core.records import StartRequest
from airflow_provider_dispatch.core.state import Cause, State
from airflow_provider_dispatch.exceptions import (
    CapabilityError,
    ConflictError,
    DispatchError,
    ProtocolError,
    RefusedError,
    SpecError,
    UnavailableError,
)
from tests.cluster.faulty_proxy import Fault, FaultyProxy
from tests.cluster.testbed import objects
from tests.cluster.testbed.api import Manifest
from tests.cluster.testbed.bed import Bed
from tests.contract.stage import ANN, new_job, soon
from tests.contract.stage_kubeflow import KubeflowStage
from tests.contract.stage_processes import wait_until

matrix = pytest.mark.matrix
FIRST, SECOND = 1_000_001, 1_000_002
OUTAGE_SECONDS = 120.0
RECOVERY = timedelta(seconds=120)
"""For a cluster whose API server is back: its parts wait longer and longer between two tries."""


@pytest.fixture
def stage(controlled_bed: Bed) -> KubeflowStage:
    return KubeflowStage(controlled_bed, {"q": {}})


def connect(at: KubeflowStage, kubeconfig: Path, **more: Any) -> DispatchAdapter:
    """Another way into the stage's namespace."""
    settings = {"namespace": at.namespace, "runtime": {"name": objects.RUNTIME}, "queue": "q"}
    return build_adapter("kubeflow", {**settings, "kubeconfig": str(kubeconfig), **more})


def small(at: KubeflowStage, *behaviour: str, **more: Any) -> Any:
    return at.spec(*(behaviour or ("run",)), queue="q", resources={"cpu": "100m"}, **more)


def build_request(at: KubeflowStage, job: JobID | None = None) -> StartRequest:
    job = job or new_job()
    at.jobs.append(job)
    return StartRequest(job, 1, 1, small(at))


async def runs(at: KubeflowStage, ref: JobRef, *epochs: int) -> list[int]:
    """It runs under the last of them, having run under the others and no more; what it has run under."""
    await at.until(ref, lambda o: _runs_under(o, epochs[-1]))
    await at.begun(ref, epochs[-1])
    at.check_epochs(ref.job, epochs)
    return at.epochs(ref.job)


def _runs_under(seen: Observation, epoch: int) -> bool:
    return seen.state is State.RUNNING and seen.execution is not None and seen.execution.epoch == epoch


async def first_of_watch(adapter: DispatchAdapter, ref: JobRef) -> Observation:
    async for seen in adapter.watch([ref]):
        return seen
    raise AssertionError("the watch ended at once")


def list_verbs(at: KubeflowStage, adapter: DispatchAdapter, ref: JobRef) -> dict[str, Callable[[], Awaitable[object]]]:
    """Each verb that needs rights, on a job that is there; `start` makes one of its own."""

    async def output() -> list[OutputLine]:
        return [line async for line in adapter.output(ref, OutputRequest())]

    async def hold() -> object:
        return await adapter.hold(ref, HoldRequest("k", ANN, "maintenance"), deadline=soon())

    return {
        "start": lambda: adapter.start(build_request(at), deadline=soon()),
        "open": lambda: adapter.open(ref, deadline=soon()),
        "inspect": lambda: adapter.inspect(ref),
        "watch": lambda: first_of_watch(adapter, ref),
        "output": output,
        "hold": hold,
        "stop": lambda: adapter.stop(ref.job, reason="test", deadline=soon()),
        "find": lambda: adapter.find(ref.job),
    }


async def expect_everywhere(
    at: KubeflowStage,
    adapter: DispatchAdapter,
    ref: JobRef,
    kind: type[DispatchError],
    said: str = "",
    *,
    unproved: str = "",
) -> None:
    """Every verb fails in this way, in good time, and the job goes on.

    :param unproved: the line of a preflight with which a `start` fails instead.
    """
    try:
        for name, verb in list_verbs(at, adapter, ref).items():
            is_unproved = name == "start" and unproved
            with pytest.raises(CapabilityError if is_unproved else kind) as caught:
                await asyncio.wait_for(verb(), 60)
            assert (unproved if is_unproved else said) in str(caught.value), name
    finally:
        await adapter.close()
    await runs(at, ref, FIRST)


async def begin(at: KubeflowStage, *behaviour: str) -> JobRef:
    ref = await at.run(small(at, *behaviour))
    await at.begun(ref, FIRST)
    return ref


# -- ways into the cluster ---------------------------------------------------------------------------------------------


def write_kubeconfig(at: KubeflowStage, path: Path, token: str) -> Path:
    """The administrator's with another token; replaced as a whole, as a credential plugin does."""
    content = json.loads(at.bed.kubeconfig.read_text())
    content["users"][0]["user"] = {"token": token}
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(content))
    draft.rename(path)
    return path


def build_account(at: KubeflowStage, name: str) -> Manifest:
    metadata = {"name": name, "namespace": at.namespace}
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}


def fetch_token(at: KubeflowStage, name: str) -> str:
    path = f"/api/v1/namespaces/{at.namespace}/serviceaccounts/{name}/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}}
    token: str = at.bed.api.request("POST", path, body)["status"]["token"]
    return token


def test_a_context_that_is_not_there_is_a_wrong_setting(stage: KubeflowStage) -> None:
    async def scenario(at: KubeflowStage) -> None:
        ref = await begin(at)
        await expect_everywhere(at, connect(at, at.bed.kubeconfig, context="nowhere"), ref, SpecError, "nowhere")

    stage.play(scenario)


def test_an_unknown_token_is_refused(stage: KubeflowStage, tmp_path: Path) -> None:
    async def scenario(at: KubeflowStage) -> None:
        ref = await begin(at)
        kubeconfig = write_kubeconfig(at, tmp_path / "kubeconfig", secrets.token_hex(16))
        await expect_everywhere(at, connect(at, kubeconfig), ref, RefusedError, "credentials", unproved="credentials: ")

    stage.play(scenario)


def test_an_account_without_rights_is_refused(stage: KubeflowStage, tmp_path: Path) -> None:
    async def scenario(at: KubeflowStage) -> None:
        at.bed.api.apply(build_account(at, "nobody"))
        ref = await begin(at)
        kubeconfig = write_kubeconfig(at, tmp_path / "kubeconfig", fetch_token(at, "nobody"))
        await expect_everywhere(
            at, connect(at, kubeconfig), ref, RefusedError, "isn't allowed", unproved="permissions: "
        )

    stage.play(scenario)


def test_a_token_that_ends_while_it_is_used_is_read_anew(stage: KubeflowStage, tmp_path: Path) -> None:
    async def scenario(at: KubeflowStage) -> None:
        account = build_account(at, "worker")
        at.bed.api.apply(account, build_binding(at, "worker"))
        kubeconfig = write_kubeconfig(at, tmp_path / "kubeconfig", fetch_token(at, "worker"))
        adapter = connect(at, kubeconfig, state_host_path=str(at.folder))
        try:
            ref = await begin(at)
            await adapter.inspect(ref)
            # Tokens are bound to their account; a real one ends ten minutes later at the earliest.
            at.bed.api.delete(account)
            await refused_by_and_by(lambda: adapter.inspect(ref))
            at.bed.api.apply(account)
            write_kubeconfig(at, kubeconfig, fetch_token(at, "worker"))
            await works_by_and_by(lambda: adapter.inspect(ref), RefusedError)
            report = await adapter.stop(ref.job, reason="test", deadline=soon())
            assert report.is_complete
        finally:
            await adapter.close()

    stage.play(scenario)


def build_binding(at: KubeflowStage, account: str) -> Manifest:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": account, "namespace": at.namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": at.namespace}],
    }


async def refused_by_and_by(verb: Callable[[], Awaitable[object]]) -> None:
    """The API server keeps what it found about a token for some seconds."""
    for _ in range(60):
        if not await is_allowed(verb):
            return
        await asyncio.sleep(0.5)
    raise AssertionError("never refused")


async def is_allowed(verb: Callable[[], Awaitable[object]]) -> bool:
    try:
        await verb()
    except RefusedError:
        return False
    return True


async def works_by_and_by(
    verb: Callable[[], Awaitable[object]], meanwhile: type[DispatchError], patience: timedelta = RECOVERY
) -> Any:
    """Call again and again; no other error than this one may come."""
    async with asyncio.timeout(patience.total_seconds()):
        while True:
            try:
                return await verb()
            except meanwhile:
                await asyncio.sleep(1)


@pytest.mark.parametrize("group", ["trainer.kubeflow.org", "kueue.x-k8s.io"])
def test_a_cluster_that_lacks_a_group_is_told_so(stage: KubeflowStage, tmp_path: Path, group: str) -> None:
    """Its requests for the group go to one that the API server doesn't serve."""

    async def scenario(at: KubeflowStage) -> None:
        request = build_request(at)
        with FaultyProxy(at.bed.kubeconfig, tmp_path) as proxy:
            proxy.script = lambda _: Fault(renames=(f"/apis/{group}/", "/apis/missing.example.com/"))
            adapter = connect(at, proxy.kubeconfig)
            try:
                with pytest.raises(CapabilityError, match=group):
                    await adapter.start(request, deadline=soon())
            finally:
                await adapter.close()
        found = await at.adapter.find(request.job)
        assert (found.submissions, found.orphans) == ((), ())

    stage.play(scenario)


# -- a part of the cluster refuses or is away --------------------------------------------------------------------------


def test_a_quota_object_that_refuses_pods_is_told_and_waited_for(stage: KubeflowStage) -> None:
    async def scenario(at: KubeflowStage) -> None:
        quota: Manifest = {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "no-pods", "namespace": at.namespace},
            "spec": {"hard": {"pods": "0"}},
        }
        at.bed.api.apply(quota)
        ref = await at.start(small(at))
        await at.adapter.open(ref, deadline=soon())
        seen = await at.until(ref, lambda o: o.cause is not None)
        assert (seen.state, seen.cause) == (State.STARTING, Cause.NO_CAPACITY)
        assert "no-pods" in " ".join((seen.detail, *(one.value for one in seen.evidence)))
        at.bed.api.delete(quota)
        await runs(at, ref, FIRST)

    stage.play(scenario)


@pytest.fixture
def stop_component(controlled_bed: Bed) -> Iterator[Callable[[str], None]]:
    """Stops parts of the cluster until the test is over."""
    stopped: list[str] = []

    def stop(name: str) -> None:
        stopped.append(name)
        controlled_bed.stop_component(name)

    yield stop
    for name in stopped:
        controlled_bed.start_component(name)


@pytest.mark.parametrize("component", ["kueue", pytest.param("trainer", marks=matrix)])
def test_a_webhook_that_is_away_delays_and_doubles_nothing(
    stage: KubeflowStage, stop_component: Callable[[str], None], component: str
) -> None:
    async def scenario(at: KubeflowStage) -> None:
        running = await begin(at)
        request = build_request(at)
        await asyncio.to_thread(stop_component, component)
        with pytest.raises(UnavailableError):
            await at.adapter.start(request, deadline=datetime.now(UTC) + timedelta(seconds=10))
        holding = asyncio.create_task(
            works_by_and_by(
                lambda: at.adapter.hold(running, HoldRequest("k", ANN, "maintenance"), deadline=soon()),
                UnavailableError,
            )
        )
        await asyncio.sleep(2)
        await asyncio.to_thread(at.bed.start_component, component)
        hold = await holding
        ref = await works_by_and_by(lambda: at.adapter.start(request, deadline=soon()), UnavailableError)
        await at.adapter.open(ref, deadline=soon())
        await runs(at, ref, FIRST)
        await at.reach(running, State.HELD)
        await at.adapter.release(running, hold, deadline=soon())
        await runs(at, running, FIRST, SECOND)
        (record,) = (await at.adapter.find(ref.job)).submissions
        assert record.ref == ref

    stage.play(scenario)


class Outage:
    """Calls that are in flight when the API server goes, and again until they have worked.

    :ivar errors: all that was raised meanwhile, by call.
    """

    def __init__(self) -> None:
        self.errors: dict[str, list[DispatchError]] = {}
        self._tasks: dict[str, asyncio.Task[Any]] = {}

    def begin(self, name: str, verb: Callable[[], Awaitable[object]]) -> None:
        self.errors[name] = []
        self._tasks[name] = asyncio.create_task(self._persist(name, verb), name=name)

    async def _persist(self, name: str, verb: Callable[[], Awaitable[object]]) -> object:
        while True:
            try:
                return await verb()
            except UnavailableError as error:
                self.errors[name].append(error)
                await asyncio.sleep(3)

    async def finish(self) -> dict[str, Any]:
        """What each of them returned at last."""
        async with asyncio.timeout(RECOVERY.total_seconds()):
            return {name: await task for name, task in self._tasks.items()}


@matrix
def test_the_api_server_is_gone_for_two_minutes_with_every_verb_in_flight(
    stage: KubeflowStage, stop_component: Callable[[str], None]
) -> None:
    async def scenario(at: KubeflowStage) -> None:
        at.patience, adapter, outage = RECOVERY, at.adapter, Outage()
        run, held, stopped = await asyncio.gather(begin(at), begin(at), begin(at))
        gated = await at.start(small(at))
        released = await begin(at)
        hold = await at.hold(released)
        await at.reach(released, State.HELD)
        request, seen, lines = build_request(at), list[Observation](), list[OutputLine]()

        async def watch() -> None:
            async for one in adapter.watch([run]):
                seen.append(one)

        async def follow() -> None:
            async for line in adapter.output(run, OutputRequest(follow=True)):
                lines.append(line)

        watching, following = asyncio.create_task(watch()), asyncio.create_task(follow())
        await wait_until(lambda: bool(seen and lines), "watch and output", at.patience)
        going = asyncio.create_task(asyncio.to_thread(stop_component, "kube-apiserver"))
        outage.begin("start", lambda: adapter.start(request, deadline=soon()))
        outage.begin("open", lambda: adapter.open(gated, deadline=soon()))
        outage.begin("inspect", lambda: adapter.inspect(run))
        outage.begin("hold", lambda: adapter.hold(held, HoldRequest("k", ANN, "maintenance"), deadline=soon()))
        outage.begin("release", lambda: adapter.release(released, hold, deadline=soon()))
        outage.begin("stop", lambda: adapter.stop(stopped.job, reason="test", deadline=soon()))
        outage.begin("find", lambda: adapter.find(run.job))
        await going
        with pytest.raises(UnavailableError):
            await adapter.inspect(run)
        await asyncio.sleep(OUTAGE_SECONDS)
        assert not watching.done()
        assert not following.done()
        await asyncio.to_thread(at.bed.start_component, "kube-apiserver")
        answers = await outage.finish()
        assert any(outage.errors.values()), "no call has met the outage"
        started = answers["start"]
        await adapter.open(started, deadline=soon())
        await runs(at, started, FIRST)
        await runs(at, gated, FIRST)
        await runs(at, released, FIRST, SECOND)
        await at.reach(held, State.HELD)
        await at.reach(stopped, State.GONE)
        at.check_epochs(run.job, [FIRST])
        await at.tell(run, "say after")
        await at.tell(run, "exit 0")
        await asyncio.wait_for(asyncio.gather(watching, following), RECOVERY.total_seconds())
        assert seen[-1].state is State.SUCCEEDED
        texts = [line.text for line in lines if not line.notice]
        assert texts.count("after") == 1
        assert texts.count(f"DISPATCH_EPOCH={FIRST}") == 1
        assert [held.key for held in (await adapter.inspect(held)).holds] == ["k"]
        assert len((await adapter.find(started.job)).submissions) == 1

    stage.limit = timedelta(seconds=600)
    stage.play(scenario)


# -- what others have made, edited or deleted --------------------------------------------------------------------------


def build_foreign(at: KubeflowStage, kind: str, job: JobID) -> Manifest:
    """Under the name that the job's first submission wants, without a label of ours."""
    name = build_ledger_name(job) if kind == "ConfigMap" else build_object_name(job, 1)
    metadata = {"name": name, "namespace": at.namespace}
    if kind == "ConfigMap":
        return {"apiVersion": "v1", "kind": kind, "metadata": metadata, "data": {"of": "somebody else"}}
    if kind == "TrainJob":
        reference = {"apiGroup": "trainer.kubeflow.org", "kind": "ClusterTrainingRuntime", "name": objects.RUNTIME}
        spec: Manifest = {"runtimeRef": reference, "suspend": True}
        return {"apiVersion": objects.TRAINER_VERSION, "kind": kind, "metadata": metadata, "spec": spec}
    runtime = objects.build_runtime(name)
    return {**runtime, "kind": kind, "metadata": {**runtime["metadata"], **metadata}}


@pytest.mark.parametrize("kind", ["TrainJob", "TrainingRuntime", "ConfigMap"])
def test_a_name_that_is_taken_is_a_conflict_and_left_alone(stage: KubeflowStage, kind: str) -> None:
    async def scenario(at: KubeflowStage) -> None:
        request = build_request(at)
        foreign = build_foreign(at, kind, request.job)
        made = at.bed.api.create(foreign)
        with pytest.raises(ConflictError, match="somebody else"):
            await at.adapter.start(request, deadline=soon())
        await at.adapter.stop(request.job, reason="test", deadline=soon())
        found = at.bed.api.get(kind, foreign["metadata"]["name"], namespace=at.namespace, version=foreign["apiVersion"])
        assert found["metadata"]["uid"] == made["metadata"]["uid"]
        assert found.get("spec") == made.get("spec")
        assert "deletionTimestamp" not in found["metadata"]
        at.bed.api.delete(foreign)
        again = await find_free_number(at, request)
        await at.adapter.open(again, deadline=soon())
        await at.reach(again, State.RUNNING)

    stage.play(scenario)


async def find_free_number(at: KubeflowStage, request: StartRequest) -> JobRef:
    """Start under the number that the ledger says is next."""
    number = (await at.adapter.find(request.job)).ledger + 1
    return await works_by_and_by(
        lambda: at.adapter.start(replace(request, submission=number), deadline=soon()), UnavailableError
    )


def test_a_trainjob_deleted_behind_our_back_has_ended_and_its_number_is_used(stage: KubeflowStage) -> None:
    async def scenario(at: KubeflowStage) -> None:
        ref = await begin(at)
        watching = asyncio.create_task(last_of_watch(at.adapter, ref))
        at.bed.api.delete(named(at, "TrainJob", ref))
        seen = await asyncio.wait_for(watching, at.patience.total_seconds())
        assert (seen.state, seen.cause) == (State.GONE, Cause.DELETED)
        with pytest.raises(ConflictError):
            await at.adapter.start(StartRequest(ref.job, 1, 1, small(at)), deadline=soon())
        again = await at.run(small(at), job=ref.job, submission=2)
        await at.begun(again, 2_000_001)
        at.check_epochs(ref.job, [FIRST, 2_000_001])

    stage.play(scenario)


async def last_of_watch(adapter: DispatchAdapter, ref: JobRef) -> Observation:
    return [seen async for seen in adapter.watch([ref])][-1]


def named(at: KubeflowStage, kind: str, ref: JobRef) -> Manifest:
    metadata = {"name": build_object_name(ref.job, ref.submission), "namespace": at.namespace}
    return {"apiVersion": objects.TRAINER_VERSION, "kind": kind, "metadata": metadata}


def test_a_ledger_deleted_behind_our_back_costs_no_promise(stage: KubeflowStage) -> None:
    async def scenario(at: KubeflowStage) -> None:
        ref = await begin(at)
        metadata = {"name": build_ledger_name(ref.job), "namespace": at.namespace}
        at.bed.api.delete({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
        hold = await at.hold(ref)
        await at.reach(ref, State.HELD)
        await at.adapter.release(ref, hold, deadline=soon())
        assert await runs(at, ref, FIRST, SECOND) == [FIRST, SECOND]

    stage.play(scenario)


EDITS: dict[str, dict[str, str | None]] = {
    "record": {words.RECORD_ANNOTATION: None},
    "admissions": {words.ADMISSIONS_ANNOTATION: "many"},
    "admission-key": {words.ADMISSIONS_ANNOTATION: None, words.ADMISSION_KEY_ANNOTATION: None},
}


@pytest.mark.parametrize(
    "annotations",
    [pytest.param(edit, id=name, marks=[] if name == "record" else matrix) for name, edit in EDITS.items()],
)
def test_what_was_edited_behind_our_back_is_made_up_for(
    stage: KubeflowStage, annotations: dict[str, str | None]
) -> None:
    async def scenario(at: KubeflowStage) -> None:
        ref = await begin(at)
        annotate(at, ref, annotations)
        hold = await at.hold(ref)
        await at.reach(ref, State.HELD)
        await at.adapter.release(ref, hold, deadline=soon())
        assert await runs(at, ref, FIRST, SECOND) == [FIRST, SECOND]

    stage.play(scenario)


@pytest.mark.parametrize(
    "name",
    [
        words.RECORD_ANNOTATION,
        pytest.param(words.CLOCKS_ANNOTATION, marks=matrix),
        pytest.param(words.HOLDS_ANNOTATION, marks=matrix),
    ],
)
def test_what_cannot_be_read_is_not_guessed_at_and_may_be_mended(stage: KubeflowStage, name: str) -> None:
    """A job whose books somebody has spoilt runs on, is told as it is, and can be stopped; mended, it goes on."""

    async def scenario(at: KubeflowStage) -> None:
        ref = await begin(at)
        if name != words.HOLDS_ANNOTATION:
            await wait_until(lambda: read_annotation(at, ref, name) is not None, name, at.patience)
        good = read_annotation(at, ref, name)
        annotate(at, ref, {name: "{spoilt"})
        seen = await at.adapter.inspect(ref)
        assert (seen.state, seen.cause) == (State.UNKNOWN, Cause.UNKNOWN)
        assert [one.field for one in seen.evidence] == [name]
        with suppress(ProtocolError):
            await at.hold(ref)
        await asyncio.sleep(5)
        at.check_epochs(ref.job, [FIRST])
        annotate(at, ref, {name: good})
        hold = await at.hold(ref)
        await at.reach(ref, State.HELD)
        await at.adapter.release(ref, hold, deadline=soon())
        await runs(at, ref, FIRST, SECOND)
        annotate(at, ref, {name: "{spoilt"})
        assert (await at.adapter.stop(ref.job, reason="test", deadline=soon())).is_complete

    stage.play(scenario)


def annotate(at: KubeflowStage, ref: JobRef, annotations: dict[str, str | None]) -> None:
    at.bed.api.patch(named(at, "TrainJob", ref), {"metadata": {"annotations": annotations}})


def read_annotation(at: KubeflowStage, ref: JobRef, name: str) -> str | None:
    metadata = named(at, "TrainJob", ref)["metadata"]
    found = at.bed.api.get("TrainJob", metadata["name"], namespace=at.namespace, version=objects.TRAINER_VERSION)
    value: str | None = found["metadata"]["annotations"].get(name)
    return value
