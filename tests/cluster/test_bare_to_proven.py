# SPDX-License-Identifier: Apache-2.0
"""From a cluster with Trainer, JobSet and Kueue alone to one that is proven, by the command, its controller in pods.

A testbed of its own, as bare as an administrator finds it. What the tests do to the installation they undo.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_dispatch.adapters.kubeflow.setup.terms import JobsNamespace, SetupTerms
from airflow_provider_dispatch.core.holds import Actor, ActorKind, HoldRequest
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.state import State
from airflow_provider_dispatch.testing.waiting import Waiter
from tests.cli.calling import Answer, Caller
from tests.cluster.crashes import crash_processes, delete_by_force
from tests.cluster.fixtures import KUBECONFIG_VARIABLE, start_or_skip
from tests.cluster.hold_and_release import (
    FIRST,
    QUEUE,
    ROOM_OF_ONE,
    SECOND,
    Place,
    open_airflow,
    play_hold_and_release,
)
from tests.cluster.set_up import Installation, opened, soon, start, until
from tests.cluster.testbed.bed import Bed
from tests.cluster.testbed.instance import Testbed
from tests.cluster.testbed.objects import KUEUE_VERSION, RUNTIME, TRAINER_VERSION, build_namespace
from tests.cluster.testbed.remote import is_served

NAMESPACE = "team-a"
OURS = "labelSelector=app.kubernetes.io/part-of=dispatch"
RBAC, ADMISSION = "rbac.authorization.k8s.io/v1", "admissionregistration.k8s.io/v1"
KINDS = {
    "Namespace": "v1",
    "ServiceAccount": "v1",
    "Deployment": "apps/v1",
    "Pod": "v1",
    **dict.fromkeys(("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"), RBAC),
    **dict.fromkeys(("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"), ADMISSION),
    **dict.fromkeys(("AdmissionCheck", "ResourceFlavor", "ClusterQueue", "LocalQueue"), KUEUE_VERSION),
}
"""Of all that an installation and its queues consist of."""


@dataclass(frozen=True)
class Proven:
    """A cluster after the three commands.

    :param answers: of `setup`, `queue` and `preflight`.
    :param seconds: what they took together.
    """

    made: Installation
    dispatch: Caller
    image: str
    answers: dict[str, Answer]
    seconds: float

    @property
    def bed(self) -> Bed:
        return self.made.bed

    def call_as_airflow(self) -> Caller:
        """The command with the rights of Airflow's account instead of an administrator's."""
        rights = {"kubeconfig": str(self.made.write_kubeconfig(NAMESPACE, "airflow"))}
        settings = self.made.folder / "airflow.yaml"
        settings.write_text(yaml.safe_dump(yaml.safe_load(self.dispatch.settings.read_text()) | rights))
        return Caller(settings)

    def set_up(self) -> Answer:
        return self.dispatch("setup", "--apply", "--controller-image", self.image, "--call-timeout", "90s")

    def create_queue(self) -> Answer:
        quota = [word for name, amount in ROOM_OF_ONE.items() for word in (f"--{name}", amount)]
        return self.dispatch("queue", "create", QUEUE, *quota)

    def fetch_controllers(self) -> dict[str, str]:
        """The controller's pods: name to UID."""
        pods = self.bed.api.get("Pod", namespace=self.made.terms.system_namespace, query=OURS)["items"]
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}

    def find_leader(self) -> str:
        """The name of the pod that holds the Lease; empty when none does."""
        place = self.made.terms.system_namespace
        lease = self.bed.api.get("Lease", "dispatch-admission", namespace=place, version="coordination.k8s.io/v1")
        holder = str(lease["spec"].get("holderIdentity", ""))
        return next((pod for pod in self.fetch_controllers() if holder.startswith(f"{pod}-")), "")


@pytest.fixture(scope="module")
def bare(request: pytest.FixtureRequest, repository: Path) -> Iterator[Bed]:
    chosen = os.environ.get(KUBECONFIG_VARIABLE)
    if chosen and not is_served(Path(chosen).resolve().parent):
        pytest.skip(f"the cluster of {KUBECONFIG_VARIABLE} is not a bare one")
    testbed = Testbed(is_bare=True, keep_logs_in=repository / "build" / "testbed")
    start_or_skip(testbed)
    try:
        testbed.api.apply(build_namespace(NAMESPACE))
        yield testbed
    finally:
        testbed.close(has_failed=request.session.testsfailed > 0)


