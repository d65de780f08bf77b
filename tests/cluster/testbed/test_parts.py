# SPDX-License-Identifier: Apache-2.0
"""The testbed's parts that decide something, each by itself; none of these tests starts a cluster."""

from __future__ import annotations

import itertools
import json
import os
import ssl
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.cluster.testbed import cgroups, pins
from tests.cluster.testbed.audit import read_requests
from tests.cluster.testbed.build import GO_TRIES, Builder, find_missing_packages, run_go
from tests.cluster.testbed.certificates import Authority
from tests.cluster.testbed.controllers import build_webhooks, ensure_kueue_metrics_certificates, merge
from tests.cluster.testbed.errors import TestbedError
from tests.cluster.testbed.foreign import ForeignBed
from tests.cluster.testbed.leftovers import find_processes
from tests.cluster.testbed.slots import SLOTS, Slot
from tests.cluster.testbed.store import LAYERS, clone_store


def say_nothing(_: str) -> None:
    pass


def test_every_part_has_a_pinned_version_and_a_key_of_its_own():
    parts: list[pins.Binary | pins.Manifests] = [
        *pins.BINARIES.values(),
        *pins.MANIFESTS.values(),
        pins.FAKE_NODES,
        pins.FAKE_NODE_MANIFESTS,
    ]
    assert len({pins.build_key(part) for part in parts}) == len(parts)
    for manifests in pins.MANIFESTS.values():
        assert pins.read_version(manifests.module, manifests.source).startswith("v")


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"DISPATCH_TESTBED_CACHE": "/c"}, "/c"),
        ({"XDG_CACHE_HOME": "/x", "DISPATCH_TESTBED_CACHE": "/c"}, "/c"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/dispatch-testbed"),
    ],
)
def test_the_cache_is_where_the_user_wants_it(environment, folder):
    assert pins.find_cache(environment) == Path(folder)


def write_whole(path: Path) -> None:
    path.write_text("whole")


def test_what_a_build_leaves_behind_when_it_fails_is_not_taken_for_built(tmp_path: Path):
    builder = Builder(tmp_path, report=say_nothing)

    def break_halfway(path: Path) -> None:
        path.write_text("half")
        raise TestbedError("no more room")

    with pytest.raises(TestbedError, match="no more room"):
        builder.ensure(Path("bin/part"), break_halfway)
    built = builder.ensure(Path("bin/part"), write_whole)
    assert built.read_text() == "whole"
    assert builder.ensure(Path("bin/part"), break_halfway) == built


