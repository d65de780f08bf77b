# SPDX-License-Identifier: Apache-2.0
"""A small client for any Kubernetes API, enough to set a cluster up and to look at it from tests.

Takes plain objects as they stand in manifests. It is not the client that the adapter uses, so that a fault of that one
can't hide itself. Never retries but where it says so.
"""

from __future__ import annotations

import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlencode

import yaml
from kubernetes import config
from kubernetes.client import Configuration

Manifest: TypeAlias = dict[str, Any]
APPLY, MERGE = "application/apply-patch+yaml", "application/merge-patch+json"
FIELD_MANAGER = "dispatch-tests"
NOT_FOUND = 404
# The kinds of Kueue and Trainer alone are five megabytes: ten times as long with the loader written in Python.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
RETRIED = frozenset({409, 429, 500, 503})


class ApiError(RuntimeError):
    """The API server refused, or did not answer.

    :param status: of HTTP; 0 when there was no answer.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Api:
    """One user's view of one cluster: the current context of a kubeconfig."""

    def __init__(self, kubeconfig: Path, *, timeout_seconds: float = 30.0) -> None:
        settings = Configuration()
        config.load_kube_config(str(kubeconfig), client_configuration=settings)
        self._url = settings.host.rstrip("/")
        self._headers = {"Accept": "application/json", "User-Agent": FIELD_MANAGER}
        if token := next(iter(settings.api_key.values()), None):
            self._headers["Authorization"] = token
        self._tls = ssl.create_default_context(cafile=settings.ssl_ca_cert)
        if settings.cert_file:
            self._tls.load_cert_chain(settings.cert_file, settings.key_file)
        self._timeout_seconds = timeout_seconds
        self._plurals: dict[str, dict[str, tuple[str, bool]]] = {}

    def request(self, method: str, path: str, body: object = None, *, content_type: str = "application/json") -> Any:
        """Send one request and return the answer, decoded if it is JSON.

        :raises ApiError: refused, or no answer.
        """
        data = None if body is None else json.dumps(body).encode()
        headers = self._headers | ({"Content-Type": content_type} if data is not None else {})
        request = urllib.request.Request(self._url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_seconds, context=self._tls) as answer:
                text = answer.read().decode()
                return json.loads(text) if "json" in answer.headers.get("Content-Type", "") else text
        except urllib.error.HTTPError as error:
            raise ApiError(f"{method} {path}: {error.code} {error.read().decode()[:600]}", error.code) from error
        except (OSError, ssl.SSLError) as error:
            raise ApiError(f"{method} {path}: {error}", 0) from error

    def get(self, kind: str, name: str = "", *, namespace: str = "", version: str = "v1", query: str = "") -> Any:
        """One object, or with no name the list of them."""
        path = self.path_of({"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": namespace}})
        return self.request("GET", path + (f"?{query}" if query else ""))

    def find(self, kind: str, name: str, *, namespace: str = "", version: str = "v1") -> Any:
        """The object, or None."""
        try:
            return self.get(kind, name, namespace=namespace, version=version)
        except ApiError as error:
            if error.status == NOT_FOUND:
                return None
            raise

    def create(self, manifest: Manifest) -> Any:
        nameless = manifest["metadata"] | {"name": ""}
        return self.request("POST", self.path_of(manifest | {"metadata": nameless}), manifest)

    def apply(self, *manifests: Manifest, patience_seconds: float = 0.0) -> None:
        """Server-side apply, in this order.

        :param patience_seconds: how long to repeat what is refused for the moment, as by a webhook that isn't up yet.
        """
        query = urlencode({"fieldManager": FIELD_MANAGER, "force": "true"})
        for manifest in manifests:
            deadline = time.monotonic() + patience_seconds
            while True:
                try:
                    self.request("PATCH", f"{self.path_of(manifest)}?{query}", manifest, content_type=APPLY)
                    break
                except ApiError as error:
                    if error.status not in RETRIED or time.monotonic() > deadline:
                        raise
                    time.sleep(0.1)

    def patch(self, manifest: Manifest, body: Manifest, *, subresource: str = "") -> Any:
        """A merge patch of the object that *manifest* names."""
        return self.request("PATCH", self.path_of(manifest) + subresource, body, content_type=MERGE)

    def delete(self, manifest: Manifest, *, propagation: str = "Background") -> None:
        """Does nothing when there is no such object. Does not wait until it is gone."""
        try:
            self.request("DELETE", self.path_of(manifest), {"propagationPolicy": propagation})
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise

    def path_of(self, manifest: Manifest) -> str:
        """Where the API serves the object; asks the server once for the plural names of each version."""
        version, metadata = manifest["apiVersion"], manifest["metadata"]
        base = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if manifest["kind"] not in self._plurals.get(base, {}):
            resources = self.request("GET", base)["resources"]
            named = {row["kind"]: (row["name"], row["namespaced"]) for row in resources if "/" not in row["name"]}
            self._plurals[base] = named
        try:
            plural, is_namespaced = self._plurals[base][manifest["kind"]]
        except KeyError as error:
            raise ApiError(f"this cluster serves no {manifest['kind']} in {version}", NOT_FOUND) from error
        namespace = metadata.get("namespace") if is_namespaced else None
        return f"{base}{f'/namespaces/{namespace}' if namespace else ''}/{plural}/{metadata.get('name', '')}".rstrip(
            "/"
        )


def read_manifests(paths: Iterable[Path]) -> list[Manifest]:
    """All objects of some files, in order."""
    return [document for path in paths for document in yaml.load_all(path.read_text(), LOADER) if document]
