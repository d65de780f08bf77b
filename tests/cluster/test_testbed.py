# SPDX-License-Identifier: Apache-2.0
"""The testbed does what its tests rely on: real pods, nodes that fall silent, components that end, nothing left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dispatch.testing.waiting import Waiter
from tests.cluster.conftest import KEPT_LOGS, Namespace
from tests.cluster.fixtures import KUBECONFIG_VARIABLE
from tests.cluster.testbed import cgroups, pins
from tests.cluster.testbed.api import Api, ApiError, Manifest
from tests.cluster.testbed.bed import Bed
from tests.cluster.testbed.build import run_to_end
from tests.cluster.testbed.fake_nodes import TOLERATION
from tests.cluster.testbed.instance import Testbed, clear_all_crashed, is_ready
from tests.cluster.testbed.layout import API_PORT
from tests.cluster.testbed.leftovers import LOG_LINKS, NETWORK_NOTES, NODE_NAMES, find_mounts, find_processes
from tests.cluster.testbed.objects import RUNTIME, TRAINER_VERSION, build_queue
from tests.cluster.testbed.pins import TRAINER_IMAGE
from tests.cluster.testbed.slots import Slot, find_held

SERVE_UNTIL_KILLED = """
import time
from tests.cluster.testbed.instance import Testbed
with Testbed(report=lambda line: None) as bed:
    print(bed.folder, flush=True)
    time.sleep(600)