def test_two_builders_at_once_build_once(tmp_path: Path):
    entered = threading.Semaphore(0)
    may_end = threading.Event()

    def build(path: Path) -> None:
        entered.release()
        assert may_end.wait(10)
        path.write_text("built")

    def ensure() -> None:
        Builder(tmp_path, report=say_nothing).ensure(Path("part"), build)

    threads = [threading.Thread(target=ensure) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert entered.acquire(timeout=10)
    came_twice = entered.acquire(timeout=0.3)
    may_end.set()
    for thread in threads:
        thread.join(10)
    assert not came_twice
    assert not entered.acquire(blocking=False)


def test_only_missing_packages_are_installed():
    assert find_missing_packages(lambda program: program) == []
    assert find_missing_packages(lambda program: None if program in {"runc", "ip"} else program) == ["iproute2", "runc"]


@pytest.fixture
def flaky_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Path]:
    """Put a ``go`` first in the path that fails so many times, and return where it counts its runs."""

    def install(failures: int) -> Path:
        count, program = tmp_path / "count", tmp_path / "go"
        program.write_text(f"#!/bin/sh\necho run >> {count}\n[ $(wc -l < {count}) -gt {failures} ] && echo fetched\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        return count

    return install


def test_a_build_that_a_network_has_failed_is_tried_again(flaky_go):
    count = flaky_go(GO_TRIES - 1)
    assert run_go(["build"], "kueue") == "fetched\n"
    assert len(count.read_text().split()) == GO_TRIES


def test_a_build_that_fails_every_time_is_given_up(flaky_go):
    count = flaky_go(GO_TRIES)
    with pytest.raises(TestbedError, match="go build ended with 1"):
        run_go(["build"], "kueue")
    assert len(count.read_text().split()) == GO_TRIES


def test_slots_share_neither_addresses_nor_names_nor_ports():
    slots = [Slot(number) for number in range(SLOTS)]
    assert not any(one.subnet.overlaps(other.subnet) for one, other in itertools.pairwise(slots))
    assert len({slot.bridge for slot in slots}) == SLOTS
    assert max(len(slot.bridge) for slot in slots) <= 15  # what the kernel takes for an interface
    names = [str(number) for number in range(20)]
    ports = [set(slot.find_ports(names).values()) for slot in slots[:5]]
    assert sum(map(len, ports)) == len(set().union(*ports)) == 100


def test_a_slot_whose_ports_are_all_taken_says_so():
    with pytest.raises(TestbedError, match="not enough free ports"):
        Slot(63).find_ports([str(number) for number in range(101)])


def test_wishes_are_laid_over_settings_at_every_depth():
    settings = {"a": {"b": 1, "c": [1, 2]}, "d": 4}
    assert merge(settings, {"a": {"c": [3]}, "d": None, "e": {}}) == {"a": {"b": 1, "c": [3]}, "e": {}}
    assert settings == {"a": {"b": 1, "c": [1, 2]}, "d": 4}


def test_only_the_webhooks_that_we_serve_are_kept():
    def build_webhook(resource: str) -> dict:
        service = {"name": "s", "namespace": "n", "path": f"/{resource}"}
        return {"name": resource, "clientConfig": {"service": service}, "rules": [{"resources": [resource]}]}

    manifest = {
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "x"},
        "webhooks": [build_webhook("trainjobs"), build_webhook("pods")],
    }
    kept = build_webhooks(manifest, "kueue", "https://127.0.0.1:9", "Q0E=")
    assert kept["metadata"] == {"name": "kueue-mutating"}
    assert [webhook["clientConfig"] for webhook in kept["webhooks"]] == [
        {"url": "https://127.0.0.1:9/trainjobs", "caBundle": "Q0E="}
    ]


@pytest.fixture
def audit_log(tmp_path: Path) -> Callable[..., Path]:
    def write(*events: tuple[str, str, str]) -> Path:
        rows = [
            {
                "auditID": audit_id,
                "stage": stage,
                "verb": verb,
                "user": {"username": "kueue"},
                "userAgent": "kueue/v0",
                "requestURI": "/api/v1/pods",
                "objectRef": {"resource": "pods", "namespace": "n", "name": "p", "subresource": "log"},
                "responseStatus": {"code": 200},
            }
            for audit_id, verb, stage in events
        ]
        path = tmp_path / "audit.log"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write


def test_a_request_is_counted_once_and_a_watch_when_it_begins(audit_log):
    log = audit_log(
        ("1", "get", "ResponseComplete"),
        ("2", "watch", "ResponseStarted"),
        ("2", "watch", "ResponseComplete"),
        ("3", "watch", "ResponseStarted"),
    )
    requests = list(read_requests(log))
    assert [(request.audit_id, request.resource, request.status) for request in requests] == [
        ("1", "pods/log", 200),
        ("2", "pods/log", 0),
        ("3", "pods/log", 0),
    ]
    after_the_first = len(log.read_text().splitlines(keepends=True)[0])
    beginning_of_2 = len("".join(log.read_text().splitlines(keepends=True)[:2]))
    assert [request.audit_id for request in read_requests(log, since=after_the_first)] == ["2", "3"]
    assert [request.audit_id for request in read_requests(log, since=beginning_of_2)] == ["3"]


def test_an_unfinished_line_of_the_audit_log_waits(audit_log):
    log = audit_log(("1", "get", "ResponseComplete"))
    with log.open("a") as file:
        file.write('{"auditID": "2", "st')
    assert [request.audit_id for request in read_requests(log)] == ["1"]


