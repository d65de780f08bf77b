# SPDX-License-Identifier: Apache-2.0
"""What each side may do with the rights that `dispatch setup` gives it, shown by trying, and that they are enough.

Tokens of the service accounts, nothing else. What must be refused is tried one by one as a dry run of a change to an
object that is there: policies judge a dry run like any other. What must be allowed is the life of a job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

import pytest

from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.probe import build_probe_runtime, build_probe_trainjob
from airflow_provider_dispatch.adapters.kubeflow.model.terms import Terms
from airflow_provider_dispatch.adapters.protocol import DispatchAdapter, OutputRequest
from airflow_provider_dispatch.core.capabilities import Answer
from airflow_provider_dispatch.core.holds import Actor, ActorKind, HoldRequest
from airflow_provider_dispatch.core.identity import build_job_id, build_object_name
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.records import JobSelector
from airflow_provider_dispatch.core.state import State
from airflow_provider_dispatch.testing.waiting import Waiter
from tests.cluster.set_up import Installation, governed, opened, soon, start, until
from tests.cluster.testbed import objects
from tests.cluster.testbed.api import MERGE, Api, ApiError, Manifest
from tests.cluster.testbed.audit import Request
from tests.cluster.testbed.bed import Bed

DOMAIN = "dispatch.phpboyscout.uk"
TRAINER, KUEUE = objects.TRAINER_VERSION, objects.KUEUE_VERSION
OK, FORBIDDEN = 200, 403
NOBODYS = MappingProxyType({f"{DOMAIN}/job": "nobodys"})


@pytest.fixture(scope="module")
def made(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with governed(bed, tmp_path_factory.mktemp("rights")) as (installation, _):
        yield installation


async def live_a_life(adapter: DispatchAdapter) -> int:
    """Start, open, hold, release, stop, and every look between; the epoch of the last execution."""
    ref = await start(adapter)
    await adapter.open(ref, deadline=soon())
    first = await until(adapter, ref, State.RUNNING)
    async for line in adapter.output(ref, OutputRequest(follow=True)):
        assert line.text == "here"
        break
    held = await adapter.hold(ref, HoldRequest("rights", Actor(ActorKind.HUMAN, "ann"), "to see"), deadline=soon())
    await until(adapter, ref, State.HELD)
    assert await adapter.release(ref, held, deadline=soon()) == ()
    second = await until(adapter, ref, State.RUNNING)
    assert first.execution is not None
    assert second.execution is not None
    assert second.execution.epoch > first.execution.epoch
    assert {event.kind for event in await adapter.events(ref)} >= {"opened", "held", "released"}
    assert [record.ref.job for record in await adapter.list(JobSelector())] == [ref.job]
    report = await adapter.stop(ref.job, reason="enough", deadline=soon())
    assert report.is_complete, report
    assert (await adapter.find(ref.job)).orphans == ()
    return second.execution.epoch


def list_requests(made: Installation, since: int) -> list[Request]:
    """What was asked for with those rights."""
    users = {made.controller, *(made.user(namespace, "airflow") for namespace in (made.jobs, made.alone))}
    found = [one for one in made.bed.fetch_requests(since=since) if one.user in users]
    assert found, "nobody asked for anything"
    return found


def list_refused(made: Installation, since: int) -> list[str]:
    found = [one for one in list_requests(made, since) if one.status in {401, FORBIDDEN}]
    return [f"{one.user} {one.verb} {one.uri}: {one.status}" for one in found]


@pytest.mark.parametrize("mode", ["queue", "plain", "alone"])
def test_the_rights_are_enough_for_a_life(made: Installation, mode: str) -> None:
    namespace = made.alone if mode == "alone" else made.jobs
    fields: dict[str, object] = {"queue": objects.LOCAL_QUEUE} if mode == "queue" else {}

    async def program() -> int:
        async with opened(made, namespace, has_controller=mode != "alone", **fields) as adapter:
            found = await adapter.preflight()
            assert all(check.value is Answer.YES for check in found.checks.values()), found.checks
            # Preflight sends a job that Kueue must refuse; of all that comes after nothing may be refused.
            since = made.bed.mark_requests()
            epoch = await live_a_life(adapter)
            assert list_refused(made, since) == []
            lifted = [one for one in list_requests(made, since) if (one.verb, one.resource) == ("patch", "pods")]
            assert {one.user for one in lifted} == (set() if mode == "alone" else {made.controller})
            return epoch

    assert asyncio.run(program()) == 1_000_002


@dataclass(frozen=True)
class Scene:
    """A running job, waiting ones, and the API as each side sees it.

    :param objects: that are tried on.
    :param sides: ``airflow``, ``alone`` (Airflow's side where there is no controller) and ``controller``.
    """

    objects: dict[str, Manifest]
    sides: dict[str, Api]


@pytest.fixture(scope="module")
def scene(made: Installation) -> Iterator[Scene]:
    made.bed.api.apply(build_gated_pod(made.jobs, "gated"), build_gated_pod(made.jobs, "nobodys", {}))
    probes = place_probes(made)

    async def begin(namespace: str, *, is_opened: bool = False, **fields: object) -> JobRef:
        async with opened(made, namespace, **fields) as adapter:
            ref = await start(adapter)
            if is_opened:
                await adapter.open(ref, deadline=soon())
                await until(adapter, ref, State.RUNNING)
            return ref

    async def begin_all() -> tuple[JobRef, JobRef, JobRef]:
        return (
            await begin(made.jobs, is_opened=True, queue=objects.LOCAL_QUEUE),
            await begin(made.jobs),
            await begin(made.alone, has_controller=False),
        )

    async def end_all(jobs: tuple[JobRef, JobRef, JobRef]) -> None:
        for ref, namespace in zip(jobs, (made.jobs, made.jobs, made.alone), strict=True):
            async with opened(made, namespace) as adapter:
                await adapter.stop(ref.job, reason="the test is over", deadline=soon())

    jobs = asyncio.run(begin_all())
    sides = {"airflow": (made.jobs, "airflow"), "alone": (made.alone, "airflow")}
    sides["controller"] = (made.terms.system_namespace, "controller")
    yield Scene(collect(made, *jobs) | probes, {name: made.open_api(*account) for name, account in sides.items()})
    asyncio.run(end_all(jobs))


def collect(made: Installation, queued: JobRef, plain: JobRef, alone: JobRef) -> dict[str, Manifest]:
    """All objects of :data:`TRIES`."""
    api, jobs = made.bed.api, made.jobs

    def trainjob(ref: JobRef, namespace: str) -> Manifest:
        name = build_object_name(ref.job, ref.submission)
        found: Manifest = api.get("TrainJob", name, namespace=namespace, version=TRAINER)
        return found

    found = {"running": trainjob(queued, jobs), "plain": trainjob(plain, jobs), "alone": trainjob(alone, made.alone)}
    name = found["running"]["metadata"]["name"]
    (workload,) = api.get("Workload", namespace=jobs, version=KUEUE)["items"]
    (pod,) = api.get("Pod", namespace=jobs, query=f"labelSelector=jobset.sigs.k8s.io/jobset-name={name}")["items"]
    new = {"namespace": jobs, "labels": dict(found["plain"]["metadata"]["labels"]), "name": "dj-new-s1"}
    # Kueue's webhook adds its own patch to every new TrainJob.
    born = {key: value for key, value in found["plain"]["spec"].items() if key != "runtimePatches"}
    birth = {"apiVersion": TRAINER, "kind": "TrainJob", "spec": born}
    ledger = {f"{DOMAIN}/job": "new", f"{DOMAIN}/kind": "ledger"}
    return found | {
        "workload": {"apiVersion": KUEUE, "kind": "Workload", **workload},
        "pod": {"apiVersion": "v1", "kind": "Pod", **pod},
        "gated pod": api.get("Pod", "gated", namespace=jobs),
        "nobody's pod": api.get("Pod", "nobodys", namespace=jobs),
        "new pod": build_gated_pod(jobs, "new"),
        "runtime": api.get("TrainingRuntime", name, namespace=jobs, version=TRAINER),
        "new job": birth | {"metadata": new},
        "new running job": birth | {"metadata": new, "spec": born | {"suspend": False}},
        "new admitted job": birth | {"metadata": new | note("admissions", "3")["metadata"]},
        "new job elsewhere": birth | {"metadata": new | {"namespace": made.other}},
        "new ledger": name_it("v1", "ConfigMap", "dj-new", jobs, ledger),
        "new ledger elsewhere": name_it("v1", "ConfigMap", "dj-new", made.other, ledger),
        "new config map": name_it("v1", "ConfigMap", "new", jobs),
        "config map": name_it("v1", "ConfigMap", "kube-root-ca.crt", jobs),
        "secrets": name_it("v1", "Secret", "", jobs),
        "all secrets": name_it("v1", "Secret", "", ""),
        "config maps": name_it("v1", "ConfigMap", "", jobs),
        "pods elsewhere": name_it("v1", "Pod", "", made.other),
        "all pods": name_it("v1", "Pod", "", ""),
        "all jobs": name_it(TRAINER, "TrainJob", "", jobs),
        "node": name_it("v1", "Node", "node-1", ""),
        "namespace": name_it("v1", "Namespace", jobs, ""),
        "other namespace": name_it("v1", "Namespace", made.other, ""),
        "lease": name_it("coordination.k8s.io/v1", "Lease", "dispatch-admission", made.terms.system_namespace),
        "other lease": name_it("coordination.k8s.io/v1", "Lease", "other", made.terms.system_namespace),
        "own rights": name_it("rbac.authorization.k8s.io/v1", "RoleBinding", f"{made.terms.name}-airflow", jobs),
        "policies": name_it("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", "", ""),
        "check": name_it(KUEUE, "AdmissionCheck", made.check, ""),
        "other check": name_it(KUEUE, "AdmissionCheck", objects.ADMISSION_CHECK, ""),
    }


def place_probes(made: Installation) -> dict[str, Manifest]:
    """A probe that is in use for an hour, and jobs that lack one of its marks each."""
    job, until = build_job_id(0, b"0123456789"), datetime.now(UTC) + timedelta(hours=1)
    terms = Terms(made.jobs)

    def build(name: str, **metadata: Manifest) -> Manifest:
        trainjob = build_probe_trainjob(job, terms, until)
        return trainjob | {"metadata": trainjob["metadata"] | metadata | {"name": name}}

    probe = build_probe_trainjob(job, terms, until)
    head, name = probe["metadata"], probe["metadata"]["name"]
    labels, notes = head["labels"], head["annotations"]
    found = {
        "probe": probe,
        "probe's runtime": build_probe_runtime(job, terms, until),
        "job named otherwise": build("dj-other-s1"),
        "job of a probe's name": build(f"{name[:-1]}1", labels=labels | {f"{DOMAIN}/job": "nobodys"}),
        "job without an end": build(f"{name[:-1]}2", annotations={GATED: notes[GATED]}),
        "job without a kind": build(f"{name[:-1]}3", labels={}),
        "job without a gate": build(f"{name[:-1]}4", annotations=notes | {GATED: "example.com/other"}),
    }
    # Trainer and Kueue look for the runtime first.
    made.bed.api.apply(found["probe's runtime"])
    Waiter().wait_for(
        lambda: is_taken(made, probe), timeout_seconds=20, what="the probe's runtime in the webhooks' sight"
    )
    made.bed.api.apply(*(one for one in found.values() if one["kind"] == "TrainJob" and one is not probe))
    return found


def is_taken(made: Installation, trainjob: Manifest) -> bool:
    try:
        made.bed.api.apply(trainjob)
    except ApiError as error:
        if not any(said in str(error) for said in words.RUNTIME_UNSEEN):
            raise
        return False
    return True


def name_it(
    version: str, kind: str, name: str, namespace: str, labels: Mapping[str, str] = MappingProxyType({})
) -> Manifest:
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name, "labels": dict(labels)} | ({"namespace": namespace} if namespace else {}),
    }


def build_gated_pod(namespace: str, name: str, labels: Mapping[str, str] = NOBODYS) -> Manifest:
    """Behind our fence, of a job that no controller knows, and behind somebody else's gate."""
    return name_it("v1", "Pod", name, namespace, labels) | {
        "spec": {
            "schedulingGates": [{"name": f"{DOMAIN}/fence"}, {"name": "example.com/other"}],
            "containers": [{"name": "node", "image": "localhost/trainer:1"}],
        }
    }


def note(key: str, value: str | None) -> Manifest:
    return {"metadata": {"annotations": {key if "/" in key else f"{DOMAIN}/{key}": value}}}


def label(key: str, value: str | None) -> Manifest:
    return {"metadata": {"labels": {key: value}}}


def spec(**fields: object) -> Manifest:
    return {"spec": fields}


def status(**fields: object) -> Manifest:
    return {"status": fields}


def answer(check: str, **fields: object) -> Manifest:
    entry = {"name": check, "state": "Ready", "message": "", "lastTransitionTime": "2030-01-01T00:00:00Z"}
    return status(admissionChecks=[entry | fields])


@dataclass(frozen=True)
class Try:
    """One request with somebody's rights.

    :param target: name of an object of the scene; what is created is the object itself.
    :param body: merge patch, or JSON patch.
    """

    side: str
    what: str
    verb: str
    target: str
    body: Manifest | Sequence[Manifest] | None = None
    expected: int = FORBIDDEN

    @property
    def content_type(self) -> str:
        if self.verb != "PATCH":
            return "application/json"
        return MERGE if isinstance(self.body, dict) else "application/json-patch+json"

    def send(self, scene: Scene) -> int:
        """What the API server answers; nothing is written."""
        api, manifest = scene.sides[self.side], scene.objects[self.target]
        named = manifest if self.verb != "POST" else manifest | {"metadata": manifest["metadata"] | {"name": ""}}
        path = api.path_of(named) + ("/status" if isinstance(self.body, dict) and "status" in self.body else "")
        query = "" if self.verb == "GET" else "?dryRun=All"
        # A deletion with a body looks nowhere else for its options.
        bodies = {"GET": None, "POST": manifest, "DELETE": {"dryRun": ["All"]}}
        body = bodies.get(self.verb, self.body)
        try:
            api.request(self.verb, path + query, body, content_type=self.content_type)
        except ApiError as error:
            print(error)  # what pytest shows of a wrong answer
            return error.status
        return OK


QUEUE, PRIORITY = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
GATED = "kueue.x-k8s.io/admission-gated-by"
FENCE, OTHER_GATE = {"name": f"{DOMAIN}/fence"}, {"name": "example.com/other"}
PATCHES = [{"manager": f"{DOMAIN}/x", "trainingRuntimeSpec": {"template": {"metadata": {"labels": {"a": "b"}}}}}]
OTHER_IMAGE = [{"op": "replace", "path": "/spec/containers/0/image", "value": "localhost/other:1"}]
LIFT = note("epoch", "9") | spec(schedulingGates=[OTHER_GATE])
HOLD = note("hold-instance", "7") | spec(active=False)

FALSE_PROBES = (
    "job named otherwise",
    "job of a probe's name",
    "job without an end",
    "job without a kind",
    "job without a gate",
)

TRIES = [
    # What stays within the jobs' namespaces.
    Try("airflow", "write in another namespace", "POST", "new ledger elsewhere"),
    Try("airflow", "make a job in another namespace", "POST", "new job elsewhere"),
    Try("airflow", "read Secrets", "GET", "secrets"),
    Try("airflow", "read all Secrets", "GET", "all secrets"),
    Try("airflow", "read a node", "GET", "node"),
    Try("airflow", "read another namespace", "GET", "other namespace"),
    Try("airflow", "read another Lease", "GET", "other lease"),
    Try("airflow", "write the Lease", "PATCH", "lease", spec(holderIdentity="me")),
    Try("airflow", "change its own rights", "DELETE", "own rights"),
    Try("airflow", "delete all jobs at once", "DELETE", "all jobs"),
    Try("airflow", "answer the check", "PATCH", "check", status(conditions=[])),
    # Kueue's object.
    Try("airflow", "write a Workload's status", "PATCH", "workload", status(conditions=[])),
    Try("airflow", "change a Workload's priority", "PATCH", "workload", spec(priority=9999)),
    Try("airflow", "label a Workload", "PATCH", "workload", label("a", "b")),
    Try("airflow", "note on a Workload", "PATCH", "workload", note(GATED, f"{DOMAIN}/gate")),
    # The job.
    Try("airflow", "write a TrainJob's status", "PATCH", "running", status(conditions=[])),
    Try("airflow", "change a job's priority", "PATCH", "running", label(PRIORITY, "high")),
    Try("airflow", "take a job from its queue", "PATCH", "running", label(QUEUE, None)),
    Try("airflow", "raise A", "PATCH", "running", note("admissions", "9")),
    Try("airflow", "raise A in plain mode", "PATCH", "plain", note("admissions", "9")),
    Try("airflow", "write the record", "PATCH", "running", note("execution", "{}")),
    Try("airflow", "take the record away", "PATCH", "running", note("execution", None)),
    Try("airflow", "write the reservation", "PATCH", "running", note("admission-key", "x")),
    Try("airflow", "write the clocks", "PATCH", "running", note("clocks", "{}")),
    Try("airflow", "write the end", "PATCH", "running", note("end", "{}")),
    Try("airflow", "write the digest", "PATCH", "running", note("spec-digest", "x")),
    Try("airflow", "suspend in a queue", "PATCH", "running", spec(suspend=True)),
    Try("airflow", "unsuspend", "PATCH", "plain", spec(suspend=False)),
    Try("airflow", "patch the runtime", "PATCH", "plain", spec(runtimePatches=PATCHES)),
    Try("airflow", "make a job that runs at once", "POST", "new running job"),
    Try("airflow", "make a job that was admitted", "POST", "new admitted job"),
    Try("airflow", "add a finalizer", "PATCH", "running", {"metadata": {"finalizers": ["example.com/x"]}}),
    Try("airflow", "edit a private runtime", "PATCH", "runtime", spec(mlPolicy={"numNodes": 5})),
    # The rest of the namespace.
    Try("airflow", "change a pod", "PATCH", "pod", note("epoch", "9")),
    Try("airflow", "make a pod", "POST", "new pod"),
    Try("airflow", "make a ConfigMap that is no ledger", "POST", "new config map"),
    Try("airflow", "delete a ConfigMap that is no ledger", "DELETE", "config map"),
    # Without a controller.
    Try("alone", "change a priority", "PATCH", "alone", label(PRIORITY, "high")),
    Try("alone", "write the digest", "PATCH", "alone", note("spec-digest", "x")),
    Try("alone", "act where a controller is", "PATCH", "plain", note("admissions", "1")),
    Try("alone", "raise A", "PATCH", "alone", note("admissions", "1"), OK),
    Try("alone", "unsuspend", "PATCH", "alone", spec(suspend=False), OK),
    # What a life needs beside what the lives above show.
    Try("airflow", "make a job", "POST", "new job", expected=OK),
    Try("airflow", "hold a Workload", "PATCH", "workload", HOLD, OK),
    Try("airflow", "suspend in plain mode", "PATCH", "plain", note("holds", "x") | spec(suspend=True), OK),
    Try("airflow", "make a ledger", "POST", "new ledger", expected=OK),
    Try("airflow", "delete a pod", "DELETE", "gated pod", expected=OK),
    Try("airflow", "read its namespace", "GET", "namespace", expected=OK),
    Try("airflow", "read the Lease", "GET", "lease", expected=OK),
    Try("airflow", "read the policies", "GET", "policies", expected=OK),
    # The controller.
    Try("controller", "make a pod", "POST", "new pod"),
    Try("controller", "delete a pod", "DELETE", "pod"),
    Try("controller", "change a pod's image", "PATCH", "pod", OTHER_IMAGE),
    Try("controller", "change a gated pod's image", "PATCH", "gated pod", OTHER_IMAGE),
    Try("controller", "give a pod a deadline", "PATCH", "pod", spec(activeDeadlineSeconds=5)),
    Try("controller", "place a pod", "PATCH", "gated pod", spec(nodeSelector={"a": "b"})),
    Try("controller", "lift somebody else's gate", "PATCH", "gated pod", spec(schedulingGates=[FENCE])),
    Try("controller", "lift all gates", "PATCH", "gated pod", spec(schedulingGates=[])),
    Try("controller", "note on a pod", "PATCH", "pod", note("example.com/x", "y")),
    Try("controller", "label a pod", "PATCH", "pod", label("a", "b")),
    Try("controller", "change nobody's pod", "PATCH", "nobody's pod", note("epoch", "9")),
    Try("controller", "write a pod's status", "PATCH", "pod", status(phase="Failed")),
    Try("controller", "read pods elsewhere", "GET", "pods elsewhere"),
    Try("controller", "read all pods", "GET", "all pods"),
    Try("controller", "make a job", "POST", "new job"),
    Try("controller", "delete a job", "DELETE", "running"),
    Try("controller", "delete a plain job", "DELETE", "plain"),
    Try("controller", "delete all jobs at once", "DELETE", "all jobs"),
    Try("controller", "delete a private runtime", "DELETE", "runtime"),
    *(Try("controller", f"delete a {one}", "DELETE", one) for one in FALSE_PROBES),
    Try("controller", "delete a probe", "DELETE", "probe", expected=OK),
    Try("controller", "delete a probe's runtime", "DELETE", "probe's runtime", expected=OK),
    Try("controller", "change a job's owner", "PATCH", "running", note("owner", "{}")),
    Try("controller", "open the start gate", "PATCH", "plain", note(GATED, None)),
    Try("controller", "change a job's priority", "PATCH", "running", label(PRIORITY, "high")),
    Try("controller", "suspend in a queue", "PATCH", "running", spec(suspend=True)),
    Try("controller", "patch the runtime", "PATCH", "plain", spec(runtimePatches=PATCHES)),
    Try("controller", "edit a private runtime", "PATCH", "runtime", spec(mlPolicy={"numNodes": 5})),
    Try("controller", "change a Workload's priority", "PATCH", "workload", spec(priority=9999)),
    Try("controller", "delete a Workload", "DELETE", "workload"),
    Try("controller", "admit a Workload", "PATCH", "workload", status(conditions=[])),
    Try("controller", "answer another check", "PATCH", "workload", answer("other")),
    Try("controller", "answer for another check", "PATCH", "other check", status(conditions=[])),
    Try("controller", "make a ConfigMap that is no ledger", "POST", "new config map"),
    Try("controller", "list ConfigMaps", "GET", "config maps"),
    Try("controller", "read Secrets", "GET", "secrets"),
    Try("controller", "change a node", "PATCH", "node", label("a", "b")),
    Try("controller", "write another Lease", "PATCH", "other lease", spec(holderIdentity="me")),
    Try("controller", "raise A", "PATCH", "running", note("admissions", "9"), OK),
    Try("controller", "let a plain job run", "PATCH", "plain", spec(suspend=False), OK),
    Try("controller", "hold a Workload", "PATCH", "workload", HOLD, OK),
    Try(
        "controller",
        "lift the fence",
        "PATCH",
        "gated pod",
        note("epoch", "9") | spec(schedulingGates=[OTHER_GATE]),
        OK,
    ),
]


@pytest.mark.parametrize("attempt", TRIES, ids=[f"{one.side}: {one.what}" for one in TRIES])
def test_each_side_may_do_just_that(scene: Scene, attempt: Try) -> None:
    assert attempt.send(scene) == attempt.expected


def test_the_check_of_the_controller_changes_no_pod(made: Installation, scene: Scene) -> None:
    update = [{"name": "node", "labels": {"a": "b"}}]
    changes = Try("controller", "", "PATCH", "workload", answer(made.check, podSetUpdates=update))
    assert changes.send(scene) == FORBIDDEN
    assert Try("controller", "", "PATCH", "workload", answer(made.check)).send(scene) == OK