"""
PERSONS_NUMBER = 61
"""High: test runs take the lowest that is free."""
STAMP = "import time\nwhile True:\n open('/shared/{name}', 'a').write(f'{{time.time()}}\\n')\n time.sleep(0.1)"


def wait(look: Callable[[], Any], what: str, timeout_seconds: float = 60.0) -> Any:
    return Waiter().wait_for(look, timeout_seconds=timeout_seconds, what=what)


def build_pod(bed: Bed, namespace: str, name: str, program: str, *, node: str | None = None) -> Manifest:
    """A pod that runs a Python program with the shared folder under ``/shared``."""
    container = {
        "name": "main",
        "image": TRAINER_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["python3", "-u", "-c", program],
        "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
    }
    spec: Manifest = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "hostname": name,
        "containers": [container],
        "volumes": [{"name": "shared", "hostPath": {"path": str(bed.shared_folder)}}],
    }
    if node is not None:
        spec["nodeName"] = node
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": spec}


def fetch_phase(bed: Bed, namespace: str, pod: str) -> str:
    return str(bed.api.get("Pod", pod, namespace=namespace)["status"].get("phase"))


def wait_phase(bed: Bed, namespace: str, pod: str, phase: str) -> None:
    wait(lambda: fetch_phase(bed, namespace, pod) == phase, f"pod {pod} to be {phase}")


def is_written(stamps: Path, *, within_seconds: float = 1.5) -> bool:
    """Whether somebody still adds to the file."""
    size = stamps.stat().st_size
    deadline = time.monotonic() + within_seconds
    while time.monotonic() < deadline:
        if stamps.stat().st_size > size:
            return True
        time.sleep(0.05)
    return False


def test_it_is_the_pinned_kubernetes_with_two_ready_nodes(bed: Bed):
    nodes = {node["metadata"]["name"]: node for node in bed.api.get("Node")["items"]}
    assert all(is_ready(nodes[name]) for name in NODE_NAMES)
    if isinstance(bed, Testbed):
        assert bed.api.request("GET", "/version")["gitVersion"] == pins.read_version("kubernetes", pins.KUBERNETES)


def test_pods_reach_each_other_share_a_folder_and_show_their_output(bed: Bed, namespace: Namespace):
    greeting = "import socket; socket.create_server(('0.0.0.0', 9000)).accept()[0].sendall(b'hello')"
    server = build_pod(bed, namespace.name, "server", greeting, node="node-1")
    bed.api.create(server)
    wait_phase(bed, namespace.name, "server", "Running")
    address = wait(
        lambda: bed.api.get("Pod", "server", namespace=namespace.name)["status"].get("podIP"), "the pod's address"
    )
    ask = (
        "import socket, time\n"
        "for _ in range(50):\n"
        f" try: said = socket.create_connection(('{address}', 9000), 2).recv(5); break\n"
        " except OSError: time.sleep(0.2)\n"
        "print(said.decode()); open('/shared/said', 'w').write(said.decode())"
    )
    bed.api.create(build_pod(bed, namespace.name, "client", ask, node="node-2"))
    wait_phase(bed, namespace.name, "client", "Succeeded")
    assert (bed.shared_folder / "said").read_text() == "hello"
    assert bed.api.request("GET", f"/api/v1/namespaces/{namespace.name}/pods/client/log").strip() == "hello"


def test_a_pod_reaches_the_api_server_by_name_with_the_token_of_its_account(bed: Bed, namespace: Namespace):
    program = (
        "import pathlib, ssl, urllib.request\n"
        "account = pathlib.Path('/var/run/secrets/kubernetes.io/serviceaccount')\n"
        "trusting = ssl.create_default_context(cafile=account / 'ca.crt')\n"
        "said = {'Authorization': 'Bearer ' + (account / 'token').read_text()}\n"
        "asked = urllib.request.Request('https://kubernetes.default.svc/apis', headers=said)\n"
        "print(urllib.request.urlopen(asked, context=trusting, timeout=10).status)"
    )
    bed.api.create(build_pod(bed, namespace.name, "asks", program))
    wait_phase(bed, namespace.name, "asks", "Succeeded")
    assert bed.api.request("GET", f"/api/v1/namespaces/{namespace.name}/pods/asks/log").strip() == "200"


def test_a_trainjob_is_admitted_by_kueue_and_its_ranks_find_each_other_by_name(bed: Bed, namespace: Namespace):
    bed.api.apply(*(queue := build_queue(namespace.name, checks=(), name=f"{namespace.name}-free")))
    program = (
        "import os, socket, time\n"
        "host = os.environ['JOBSET_HOST']\n"
        "for _ in range(100):\n"
        " try: print(socket.gethostbyname(host)); break\n"
        " except OSError: time.sleep(0.1)\n"
        "else: raise SystemExit(3)"
    )
    job: Manifest = {
        "apiVersion": TRAINER_VERSION,
        "kind": "TrainJob",
        "metadata": {
            "name": "names",
            "namespace": namespace.name,
            "labels": {"kueue.x-k8s.io/queue-name": queue[1]["metadata"]["name"]},
        },
        "spec": {
            "runtimeRef": {"kind": "ClusterTrainingRuntime", "name": RUNTIME},
            "trainer": {
                "numNodes": 2,
                "command": ["python3", "-u", "-c", program],
                "env": [{"name": "JOBSET_HOST", "value": "names-node-0-1.names"}],
            },
        },
    }
    bed.api.create(job)

    def fetch_end() -> str | None:
        conditions = bed.api.get("TrainJob", "names", namespace=namespace.name, version=TRAINER_VERSION)
        true = {row["type"] for row in conditions.get("status", {}).get("conditions", []) if row["status"] == "True"}
        return next(iter(true & {"Complete", "Failed"}), None)

    assert wait(fetch_end, "the TrainJob to end") == "Complete"
    bed.api.delete(job)
    bed.api.delete(queue[0])


def test_the_pods_of_a_paused_node_run_on(bed: Bed, namespace: Namespace):
    pod = build_pod(bed, namespace.name, "silent", STAMP.format(name="silent"), node="node-2")
    bed.api.create(pod)
    wait_phase(bed, namespace.name, "silent", "Running")
    bed.pause("node-2")
    try:
        wait(lambda: not is_ready(bed.api.get("Node", "node-2")), "node-2 to be NotReady")
        assert is_ready(bed.api.get("Node", "node-1"))
        bed.api.delete(pod)
        assert is_written(bed.shared_folder / "silent")
    finally:
        bed.resume("node-2")
    assert is_ready(bed.api.get("Node", "node-2"))
    wait(lambda: bed.api.find("Pod", "silent", namespace=namespace.name) is None, "the pod to go")
    assert not is_written(bed.shared_folder / "silent")


def test_nothing_of_a_lost_node_runs_and_it_can_be_given_back(bed: Bed, namespace: Namespace):
    bed.api.create(build_pod(bed, namespace.name, "lost", STAMP.format(name="lost"), node="node-2"))
    wait_phase(bed, namespace.name, "lost", "Running")
    bed.lose("node-2")
    try:
        assert bed.api.find("Node", "node-2") is None
        assert not is_written(bed.shared_folder / "lost")
    finally:
        bed.resume("node-2")
    bed.api.create(build_pod(bed, namespace.name, "new", "print('here')", node="node-2"))
    wait_phase(bed, namespace.name, "new", "Succeeded")


def test_components_can_be_stopped_and_started(bed: Bed):
    bed.stop_component("kube-apiserver")
    with pytest.raises(ApiError) as refusal:
        bed.api.get("Node")
    assert refusal.value.status == 0
    bed.start_component("kube-apiserver")
    bed.restart_component("kueue")
    assert len(bed.api.get("Node")["items"]) >= 2


def test_kueue_can_be_given_other_settings(bed: Bed):
    sharing = {"preemptionStrategies": ["LessThanOrEqualToFinalShare"]}
    try:
        bed.configure_kueue({"waitForPodsReady": {"timeout": "37s"}, "fairSharing": sharing})
        settings = json.loads((bed.folder / "settings" / "kueue.yaml").read_text())
        assert settings["waitForPodsReady"]["timeout"] == "37s"
        assert settings["namespace"] == "kueue-system"
    finally:
        bed.configure_kueue({})


def test_requests_are_counted_by_who_asked(bed: Bed):
    mark = bed.mark_requests()
    for _ in range(3):
        bed.api.get("ConfigMap", namespace="kube-system")
    mine = [request for request in bed.fetch_requests(user="admin", since=mark) if request.resource == "configmaps"]
    assert [(request.verb, request.namespace, request.status) for request in mine] == [("list", "kube-system", 200)] * 3
    assert bed.count_requests(user_agent_prefix="dispatch-tests", since=mark) == 3
    assert bed.count_requests(user_agent_prefix="nobody", since=mark) == 0


def test_pods_on_fake_nodes_run_on_paper(bed: Bed, namespace: Namespace):
    bed.add_fake_nodes(2)
    pod = build_pod(bed, namespace.name, "paper", "raise SystemExit(3)")
    pod["spec"] |= {"tolerations": [TOLERATION], "nodeSelector": {"type": "fake"}}
    bed.api.create(pod)
    wait_phase(bed, namespace.name, "paper", "Running")
    assert bed.api.get("Pod", "paper", namespace=namespace.name)["spec"]["nodeName"].startswith("fake-")
    bed.api.delete(pod)
    wait(lambda: bed.api.find("Pod", "paper", namespace=namespace.name) is None, "the pod to go")


@pytest.fixture
def second(bed: Bed, repository: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another instance beside the one that all tests share, run by a process of its own; and its folder."""
    if not isinstance(bed, Testbed):
        pytest.skip("takes a machine whose only testbed is that of this test run")
    server = subprocess.Popen(
        [sys.executable, "-c", SERVE_UNTIL_KILLED], cwd=repository, stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    try:
        yield server, Path(server.stdout.readline().strip())
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


def find_leftovers(slot: Slot, folder: Path) -> list[object]:
    """All that a testbed which is gone must not have left, whoever took it down."""
    hierarchies = cgroups.find_hierarchies()
    return [
        *find_processes(folder),
        *find_mounts(folder),
        *(path for path in (folder, Path("/sys/class/net", slot.bridge)) if path.exists()),
        *(tree for node in NODE_NAMES for one in hierarchies if (tree := one / slot.cgroup(node)).exists()),
        *(link for link in LOG_LINKS.glob("*.log") if link.readlink().is_relative_to(folder)),
        *NETWORK_NOTES.glob(f"{slot.bridge}-*"),
        *(rule for rule in run_to_end(["iptables-save"]).splitlines() if slot.bridge in rule or slot.gateway in rule),
    ]


@pytest.mark.matrix
def test_a_second_instance_runs_beside_and_its_crash_leaves_nothing(bed: Bed, second):
    server, folder = second
    api = Api(folder / "kubeconfig")
    assert all(is_ready(api.get("Node", name)) for name in NODE_NAMES)
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "mine"}})
    assert bed.api.find("Namespace", "mine") is None
    pod = build_pod(bed, "mine", "orphan", "import time; time.sleep(600)", node="node-1")
    wait(lambda: api.find("ServiceAccount", "default", namespace="mine"), "the service account")
    api.create(pod)
    wait(lambda: api.get("Pod", "orphan", namespace="mine")["status"].get("phase") == "Running", "the pod to run")
    (slot,) = [slot for slot, holder in find_held() if holder.folder == folder]
    assert cgroups.find_pids(slot.cgroup("node-1"))

    os.kill(server.pid, signal.SIGKILL)
    server.wait()
    assert clear_all_crashed() == [slot]
    assert find_leftovers(slot, folder) == []
    assert len(bed.api.get("Node")["items"]) >= 2


