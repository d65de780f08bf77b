# SPDX-License-Identifier: Apache-2.0
"""The client against a server on the loopback: what it sends, what it makes of answers, and of there being none."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime

import pytest

from airflow_provider_dispatch.adapters.kubeflow import errors
from airflow_provider_dispatch.adapters.kubeflow.client import PAGE_SIZE, open_client
from airflow_provider_dispatch.adapters.kubeflow.model.resources import CONFIG_MAPS, NODES, PODS, TRAINJOBS
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings
from airflow_provider_dispatch.exceptions import (
    CapabilityError,
    ProtocolError,
    RefusedError,
    SpecError,
    UnavailableError,
)
from tests.adapters.kubeflow.api_server import ApiServer, Fault, run, status

NS = "dispatch"


class Pauses:
    """A sleeper that notes and doesn't sleep."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


@pytest.fixture
def pauses():
    return Pauses()


@pytest.fixture
def reach(tmp_path, pauses):
    """Enter for a server and a client of it."""

    @asynccontextmanager
    async def enter(timeout_seconds=5.0, token="letmein"):
        async with ApiServer() as server:
            path = server.write_kubeconfig(tmp_path, token)
            settings = KubeflowSettings(kubeconfig=path, request_timeout_seconds=timeout_seconds)
            async with await open_client(settings, user_agent="tests/1", sleep=pauses) as client:
                yield server, client

    return enter


def test_objects_are_created_read_changed_listed_and_deleted(reach):
    async def scenario():
        async with reach() as (server, client):
            made = await client.create(TRAINJOBS, {"metadata": {"name": "a", "labels": {"x": "1"}}, "spec": {}}, NS)
            assert await client.get(TRAINJOBS, "a", NS) == made
            assert (await client.patch(TRAINJOBS, "a", {"spec": {"suspend": True}}, NS))["spec"] == {"suspend": True}
            assert [item["kind"] for item in (await client.list(TRAINJOBS, NS, labels="x=1")).items] == ["TrainJob"]
            assert (await client.list(TRAINJOBS, NS, labels="x=2")).items == ()
            assert await client.delete(TRAINJOBS, "a", NS, uid=made["metadata"]["uid"], grace_period_seconds=3)
            assert await client.get(TRAINJOBS, "a", NS) is None
            assert not await client.delete(TRAINJOBS, "a", NS)
            return server.seen

    seen = run(scenario())
    first, deletion = seen[0], next(one for one in seen if one.method == "DELETE")
    assert first.path == "/apis/trainer.kubeflow.org/v1alpha1/namespaces/dispatch/trainjobs"
    assert first.query == {"fieldManager": "dispatch", "fieldValidation": "Strict", "timeout": "5s"}
    assert {first.headers[key] for key in ("authorization", "user-agent")} == {"Bearer letmein", "tests/1"}
    assert deletion.body["propagationPolicy"] == "Background"
    assert deletion.body["gracePeriodSeconds"] == 3


def test_kinds_of_the_core_and_of_the_whole_cluster_have_their_own_paths(reach):
    async def scenario():
        async with reach() as (server, client):
            server.put(NODES, "n1")
            server.put(PODS, "p", NS)
            server.put(PODS, "p", "other")
            assert await client.get(NODES, "n1") is not None
            assert len((await client.list(PODS)).items) == 2
            assert [await client.is_served(kind) for kind in (PODS, CONFIG_MAPS, TRAINJOBS)] == [True, False, False]
            assert await client.version() == "v1.35.4"
            return [one.path for one in server.seen]

    assert run(scenario())[:2] == ["/api/v1/nodes/n1", "/api/v1/pods"]


def test_another_object_of_the_same_name_is_not_deleted(reach):
    async def scenario():
        async with reach() as (server, client):
            server.put(PODS, "p", NS)
            return await client.delete(PODS, "p", NS, uid="of-another"), await client.get(PODS, "p", NS)

    deleted, left = run(scenario())
    assert not deleted
    assert left is not None


def test_a_dry_run_changes_nothing(reach):
    async def scenario():
        async with reach() as (_, client):
            made = await client.create(TRAINJOBS, {"metadata": {"name": "a"}}, NS, dry_run=True)
            return made["metadata"]["name"], await client.get(TRAINJOBS, "a", NS)

    assert run(scenario()) == ("a", None)


