# SPDX-License-Identifier: Apache-2.0
"""An API server in a dictionary: what the verbs of the adapter need of one, for tests of their order and idempotence.

It keeps resource versions and UIDs, knows JSON and merge patches, and lets a test fail any request before or after it
was carried out. No validation, no webhooks, no controllers: a test adds those it needs as reactions.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_dispatch.adapters.kubeflow.client import KubeClient, ObjectList, WatchEvent
from airflow_provider_dispatch.adapters.kubeflow.errors import AlreadyExistsError, ObjectGoneError, StaleObjectError
from airflow_provider_dispatch.adapters.kubeflow.model.resources import ACCESS_REVIEWS, USER_REVIEWS, Resource
from airflow_provider_dispatch.exceptions import RefusedError

Object = dict[str, Any]
Key = tuple[Resource, str, str]
Reaction = Callable[["MemoryClient", str, Resource, Object], None]


@dataclass
class Request:
    """A request that was made."""

    verb: str
    resource: Resource
    name: str = ""
    is_dry_run: bool = False


@dataclass
class Fault:
    """An error for the next request that fits; *is_late* carries the request out and loses its answer."""

    verb: str
    resource: Resource
    error: Exception
    is_late: bool = False


@dataclass
class MemoryClient(KubeClient):
    """Give it objects by :meth:`put`, faults by :attr:`faults`, controllers by :attr:`reactions`.

    A reaction is called after each write with the verb (``create``, ``patch``, ``delete``) and the new object.
    """

    requests: list[Request] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    reactions: list[Reaction] = field(default_factory=list)
    logs: dict[str, bytes] = field(default_factory=dict)
    user: str = "system:serviceaccount:default:dispatch-airflow"
    denied: set[tuple[str, str]] = field(default_factory=set)
    """Verb and resource, with the subresource behind a slash."""
    unserved: set[Resource] = field(default_factory=set)
    versions: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._objects: dict[Key, Object] = {}
        self._counter = itertools.count(1)
        self._watches: list[tuple[Resource, str, str, asyncio.Queue[WatchEvent]]] = []

    # -- for tests

    def put(self, resource: Resource, raw: Mapping[str, Any], namespace: str = "default") -> Object:
        """Place an object without a request; returns what is stored."""
        body: Object = copy.deepcopy(dict(raw))
        meta = body.setdefault("metadata", {})
        if resource.is_namespaced:
            meta.setdefault("namespace", namespace)
        key = (resource, meta.get("namespace", ""), meta["name"])
        kind = "MODIFIED" if key in self._objects else "ADDED"
        meta.setdefault("uid", f"uid-{next(self._counter)}")
        meta["resourceVersion"] = str(next(self._counter))
        body.setdefault("apiVersion", resource.api_version)
        body.setdefault("kind", resource.kind)
        self._objects[key] = body
        self._tell(kind, resource, body)
        return body

    def peek(self, resource: Resource, name: str, namespace: str = "default") -> Object | None:
        """An object as it is stored, without a request."""
        return self._objects.get((resource, namespace if resource.is_namespaced else "", name))

    def peek_all(self, resource: Resource) -> list[Object]:
        """All objects of a kind, without a request."""
        return [body for (kind, _, _), body in self._objects.items() if kind == resource]

    @property
    def everything(self) -> tuple[Object, ...]:
        """All objects of all kinds, without a request."""
        return tuple(self._objects.values())

    def drop(self, resource: Resource, name: str, namespace: str = "default") -> None:
        """Remove an object behind everybody's back."""
        body = self._objects.pop((resource, namespace if resource.is_namespaced else "", name))
        self._tell("DELETED", resource, body)

    def count(self, verb: str, resource: Resource | None = None) -> int:
        """How many requests were made; dry runs are not counted."""
        fitting = (one for one in self.requests if one.verb == verb and not one.is_dry_run)
        return sum(1 for one in fitting if resource is None or one.resource == resource)

    # -- the client

    async def is_served(self, resource: Resource) -> bool:
        """All is, but what :attr:`unserved` names."""
        return resource not in self.unserved

    async def list_versions(self, group: str) -> tuple[str, ...]:
        """What :attr:`versions` says of a group, one of its own otherwise."""
        return self.versions.get(group, ("v1",))

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Object | None:
        """One object, or None."""
        fault = self._begin("get", resource, name)
        found = copy.deepcopy(self._objects.get((resource, namespace or "", name)))
        # As on a network, others have their turn meanwhile.
        await asyncio.sleep(0)
        return self._end(fault, found)

    async def list(
        self, resource: Resource, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> ObjectList:
        """All that match; *fields* knows one field and what it equals."""
        fault = self._begin("list", resource)
        found = [
            copy.deepcopy(body)
            for (kind, place, name), body in self._objects.items()
            if kind == resource and namespace in (None, place) and _matches(body, labels) and _has_field(body, fields)
        ]
        return self._end(fault, ObjectList(tuple(found), str(next(self._counter))))

    async def create(
        self, resource: Resource, body: Mapping[str, Any], namespace: str | None = None, *, dry_run: bool = False
    ) -> Object:
        """A new object. Reviews are answered by :attr:`user` and :attr:`denied`."""
        if resource in (USER_REVIEWS, ACCESS_REVIEWS):
            return self._end(self._begin("create", resource, dry_run=True), self._review(resource, body))
        name = body["metadata"]["name"]
        fault = self._begin("create", resource, name, dry_run=dry_run)
        if (resource, namespace or "", name) in self._objects:
            raise AlreadyExistsError(f"{resource.plural} {name} already exists")
        if dry_run:
            return self._end(fault, copy.deepcopy(dict(body)))
        stored = self.put(resource, body, namespace or "")
        self._react("create", resource, stored)
        return self._end(fault, copy.deepcopy(stored))

    async def patch(
        self,
        resource: Resource,
        name: str,
        patch: Sequence[Mapping[str, Any]] | Mapping[str, Any],
        namespace: str | None = None,
        *,
        subresource: str = "",
        dry_run: bool = False,
    ) -> Object:
        """A JSON patch for a list, a merge patch for a mapping."""
        fault = self._begin("patch", resource, name, dry_run=dry_run)
        old = self._objects.get((resource, namespace or "", name))
        if old is None:
            raise ObjectGoneError(f"{resource.plural} {name} not found")
        new = _merge(old, patch) if isinstance(patch, Mapping) else _apply_json_patch(old, patch)
        if new["metadata"].get("resourceVersion") != old["metadata"]["resourceVersion"]:
            raise StaleObjectError(f"{resource.plural} {name} was changed meanwhile")
        if dry_run:
            return self._end(fault, new)
        stored = self.put(resource, new, namespace or "")
        self._react("patch", resource, stored)
        return self._end(fault, copy.deepcopy(stored))

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
        """Remove an object, if it is still the one meant."""
        fault = self._begin("delete", resource, name)
        key = (resource, namespace or "", name)
        found = self._objects.get(key)
        judged = {"uid": uid, "resourceVersion": resource_version}
        if found is None or any(value and found["metadata"][field] != value for field, value in judged.items()):
            return self._end(fault, False)
        del self._objects[key]
        self._tell("DELETED", resource, found)
        self._react("delete", resource, found)
        return self._end(fault, True)

    async def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str = "",
        resource_version: str = "",
        timeout_seconds: int = 300,
        silence_seconds: float = 150,
    ) -> AsyncGenerator[WatchEvent]:
        """What is there (unless *resource_version* is given), then each change."""
        fault = self._begin("watch", resource)
        self._end(fault, None)
        queue: asyncio.Queue[WatchEvent] = asyncio.Queue()
        entry = (resource, namespace or "", labels, queue)
        self._watches.append(entry)
        try:
            if not resource_version:
                for (kind, place, _), body in list(self._objects.items()):
                    if kind == resource and namespace in (None, place) and _matches(body, labels):
                        yield WatchEvent("ADDED", copy.deepcopy(body))
            async with asyncio.timeout(timeout_seconds):
                while True:
                    yield await queue.get()
        except TimeoutError:
            return
        finally:
            self._watches.remove(entry)

    async def read_log(self, pod: str, namespace: str, **_options: object) -> AsyncGenerator[bytes]:
        """What :attr:`logs` holds for a pod."""
        yield self.logs.get(pod, b"")

    async def version(self) -> str:
        """Of the server."""
        return "v1.35.4"

    async def close(self) -> None:
        """Nothing to let go of."""

    # -- within

    def _begin(self, verb: str, resource: Resource, name: str = "", *, dry_run: bool = False) -> Fault | None:
        self.requests.append(Request(verb, resource, name, dry_run))
        fault = next((one for one in self.faults if (one.verb, one.resource) == (verb, resource)), None)
        if fault is not None:
            self.faults.remove(fault)
            if not fault.is_late:
                raise fault.error
        return fault

    def _end(self, fault: Fault | None, answer: Any) -> Any:
        if fault is not None:
            raise fault.error
        return answer

    def _review(self, resource: Resource, body: Mapping[str, Any]) -> Object:
        if resource == USER_REVIEWS:
            return {"status": {"userInfo": {"username": self.user}}}
        asked = body["spec"]["resourceAttributes"]
        target = "/".join(asked[part] for part in ("resource", "subresource") if part in asked)
        return {"status": {"allowed": (asked["verb"], target) not in self.denied}}

    def _react(self, verb: str, resource: Resource, body: Object) -> None:
        for reaction in self.reactions:
            reaction(self, verb, resource, body)

    def _tell(self, kind: str, resource: Resource, body: Object) -> None:
        for watched, place, labels, queue in self._watches:
            if watched == resource and place in ("", body["metadata"].get("namespace", "")) and _matches(body, labels):
                queue.put_nowait(WatchEvent(kind, copy.deepcopy(body)))


