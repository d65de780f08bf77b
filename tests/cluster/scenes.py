# SPDX-License-Identifier: Apache-2.0
"""Every state and every cause, brought about on a real cluster: one coroutine a scene, each records what it is named
after.

Made for :mod:`.record_objects`. A scene leaves its jobs to the studio, which takes them away, and mends what it broke.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.object_set import ObjectSet
from airflow_provider_dispatch.core.job_ref import JobRef
from airflow_provider_dispatch.core.observation import Observation
from airflow_provider_dispatch.core.state import Cause, State
from tests.cluster.studio import FOREVER, STUBBORN, Studio, python

Scene = Callable[[Studio], Awaitable[None]]
SCENES: dict[str, Scene] = {}
FOREIGN_GATE = "example.com/review"


def scene(play: Scene) -> Scene:
    """Take it into the collection, under its function's name."""
    SCENES[play.__name__.replace("_", "-")] = play
    return play


def is_in(*states: State) -> Callable[[Observation], bool]:
    return lambda seen: seen.state in states


def running(seen: ObjectSet) -> int:
    """Pods whose container runs and that nobody has deleted."""
    return sum(
        any(fields.mapping(one, "state", "running") for one in fields.items(pod, "status", "containerStatuses")[:1])
        and not fields.is_deleting(pod)
        for pod in seen.pods
    )


async def come_up(at: Studio, ref: JobRef) -> None:
    await at.reach(ref, is_in(State.RUNNING))


# -- before admission --------------------------------------------------------------------------------------------------


@scene
async def gated(at: Studio) -> None:
    ref = await at.start(python(FOREVER), nodes=2)
    await at.until(ref, lambda seen: "QuotaReserved" in fields.conditions(seen.workload))
    await at.record(ref, "created, its gate closed")


@scene
async def gated_by_others(at: Studio) -> None:
    ref = await at.start_raw(python(FOREVER), {}, gates=(words.GATE, FOREIGN_GATE))
    await at.record(ref, "our gate and that of somebody else are closed", suffix="-and-us")
    await at.open(ref)
    await at.until(ref, lambda seen: words.GATE not in fields.annotation(seen.workload, words.ADMISSION_GATED_BY))
    await at.record(ref, "our gate is open, that of somebody else is closed")


@scene
async def waiting_for_quota(at: Studio) -> None:
    first = await at.run(python(FOREVER), resources={"cpu": "700m", "memory": "64Mi"})
    await come_up(at, first)
    ref = await at.run(python(FOREVER), nodes=2, resources={"cpu": "300m", "memory": "64Mi"})
    await at.until(ref, lambda seen: "quota" in _quota_message(seen))
    await at.record(ref, "another job has the room that it needs")


@scene
async def exceeds_max_quota(at: Studio) -> None:
    ref = await at.run(python(FOREVER), nodes=9, resources={"cpu": "300m", "memory": "64Mi"})
    await at.until(ref, lambda seen: "quota" in _quota_message(seen))
    await at.record(ref, "it can never fit its queue")


@scene
async def no_flavor(at: Studio) -> None:
    ref = await at.run(python(FOREVER), resources={"cpu": "50m", "memory": "64Mi", "example.com/slot": 1})
    await at.until(ref, lambda seen: "slot" in _quota_message(seen))
    await at.record(ref, "it asks for a resource that its queue knows nothing of")


@scene
async def queue_missing(at: Studio) -> None:
    ref = await at.start(python(FOREVER), queue=at.queue("going"))
    at.delete_local_queue("going")
    await at.look(lambda: not at.has_local_queue("going"))
    await at.open(ref)
    await at.until(ref, lambda seen: "LocalQueue" in _quota_message(seen))
    await at.record(ref, "its LocalQueue was deleted")


@scene
async def queue_stopped(at: Studio) -> None:
    ref = await at.start(python(FOREVER), queue=at.queue("stopped"))
    at.queue("stopped", stop="Hold")
    await at.open(ref)
    await at.until(ref, lambda seen: "ueue" in _quota_message(seen))
    await at.record(ref, "its ClusterQueue is stopped")