def test_a_stale_write_says_so_in_all_its_forms(reach):
    async def scenario():
        async with reach() as (server, client):
            server.put(TRAINJOBS, "a", NS, metadata={"annotations": {"k": "1"}})
            patches = [
                {"metadata": {"resourceVersion": "1"}},
                [{"op": "replace", "path": "/metadata/resourceVersion", "value": "1"}],
                [{"op": "test", "path": "/metadata/annotations/k", "value": "2"}],
                [{"op": "remove", "path": "/metadata/annotations/gone"}],
            ]
            for patch in patches:
                with pytest.raises(errors.StaleObjectError, match=r"change trainjobs.trainer.kubeflow.org dispatch/a"):
                    await client.patch(TRAINJOBS, "a", patch, NS)
            patch = [
                {"op": "test", "path": "/metadata/annotations/k", "value": "1"},
                {"op": "remove", "path": "/metadata/annotations/k"},
            ]
            after = await client.patch(TRAINJOBS, "a", patch, NS)
            return after["metadata"]["annotations"], [one.headers["content-type"] for one in server.seen]

    annotations, contents = run(scenario())
    assert annotations == {}
    assert contents == ["application/merge-patch+json"] + ["application/json-patch+json"] * 4


def test_a_name_already_taken_and_an_object_that_is_gone_are_told_apart(reach):
    async def scenario():
        async with reach() as (server, client):
            server.put(TRAINJOBS, "a", NS)
            with pytest.raises(errors.AlreadyExistsError):
                await client.create(TRAINJOBS, {"metadata": {"name": "a"}}, NS)
            with pytest.raises(errors.ObjectGoneError):
                await client.patch(TRAINJOBS, "b", {}, NS)

    run(scenario())


def test_a_kind_that_the_cluster_does_not_serve_is_not_an_absent_object(reach):
    async def scenario():
        async with reach() as (server, client):
            server.served = {"pods"}
            with pytest.raises(CapabilityError, match=r"doesn't serve trainer.kubeflow.org/v1alpha1"):
                await client.get(TRAINJOBS, "a", NS)
            with pytest.raises(CapabilityError):
                await client.list(TRAINJOBS, NS)

    run(scenario())


def test_long_lists_come_in_pages_and_at_once_when_the_pages_expire(reach):
    async def scenario(is_expiring):
        async with reach() as (server, client):
            for number in range(PAGE_SIZE + 1):
                server.put(PODS, f"p{number}", NS)
            if is_expiring:
                server.faults.append(Fault(410, status(410, "Expired"), part_of_path="pods"))
            found = await client.list(PODS, NS)
            return len(found.items), found.resource_version, [sorted(one.query) for one in server.seen]

    assert run(scenario(False)) == (PAGE_SIZE + 1, str(101 + PAGE_SIZE), [["limit"], ["continue", "limit"]])
    assert run(scenario(True)) == (PAGE_SIZE + 1, str(101 + PAGE_SIZE), [["limit"], []])


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_busy_server_is_asked_again_when_it_says(reach, pauses, method):
    async def scenario():
        async with reach() as (server, client):
            server.faults += [Fault(429, headers={"Retry-After": "2"}), Fault(429)]
            if method == "POST":
                await client.create(PODS, {"metadata": {"name": "p"}}, NS)
            else:
                await client.list(PODS, NS)
            return len(server.seen)

    assert run(scenario()) == 3
    assert pauses.seconds == [2.0, 1.0]


def test_a_server_that_stays_busy_is_unavailable(reach, pauses):
    async def scenario(seconds):
        async with reach() as (server, client):
            server.faults.append(Fault(429, headers={"Retry-After": seconds}, times=99))
            with pytest.raises(errors.ThrottledError, match="the API server is busy") as caught:
                await client.list(PODS, NS)
            return len(server.seen), caught.value.retry_after_seconds

    assert run(scenario("1")) == (4, 1.0)
    assert run(scenario("30")) == (1, 30.0), "longer than the time-out of the request"


WRITES = {
    "create": lambda client: client.create(PODS, {"metadata": {"name": "new"}}, NS),
    "patch": lambda client: client.patch(PODS, "p", {"metadata": {"labels": {"x": "1"}}}, NS),
    "delete": lambda client: client.delete(PODS, "p", NS),
}
READS = {"get": lambda client: client.get(PODS, "p", NS), "list": lambda client: client.list(PODS, NS)}
BREAKS = {
    "dropped": lambda: Fault(times=9),
    "lost": lambda: Fault(is_carried_out=True, times=9),
    "silent": lambda: Fault(hangs=True, times=9),
    "500": lambda: Fault(500, status(500, "InternalError", "etcdserver: request timed out"), times=9),
    "503": lambda: Fault(503, "upstream connect error", times=9),
}


@pytest.mark.parametrize("broken", BREAKS)
@pytest.mark.parametrize("verb", WRITES)
def test_a_write_without_an_answer_may_have_been_carried_out(reach, verb, broken):
    async def scenario():
        async with reach(timeout_seconds=0.3) as (server, client):
            server.put(PODS, "p", NS)
            server.faults.append(BREAKS[broken]())
            with pytest.raises(errors.AnswerLostError, match="can't tell whether") as caught:
                await WRITES[verb](client)
            return caught.value

    lost = run(scenario())
    assert lost.is_answer_unknown
    assert lost.is_retryable


