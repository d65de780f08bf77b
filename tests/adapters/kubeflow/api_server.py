# SPDX-License-Identifier: Apache-2.0
"""An API server of its own kind on the loopback: objects in memory, and every way in which a real one fails to answer.

It is there to test how requests are made and repeated, nothing else: it runs no controller, checks no schema and grants
every right. What a real cluster does with objects, only a real cluster can tell.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

from aiohttp import web

from airflow_provider_dispatch.adapters.kubeflow.model.fields import dig
from airflow_provider_dispatch.adapters.kubeflow.model.resources import Resource

T = TypeVar("T")
Raw = dict[str, Any]


TURNS_OF_AN_ACCEPT = 5
"""Of the loop: what was accepted just before has its transport by then, and is closed with the others."""


@dataclass(frozen=True)
class Seen:
    """A request as it came in."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any

    @property
    def is_watch(self) -> bool:
        return "watch" in self.query


@dataclass
class Fault:
    """What happens to a request instead of its being answered.

    :param is_carried_out: the request is carried out and only its answer lost.
    :param status: answered with; 0 drops the connection.
    :param hangs: there is no answer until the server ends.
    """

    status: int = 0
    body: Raw | str = ""
    headers: dict[str, str] = field(default_factory=dict)
    is_carried_out: bool = False
    hangs: bool = False
    method: str = ""
    part_of_path: str = ""
    times: int = 1

    def fits(self, seen: Seen) -> bool:
        return self.times > 0 and self.method in {"", seen.method} and self.part_of_path in seen.path


@dataclass(frozen=True)
class Address:
    """A path of the API, taken apart."""

    api: str
    namespace: str
    plural: str
    name: str = ""
    subresource: str = ""

    @classmethod
    def parse(cls, path: str) -> Address | None:
        parts = path.strip("/").split("/")
        head = 2 if parts[0] == "api" else 3
        api, rest = "/".join(parts[1:head]), parts[head:]
        namespace = ""
        if len(rest) > 2 and rest[0] == "namespaces":
            namespace, rest = rest[1], rest[2:]
        return cls(api, namespace, *rest[:3]) if api and rest else None

    def covers(self, key: Key) -> bool:
        return key[0] == self.api and key[2] == self.plural and self.namespace in {"", key[1]}


Key = tuple[str, str, str, str]
"""API, namespace, plural, name."""


@dataclass(frozen=True)
class Change:
    version: int
    type: str
    key: Key
    object: Raw


def status(code: int, reason: str, message: str = "", **details: Any) -> Raw:
    """The body of an error."""
    return {
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message,
        "details": details,
    }  # fmt: skip


