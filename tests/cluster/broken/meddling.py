# SPDX-License-Identifier: Apache-2.0
"""Breaks what arrives of a job: somebody's webhook changes it on its way into the cluster, with the best intentions."""

from __future__ import annotations

import base64
import json
import secrets
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from airflow_provider_dispatch.testing.waiting import Waiter
from tests.cluster.broken.access import ADMISSION
from tests.cluster.broken.parts import JOBSET_GROUP, MUTATING, TRAINER_GROUP
from tests.cluster.broken.place import CORE, SOON_SECONDS, Breakage, Connection, Place
from tests.cluster.testbed.api import Manifest
from tests.cluster.testbed.certificates import Authority

HOST = "127.0.0.1"
RUNTIMES, JOBSETS = (TRAINER_GROUP, "trainingruntimes"), (JOBSET_GROUP, "jobsets")
Meddle = Callable[[Manifest], None]
"""Changes the spec of one pod."""


def take_gates(pod: Manifest) -> None:
    pod.pop("schedulingGates", None)


def take_environment(pod: Manifest) -> None:
    for container in pod["containers"]:
        container.pop("env", None)


class _Server(ThreadingHTTPServer):
    """:ivar asked: kinds of all objects that it was asked about."""

    def __init__(self, meddle: Meddle) -> None:
        super().__init__((HOST, 0), _Handler)
        self.meddle = meddle
        self.asked: list[str] = []


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        found = review["request"]["object"]
        self.server.asked.append(found["kind"])
        for pod in _find_pods(found):
            self.server.meddle(pod)
        patch = [{"op": "replace", "path": "/spec", "value": found["spec"]}] if "spec" in found else []
        answer = {"uid": review["request"]["uid"], "allowed": True, "patchType": "JSONPatch"}
        answer["patch"] = base64.b64encode(json.dumps(patch).encode()).decode()
        body = json.dumps(review | {"response": answer}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        """The API server's own log has it."""


def _find_pods(found: Manifest) -> Iterator[Manifest]:
    """Pod specs of a runtime or a JobSet."""
    spec = found.get("spec", {})
    jobs = spec.get("template", {}).get("spec", spec).get("replicatedJobs", [])
    yield from (job["template"]["spec"]["template"]["spec"] for job in jobs)


@contextmanager
def serving(meddle: Meddle, folder: Path) -> Iterator[tuple[_Server, Manifest]]:
    """A webhook, and how the API server reaches it."""
    authority = Authority(folder)
    pair = authority.issue("meddler", hosts=[HOST])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    with _Server(meddle) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, name="meddler")
        thread.start()
        try:
            trust = base64.b64encode(authority.certificate.read_bytes()).decode()
            yield server, {"url": f"https://{HOST}:{server.server_port}/", "caBundle": trust}
        finally:
            server.shutdown()
            thread.join()


def with_meddler(resource: tuple[str, str], meddle: Meddle) -> Breakage:
    """A mutating webhook for one kind in the namespace of jobs.

    :param resource: group and plural.
    """

    @contextmanager
    def breakage(place: Place) -> Iterator[Connection]:
        name = f"meddler-{secrets.token_hex(3)}"
        with (
            serving(meddle, place.made.folder / name) as (server, way),
            place.standing(build_configuration(name, place.made.jobs, resource, way)),
        ):
            await_asked(place, server)
            yield {}

    return breakage


def build_configuration(name: str, namespace: str, resource: tuple[str, str], way: Manifest) -> Manifest:
    """It is asked about ConfigMaps, too, by which one sees that it is asked at all."""
    operations = {"apiVersions": ["*"], "operations": ["CREATE", "UPDATE"]}
    return {
        "apiVersion": ADMISSION,
        "kind": MUTATING,
        "metadata": {"name": name},
        "webhooks": [
            {
                "name": "meddler.example.com",
                "clientConfig": way,
                "rules": [
                    {"apiGroups": [group], "resources": [plural], **operations}
                    for group, plural in (resource, ("", "configmaps"))
                ],
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            }
        ],
    }


def await_asked(place: Place, server: _Server) -> None:
    """The API server goes by a new configuration a moment later."""
    metadata = {"generateName": "meddled-", "namespace": place.made.jobs}
    nothing: Manifest = {"apiVersion": CORE, "kind": "ConfigMap", "metadata": metadata}

    def is_asked() -> bool:
        place.api.request("POST", f"{place.api.path_of(nothing)}?dryRun=All", nothing)
        return "ConfigMap" in server.asked

    Waiter().wait_for(is_asked, timeout_seconds=SOON_SECONDS, what="a webhook that is asked")
