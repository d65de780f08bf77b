# SPDX-License-Identifier: Apache-2.0
"""Requests to one API server over HTTP: JSON in and out, time limits on everything, credentials renewed when refused.

The client alone uses it. It knows no kind of object and nothing of jobs, and it imports nothing of the Kubernetes
client: the configuration that it is given may come from any version of that.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

import aiohttp

from airflow_provider_dispatch.adapters.kubeflow.errors import (
    ThrottledError,
    UnauthorizedError,
    translate_answer,
    translate_failure,
)
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.exceptions import DispatchError, ProtocolError, RefusedError, UnavailableError

MOST_REQUESTS_AT_ONCE = 64
MOST_THROTTLED_TRIES = 4
RENEWAL_PAUSE_SECONDS = 10.0
READ_BUFFER_BYTES = 2**21
"""An object may have 1.5 MiB, and comes as one line of a watch."""
JSON = "application/json"
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
"""JSON is YAML, too."""

Sleep = Callable[[float], Awaitable[None]]


class ConnectionSettings(Protocol):
    """What the Kubernetes client's configuration says; of all its versions."""

    host: str
    verify_ssl: bool
    ssl_ca_cert: str | None
    cert_file: str | None
    key_file: str | None
    tls_server_name: str | None
    disable_strict_ssl_verification: bool
    proxy: str | None
    proxy_headers: Mapping[str, str] | None

    async def auth_settings(self) -> Mapping[str, Mapping[str, str]]:
        """Headers of authentication, renewed where they must be."""
        ...


@dataclass(frozen=True, slots=True)
class Call:
    """One request.

    :param title: verb and object, as messages name it: ``read trainjobs dispatch/dj-x-s1``.
    :param api: the API it needs, for instance ``trainer.kubeflow.org/v1alpha1``.
    """

    method: str
    path: str
    title: str
    api: str = ""
    query: Mapping[str, str] = field(default_factory=dict)
    body: object = None
    content_type: str = JSON

    def __str__(self) -> str:
        return self.title

    @property
    def is_write(self) -> bool:
        """It changes something, unless it is only tried."""
        return self.method != "GET" and "dryRun" not in self.query

    @property
    def is_json_patch(self) -> bool:
        """Its body is a list of operations, which may be tests."""
        return self.content_type == JSON_PATCH


@dataclass(frozen=True, slots=True)
class _Connection:
    """A session and the credentials it goes with; replaced as one when they are renewed."""

    settings: ConnectionSettings
    session: aiohttp.ClientSession