@pytest.mark.parametrize("broken", BREAKS)
@pytest.mark.parametrize("verb", READS)
def test_a_read_without_an_answer_may_be_made_again(reach, verb, broken):
    async def scenario():
        async with reach(timeout_seconds=0.3) as (server, client):
            server.faults.append(BREAKS[broken]())
            with pytest.raises(UnavailableError) as caught:
                await READS[verb](client)
            return type(caught.value)

    assert run(scenario()) is UnavailableError


def test_a_server_that_can_not_be_reached_has_carried_out_nothing(reach):
    async def scenario():
        async with reach() as (server, client):
            await server.__aexit__()
            with pytest.raises(UnavailableError, match="can't be reached") as caught:
                await WRITES["create"](client)
            return type(caught.value)

    assert run(scenario()) is UnavailableError


def test_an_answer_of_something_else_is_told(reach):
    async def scenario():
        async with reach() as (server, client):
            server.faults += [Fault(200, "<html>"), Fault(200, "[]"), Fault(302, headers={"Location": "/login"})]
            for kind in (ProtocolError, ProtocolError, RefusedError):
                with pytest.raises(kind):
                    await client.get(PODS, "p", NS)

    run(scenario())


def test_renewed_credentials_are_read_when_the_old_ones_are_refused(reach, tmp_path):
    async def scenario():
        async with reach(token="old") as (server, client):
            server.token = "new"
            server.write_kubeconfig(tmp_path, "new")
            await asyncio.gather(*(client.list(PODS, NS) for _ in range(5)))
            async with aclosing(client.watch(PODS, NS)) as events:
                server.put(PODS, "p", NS)
                assert (await anext(events)).type == "ADDED"
            return [one.headers["authorization"] for one in server.seen]

    sent = run(scenario())
    assert sent == ["Bearer old"] * 5 + ["Bearer new"] * 6


def test_refused_credentials_are_not_read_again_and_again(reach):
    async def scenario():
        async with reach() as (server, client):
            server.token = "other"
            for _ in range(3):
                with pytest.raises(errors.UnauthorizedError, match="renew the token"):
                    await client.list(PODS, NS)
            with pytest.raises(errors.UnauthorizedError):
                await anext(client.watch(PODS, NS))
            return len(server.seen)

    assert run(scenario()) == 5


def test_a_watch_tells_changes_after_a_version(reach):
    async def scenario():
        async with reach() as (server, client):
            server.put(PODS, "before", NS)
            start = (await client.list(PODS, NS)).resource_version
            server.put(PODS, "p", NS, labels={"x": "1"})
            server.put(PODS, "q", NS)
            server.put(PODS, "p", "other", labels={"x": "1"})
            told = []
            async with aclosing(client.watch(PODS, NS, labels="x", resource_version=start)) as events:
                async for event in events:
                    told.append((event.type, event.object["metadata"].get("name"), event.resource_version))
                    if len(told) == 1:
                        server.put(PODS, "p", NS, labels={"x": "2"})
                        server.remove(PODS, "p", NS)
                        server.send_bookmarks()
                        server.end_watches()
            return told, server.seen[-1].query

    told, query = run(scenario())
    assert told == [("ADDED", "p", "102"), ("MODIFIED", "p", "105"), ("DELETED", "p", "106"), ("BOOKMARK", None, "106")]
    assert query["allowWatchBookmarks"] == "true"
    assert query["timeoutSeconds"] == "290"


def test_both_ways_to_say_that_a_version_is_too_old_are_one(reach):
    async def scenario():
        async with reach() as (server, client):
            server.put(PODS, "p", NS)
            gone = {"type": "ERROR", "object": status(410, "Expired", "too old resource version")}
            events = client.watch(PODS, NS, resource_version="101")
            waiting = asyncio.ensure_future(anext(events))
            await server.wait_for_watches(1)
            server.send_to_watches(json.dumps(gone).encode() + b"\n")
            with pytest.raises(errors.ExpiredVersionError):
                await waiting
            server.compact()
            with pytest.raises(errors.ExpiredVersionError):
                await anext(client.watch(PODS, NS, resource_version="100"))

    run(scenario())


def test_a_silent_watch_is_taken_for_dead(reach):
    async def scenario():
        async with reach() as (server, client):
            server.is_mute = True
            with pytest.raises(UnavailableError, match="no answer in time"):
                await anext(client.watch(PODS, NS, silence_seconds=0.05))

    run(scenario())