def _has_field(body: Object, fields: str) -> bool:
    path, _, wanted = fields.partition("=")
    found: Any = body
    for key in path.split(".") if path else ():
        found = found.get(key, {})
    return not path or found == wanted


def _matches(body: Object, labels: str) -> bool:
    """Whether a selector of the forms ``key=value`` and ``key`` matches."""
    carried = body["metadata"].get("labels") or {}
    wanted = (part.partition("=") for part in labels.split(",") if part)
    return all(key in carried and (not equals or carried[key] == value) for key, equals, value in wanted)


def _merge(old: Any, patch: Mapping[str, Any]) -> Object:
    new: Object = copy.deepcopy(dict(old)) if isinstance(old, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            new.pop(key, None)
        elif isinstance(value, Mapping):
            new[key] = _merge(new.get(key), value)
        else:
            new[key] = copy.deepcopy(value)
    return new


def _apply_json_patch(old: Object, patch: Sequence[Mapping[str, Any]]) -> Object:
    new = copy.deepcopy(old)
    for step in patch:
        *path, last = [part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:]]
        place: Any = new
        for part in path:
            if isinstance(place, list):
                place = place[int(part)] if int(part) < len(place) else None
            else:
                place = place.get(part)
            if place is None and step["op"] == "test":
                raise StaleObjectError(f"json patch: {step['path']} is not as expected")
            if place is None:
                raise RefusedError(f"json patch: no such path {step['path']}")
        _apply_step(place, last, step)
    return new


def _apply_step(place: Any, last: str, step: Mapping[str, Any]) -> None:
    key = int(last) if isinstance(place, list) and last != "-" else last
    is_there = key == "-" or (key < len(place) if isinstance(key, int) else key in place)
    value = copy.deepcopy(step.get("value"))
    match step["op"]:
        case "add" if isinstance(place, list):
            place.insert(len(place) if key == "-" else int(key), value)
        case "add":
            place[key] = value
        case "test" if not is_there or place[key] != value:
            raise StaleObjectError(f"json patch: {step['path']} is not as expected")
        case "test":
            pass
        case _ if not is_there:
            raise RefusedError(f"json patch: no such path {step['path']}")
        case "replace":
            place[key] = value
        case "remove":
            del place[key]
        case other:
            raise NotImplementedError(other)