@scene
async def check_pending(at: Studio) -> None:
    ref = await at.start(python(FOREVER), nodes=2)
    at.pause_controller()
    await at.open(ref)
    await at.until(ref, lambda seen: fields.is_true(seen.workload, words.QUOTA_RESERVED))
    await at.record(ref, "quota reserved; the admission controller has not answered yet")


# -- starting ----------------------------------------------------------------------------------------------------------


@scene
async def fenced(at: Studio) -> None:
    ref = await at.start(python(FOREVER), nodes=2)
    at.pause_controller()
    await at.open(ref)
    await at.until(ref, lambda seen: fields.is_true(seen.workload, words.QUOTA_RESERVED))
    at.resume_controller()
    await at.until(ref, lambda seen: fields.is_true(seen.workload, words.ADMITTED))
    at.pause_controller()
    await at.until(ref, lambda seen: len(seen.pods) == 2)
    await at.record(ref, "admitted; its pods wait for the controller, which stands still")


@scene
async def starting(at: Studio) -> None:
    ref = await at.run(python(FOREVER), nodes=2)
    await at.until(ref, lambda seen: any(fields.text(pod, "spec", "nodeName") for pod in seen.pods))
    await at.record(ref, "admitted and lifted; containers are being made")


@scene
async def admitted_suspended(at: Studio) -> None:
    ref = await at.start_raw(python(FOREVER), {"spec": {"trainer": {"numNodes": 1, "env": []}}})
    await at.open(ref)
    await at.until(ref, lambda seen: fields.is_true(seen.workload, words.ADMITTED))
    await at.record(ref, "admitted this moment, and its TrainJob, which carries an empty list, not yet resumed")
    await at.reach(ref, lambda seen: seen.cause is Cause.MISCONFIGURED, seconds=45)
    await at.record(ref, "admitted for half a minute, and Kueue can't resume its TrainJob", suffix="-for-long")


@scene
async def one_rank_ready(at: Studio) -> None:
    code = "import os,time\nif os.environ['DISPATCH_RANK'] == '0': open('/tmp/ready', 'w')\n" + FOREVER
    ref = await at.run(python(code), nodes=2, readiness={"command": ["test", "-e", "/tmp/ready"]})
    await at.reach(ref, lambda seen: (seen.ranks[0].ready, seen.ranks[0].running) == (1, 2))
    await at.record(ref, "two ranks run, one of them is ready")


@scene
async def startup_order(at: Studio) -> None:
    leader = {"name": "leader", "command": python(FOREVER), "readiness": {"command": ["false"]}}
    worker = {"name": "worker", "command": python(FOREVER), "nodes": 2, "after": [{"role": "leader"}]}
    ref = await at.run(roles=[leader, worker])
    await at.reach(ref, lambda seen: seen.ranks[0].running == 1)
    await at.record(ref, "the leader runs and isn't ready; workers wait for it")


@scene
async def leader_gone(at: Studio) -> None:
    leader = {"name": "leader", "command": python("import time; time.sleep(2)"), "readiness": {"command": ["false"]}}
    worker = {"name": "worker", "command": python(FOREVER), "after": [{"role": "leader"}]}
    ref = await at.run(roles=[leader, worker])
    await at.reach(ref, lambda seen: seen.ranks[0].succeeded == 1)
    await at.record(ref, "the leader has ended well and was never ready; workers waited for it")


@scene
async def image_missing(at: Studio) -> None:
    ref = await at.run(python(FOREVER), image="localhost/there-is-none:1")
    await at.reach(ref, lambda seen: seen.cause is Cause.IMAGE)
    await at.record(ref, "its image is on no node, and may not be pulled")


@scene
async def unschedulable(at: Studio) -> None:
    ref = await at.run(python(FOREVER), runtime=at.runtime("nowhere", nodeSelector={"example.com/zone": "moon"}))
    await at.reach(ref, lambda seen: seen.cause is Cause.NO_CAPACITY)
    await at.record(ref, "admitted; no node has the label that its pods select")