@pytest.fixture(scope="module")
def proven(bare: Bed, tmp_path_factory: pytest.TempPathFactory) -> Proven:
    image, folder = bare.load_controller_image(), tmp_path_factory.mktemp("bare")
    settings = {"backend": "kubeflow", "namespace": NAMESPACE, "queue": QUEUE, "runtime": {"name": RUNTIME}}
    (folder / "cluster.yaml").write_text(yaml.safe_dump(settings | {"kubeconfig": str(bare.kubeconfig)}))
    terms = SetupTerms((JobsNamespace(NAMESPACE),))
    made = Installation(bare, folder, terms, jobs=NAMESPACE, alone=NAMESPACE, other="default")
    cluster = Proven(made, Caller(folder / "cluster.yaml"), image, {}, 0.0)
    began = time.monotonic()
    answers = {
        "setup": cluster.set_up(),
        "queue": cluster.create_queue(),
        "preflight": cluster.dispatch("preflight", "-o", "json"),
    }
    seconds = time.monotonic() - began
    for name, answer in answers.items():
        assert answer.code == 0, f"{name}: {answer.out}{answer.err}"
    return Proven(made, cluster.dispatch, image, answers, seconds)


def list_outcomes(answer: Answer) -> set[str]:
    assert answer.code == 0, answer.err
    return {one["outcome"] for one in answer.data}


def hold_request(key: str) -> HoldRequest:
    return HoldRequest(key, Actor(ActorKind.HUMAN, "ann"), "to see")


def test_three_commands_prove_a_bare_cluster_in_less_than_two_minutes(proven: Proven) -> None:
    preflight = proven.answers["preflight"].data
    assert {name: said for name, said in preflight["checks"].items() if said["value"] != "yes"} == {}
    assert proven.seconds < 120, f"{proven.seconds:.0f} s"


