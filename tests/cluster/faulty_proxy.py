# SPDX-License-Identifier: Apache-2.0
"""A proxy before the API server that lets requests go wrong as a test's script says.

Tests of faults put it between the server and a controller or an adapter, by the kubeconfig that it writes. It speaks
plain HTTP on the loopback and asks as whom it was made for, so nobody else may reach it. It runs in a thread with an
event loop of its own: what is tested may stand still meanwhile, or be killed. Never repeats or loses things by itself.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp import web
from kubernetes import config
from kubernetes.client import Configuration
from yarl import URL

BEGIN_TIMEOUT_SECONDS = 30.0
MOST_BYTES = 64 * 1024 * 1024
PASSED_ON = ("Accept", "Content-Type", "User-Agent")
"""The rest of a request's head belongs to the connection."""
_PATH = re.compile(r"/apis?/(?:[^/]+/)?v[^/]+/(?:namespaces/(?P<namespace>[^/]+)/)?(?P<resource>[^/]+)(?P<rest>/.*)?")


@dataclass(frozen=True, slots=True)
class Asked:
    """One request.

    :ivar resource: plural, with the subresource: ``workloads/status``.
    """

    method: str
    path: str
    body: str

    @property
    def namespace(self) -> str:
        return self._match("namespace")

    @property
    def resource(self) -> str:
        _, _, subresource = self._match("rest").removeprefix("/").partition("/")
        return "/".join(part for part in (self._match("resource"), subresource) if part)

    @property
    def is_write(self) -> bool:
        return self.method != "GET"

    def _match(self, group: str) -> str:
        match = _PATH.fullmatch(self.path)
        return (match[group] if match else "") or ""


def do_nothing() -> None:
    """Neither before nor after."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one request that isn't a watch.

    :param before: called before it is sent; may block.
    :param times: how often it is sent; the last answer counts. With 0 it is lost, unless there is a *status*.
    :param after: called once it was carried out, before the answer; may block.
    :param is_answered: else the connection breaks.
    :param status: of an answer made up instead of the server's.
    :param renames: what of the path is replaced by what.
    :param rewrites: what of the answer is replaced by what.
    :param delays_watches_seconds: for a watch alone: all that comes, comes later.
    """

    before: Callable[[], object] = do_nothing
    times: int = 1
    after: Callable[[], object] = do_nothing
    is_answered: bool = True
    status: int = 0
    renames: tuple[str, str] = ("", "")
    rewrites: tuple[str, str] = ("", "")
    delays_watches_seconds: float = 0.0


NO_FAULT = Fault()
Script = Callable[[Asked], Fault]
"""Says what happens to a request; called in the order in which they come."""


def let_pass(_asked: Asked) -> Fault:
    """No faults."""
    return NO_FAULT


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes
    content_type: str