class ApiServer:
    """Serves while it is entered. Changes made by its methods are told to watches like those of clients."""

    def __init__(self) -> None:
        self.objects: dict[Key, Raw] = {}
        self.logs: dict[str, bytes] = {}
        self.served: set[str] = set()
        self.seen: list[Seen] = []
        self.faults: list[Fault] = []
        self.token = ""
        self.is_mute = False
        """Open watches hear of nothing."""
        self.oldest = 0
        self.url = ""
        self._version = 100
        self._changes: list[Change] = []
        self._watches: dict[asyncio.Queue[bytes | Change | None], Address] = {}
        self._ended, self._moved = asyncio.Event(), asyncio.Event()
        self._uids = (str(uuid.UUID(int=number)) for number in itertools.count(1))

    async def __aenter__(self) -> Self:
        server = web.Server(self._serve, handler_cancellation=True)
        self._runner = web.ServerRunner(server, shutdown_timeout=0.1)
        await self._runner.setup()
        self._site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await self._site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._ended.set()
        self.end_watches()
        if self._site in self._runner.sites:  # a test may have ended it before
            await self._site.stop()
        for _ in range(TURNS_OF_AN_ACCEPT):
            await asyncio.sleep(0)
        await self._runner.cleanup()

    def write_kubeconfig(self, folder: Path, token: str = "letmein") -> str:
        """A kubeconfig of this server; context ``there``."""
        path = folder / "kubeconfig"
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "there",
            "clusters": [{"name": "c", "cluster": {"server": self.url}}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "there", "context": {"cluster": "c", "user": "u"}}],
        }  # fmt: skip
        path.write_text(json.dumps(config))
        return str(path)

    # -- what happens in the cluster -------------------------------------------------------------------------------

    def put(self, resource: Resource, name: str, namespace: str = "", *, labels: Raw | None = None, **rest: Any) -> Raw:
        """Create or replace an object; it keeps its UID when it was there."""
        key = (resource.api_version, namespace, resource.plural, name)
        old = self.objects.get(key, {}).get("metadata", {})
        metadata = {"name": name, "uid": old.get("uid") or next(self._uids)}
        metadata |= ({"namespace": namespace} if namespace else {}) | ({"labels": labels} if labels else {})
        metadata |= rest.pop("metadata", {})
        raw = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **rest}
        return self._store(key, raw)

    def remove(self, resource: Resource, name: str, namespace: str = "") -> None:
        self._remove((resource.api_version, namespace, resource.plural, name))

    def lose(self, resource: Resource, name: str, namespace: str = "") -> None:
        """An object goes, and no watch will ever tell."""
        del self.objects[(resource.api_version, namespace, resource.plural, name)]

    def compact(self) -> None:
        """Forget all history: an older version can't be watched any more."""
        self.oldest = self._version

    def send_bookmarks(self, version: int | None = None) -> None:
        raw = {"metadata": {"resourceVersion": str(version or self._version)}}
        self._tell(json.dumps({"type": "BOOKMARK", "object": raw}).encode() + b"\n")

    def send_to_watches(self, line: bytes, plural: str = "") -> None:
        """A line of any kind, to the watches of one kind or of all."""
        self._tell(line, plural)

    def end_watches(self) -> None:
        self._tell(None)

    @property
    def watches(self) -> int:
        """How many are open."""
        return len(self._watches)

    async def wait_for_watches(self, number: int) -> None:
        """Until so many are open, or so few."""
        await self._wait(lambda: len(self._watches) >= number if number else not self._watches)

    async def wait_for_requests(
        self, number: int, part_of_path: str = "", *, watches: bool = False, patience_seconds: float = 20
    ) -> None:
        """Until so many have come in."""
        await self._wait(lambda: self.count(part_of_path, watches=watches) >= number, patience_seconds)

    async def _wait(self, holds: Callable[[], bool], patience_seconds: float = 20) -> None:
        async with asyncio.timeout(patience_seconds):
            while not holds():
                self._moved.clear()
                await self._moved.wait()

    def count(self, part_of_path: str = "", *, watches: bool = False) -> int:
        """Requests seen; of watches, or of anything else."""
        return sum(part_of_path in seen.path and seen.is_watch == watches for seen in self.seen)

    def _store(self, key: Key, raw: Raw) -> Raw:
        self._version += 1
        raw["metadata"]["resourceVersion"] = str(self._version)
        kind = "MODIFIED" if key in self.objects else "ADDED"
        self.objects[key] = raw
        self._note(kind, key, raw)
        return raw

    def _remove(self, key: Key) -> Raw:
        self._version += 1
        raw = copy.deepcopy(self.objects.pop(key))
        raw["metadata"]["resourceVersion"] = str(self._version)
        self._note("DELETED", key, raw)
        return raw

    def _note(self, kind: str, key: Key, raw: Raw) -> None:
        change = Change(self._version, kind, key, copy.deepcopy(raw))
        self._changes.append(change)
        self._tell(change)

    def _tell(self, what: bytes | Change | None, plural: str = "") -> None:
        if self.is_mute and what is not None:
            return
        for queue, address in self._watches.items():
            if plural in {"", address.plural}:
                queue.put_nowait(what)

    # -- answers ---------------------------------------------------------------------------------------------------

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        seen = Seen(
            request.method,
            request.path,
            dict(request.query),
            {name.lower(): value for name, value in request.headers.items()},
            json.loads(body) if body else None,
        )
        self.seen.append(seen)
        self._moved.set()
        fault = next((fault for fault in self.faults if fault.fits(seen)), None)
        if fault is None:
            return await self._answer(request, seen)
        fault.times -= 1
        if fault.is_carried_out:
            await self._answer(request, seen)
        if fault.hangs:
            await self._ended.wait()
        if fault.status == 0:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        text = fault.body if isinstance(fault.body, str) else json.dumps(fault.body)
        return web.Response(status=fault.status, text=text, headers=fault.headers)

    async def _answer(self, request: web.BaseRequest, seen: Seen) -> web.StreamResponse:
        if self.token and seen.headers.get("authorization") != f"Bearer {self.token}":
            return _refuse(401, "Unauthorized", "Unauthorized")
        if seen.path == "/version":
            return web.json_response({"gitVersion": "v1.35.4"})
        address = Address.parse(seen.path)
        if address is None:
            kinds = sorted({key[2] for key in self.objects if seen.path.endswith(f"/{key[0]}")})
            return (
                web.json_response({"resources": [{"name": kind} for kind in kinds]})
                if kinds
                else web.Response(status=404)
            )
        if self.served and address.plural not in self.served:
            return web.Response(status=404, text="404 page not found\n")
        if address.subresource == "log":
            return await self._answer_log(request, seen, address)
        if seen.is_watch:
            return await self._watch(request, seen, address)
        answers: dict[str, Callable[[Seen, Address], web.Response]] = {
            "GET": self._get if address.name else self._list,
            "POST": self._create, "PATCH": self._patch, "DELETE": self._delete,
        }  # fmt: skip
        return answers[seen.method](seen, address)

    def _get(self, seen: Seen, address: Address) -> web.Response:
        raw = self.objects.get(_key(address))
        return web.json_response(raw) if raw is not None else _not_found(address)

    def _list(self, seen: Seen, address: Address) -> web.Response:
        token = seen.query.get("continue", "")
        if token and int(token.partition(":")[0]) < self.oldest:
            return _refuse(410, "Expired", "The provided continue parameter is too old")
        found = [raw for key, raw in self.objects.items() if address.covers(key) and _fits(raw, seen.query)]
        start = int(token.partition(":")[2] or 0)
        end = start + int(seen.query.get("limit") or len(found) + 1)
        metadata = {"resourceVersion": str(self._version)}
        if end < len(found):
            metadata["continue"] = f"{self._version}:{end}"
        items = [{key: value for key, value in raw.items() if key not in {"kind", "apiVersion"}} for raw in found]
        return web.json_response({"kind": "List", "metadata": metadata, "items": items[start:end]})

    def _create(self, seen: Seen, address: Address) -> web.Response:
        raw = copy.deepcopy(seen.body)
        name = raw.get("metadata", {}).get("name") or next(self._uids)
        key = (address.api, address.namespace, address.plural, name)
        if key in self.objects:
            return _refuse(409, "AlreadyExists", f"{name} already exists", name=name, kind=address.plural)
        raw.setdefault("metadata", {}).update(name=name, uid=next(self._uids))
        return web.json_response(raw if "dryRun" in seen.query else self._store(key, raw), status=201)

    def _patch(self, seen: Seen, address: Address) -> web.Response:
        old = self.objects.get(_key(address))
        if old is None:
            return _not_found(address)
        new = copy.deepcopy(old)
        if seen.headers["content-type"] == "application/json-patch+json":
            if not all(_carry_out(new, operation) for operation in seen.body):
                return _refuse(422, "Invalid", "the server rejected our request due to an error in our request")
        elif seen.headers["content-type"] == "application/merge-patch+json":
            _merge(new, seen.body)
        else:
            return web.Response(status=415)
        if new["metadata"].get("resourceVersion") != old["metadata"]["resourceVersion"]:
            return _refuse(409, "Conflict", "the object has been modified", name=address.name, kind=address.plural)
        return web.json_response(new if "dryRun" in seen.query else self._store(_key(address), new))

    def _delete(self, seen: Seen, address: Address) -> web.Response:
        raw = self.objects.get(_key(address))
        if raw is None:
            return _not_found(address)
        wanted = (seen.body or {}).get("preconditions", {}).get("uid", raw["metadata"]["uid"])
        if wanted != raw["metadata"]["uid"]:
            return _refuse(409, "Conflict", "the UID in the precondition does not match", name=address.name)
        return web.json_response(self._remove(_key(address)))

    async def _answer_log(self, request: web.BaseRequest, seen: Seen, address: Address) -> web.StreamResponse:
        if address.name not in self.logs:
            return _not_found(address)
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(self.logs[address.name])
        if seen.query.get("follow"):
            await self._ended.wait()
        return response

    async def _watch(self, request: web.BaseRequest, seen: Seen, address: Address) -> web.StreamResponse:
        since = int(seen.query.get("resourceVersion") or 0)
        if since < self.oldest:
            return _refuse(410, "Expired", f"too old resource version: {since}")
        response = web.StreamResponse()
        await response.prepare(request)
        async with self._join_watches(address) as queue:
            for change in self._changes:
                if change.version > since:
                    queue.put_nowait(change)
            while (what := await queue.get()) is not None:
                line = what if isinstance(what, bytes) else _build_line(what, seen, address)
                if line:
                    await response.write(line)
        return response

    @asynccontextmanager
    async def _join_watches(self, address: Address) -> AsyncIterator[asyncio.Queue[bytes | Change | None]]:
        queue: asyncio.Queue[bytes | Change | None] = asyncio.Queue()
        self._watches[queue] = address
        self._moved.set()
        try:
            yield queue
        finally:
            del self._watches[queue]
            self._moved.set()