def test_the_controllers_pods_may_do_nothing_but_their_work(proven: Proven) -> None:
    place = proven.made.terms.system_namespace
    for pod in proven.bed.api.get("Pod", namespace=place, query=OURS)["items"]:
        (container,) = pod["spec"]["containers"]
        assert pod["spec"]["securityContext"]["runAsNonRoot"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_a_job_is_held_and_released_by_the_controller_in_its_pod(proven: Proven) -> None:
    async def play() -> list[int]:
        async with opened(proven.made, NAMESPACE, queue=QUEUE) as adapter:
            ref = await start(adapter)
            await adapter.open(ref, deadline=soon())
            first = await until(adapter, ref, State.RUNNING)
            held = await adapter.hold(ref, hold_request("rest"), deadline=soon())
            await until(adapter, ref, State.HELD)
            assert await adapter.release(ref, held, deadline=soon()) == ()
            second = await until(adapter, ref, State.RUNNING)
            assert (await adapter.stop(ref.job, reason="seen", deadline=soon())).is_complete
        return [seen.execution.epoch for seen in (first, second) if seen.execution is not None]

    assert asyncio.run(play()) == [FIRST, SECOND]


def test_another_replica_goes_on_when_the_leading_one_is_killed(proven: Proven) -> None:
    async def hold_it() -> JobRef:
        async with opened(proven.made, NAMESPACE, queue=QUEUE) as adapter:
            ref = await start(adapter)
            await adapter.open(ref, deadline=soon())
            await until(adapter, ref, State.RUNNING)
            await adapter.hold(ref, hold_request("over"), deadline=soon())
            await until(adapter, ref, State.HELD)
            return ref

    async def release_it(ref: JobRef) -> int:
        async with opened(proven.made, NAMESPACE, queue=QUEUE) as adapter:
            (held,) = (await adapter.inspect(ref)).holds
            await adapter.release(ref, held, deadline=soon())
            seen = await until(adapter, ref, State.RUNNING)
            await adapter.stop(ref.job, reason="seen", deadline=soon())
        assert seen.execution is not None
        return seen.execution.epoch

    ref, leader = asyncio.run(hold_it()), proven.find_leader()
    kill_pod(proven, leader)
    assert asyncio.run(release_it(ref)) == SECOND
    assert proven.find_leader() not in {"", leader}
    Waiter().wait_for(lambda: proven.set_up().code == 0, timeout_seconds=60, what="both replicas")


def kill_pod(proven: Proven, name: str) -> None:
    """As a crash does, at once: a pod that is merely deleted gives its Lease up. Then it doesn't come back."""
    crash_processes("HOSTNAME", name)
    delete_by_force(proven.bed, proven.made.terms.system_namespace, name)


def test_to_set_up_again_changes_nothing(proven: Proven) -> None:
    before = proven.fetch_controllers()
    again = proven.dispatch("setup", "--apply", "-o", "json")
    queue = proven.dispatch("queue", "create", QUEUE, "--cpu", "1", "--memory", "512Mi", "-o", "json")
    assert (list_outcomes(again), list_outcomes(queue)) == ({"same"}, {"same"})
    assert list_outcomes(proven.dispatch("setup", "--check", "-o", "json")) == {"same"}
    assert proven.fetch_controllers() == before


def list_installed(bed: Bed) -> list[str]:
    return [
        f"{kind} {one['metadata']['name']}"
        for kind, version in KINDS.items()
        for one in bed.api.get(kind, version=version, query=OURS)["items"]
    ]


def test_all_of_it_can_be_taken_away_and_applied_by_hand(proven: Proven) -> None:
    installed = list_installed(proven.bed)
    assert list_outcomes(proven.dispatch("queue", "delete", QUEUE, "-o", "json")) == {"removed"}
    assert list_outcomes(proven.dispatch("setup", "--delete", "-o", "json")) == {"removed"}
    assert list_installed(proven.bed) == []
    printed = proven.dispatch("setup", "--controller-image", proven.image)
    proven.bed.api.apply(*yaml.safe_load_all(printed.out), patience_seconds=10)
    assert list_outcomes(proven.dispatch("setup", "--check", "-o", "json")) == {"same"}
    assert (proven.set_up().code, proven.create_queue().code) == (0, 0)
    assert {name for name in list_installed(proven.bed) if not name.startswith("Pod ")} == {
        name for name in installed if not name.startswith("Pod ")
    }


def test_what_a_removed_trainjob_leaves_is_collected_and_a_living_job_is_not(proven: Proven) -> None:
    async def begin() -> JobRef:
        async with opened(proven.made, NAMESPACE, queue=QUEUE) as adapter:
            ref = await start(adapter)
            await adapter.open(ref, deadline=soon())
            await until(adapter, ref, State.RUNNING)
            return ref

    async def end(ref: JobRef) -> None:
        async with opened(proven.made, NAMESPACE) as adapter:
            assert (await adapter.inspect(ref)).state is State.RUNNING
            await adapter.stop(ref.job, reason="seen", deadline=soon())

    left, living = asyncio.run(begin()), asyncio.run(begin())
    keep_all_but_the_trainjob(proven.bed, left)
    dispatch = proven.call_as_airflow()
    shown = collect(dispatch, left.job, "--forget")
    removed = collect(dispatch, "--yes")
    forgotten = collect(dispatch, left.job, "--forget", "--yes")
    assert {kind for kind, _ in shown} == {"TrainingRuntime", "Workload", "JobSet", "Job", "Pod"}
    assert {outcome for _, outcome in shown} == {"may be removed"}
    assert [kind for kind, _ in removed] == [kind for kind, _ in shown]
    assert {outcome for _, outcome in removed} == {"removed"}
    # The end of its pods was seen, so nobody has to vouch for it.
    assert forgotten == [("ConfigMap", "removed")]
    asyncio.run(end(living))


def collect(dispatch: Caller, *words: str) -> list[tuple[str, str]]:
    answer = dispatch("gc", *words, "-o", "json")
    assert answer.code == 0, answer.out
    return [(one["object"].split()[0], one["outcome"]) for one in answer.data]


def keep_all_but_the_trainjob(bed: Bed, ref: JobRef) -> None:
    """As ``kubectl delete --cascade=orphan`` does."""
    name = f"dj-{ref.job.lower()}-s{ref.submission}"
    named: dict[str, Any] = {"metadata": {"name": name, "namespace": NAMESPACE}}
    trainjob = named | {"apiVersion": TRAINER_VERSION, "kind": "TrainJob"}
    bed.api.delete(trainjob, propagation="Orphan")
    Waiter().wait_for(
        lambda: bed.api.find("TrainJob", name, namespace=NAMESPACE, version=TRAINER_VERSION) is None,
        timeout_seconds=30,
        what="the TrainJob's end",
    )


@pytest.mark.matrix
def test_the_hold_and_release_example_runs_there_with_airflows_rights(proven: Proven, repository: Path) -> None:
    state = proven.bed.shared_folder / "example"
    state.mkdir(mode=0o777)
    place = Place(proven.made.write_kubeconfig(NAMESPACE, "airflow"), NAMESPACE, state)
    with open_airflow(place, repository) as airflow:
        assert play_hold_and_release(airflow, place) == [FIRST, SECOND]