@scene
async def pods_refused(at: Studio) -> None:
    at.refuse_pods(is_on=True)
    try:
        ref = await at.run(python(FOREVER))
        await at.look(lambda: at.has_event("exceeded quota"))
        await at.record(ref, "a ResourceQuota of its namespace refuses its pods")
    finally:
        at.refuse_pods(is_on=False)


@scene
async def command_missing(at: Studio) -> None:
    ref = await at.run(["/there/is/none"])
    await at.reach(ref, is_in(State.FAILED))
    await at.record(ref, "its command doesn't exist")


# -- running -----------------------------------------------------------------------------------------------------------


@scene
async def run(at: Studio) -> None:
    ref = await at.run(python(FOREVER), nodes=2)
    await come_up(at, ref)
    await at.record(ref, "all ranks running")


SCENES["running"] = SCENES.pop("run")


@scene
async def holding(at: Studio) -> None:
    ref = await at.run(python(STUBBORN), nodes=2, grace_period=8)
    await come_up(at, ref)
    hold = await at.hold(ref)
    await at.until(ref, lambda seen: all(fields.is_deleting(pod) for pod in seen.pods))
    await at.record(ref, "held; its pods are still ending")
    await at.release(ref, hold)
    await at.record(ref, "held and released at once; the old pods are still ending", suffix="-and-released")
    await at.until(ref, lambda seen: "old pods" in str(fields.dig(seen.workload, "status", "admissionChecks")))
    await at.record(ref, "released; quota is reserved and the admission controller waits for old pods", suffix="-waits")


@scene
async def held(at: Studio) -> None:
    ref = await at.run(python(FOREVER), nodes=2)
    await come_up(at, ref)
    hold = await at.hold(ref)
    await at.reach(ref, is_in(State.HELD))
    await at.until(ref, lambda seen: not fields.is_true(seen.workload, words.QUOTA_RESERVED))
    await at.record(ref, "held; its pods are gone")
    await at.release(ref, hold)
    await at.reach(ref, lambda seen: seen.state is State.RUNNING and seen.executions == 2)
    await at.record(ref, "released and running again", suffix="-then-resumed")


@scene
async def held_by_others(at: Studio) -> None:
    ref = await at.run(python(FOREVER))
    await come_up(at, ref)
    at.bed.api.patch(await at.workload(ref), {"spec": {"active": False}})
    await at.until(ref, lambda seen: not seen.pods and not fields.is_true(seen.workload, words.QUOTA_RESERVED))
    await at.record(ref, "somebody made its Workload inactive by hand")


@scene
async def held_on_workload(at: Studio) -> None:
    ref = await at.run(python(FOREVER))
    await come_up(at, ref)
    at.pause_controller()
    notes = {
        words.HOLD_INSTANCE_ANNOTATION: "1",
        words.HOLD_SINCE_ANNOTATION: "2026-11-30T12:00:00Z",
        words.HOLD_WHO_ANNOTATION: "human/tutorial",
        words.HOLD_REASON_ANNOTATION: "a better job came along",
    }
    patch = {"metadata": {"annotations": notes}, "spec": {"active": False}}
    at.bed.api.patch(await at.workload(ref), patch)
    await at.until(ref, lambda seen: not seen.pods)
    await at.record(ref, "another implementation of the contract holds it, on the Workload alone")


@scene
async def ended_well_by_hold(at: Studio) -> None:
    code = "import time,sys,signal; signal.signal(15, lambda *a: sys.exit(0))\nwhile True: time.sleep(0.1)"
    ref = await at.run(python(code), nodes=2)
    await come_up(at, ref)
    await at.hold(ref)
    await at.until(ref, lambda seen: running(seen) == 0)
    await at.until(ref, lambda seen: not fields.is_true(seen.workload, words.ADMITTED))
    await at.record(ref, "held; its trainers made a checkpoint and exited 0")