class Transport:
    """Requests to one API server from one event loop.

    :param load: reads address and credentials anew, for instance a kubeconfig with its plugins.
    """

    def __init__(
        self,
        load: Callable[[], Awaitable[ConnectionSettings]],
        *,
        user_agent: str,
        timeout_seconds: float,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._load, self._user_agent, self._timeout_seconds, self._sleep = load, user_agent, timeout_seconds, sleep
        self._slots = asyncio.Semaphore(MOST_REQUESTS_AT_ONCE)
        self._renewing = asyncio.Lock()
        self._renewed_at = float("-inf")
        self._current: _Connection | None = None
        self._sessions: list[aiohttp.ClientSession] = []

    async def open(self) -> None:
        """Read address and credentials; asks the API server nothing.

        :raises SpecError: the settings name what isn't there.
        """
        if self._current is None:
            self._current = self._connect(await self._load())

    async def close(self) -> None:
        """End all requests."""
        self._current = None
        sessions, self._sessions = self._sessions, []
        for session in sessions:
            await session.close()

    async def send(self, call: Call) -> Raw:
        """Make a request and read its answer, at most the time-out long, waits for a busy server included.

        :raises DispatchError: see the module `errors`.
        """
        until = _clock() + self._timeout_seconds
        tries = 0
        while True:
            tries += 1
            try:
                return await self._send_renewing(call, until)
            except ThrottledError as error:
                # Nothing of it was carried out, so that writes may be repeated too.
                if tries >= MOST_THROTTLED_TRIES or _clock() + error.retry_after_seconds >= until:
                    raise
                await self._sleep(error.retry_after_seconds)

    async def stream(self, call: Call, *, silence_seconds: float) -> AsyncGenerator[bytes]:
        """The body of an endless answer, in pieces as they come.

        :param silence_seconds: longest time without a byte.
        :raises DispatchError: see the module `errors`; a broken or silent connection is an UnavailableError.
        """
        try:
            # A pod that is on no node yet has no log: 204, and no byte.
            async with self._open_stream(call, silence_seconds) as response:
                async for chunk in response.content.iter_any():
                    yield chunk
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise translate_failure(call, error) from error

    async def _send_renewing(self, call: Call, until: float) -> Raw:
        connection = self._get_connection(call)
        try:
            return await self._send_once(connection, call, until)
        except UnauthorizedError:
            if not await self._renew(connection):
                raise
        return await self._send_once(self._get_connection(call), call, until)

    async def _send_once(self, connection: _Connection, call: Call, until: float) -> Raw:
        try:
            async with asyncio.timeout_at(until):
                await self._slots.acquire()
        except TimeoutError as error:
            raise UnavailableError(f"can't {call}: too many requests wait for the API server; try again") from error
        try:
            left = max(until - _clock(), 0.001)
            limits = aiohttp.ClientTimeout(total=left, connect=max(left / 2, 0.001))
            async with await self._request(connection, call, limits) as response:
                return await _read_json(call, response)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise translate_failure(call, error) from error
        finally:
            self._slots.release()

    @asynccontextmanager
    async def _open_stream(self, call: Call, silence_seconds: float) -> AsyncIterator[aiohttp.ClientResponse]:
        connection = self._get_connection(call)
        response = await self._begin_stream(connection, call, silence_seconds)
        try:
            if response.status in {401, 403} and await self._renew(connection):
                response.close()
                response = await self._begin_stream(self._get_connection(call), call, silence_seconds)
            if response.status not in {200, 204}:
                raise await _read_refusal(call, response)
            yield response
        finally:
            # Never back to the pool: the rest of an endless answer would still come.
            response.close()

    async def _begin_stream(
        self, connection: _Connection, call: Call, silence_seconds: float
    ) -> aiohttp.ClientResponse:
        limits = aiohttp.ClientTimeout(total=None, connect=self._timeout_seconds / 2, sock_read=silence_seconds)
        async with asyncio.timeout(self._timeout_seconds):
            return await self._request(connection, call, limits)

    async def _request(
        self, connection: _Connection, call: Call, limits: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        settings = connection.settings
        headers = {"User-Agent": self._user_agent, "Accept": JSON if call.method != "GET" else f"{JSON}, */*"}
        headers |= await _build_auth_headers(call, settings)
        if call.body is not None:
            headers["Content-Type"] = call.content_type
        try:
            return await connection.session.request(
                call.method,
                settings.host.rstrip("/") + call.path,
                params=dict(call.query),
                data=None if call.body is None else json.dumps(call.body, separators=(",", ":")).encode(),
                headers=headers,
                timeout=limits,
                allow_redirects=False,
                proxy=settings.proxy,
                proxy_headers=settings.proxy_headers,
                server_hostname=settings.tls_server_name,
            )
        except aiohttp.InvalidURL:
            # Its own words are the address, that of a proxy perhaps, with a password in it.
            problem = "the API server's address, or its proxy's, is none"
            raise RefusedError(f"can't {call}: {problem}; mend the address in the kubeconfig") from None

    def _get_connection(self, call: Call) -> _Connection:
        if self._current is None:
            raise UnavailableError(f"can't {call}: the client is closed")
        return self._current

    async def _renew(self, used: _Connection) -> bool:
        """Read the credentials again, once for all that were refused; False when that was done just now."""
        async with self._renewing:
            if self._current is not used:
                return self._current is not None
            if _clock() < self._renewed_at + RENEWAL_PAUSE_SECONDS:
                return False
            self._renewed_at = _clock()
            settings = await self._load()
            if _needs_new_session(used.settings, settings):
                # The old session goes on: watches may run in it.
                self._current = self._connect(settings)
            else:
                self._current = _Connection(settings, used.session)
            return True

    def _connect(self, settings: ConnectionSettings) -> _Connection:
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=_build_tls(settings)),
            trust_env=True,
            read_bufsize=READ_BUFFER_BYTES,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        self._sessions.append(session)
        return _Connection(settings, session)


def _clock() -> float:
    return asyncio.get_running_loop().time()


async def _build_auth_headers(call: Call, settings: ConnectionSettings) -> dict[str, str]:
    try:
        auth = await settings.auth_settings()
    except (OSError, ValueError, LookupError) as error:
        raise UnavailableError(f"can't {call}: the credentials can't be read ({error})") from error
    # A token that was read from a file may end with a line feed.
    return {item["key"]: item["value"].strip() for item in auth.values() if item["in"] == "header" and item["value"]}


def _needs_new_session(old: ConnectionSettings, new: ConnectionSettings) -> bool:
    # The same files may hold other certificates: what has any gets a session of its own.
    return bool(new.cert_file) or (old.verify_ssl, old.ssl_ca_cert) != (new.verify_ssl, new.ssl_ca_cert)


def _build_tls(settings: ConnectionSettings) -> ssl.SSLContext:
    """
    :raises RefusedError: a certificate can't be used.
    """
    try:
        context = ssl.create_default_context(cafile=settings.ssl_ca_cert)
        if settings.cert_file:
            context.load_cert_chain(settings.cert_file, keyfile=settings.key_file)
    except OSError as error:
        raise RefusedError(
            f"the certificates for {settings.host} can't be used: {error}; mend the kubeconfig"
        ) from error
    if not settings.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if settings.disable_strict_ssl_verification:
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


async def _read_json(call: Call, response: aiohttp.ClientResponse) -> Raw:
    if not 200 <= response.status <= 299:
        raise await _read_refusal(call, response)
    try:
        answer = json.loads(await response.read())
    except ValueError as error:
        raise ProtocolError(
            f"can't {call}: the answer is no JSON; something else than an API server answers"
        ) from error
    if not isinstance(answer, dict):
        raise ProtocolError(f"can't {call}: the answer is no object; something else than an API server answers")
    return answer


async def _read_refusal(call: Call, response: aiohttp.ClientResponse) -> DispatchError:
    """What stands between us and an API server may send back the request that it got, credentials included."""
    body = await response.read()
    sent = response.request_info.headers.get("Authorization", "").rpartition(" ")[2]
    said = body.replace(sent.encode(), b"(hidden)") if sent else body
    return translate_answer(call, response.status, said, response.headers)