class Person:
    """Who types commands, for the testbed of one number."""

    def __init__(self, repository: Path, number: int) -> None:
        self._repository = repository
        self.slot = Slot(number)
        self.folder = pins.find_cache() / "instances" / str(number)

    def type(self, *words: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "tests.cluster.testbed", *words, "--instance", str(self.slot.number)]
        pipe = subprocess.PIPE
        return subprocess.Popen(argv, cwd=self._repository, stdout=pipe, stderr=pipe, text=True)

    def see(self, *words: str) -> tuple[int, str]:
        """The exit status of a command and all that it printed."""
        with self.type(*words) as command:
            output, complaints = command.communicate(timeout=240)
            return command.returncode, output + complaints

    @property
    def is_at_work(self) -> bool:
        return any(slot == self.slot for slot, _ in find_held())


@pytest.fixture
def person(repository: Path) -> Iterator[Person]:
    if os.geteuid() != 0 or os.environ.get(KUBECONFIG_VARIABLE):
        pytest.skip("takes a machine to start testbeds on")
    someone = Person(repository, PERSONS_NUMBER)
    yield someone
    someone.see("down")


@pytest.mark.matrix
def test_a_person_brings_a_testbed_up_uses_it_and_takes_it_down(person: Person):
    status, words = person.see("up")
    assert status == 0, words
    assert words.splitlines()[-1] == f"export KUBECONFIG={person.folder / 'kubeconfig'}"
    api = Api(person.folder / "kubeconfig")
    assert all(is_ready(api.get("Node", name)) for name in NODE_NAMES)
    status, words = person.see("up")
    assert (status, f"number {PERSONS_NUMBER} is taken on this machine" in words) == (1, True)
    assert len(words.splitlines()) == 2  # that all parts are built, and why it isn't to be

    assert person.see("pause", "node-2") == (0, "")
    wait(lambda: not is_ready(api.get("Node", "node-2")), "node-2 to be NotReady")
    assert person.see("resume", "node-2") == (0, "")
    assert is_ready(api.get("Node", "node-2"))
    assert "there is no node node-7; there are node-1, node-2" in person.see("pause", "node-7")[1]

    assert person.see("down") == (0, f"testbed {PERSONS_NUMBER} is down\n")
    assert find_leftovers(person.slot, person.folder) == []
    assert person.see("down")[0] == 0
    assert "0 testbeds run in the background" in person.see("pause", "node-2")[1]