@scene
async def preempted(at: Studio) -> None:
    busy = {"cpu": "900m", "memory": "64Mi"}
    ref = await at.run(python(FOREVER), priority="low", resources=busy)
    await come_up(at, ref)
    other = await at.run(python(FOREVER), priority="high", resources=busy)
    await come_up(at, other)
    await at.reach(ref, is_in(State.QUEUED))
    await at.record(ref, "a more important job has taken its room")


@scene
async def preempted_too_often(at: Studio) -> None:
    busy = {"cpu": "900m", "memory": "64Mi"}
    ref = await at.run(python(FOREVER), priority="low", resources=busy, max_preemptions=0)
    await come_up(at, ref)
    await at.run(python(FOREVER), priority="high", resources=busy)
    await at.reach(ref, is_in(State.FAILED))
    await at.record(ref, "preempted once, which its spec does not allow")


@scene
async def queue_drained(at: Studio) -> None:
    ref = await at.run(python(FOREVER), queue=at.queue("drained"))
    await come_up(at, ref)
    at.queue("drained", stop="HoldAndDrain")
    await at.until(ref, lambda seen: not fields.is_true(seen.workload, words.QUOTA_RESERVED) and not seen.pods)
    await at.record(ref, "its queue was stopped and drained")


# -- ends --------------------------------------------------------------------------------------------------------------


@scene
async def succeeded(at: Studio) -> None:
    code = "import os,json\nif os.environ['DISPATCH_RANK'] == '0': "
    code += "open(os.environ['DISPATCH_RESULT_PATH'], 'w').write(json.dumps({'loss': 0.5}))"
    ref = await at.run(python(code), nodes=2)
    await at.until(ref, lambda seen: fields.is_true(seen.trainjob, words.TRAINJOB_COMPLETE))
    await at.record(ref, "both ranks ended well, rank 0 with a result")


@scene
async def result_broken(at: Studio) -> None:
    ref = await at.run(python("import os; open(os.environ['DISPATCH_RESULT_PATH'], 'w').write('x' * 5000)"))
    await at.until(ref, lambda seen: fields.is_true(seen.trainjob, words.TRAINJOB_COMPLETE))
    await at.record(ref, "rank 0 ended well and left a result that is too large")


async def end_with(at: Studio, code: str, story: str) -> None:
    """A job whose rank 1 ends so, while rank 0 goes on; recorded at once and when the cluster has seen it."""
    rank = f"import os,sys,time\nif os.environ['DISPATCH_RANK'] == '1':\n time.sleep(2)\n {code}\n{FOREVER}"
    command = ["sh", "-c", 'python3 -u -c "$0"; exit $?', rank]
    ref = await at.run(command, nodes=2)
    await at.reach(ref, is_in(State.FAILED))
    await at.record(ref, f"{story}; a moment ago", suffix="-now")
    await at.until(ref, lambda seen: fields.is_true(seen.trainjob, words.TRAINJOB_FAILED))
    await at.record(ref, story)


@scene
async def failed_with_code(at: Studio) -> None:
    await end_with(at, "sys.exit(3)", "rank 1 exited with code 3")


@scene
async def failed_with_signal(at: Studio) -> None:
    await end_with(at, "os.kill(os.getpid(), 11)", "rank 1 was ended by signal 11")


@scene
async def out_of_memory(at: Studio) -> None:
    ref = await at.run(python("x = bytearray(10**9)\nfor i in range(0, 10**9, 4096): x[i] = 1"))
    await at.until(ref, lambda seen: fields.is_true(seen.trainjob, words.TRAINJOB_FAILED))
    await at.record(ref, "its rank used more memory than it asked for")


@scene
async def child_out_of_memory(at: Studio) -> None:
    child = "x = bytearray(10**9)\nfor i in range(0, 10**9, 4096): x[i] = 1"
    code = f"import subprocess,sys\nsubprocess.run([sys.executable, '-c', {child!r}])\nsys.exit(5)"
    ref = await at.run(python(code))
    await at.until(ref, lambda seen: fields.is_true(seen.trainjob, words.TRAINJOB_FAILED))
    await at.record(ref, "a child of its rank used too much memory; the rank itself exited with code 5")