class FaultyProxy:
    """Listens while its context lasts.

    :param kubeconfig: of whom it asks as.
    :param folder: for :attr:`kubeconfig`; exists already.
    :ivar kubeconfig: for whoever is to be reached by faults.
    :ivar script: may be replaced at any time.
    :ivar asked: all that was asked, watches left out, in order.
    """

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        self.kubeconfig = folder / "faulty-kubeconfig"
        self.script: Script = let_pass
        self.asked: list[Asked] = []
        self._settings = Configuration()
        config.load_kube_config(str(kubeconfig), client_configuration=self._settings)
        self._begun, self._over = threading.Event(), asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="faulty-proxy")

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._begun.wait(BEGIN_TIMEOUT_SECONDS) or self._failure is not None:
            raise RuntimeError("the proxy does not begin") from self._failure
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    def writes(self, namespace: str) -> list[Asked]:
        """Those of one namespace that were asked for, Events left out."""
        return [asked for asked in self.asked if is_write_to(asked, namespace)]

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except OSError as error:
            self._failure = error
        finally:
            self._begun.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        application = web.Application(client_max_size=MOST_BYTES)
        application.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        limits = aiohttp.ClientTimeout(total=None, connect=10)
        connector = aiohttp.TCPConnector(limit=0, ssl=self._build_tls())
        async with aiohttp.ClientSession(connector=connector, timeout=limits, auto_decompress=False) as self._session:
            await runner.setup()
            try:
                await web.TCPSite(runner, "127.0.0.1", 0).start()
                host, port = runner.addresses[0]
                self._write_kubeconfig(f"http://{host}:{port}")
                self._begun.set()
                await self._over.wait()
            finally:
                await runner.cleanup()

    def _build_tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self._settings.ssl_ca_cert)
        if self._settings.cert_file:
            context.load_cert_chain(self._settings.cert_file, self._settings.key_file)
        return context

    def _write_kubeconfig(self, server: str) -> None:
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "faulty",
            "contexts": [{"name": "faulty", "context": {"cluster": "faulty", "user": "nobody"}}],
            "clusters": [{"name": "faulty", "cluster": {"server": server}}],
            "users": [{"name": "nobody", "user": {}}],
        }
        self.kubeconfig.write_text(json.dumps(content))

    # -- requests ----------------------------------------------------------------------------------------------------

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        asked = Asked(request.method, request.path, body.decode())
        if "watch" in request.query or "follow" in request.query:
            return await self._stream(request, self.script(asked))
        self.asked.append(asked)
        fault = self.script(asked)
        await _call(fault.before)
        answer = _make_up(fault.status) if fault.status else None
        for _ in range(fault.times):
            answer = await self._send(request, body, fault)
        await _call(fault.after)
        if answer is None or not fault.is_answered:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        before, after = map(str.encode, fault.rewrites)
        body = answer.body.replace(before, after) if before else answer.body
        return web.Response(status=answer.status, body=body, headers={"Content-Type": answer.content_type})

    async def _send(self, request: web.Request, body: bytes, fault: Fault) -> _Answer:
        try:
            async with self._open(request, body, fault) as response:
                kind = response.headers.get("Content-Type", "application/json")
                return _Answer(response.status, await response.read(), kind)
        except aiohttp.ClientError as error:
            return _make_up(502, str(error))

    async def _stream(self, request: web.Request, fault: Fault) -> web.StreamResponse:
        try:
            async with self._open(request, b"", fault) as upstream:
                answer = web.StreamResponse(
                    status=upstream.status, headers={"Content-Type": upstream.headers.get("Content-Type", "")}
                )
                await answer.prepare(request)
                async for chunk in upstream.content.iter_any():
                    await asyncio.sleep(fault.delays_watches_seconds)
                    await answer.write(chunk)
                return answer
        except (aiohttp.ClientError, ConnectionResetError):
            # Either side has gone; the other one learns it.
            if request.transport is not None:
                request.transport.abort()
            return web.Response()

    def _open(
        self, request: web.Request, body: bytes, fault: Fault
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        headers = {name: request.headers[name] for name in PASSED_ON if name in request.headers}
        headers["Accept-Encoding"] = "identity"
        if token := next(iter(self._settings.api_key.values()), None):
            headers["Authorization"] = token
        path = request.raw_path.replace(*fault.renames) if fault.renames[0] else request.raw_path
        url = URL(self._settings.host.rstrip("/") + path, encoded=True)
        return self._session.request(request.method, url, data=body or None, headers=headers)


def is_write_to(asked: Asked, namespace: str) -> bool:
    """It changes an object of the namespace that counts: Events and Leases don't."""
    return asked.is_write and asked.namespace == namespace and asked.resource not in {"events", "leases"}


async def _call(action: Callable[[], object]) -> None:
    if action is not do_nothing:
        await asyncio.to_thread(action)


def _make_up(status: int, message: str = "made up by the proxy") -> _Answer:
    body = {
        "apiVersion": "v1",
        "kind": "Status",
        "status": "Failure",
        "code": status,
        "message": message,
        "reason": {409: "Conflict", 500: "InternalError"}.get(status, ""),
    }
    return _Answer(status, json.dumps(body).encode(), "application/json")
