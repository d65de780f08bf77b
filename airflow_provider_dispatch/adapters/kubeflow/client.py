# SPDX-License-Identifier: Apache-2.0
"""Objects of a cluster, read and written as plain mappings.

The adapter, its watch and the controller use it. It knows nothing of jobs and keeps no cache. Importing it costs a
second, because of the Kubernetes client beneath: nothing that a DAG file imports may do so.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from airflow_provider_dispatch.adapters.kubeflow.credentials import load_connection
from airflow_provider_dispatch.adapters.kubeflow.errors import (
    ExpiredVersionError,
    ObjectGoneError,
    StaleObjectError,
    translate_event,
)
from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.fields import Raw
from airflow_provider_dispatch.adapters.kubeflow.model.resources import PODS, Resource
from airflow_provider_dispatch.adapters.kubeflow.settings import KubeflowSettings
from airflow_provider_dispatch.adapters.kubeflow.transport import (
    APPLY_PATCH,
    JSON,
    JSON_PATCH,
    MERGE_PATCH,
    Call,
    ConnectionSettings,
    Sleep,
    Transport,
)
from airflow_provider_dispatch.exceptions import (
    CapabilityError,
    ProtocolError,
    SpecError,
    cut_text,
)

PAGE_SIZE = 250
"""Reading a page stops the event loop for some ten milliseconds."""
WATCH_SECONDS = 290
"""The server ends a watch after this time, and we begin another."""
SILENCE_SECONDS = 150.0
"""A healthy watch brings a bookmark each minute; one that is silent for longer is taken for dead."""
LOG_SILENCE_SECONDS = 300.0
"""A process may say nothing for longer; but a dead connection can't be told from one that is quiet."""
USER_AGENT = "airflow-provider-dispatch"

_SEGMENT = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._:]{0,252}")


@dataclass(frozen=True, slots=True)
class ObjectList:
    """A collection at one moment."""

    items: tuple[Raw, ...]
    resource_version: str


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """A change.

    :param type: ``ADDED``, ``MODIFIED``, ``DELETED`` or ``BOOKMARK``; an ``ERROR`` is raised instead.
    """

    type: str
    object: Raw

    @property
    def resource_version(self) -> str:
        """Where a later watch may go on."""
        return fields.text(self.object, "metadata", "resourceVersion")


async def open_client(
    settings: KubeflowSettings, *, user_agent: str = USER_AGENT, sleep: Sleep = asyncio.sleep
) -> KubeClient:
    """A client for the running event loop. Asks the API server nothing yet.

    :raises SpecError: kubeconfig or context isn't there or can't be read.
    :raises RefusedError: its certificates or credential plugin don't work.
    """

    async def load() -> ConnectionSettings:
        return await load_connection(settings)

    transport = Transport(load, user_agent=user_agent, timeout_seconds=settings.request_timeout_seconds, sleep=sleep)
    await transport.open()
    return KubeClient(transport, write_timeout_seconds=settings.request_timeout_seconds)