@pytest.mark.matrix
@pytest.mark.parametrize("when", ["it has a number", "its API server runs"])
@pytest.mark.parametrize("how", ["Ctrl-C", "down"])
def test_a_start_that_is_given_up_leaves_nothing(person: Person, how: str, when: str):
    with person.type("up") as command:
        wait(lambda: person.is_at_work, "a number to be taken")
        if when == "its API server runs":
            wait((person.folder / "log" / "kube-apiserver.log").exists, "the API server")
        if how == "Ctrl-C":
            command.send_signal(signal.SIGINT)
        else:
            assert person.see("down")[0] == 0
        _, complaints = command.communicate(timeout=60)
    assert command.returncode != 0
    assert complaints.endswith("interrupted\n")
    assert not person.is_at_work
    assert find_leftovers(person.slot, person.folder) == []


@pytest.mark.matrix
def test_a_background_testbed_whose_harness_was_killed_is_cleared_by_down(person: Person):
    assert person.see("up")[0] == 0
    (harness,) = [holder.pid for slot, holder in find_held() if slot == person.slot]
    os.kill(harness, signal.SIGKILL)
    wait(lambda: not person.is_at_work, "the harness to end")
    assert f"cleared what was left of testbed {PERSONS_NUMBER}" in person.see("down")[1]
    assert find_leftovers(person.slot, person.folder) == []