def test_a_certificate_is_good_for_its_hosts_and_trusted_through_its_authority(tmp_path: Path):
    class Hello(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    authority = Authority(tmp_path)
    pair = authority.issue("server", hosts=["127.0.0.1"])
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(pair.certificate, pair.key)
    with HTTPServer(("127.0.0.1", 0), Hello) as server:
        server.socket = served.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        trusting = ssl.create_default_context(cafile=str(authority.certificate))
        with urllib.request.urlopen(f"https://127.0.0.1:{server.server_port}", context=trusting, timeout=10) as answer:
            assert answer.status == 204
        thread.join(10)
    assert pair.key.stat().st_mode & 0o077 == 0


def test_the_certificates_that_kueue_wants_are_written_once(tmp_path: Path):
    target = tmp_path / "certs"
    ensure_kueue_metrics_certificates(target)
    first = (target / "tls.crt").read_bytes()
    ensure_kueue_metrics_certificates(target)
    assert (target / "tls.crt").read_bytes() == first
    assert sorted(path.name for path in target.iterdir()) == ["tls.crt", "tls.key"]


def test_a_cloned_store_shares_layers_and_blobs_and_has_databases_of_its_own(tmp_path: Path):
    store = tmp_path / "store"
    for path in (LAYERS / "1" / "fs" / "bin", Path("content", "blobs", "sha256")):
        (store / path).mkdir(parents=True)
    (store / "meta.db").write_text("known")
    (store / "content/blobs/sha256/abc").write_text("blob")
    clone_store(store, tmp_path / "clone")
    (tmp_path / "clone/meta.db").write_text("changed")
    assert (store / "meta.db").read_text() == "known"
    assert (tmp_path / "clone" / LAYERS / "1").readlink() == store / LAYERS / "1"
    assert (tmp_path / "clone/content/blobs/sha256/abc").samefile(store / "content/blobs/sha256/abc")


@pytest.mark.parametrize("version", [1, 2])
def test_a_cgroup_tree_is_made_in_every_hierarchy_and_removed(tmp_path: Path, version):
    hierarchies = [tmp_path] if version == 2 else [tmp_path / "cpuset", tmp_path / "memory"]
    for hierarchy in hierarchies:
        hierarchy.mkdir(exist_ok=True)
        (hierarchy / "cgroup.procs").write_text("")
        for field in ("cpuset.cpus", "cpuset.mems"):
            (hierarchy / field).write_text("0-1\n")
    if version == 2:
        (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    assert cgroups.find_hierarchies(tmp_path) == hierarchies
    cgroups.ensure("mine", tmp_path)
    assert all((hierarchy / "mine").is_dir() for hierarchy in hierarchies)
    if version == 1:
        assert (tmp_path / "cpuset/mine/cpuset.cpus").read_text() == "0-1\n"
    inner = hierarchies[-1] / "mine" / "pod"
    inner.mkdir()
    (inner / "cgroup.procs").write_text("17\n18\n")
    assert cgroups.find_pids("mine", tmp_path) == {17, 18}


@pytest.mark.parametrize(
    ("program", "is_ours"), [("tail", False), ("kubelet", True), ("containerd-shim-runc-v2", True)]
)
def test_what_works_in_the_folder_is_told_from_who_reads_there(tmp_path: Path, program, is_ours):
    # A sleeping stranger under that name, with a path in the folder among its arguments.
    argv = [program, "-c", "import sys; sys.stdin.read()", str(tmp_path / "kubelet.log")]
    with subprocess.Popen(argv, executable=sys.executable, stdin=subprocess.PIPE) as process:
        found = find_processes(tmp_path)
        assert process.stdin is not None
        process.stdin.close()
    assert found == ([process.pid] if is_ours else [])


def test_a_foreign_cluster_skips_what_it_cannot_do(tmp_path: Path):
    foreign = ForeignBed(tmp_path / "config")
    with pytest.raises(pytest.skip.Exception, match="can't pause node-2"):
        foreign.pause("node-2")
    with pytest.raises(pytest.skip.Exception, match="audit log"):
        foreign.count_requests(user="admin")