class KubeClient:
    """Reads and writes of one event loop; as context manager it closes itself.

    Every method raises errors of the contract alone; the module `errors` says which.
    """

    def __init__(self, transport: Transport, *, write_timeout_seconds: float) -> None:
        self._transport = transport
        self._write_limit = f"{max(1, round(write_timeout_seconds))}s"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End all requests and watches."""
        await self._transport.close()

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Raw | None:
        """One object; None when there is none of that name."""
        try:
            return await self._transport.send(_build_call("GET", "read", _Target(resource, namespace, name)))
        except ObjectGoneError:
            return None

    async def list(
        self, resource: Resource, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> ObjectList:
        """All objects that the selectors match, as they are now, not as some cache has them.

        :param namespace: None means all.
        """
        query = _drop_empty({"labelSelector": labels, "fieldSelector": fields})
        try:
            return await self._list(resource, namespace, query | {"limit": str(PAGE_SIZE)})
        except ExpiredVersionError:
            # The pages took too long. All at once can't expire.
            return await self._list(resource, namespace, query)

    async def create(
        self, resource: Resource, body: Raw, namespace: str | None = None, *, dry_run: bool = False
    ) -> Raw:
        """A new object as the server has stored it. A field that it doesn't know is an error, not left out.

        :raises AlreadyExistsError: there is one of that name.
        :raises AnswerLostError: it may have been created.
        """
        query = self._build_write_query(dry_run) | {"fieldValidation": "Strict"}
        call = _build_call("POST", "create", _Target(resource, namespace, fields.name(body)), query=query, body=body)
        return await self._transport.send(call)

    async def patch(
        self,
        resource: Resource,
        name: str,
        patch: Raw | Sequence[Raw],
        namespace: str | None = None,
        *,
        subresource: str = "",
        dry_run: bool = False,
    ) -> Raw:
        """Change an object: a mapping is merged, a list is carried out as JSON patch. The object after it.

        :raises StaleObjectError: its ``metadata.resourceVersion`` isn't that of the patch, or a test of it failed.
        :raises ObjectGoneError: there is none.
        :raises AnswerLostError: it may have been carried out.
        """
        call = _build_call(
            "PATCH",
            "change",
            _Target(resource, namespace, name, subresource),
            query=self._build_write_query(dry_run),
            body=dict(patch) if isinstance(patch, Mapping) else list(patch),
            content_type=MERGE_PATCH if isinstance(patch, Mapping) else JSON_PATCH,
        )
        return await self._transport.send(call)

    async def apply(self, resource: Resource, body: Raw, namespace: str | None = None, *, dry_run: bool = False) -> Raw:
        """Make an object, or make it as the body says: what we applied earlier and isn't there any more is taken away.

        What somebody else has set differently becomes ours. The object after it.

        :raises AnswerLostError: it may have been carried out; asking again does no harm.
        """
        call = _build_call(
            "PATCH",
            "apply",
            _Target(resource, namespace, fields.name(body)),
            query=self._build_write_query(dry_run) | {"force": "true", "fieldValidation": "Strict"},
            body=dict(body),
            content_type=APPLY_PATCH,
        )
        return await self._transport.send(call)

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str = "",
        resource_version: str = "",
        grace_period_seconds: int | None = None,
    ) -> bool:
        """Ask for an object to be removed with all it owns, in the background.

        :param uid: only if it is this one.
        :param resource_version: only if nobody has changed it since.
        :return: False when there is none, or another under that name, or one that has changed.
        :raises AnswerLostError: it may have been carried out; asking again does no harm.
        """
        options: dict[str, object] = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if judged := _drop_empty({"uid": uid, "resourceVersion": resource_version}):
            options["preconditions"] = judged
        if grace_period_seconds is not None:
            options["gracePeriodSeconds"] = grace_period_seconds
        query = {"timeout": self._write_limit}
        call = _build_call("DELETE", "delete", _Target(resource, namespace, name), query=query, body=options)
        try:
            await self._transport.send(call)
        except (ObjectGoneError, StaleObjectError):
            return False
        return True

    async def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str = "",
        resource_version: str = "",
        timeout_seconds: int = WATCH_SECONDS,
        silence_seconds: float = SILENCE_SECONDS,
    ) -> AsyncGenerator[WatchEvent]:
        """Changes after a resource version, bookmarks included, until the server ends it. Close it when leaving early.

        :param resource_version: of a list or event; without, it begins with all objects as ADDED.
        :param timeout_seconds: when the server shall end it.
        :param silence_seconds: without a byte for so long, it is taken for dead.
        :raises ExpiredVersionError: the version is too old; told by the server in either of its two ways.
        :raises UnavailableError: broken or silent.
        """
        query = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(timeout_seconds)}
        query |= _drop_empty({"labelSelector": labels, "resourceVersion": resource_version})
        call = _build_call("GET", "watch", _Target(resource, namespace), query=query)
        stream = self._transport.stream(call, silence_seconds=silence_seconds)
        async with aclosing(stream) as chunks, aclosing(_split_lines(chunks)) as lines:
            async for line in lines:
                yield _read_event(call, line)

    async def read_log(
        self,
        pod: str,
        namespace: str,
        *,
        container: str = words.NODE_CONTAINER,
        since_time: datetime | None = None,
        follow: bool = False,
        limit_bytes: int | None = None,
        tail_lines: int | None = None,
    ) -> AsyncGenerator[bytes]:
        """Pieces of a container's log with a time stamp at each line. Close it when leaving early.

        :param since_time: the API looks at whole seconds only.
        :raises ObjectGoneError: there is no such pod.
        :raises RefusedError: its container has not begun, or there is none of that name.
        :raises UnavailableError: broken, or silent for five minutes; go on from the last line.
        """
        query = {"container": container, "timestamps": "true", "follow": "true" if follow else ""}
        query |= {"sinceTime": fields.format_time(since_time) if since_time is not None else ""}
        query |= {"limitBytes": str(limit_bytes or ""), "tailLines": "" if tail_lines is None else str(tail_lines)}
        call = _build_call("GET", "read the log of", _Target(PODS, namespace, pod, "log"), query=_drop_empty(query))
        async with aclosing(self._transport.stream(call, silence_seconds=LOG_SILENCE_SECONDS)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def version(self) -> str:
        """Version of Kubernetes, for instance ``v1.35.4``."""
        return fields.text(await self._transport.send(Call("GET", "/version", "read the version")), "gitVersion")

    async def is_served(self, resource: Resource) -> bool:
        """Whether the cluster has this kind in this version."""
        path = f"/apis/{resource.api_version}" if resource.group else f"/api/{resource.version}"
        answer = await self._discover(Call("GET", path, f"read the kinds of {resource.api_version}"))
        return any(fields.text(item, "name") == resource.plural for item in fields.items(answer, "resources"))

    async def list_versions(self, group: str) -> tuple[str, ...]:
        """Versions of a group that the cluster serves, the preferred one first; none when it has no such group."""
        answer = await self._discover(Call("GET", f"/apis/{group}", f"read the versions of {group}"))
        return tuple(fields.text(item, "version") for item in fields.items(answer, "versions"))

    async def _discover(self, call: Call) -> Raw:
        try:
            return await self._transport.send(call)
        except CapabilityError:
            return {}

    async def _list(self, resource: Resource, namespace: str | None, query: Mapping[str, str]) -> ObjectList:
        found: list[Raw] = []
        token = ""
        while True:
            page = {**query, **_drop_empty({"continue": token})}
            answer = await self._transport.send(_build_call("GET", "list", _Target(resource, namespace), query=page))
            # The server leaves out of each item what the list's own kind implies.
            head = {"apiVersion": resource.api_version, "kind": resource.kind}
            found += ({**head, **item} for item in fields.items(answer, "items"))
            token = fields.text(answer, "metadata", "continue")
            if not token:
                return ObjectList(tuple(found), fields.text(answer, "metadata", "resourceVersion"))

    def _build_write_query(self, dry_run: bool) -> dict[str, str]:  # noqa: FBT001 — handed on from a keyword of that name
        # The server gives up when we do: a write that we no longer wait for must not come later.
        query = {"fieldManager": words.FIELD_MANAGER, "timeout": self._write_limit}
        return query | ({"dryRun": "All"} if dry_run else {})


@dataclass(frozen=True, slots=True)
class _Target:
    resource: Resource
    namespace: str | None = None
    name: str | None = None
    subresource: str = ""

    def __str__(self) -> str:
        resource = self.resource
        kind = f"{resource.plural}.{resource.group}" if resource.group else resource.plural
        where = "/".join(part for part in (self.namespace, self.name) if part)
        return f"{kind} {where}" if where else kind


def _build_call(
    method: str,
    verb: str,
    target: _Target,
    *,
    query: Mapping[str, str] | None = None,
    body: object = None,
    content_type: str = JSON,
) -> Call:
    for field, value in (("namespace", target.namespace), ("name", target.name)):
        if value and not _SEGMENT.fullmatch(value):
            raise SpecError(field, "is no name of a Kubernetes object", value)
    resource, name = target.resource, None if method == "POST" else target.name
    if name == "":
        raise SpecError("name", f"is empty; can't {verb} {target}")
    path = resource.path(target.namespace, name, target.subresource)
    return Call(method, path, f"{verb} {target}", resource.api_version, query or {}, body, content_type)


def _drop_empty(query: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in query.items() if value}


async def _split_lines(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line:
                yield line


def _read_event(call: Call, line: bytes) -> WatchEvent:
    try:
        event = json.loads(line)
    except ValueError as error:
        raise ProtocolError(f"can't {call}: a line of it is no JSON: {cut_text(repr(line), 120)}") from error
    kind, raw = fields.text(event, "type"), fields.mapping(event, "object")
    if kind == "ERROR":
        raise translate_event(call, raw)
    return WatchEvent(kind, raw)