@scene
async def evicted(at: Studio) -> None:
    ref = await at.run(python(FOREVER), nodes=2)
    await come_up(at, ref)
    pods = (await at.objects(ref)).pods
    at.evict(min(fields.name(pod) for pod in pods))
    await at.reach(ref, is_in(State.FAILED))
    await at.record(ref, "one of its pods was drained from its node; a moment ago", suffix="-now")
    await at.until(ref, lambda seen: fields.is_true(seen.trainjob, words.TRAINJOB_FAILED))
    await at.record(ref, "one of its pods was drained from its node")


@scene
async def node_pressure(at: Studio) -> None:
    queue = at.queue("disk", ephemeral_storage="1Gi")
    code = "open('/tmp/big', 'wb').write(b'x' * 80_000_000)\n" + FOREVER
    about = {"cpu": "50m", "memory": "128Mi", "ephemeral-storage": "10Mi"}
    ref = await at.run(python(code), queue=queue, resources=about)
    await at.reach(ref, is_in(State.FAILED), seconds=90)
    await at.record(ref, "the kubelet ended its pod, which used more disk than it asked for")


@scene
async def deadline(at: Studio) -> None:
    ref = await at.start_raw(python(FOREVER), {"spec": {"activeDeadlineSeconds": 6}})
    await at.open(ref)
    await at.until(ref, lambda seen: fields.is_true(seen.trainjob, words.TRAINJOB_FAILED))
    await at.record(ref, "the TrainJob's own deadline ran out")


@scene
async def too_long_for_kueue(at: Studio) -> None:
    labels = {"kueue.x-k8s.io/max-exec-time-seconds": "5"}
    ref = await at.start_raw(python(FOREVER), {"metadata": {"labels": labels}})
    await at.open(ref)
    await at.until(ref, lambda seen: not fields.flag(seen.workload, "spec", "active", default=True))
    await at.until(ref, lambda seen: not seen.pods)
    await at.record(ref, "Kueue's own limit of its time ran out: it made the Workload inactive")


# -- restarts ----------------------------------------------------------------------------------------------------------


@scene
async def restarted(at: Studio) -> None:
    code = "import os,sys,time; time.sleep(2)\nif os.environ['DISPATCH_EPOCH'] == '1000001': sys.exit(1)\n" + FOREVER
    ref = await at.run(python(code), nodes=2, max_restarts=1)
    await at.until(ref, lambda seen: any(fields.text(pod, "status", "phase") == "Failed" for pod in seen.pods))
    await at.record(ref, "a rank failed; JobSet is about to restart all", suffix="-soon")
    await at.reach(ref, lambda seen: seen.state is State.RUNNING and seen.executions == 2)
    await at.record(ref, "restarted by JobSet, and running again")


@scene
async def recreated(at: Studio) -> None:
    ref = await at.run(python(STUBBORN), nodes=2, grace_period=6)
    await come_up(at, ref)
    old = fields.uid((await at.objects(ref)).jobset)
    at.bed.api.delete(at.jobset(ref))
    await at.until(ref, lambda seen: fields.uid(seen.jobset) not in ("", old) and len(seen.pods) > 2)
    await at.record(ref, "its JobSet was deleted and made again; new pods wait for the old ones", suffix="-waits")
    await at.reach(ref, lambda seen: seen.state is State.RUNNING and seen.executions == 2)
    await at.record(ref, "its JobSet was deleted and made again, and runs")


# -- removal -----------------------------------------------------------------------------------------------------------


@scene
async def stopping(at: Studio) -> None:
    ref = await at.run(python(STUBBORN), nodes=2, grace_period=8)
    await come_up(at, ref)
    at.mark_stopping(ref)
    await at.record(ref, "a stop was asked for this moment")
    await at.stop(ref, seconds=5)
    await at.record(ref, "stopped; its TrainJob is gone and its pods are still ending", suffix="-pods")
    await at.stop(ref)
    await at.record(ref, "stopped; only the ledger is left", suffix="-done")