def test_an_event_of_a_megabyte_comes_whole_and_a_broken_one_is_told(reach):
    async def scenario():
        async with reach() as (server, client):
            server.put(PODS, "p", NS, spec={"env": "x" * 1_500_000})
            server.put(PODS, "q", NS)
            events = client.watch(PODS, NS)
            sizes = [len(json.dumps((await anext(events)).object)) for _ in range(2)]
            server.send_to_watches(b'{"type": "ADD\n')
            with pytest.raises(ProtocolError, match="no JSON"):
                await anext(events)
            return sizes

    assert [size > 1_000_000 for size in run(scenario())] == [True, False]


def test_a_log_is_read_from_a_moment_on(reach):
    async def scenario():
        async with reach() as (server, client):
            server.logs["p"] = b"2030-01-01T00:00:00Z hello\n"
            since = datetime(2030, 1, 1, tzinfo=UTC)
            read = [piece async for piece in client.read_log("p", NS, container="c", since_time=since, limit_bytes=9)]
            async with aclosing(client.read_log("p", NS, follow=True, tail_lines=0)) as pieces:
                followed = await anext(pieces)
            with pytest.raises(errors.ObjectGoneError):
                await anext(client.read_log("gone", NS))
            server.faults.append(Fault(204))
            assert [piece async for piece in client.read_log("on-no-node-yet", NS)] == []
            return b"".join(read), followed, [one.query for one in server.seen]

    read, followed, queries = run(scenario())
    assert read == followed == b"2030-01-01T00:00:00Z hello\n"
    assert queries[0] == {
        "container": "c", "timestamps": "true", "sinceTime": "2030-01-01T00:00:00.000000Z", "limitBytes": "9",
    }  # fmt: skip
    assert queries[1] == {"container": "node", "timestamps": "true", "follow": "true", "tailLines": "0"}


@pytest.mark.parametrize("name", ["../secrets", "a/b", "a?x", "", "ä"])
def test_what_is_no_name_never_reaches_a_path(reach, name):
    async def scenario():
        async with reach() as (server, client):
            with pytest.raises(SpecError):
                await client.get(PODS, name, NS)
            return server.seen

    assert run(scenario()) == []


def test_a_closed_client_says_so(reach):
    async def scenario():
        async with reach() as (_, client):
            await client.close()
            with pytest.raises(UnavailableError, match="the client is closed"):
                await client.list(PODS, NS)

    run(scenario())


@pytest.mark.parametrize(
    ("text", "settings", "field"),
    [
        (None, {}, "kubeconfig"),
        ("{", {}, "kubeconfig"),
        ("[]", {}, "kubeconfig"),
        ("{}", {}, "kubeconfig"),
        ("valid", {"context": "nowhere"}, "context"),
    ],
)
def test_a_kubeconfig_that_can_not_be_used_is_told_before_anything_is_asked(tmp_path, text, settings, field):
    path = tmp_path / "kubeconfig"
    if text == "valid":
        server = ApiServer()
        server.write_kubeconfig(tmp_path)
    elif text is not None:
        path.write_text(text)
    with pytest.raises(SpecError) as caught:
        run(open_client(KubeflowSettings(kubeconfig=str(path), **settings)))
    assert caught.value.field == field


def test_a_certificate_file_that_is_none_is_refused(tmp_path):
    path = tmp_path / "kubeconfig"
    cluster = {"server": "https://127.0.0.1:1", "certificate-authority": str(path)}
    config = {
        "current-context": "x", "users": [{"name": "u", "user": {}}], "clusters": [{"name": "c", "cluster": cluster}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    }  # fmt: skip
    path.write_text(json.dumps(config))
    with pytest.raises(RefusedError, match="certificates for https"):
        run(open_client(KubeflowSettings(kubeconfig=str(path))))


def test_a_pod_without_an_account_is_told(monkeypatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(RefusedError, match="service account"):
        run(open_client(KubeflowSettings()))


def test_a_credential_plugin_is_run_again_when_its_token_is_refused(tmp_path):
    token = tmp_path / "token"
    program = (
        "import json, pathlib; print(json.dumps({'apiVersion': 'client.authentication.k8s.io/v1', 'kind': "
        f"'ExecCredential', 'status': {{'token': pathlib.Path({str(token)!r}).read_text()}}}}))"
    )
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": sys.executable, "args": ["-c", program]}

    async def scenario():
        async with ApiServer() as server:
            server.write_kubeconfig(tmp_path)
            config = json.loads((tmp_path / "kubeconfig").read_text())
            config["users"][0]["user"] = {"exec": plugin}
            (tmp_path / "kubeconfig").write_text(json.dumps(config))
            server.token = "first"
            token.write_text("first")
            settings = KubeflowSettings(kubeconfig=str(tmp_path / "kubeconfig"), context="there")
            async with await open_client(settings) as client:
                await client.list(PODS, NS)
                server.token = "second"
                token.write_text("second")
                await client.list(PODS, NS)
            return [one.headers["authorization"] for one in server.seen]

    assert run(scenario()) == ["Bearer first", "Bearer first", "Bearer second"]