@pytest.mark.matrix
def test_a_taken_port_that_can_be_no_other_is_named(person: Person):
    try:
        everywhere = socket.create_server(("0.0.0.0", API_PORT))
    except OSError as error:
        pytest.skip(f"port {API_PORT} of every address can't be had, as beside another testbed: {error}")
    with everywhere:
        status, words = person.see("up")
    assert status == 1
    assert f"somebody listens on port {API_PORT} of every address, and the API server of testbed" in words
    assert find_leftovers(person.slot, person.folder) == []


RUN_OF_ITS_OWN = """
from pathlib import Path
import pytest
from tests.cluster.conftest import pytest_configure, pytest_terminal_summary
from tests.cluster.fixtures import bed

@pytest.fixture(scope="session")
def repository():
    return Path({repository!r})
"""


def run_tests(tests: str, repository: Path, folder: Path, kubeconfig: Path | None = None) -> tuple[int, str]:
    """Another test run with our fixture: its exit status, and what it says. Starts a testbed unless given a cluster."""
    (folder / "conftest.py").write_text(RUN_OF_ITS_OWN.format(repository=str(repository)))
    (folder / "test_one.py").write_text(tests)
    environment = {name: value for name, value in os.environ.items() if name != KUBECONFIG_VARIABLE}
    if kubeconfig is not None:
        environment[KUBECONFIG_VARIABLE] = str(kubeconfig)
    argv = [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", str(folder / "test_one.py")]
    wide = environment | {"COLUMNS": "300"}
    done = subprocess.run(argv, cwd=repository, env=wide, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.matrix
@pytest.mark.parametrize(("nodes", "is_kept"), [(2, False), (3, True)], ids=["passes", "fails"])
def test_the_logs_of_a_failed_run_are_where_its_summary_says(repository: Path, tmp_path: Path, nodes, is_kept):
    look = f"def test_looks(bed): assert len(bed.api.get('Node')['items']) == {nodes}"
    status, words = run_tests(look, repository, tmp_path)
    kept = [Path(line) for line in words.splitlines() if line.startswith(f"{KEPT_LOGS}/testbed-")]
    try:
        assert (status, len(kept)) == ((1, 1) if is_kept else (0, 0)), words
        for component in ("kube-apiserver", "kueue", "jobset", "trainer", "kubelet-node-1", "containerd-node-2"):
            assert all((folder / f"{component}.log").stat().st_size > 0 for folder in kept)
    finally:
        for folder in kept:
            shutil.rmtree(folder)


FOREIGN = """
def test_pauses(bed): bed.pause("node-2")
def test_counts(bed): bed.count_requests(user="admin")
def test_fakes(bed): bed.add_fake_nodes(2)
def test_looks(bed): assert bed.api.get("Node")["items"]
"""


@pytest.mark.matrix
def test_another_cluster_is_used_and_what_it_can_not_do_is_skipped_with_a_reason(
    bed: Bed, repository: Path, tmp_path: Path
):
    (tmp_path / "config").write_bytes(bed.kubeconfig.read_bytes())
    status, words = run_tests(FOREIGN, repository, tmp_path, tmp_path / "config")
    assert (status, "1 passed, 3 skipped" in words) == (0, True), words
    for reason in ("can't pause node-2", "shows no audit log", "has no fake nodes"):
        assert f"the cluster of {KUBECONFIG_VARIABLE} {reason}" in words