@scene
async def deleted(at: Studio) -> None:
    ref = await at.run(python(STUBBORN), nodes=2, grace_period=8)
    await come_up(at, ref)
    at.bed.api.delete(at.trainjob(ref))
    await at.until(ref, lambda seen: seen.trainjob is None and bool(seen.pods))
    await at.record(ref, "somebody deleted its TrainJob; its pods are still ending", suffix="-half")
    await at.until(ref, lambda seen: not seen.pods and not seen.workload)
    await at.record(ref, "somebody deleted its TrainJob; only the ledger is left")


@scene
async def being_deleted(at: Studio) -> None:
    ref = await at.run(python(STUBBORN), nodes=1, grace_period=8)
    await come_up(at, ref)
    at.bed.api.delete(at.trainjob(ref), propagation="Foreground")
    await at.until(ref, lambda seen: seen.trainjob is None or fields.is_deleting(seen.trainjob))
    await at.record(ref, "somebody deletes its TrainJob, which waits for what it owns")


# -- plain mode --------------------------------------------------------------------------------------------------------


@scene
async def plain(at: Studio) -> None:
    ref = await at.start(python(STUBBORN), queue="", nodes=2, grace_period=6)
    await at.until(ref, lambda seen: bool(fields.conditions(seen.trainjob)))
    await at.record(ref, "without Kueue: created, its gate closed", suffix="-gated")
    await at.open(ref, queue="")
    await come_up(at, ref)
    await at.record(ref, "without Kueue: all ranks running", suffix="-running")
    await at.hold(ref, queue="")
    await at.until(ref, lambda seen: all(fields.is_deleting(pod) for pod in seen.pods))
    await at.record(ref, "without Kueue: held, its pods still ending", suffix="-holding")
    await at.reach(ref, is_in(State.HELD))
    await at.record(ref, "without Kueue: held", suffix="-held")


# -- nodes -------------------------------------------------------------------------------------------------------------


@scene
async def node_lost(at: Studio) -> None:
    quick = [
        {"key": f"node.kubernetes.io/{taint}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 4}
        for taint in ("not-ready", "unreachable")
    ]
    away = {"kubernetes.io/hostname": "node-2"}
    ref = await at.run(python(FOREVER), runtime=at.runtime("quick", tolerations=quick, nodeSelector=away))
    await come_up(at, ref)
    at.bed.pause("node-2")
    try:
        await at.reach(ref, lambda seen: seen.cause is Cause.NODE_LOST)
        await at.record(ref, "its node has fallen silent", suffix="-silent", with_nodes=True)
        await at.reach(ref, is_in(State.FAILED))
        await at.record(ref, "its node is lost: its pod was condemned and can't end", with_nodes=True)
    finally:
        at.bed.resume("node-2")


@scene
async def holding_unproven(at: Studio) -> None:
    away = {"kubernetes.io/hostname": "node-2"}
    ref = await at.run(python(FOREVER), runtime=at.runtime("away", nodeSelector=away))
    await come_up(at, ref)
    at.bed.pause("node-2")
    try:
        await at.hold(ref)
        await at.until(ref, lambda seen: all(fields.is_deleting(pod) for pod in seen.pods))
        await at.record(ref, "held; its node doesn't answer, so its pod can't end", suffix="-silent", with_nodes=True)
        at.delete_by_force(fields.name((await at.objects(ref)).pods[0]))
        await at.until(ref, lambda seen: not seen.pods)
        await at.reach(ref, lambda seen: bool(seen.detail))
        await at.record(ref, "held; its pod was deleted by force, and its process lives on a silent node")
    finally:
        at.bed.resume("node-2")


def _quota_message(seen: ObjectSet) -> str:
    found = fields.conditions(seen.workload).get(words.QUOTA_RESERVED)
    return found.message if found is not None and "gated" not in found.message else ""
