# SPDX-License-Identifier: Apache-2.0
"""The testbed's parts that decide something, each by itself; none of these tests starts a cluster."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.cluster.testbed import cgroups, pins
from tests.cluster.testbed.__main__ import EndOrder
from tests.cluster.testbed.audit import read_requests
from tests.cluster.testbed.build import GO_TRIES, Builder, find_missing_packages, find_sum, run_go
from tests.cluster.testbed.certificates import Authority
from tests.cluster.testbed.controllers import build_webhooks, ensure_kueue_metrics_certificates, merge
from tests.cluster.testbed.errors import TestbedError
from tests.cluster.testbed.foreign import ForeignBed
from tests.cluster.testbed.instance import keep_logs, require_root
from tests.cluster.testbed.leftovers import find_processes, remove_folder
from tests.cluster.testbed.slots import SLOTS, Holder, Slot, ask_to_end, find_held, is_free, lock_slot
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


def write_folder(path: Path) -> None:
    path.mkdir()
    (path / "layer").write_text("whole")


@pytest.mark.parametrize("damage", ["whol", "", "whale"], ids=["shortened", "emptied", "changed"])
def test_a_part_that_was_damaged_later_is_built_again(tmp_path: Path, damage):
    said: list[str] = []
    builder = Builder(tmp_path, report=said.append)
    built = builder.ensure(Path("bin/part"), write_whole)
    built.write_text(damage)
    assert builder.ensure(Path("bin/part"), write_whole).read_text() == "whole"
    assert "building part (bin), which is no longer what was built" in said


def test_a_folder_that_lost_some_of_its_bytes_is_built_again(tmp_path: Path):
    builder = Builder(tmp_path, report=say_nothing)
    layer = builder.ensure(Path("stores/one"), write_folder) / "layer"
    layer.write_text("who")
    builder.ensure(Path("stores/one"), write_folder)
    assert layer.read_text() == "whole"


def test_a_part_whose_sum_got_lost_is_taken_as_it_is(tmp_path: Path):
    builder = Builder(tmp_path, report=say_nothing)
    built = builder.ensure(Path("part"), write_whole)
    find_sum(built).unlink()
    built.write_text("of an older checkout")
    assert builder.ensure(Path("part"), write_whole).read_text() == "of an older checkout"


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


def test_a_machine_without_go_is_told_in_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TestbedError) as refusal:
        run_go(["build"], "kueue")
    assert str(refusal.value) == "the testbed is built from Go modules: install Go 1.26 or newer"


def test_a_user_without_rights_is_told_in_one_sentence():
    require_root(0)
    with pytest.raises(TestbedError, match=r"^the testbed needs root: it makes containers, mounts and networks$"):
        require_root(1000)


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


def test_a_port_that_somebody_listens_on_is_passed_over():
    names = ["one", "two"]
    slot = Slot(62)
    first = slot.find_ports(names)["one"]
    with socket.create_server(("0.0.0.0", first)):
        assert set(slot.find_ports(names).values()) == {first + 1, first + 2}
        assert not is_free(first, "127.0.0.1")
    assert is_free(first, "127.0.0.1")


HOLD_SLOT = """
import json, os, sys, time
from pathlib import Path
from tests.cluster.testbed.slots import Holder, lock_slot
lock = lock_slot(5, files=Path(sys.argv[1]))
lock.write_holder(Holder(Path("/instance"), os.getpid(), True))
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def holder(repository: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds slot 5 of those in the test's folder."""
    argv = [sys.executable, "-c", HOLD_SLOT, str(tmp_path)]
    with subprocess.Popen(argv, cwd=repository, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def test_who_holds_a_slot_is_found_and_asked_to_end(holder: subprocess.Popen[str], tmp_path: Path):
    ((slot, found),) = find_held(files=tmp_path)
    assert (slot, found.pid, found.is_background) == (Slot(5), holder.pid, True)
    assert lock_slot(5, files=tmp_path) is None
    ask_to_end(slot, found, files=tmp_path)
    assert holder.wait(10) == -signal.SIGTERM
    assert list(find_held(files=tmp_path)) == []
    ask_to_end(slot, found, files=tmp_path)  # nobody is there any more


def test_a_stranger_who_got_the_number_of_a_dead_harness_is_left_alone(tmp_path: Path):
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as stranger:
        lock = lock_slot(5, files=tmp_path)
        assert lock is not None
        lock.write_holder(crashed := Holder(Path("/instance"), stranger.pid, True))
        # Held, as by somebody who clears what the dead one left.
        assert list(find_held(files=tmp_path)) == []
        ask_to_end(Slot(5), crashed, files=tmp_path)
        lock.close()
        assert stranger.stdin is not None
        stranger.stdin.close()
        assert stranger.wait(10) == 0


def test_a_list_of_instances_that_was_damaged_says_which_file_to_delete(tmp_path: Path):
    (tmp_path / "notes.json").write_text("of somebody else")
    (tmp_path / "3.json").write_text('{"folder": "/inst')
    with pytest.raises(TestbedError, match=r"3\.json should name a testbed and reads .*: delete it"):
        list(find_held(files=tmp_path))


def test_an_order_to_end_stops_a_start_once_and_a_running_testbed_when_it_looks():
    starting = EndOrder()
    with pytest.raises(KeyboardInterrupt):
        starting.take()
    starting.take()  # while what was started is cleared away
    running = EndOrder()
    running.is_awaited = True
    running.take()
    assert running.is_given.is_set()


def test_logs_of_instances_that_fail_in_the_same_second_are_kept_apart(tmp_path: Path):
    words = []
    for slot in (Slot(0), Slot(1)):
        logs = tmp_path / str(slot.number)
        logs.mkdir()
        (logs / "kueue.log").write_text(f"of {slot.number}")
        words.append(keep_logs(logs, tmp_path / "kept", slot))
    kept = [Path(word.rpartition(" are in ")[2]) for word in words]
    assert [(folder / "kueue.log").read_text() for folder in kept] == ["of 0", "of 1"]


def test_logs_that_can_not_be_kept_are_no_reason_to_leave_a_cluster_behind(tmp_path: Path):
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "log").mkdir()
    assert "the logs of testbed 0 could not be kept" in keep_logs(tmp_path / "log", tmp_path / "file", Slot(0))
    for name in ("one", "two"):
        (tmp_path / "log" / name).symlink_to("nowhere")
    words = keep_logs(tmp_path / "log", tmp_path / "kept", Slot(0))
    assert words.startswith("the logs of testbed 0 could not be kept: [Errno 2]")
    assert words.count("Errno") == 1


def test_a_link_in_the_place_of_an_instance_goes_and_what_it_points_to_stays(tmp_path: Path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "5").symlink_to(tmp_path / "precious")
    remove_folder(tmp_path / "5")
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


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