def _key(address: Address) -> Key:
    return (address.api, address.namespace, address.plural, address.name)


def _refuse(code: int, reason: str, message: str, **details: Any) -> web.Response:
    return web.json_response(status(code, reason, message, **details), status=code)


def _not_found(address: Address) -> web.Response:
    return _refuse(404, "NotFound", f"{address.name} not found", name=address.name, kind=address.plural)


def _build_line(change: Change, seen: Seen, address: Address) -> bytes:
    if not address.covers(change.key) or not _fits(change.object, seen.query):
        return b""
    return json.dumps({"type": change.type, "object": change.object}).encode() + b"\n"


def _fits(raw: Raw, query: dict[str, str]) -> bool:
    labels = raw["metadata"].get("labels", {})
    terms = (term.partition("=") for term in query.get("labelSelector", "").split(",") if term)
    if not all(key in labels and (not sign or labels[key] == value) for key, sign, value in terms):
        return False
    path, _, value = query.get("fieldSelector", "").partition("=")
    return not path or dig(raw, *path.split(".")) == value


def _carry_out(raw: Raw, operation: Raw) -> bool:
    *way, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].strip("/").split("/")]
    target: Any = raw
    for part in way:
        target = target[int(part)] if isinstance(target, list) else target.get(part)
        if target is None:
            return False
    match operation["op"]:
        case "test":
            return bool(target.get(last) == operation["value"])
        case "remove":
            return target.pop(last, None) is not None
        case "replace" if last not in target:
            return False
    target[last] = operation["value"]
    return True


def _merge(raw: Raw, patch: Raw) -> None:
    for key, value in patch.items():
        if value is None:
            raw.pop(key, None)
        elif isinstance(value, dict):
            _merge(raw.setdefault(key, {}), value)
        else:
            raw[key] = value


def run(scenario: Coroutine[Any, Any, T]) -> T:
    """To its end, which must come."""
    return asyncio.run(asyncio.wait_for(scenario, 30))
