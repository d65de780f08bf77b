# SPDX-License-Identifier: Apache-2.0
"""The two objects of a submission, out of a request and a runtime."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.manifests import (
    build_owner_patch,
    build_runtime,
    build_trainjob,
)
from airflow_provider_dispatch.adapters.kubeflow.model.pod_template import TERM_DELAY_SECONDS
from airflow_provider_dispatch.adapters.kubeflow.model.rank_environment import escape
from airflow_provider_dispatch.adapters.kubeflow.model.submission import read_submission
from airflow_provider_dispatch.adapters.kubeflow.model.terms import StateVolume, Terms
from airflow_provider_dispatch.core.identity import JobID
from airflow_provider_dispatch.core.job_spec import JobSpec
from airflow_provider_dispatch.core.owner import Owner
from airflow_provider_dispatch.core.records import StartRequest
from airflow_provider_dispatch.exceptions import SpecError

JOB = JobID("01K0000000000000000000000A")
NAME = f"dj-{JOB.lower()}-s1"
KUEUE = Terms("team", queue="lq")
PLAIN = Terms("team", is_fenced=False)
LABELS = {words.JOB_LABEL: JOB.lower(), words.SUBMISSION_LABEL: "1"}


def node(name="node", step: str | None = "trainer", container="node", **spec):
    labels = {words.ANCESTOR_STEP_LABEL: step} if step else {}
    pod = {"containers": [{"name": container, "image": "runtime:1"}], **spec}
    return {"name": name, "template": {"metadata": {"labels": labels}, "spec": {"template": {"spec": pod}}}}


def runtime(*jobs, **jobset):
    return {
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": "plain", "labels": {"trainer.kubeflow.org/framework": "torch", "team": "x"}},
        "spec": {
            "mlPolicy": {"numNodes": 7, "torch": {"numProcPerNode": 2}},
            "template": {"spec": {"replicatedJobs": list(jobs) or [node()], **jobset}},
        },
    }


def request(**spec):
    spec = {"command": ["python", "train.py"]} | spec if "roles" not in spec else spec
    return StartRequest(JOB, 1, 1, JobSpec(**spec))


def role(name, nodes=1, *after, **more):
    edges = [{"role": other, "when": when} for other, when in after]
    return {"name": name, "nodes": nodes, "command": [name], "after": edges, **more}


def jobs(built):
    return {job["name"]: job for job in built["spec"]["template"]["spec"]["replicatedJobs"]}


def pods(built, name="node"):
    return jobs(built)[name]["template"]["spec"]["template"]


def rank(built, name="node"):
    return pods(built, name)["spec"]["containers"][0]


def env(built, name="node", container=0):
    found = pods(built, name)["spec"]["containers"][container]["env"]
    names = [variable["name"] for variable in found]
    assert len(names) == len(set(names))
    return {
        variable["name"]: variable["value"]
        if "value" in variable
        else variable["valueFrom"]["fieldRef"]["fieldPath"].removeprefix("metadata.")
        for variable in found
    }


def has_empty(value) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return value in ({}, []) or any(has_empty(part) for part in parts)


def test_a_trainjob_is_born_suspended_gated_and_labelled() -> None:
    asked = StartRequest(JOB, 2, 3, JobSpec(command=["a"], nodes=4), Owner("blue", "d", "r", "t"))
    built = build_trainjob(asked, runtime(), Terms("team", "lq", "high"))
    assert built["metadata"]["name"] == f"dj-{JOB.lower()}-s2"
    assert built["metadata"]["labels"] == {
        words.JOB_LABEL: JOB.lower(),
        words.SUBMISSION_LABEL: "2",
        words.DEPLOYMENT_LABEL: "blue",
        words.QUEUE_LABEL: "lq",
        words.PRIORITY_LABEL: "high",
    }
    assert built["metadata"]["annotations"][words.ADMISSION_GATED_BY] == words.GATE
    assert built["spec"] == {
        "suspend": True,
        "runtimeRef": {
            "apiGroup": "trainer.kubeflow.org",
            "kind": "TrainingRuntime",
            "name": built["metadata"]["name"],
        },
        "trainer": {"numNodes": 4},
    }
    assert not has_empty(built)
    read = read_submission(built)
    assert (read.spec, read.owner, read.attempt, read.admissions) == (asked.spec, asked.owner, 3, 0)


def test_a_pause_is_a_second_gate_that_only_kueue_would_read() -> None:
    later = datetime.now(UTC) + timedelta(minutes=1)
    asked = StartRequest(JOB, 1, 1, JobSpec(command=["a"]), not_before=later)
    gates = [
        build_trainjob(asked, runtime(), terms)["metadata"]["annotations"][words.ADMISSION_GATED_BY]
        for terms in (KUEUE, PLAIN)
    ]
    assert gates == [f"{words.GATE},{words.NOT_BEFORE_GATE}", words.GATE]
    assert read_submission(build_trainjob(asked, runtime(), PLAIN)).not_before == later


@pytest.mark.parametrize(("policy", "nodes"), [({}, 3), ({"runLauncherAsNode": True}, 4), (None, 1)])
def test_with_mpi_the_workers_are_counted(policy, nodes: int) -> None:
    asked = request(roles=[role("launcher", 1, ("node", "ready")), role("node", 3)])
    given = runtime(node("launcher"), node("node", None))
    given["spec"]["mlPolicy"] = {"numNodes": 1, **({"mpi": policy} if policy is not None else {})}
    assert build_trainjob(asked, given, KUEUE)["spec"]["trainer"] == {"numNodes": nodes}
    assert build_runtime(asked, given, KUEUE)["spec"]["mlPolicy"]["numNodes"] == 1


@pytest.mark.parametrize("policy", ["jax", "xgboost", "flux"])
def test_a_policy_that_knows_no_name_but_node_is_not_given_another(policy: str) -> None:
    given = runtime()
    given["spec"]["mlPolicy"] = {policy: {}}
    assert build_runtime(request(), given, KUEUE)["spec"]["mlPolicy"] == {policy: {}, "numNodes": 1}
    with pytest.raises(SpecError, match=f"policy {policy} finds the leading role only under the name node"):
        build_runtime(request(roles=[role("head")]), given, KUEUE)


def test_plain_mode_names_no_queue() -> None:
    labels = build_trainjob(request(), runtime(), PLAIN)["metadata"]["labels"]
    assert labels == LABELS


def test_the_copy_names_the_original_and_leaves_it_alone() -> None:
    original = runtime()
    before = copy.deepcopy(original)
    built = build_runtime(request(), original, KUEUE)
    assert original == before
    assert built["metadata"]["labels"] == {**LABELS, "trainer.kubeflow.org/framework": "torch"}
    assert built["metadata"]["annotations"][words.COPIED_FROM_ANNOTATION] == "ClusterTrainingRuntime/plain"
    assert built["metadata"]["annotations"][words.SPEC_DIGEST_ANNOTATION] == request().spec.digest
    assert built["spec"]["mlPolicy"] == {"numNodes": 1}
    assert "ownerReferences" not in built["metadata"]


def test_labels_reach_the_jobset_each_job_and_each_pod() -> None:
    built = build_runtime(request(), runtime(), KUEUE)
    assert built["spec"]["template"]["metadata"]["labels"] == LABELS
    own = {**LABELS, words.ROLE_LABEL: "node"}
    assert jobs(built)["node"]["template"]["metadata"]["labels"] == {**own, words.ANCESTOR_STEP_LABEL: "trainer"}
    assert pods(built)["metadata"]["labels"] == own


def test_what_could_replace_one_rank_or_remove_evidence_is_taken_out() -> None:
    job = node()
    job["template"]["spec"] |= {
        "ttlSecondsAfterFinished": 1,
        "activeDeadlineSeconds": 5,
        "backoffLimit": 6,
        "backoffLimitPerIndex": 2,
        "podFailurePolicy": {"rules": [{"action": "Ignore"}]},
        "podReplacementPolicy": "Failed",
        "successPolicy": {"rules": [{"succeededCount": 1}]},
    }
    pod = job["template"]["spec"]["template"]["spec"]
    pod |= {"restartPolicy": "OnFailure", "activeDeadlineSeconds": 9, "nodeName": "node-1"}
    pod["containers"][0] |= {"restartPolicy": "Always", "args": ["old"], "command": ["old"]}
    own = {"ttlSecondsAfterFinished": 1, "failurePolicy": {"maxRestarts": 9}, "coordinator": {"replicatedJob": "node"}}
    built = build_runtime(request(nodes=3), runtime(job, **own), KUEUE)
    spec = jobs(built)["node"]["template"]["spec"]
    assert {key: value for key, value in spec.items() if key != "template"} == {
        "backoffLimit": 0,
        "completionMode": "Indexed",
        "completions": 3,
        "parallelism": 3,
    }
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    assert not {"activeDeadlineSeconds", "nodeName"} & spec["template"]["spec"].keys()
    assert not {"args", "restartPolicy"} & rank(built).keys()
    assert built["spec"]["template"]["spec"].keys() == {"network", "successPolicy", "replicatedJobs"}


def test_what_the_runtime_gives_its_pods_stays() -> None:
    given: dict[str, Any] = {
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "nodeSelector": {"pool": "a"},
        "volumes": [{"name": "scratch", "emptyDir": {}}],
        "schedulingGates": [{"name": "their/gate"}],
    }
    built = build_runtime(request(resources={"cpu": "500m"}), runtime(node(**given)), KUEUE)
    spec = pods(built)["spec"]
    assert {key: spec[key] for key in ("tolerations", "nodeSelector", "volumes")} == {
        key: given[key] for key in ("tolerations", "nodeSelector", "volumes")
    }
    assert spec["schedulingGates"] == [{"name": "their/gate"}, {"name": words.FENCE}]


@pytest.mark.parametrize(("terms", "gates"), [(KUEUE, [{"name": words.FENCE}]), (PLAIN, None)])
def test_the_fence_is_there_where_a_controller_lifts_it(terms: Terms, gates) -> None:
    assert pods(build_runtime(request(), runtime(), terms))["spec"].get("schedulingGates") == gates


def test_a_rank_learns_who_it_is() -> None:
    seen = env(build_runtime(request(nodes=2), runtime(), Terms("team", "lq", state=StateVolume(claim="c"))))
    assert seen == {
        "DISPATCH_JOB_ID": JOB,
        "DISPATCH_SUBMISSION": "1",
        "DISPATCH_ATTEMPT": f"annotations['{words.ATTEMPT_ANNOTATION}']",
        "DISPATCH_EPOCH": f"annotations['{words.EPOCH_ANNOTATION}']",
        "DISPATCH_ROLE": "node",
        "DISPATCH_RANK": "labels['batch.kubernetes.io/job-completion-index']",
        "DISPATCH_NODES": "2",
        "DISPATCH_LEADER_ADDR": f"{NAME}-node-0-0.{NAME}",
        "DISPATCH_RESULT_PATH": "/dev/termination-log",
        "DISPATCH_STATE_DIR": f"/dispatch-state/{JOB.lower()}",
        "PYTHONUNBUFFERED": "1",
        "MASTER_ADDR": f"{NAME}-node-0-0.{NAME}",
        "MASTER_PORT": "29500",
        "WORLD_SIZE": "2",
        "RANK": "labels['batch.kubernetes.io/job-completion-index']",
        "LOCAL_RANK": "0",
        "PET_NNODES": "2",
        "PET_NODE_RANK": "labels['batch.kubernetes.io/job-completion-index']",
        "PET_NPROC_PER_NODE": "1",
        "PET_MASTER_ADDR": f"{NAME}-node-0-0.{NAME}",
        "PET_MASTER_PORT": "29500",
    }


def test_the_job_wins_over_the_runtime_and_loses_to_its_identity() -> None:
    job = node()
    job["template"]["spec"]["template"]["spec"]["containers"][0]["env"] = [
        {"name": "LEVEL", "value": "$(A)"},
        {"name": "KEPT", "value": "$(A)"},
        {"name": "DISPATCH_EPOCH", "value": "7"},
    ]
    seen = env(build_runtime(request(env={"LEVEL": "$(B)", "MASTER_PORT": "1"}), runtime(job), KUEUE))
    assert (seen["LEVEL"], seen["KEPT"], seen["MASTER_PORT"]) == ("$$(B)", "$(A)", "1")
    assert seen["DISPATCH_EPOCH"].startswith("annotations")
    assert "DISPATCH_STATE_DIR" not in seen


@pytest.mark.parametrize(
    ("terms", "rank_of_worker"),
    [(KUEUE, f"annotations['{words.WORLD_RANK_ANNOTATION}']"), (PLAIN, None)],
)
def test_ranks_count_through_all_roles_the_leading_role_first(terms: Terms, rank_of_worker: str | None) -> None:
    asked = request(roles=[role("worker", 2), role("head"), role("judge")], leading_role="head")
    built = build_runtime(asked, runtime(), terms)
    assert [env(built, name).get("RANK") for name in ("head", "worker", "judge")] == ["0", rank_of_worker, "3"]
    assert [
        pods(built, name)["metadata"].get("annotations", {}).get(words.RANK_OFFSET_ANNOTATION)
        for name in ("head", "worker", "judge")
    ] == [None, "1", "3"]
    assert env(built, "worker")["WORLD_SIZE"] == "4"
    assert env(built, "worker")["MASTER_ADDR"] == f"{NAME}-head-0-0.{NAME}"


@pytest.mark.parametrize(
    ("roles", "order"),
    [
        ([role("leader"), role("worker", 2, ("leader", "ready"))], ["leader", "worker"]),
        ([role("launcher", 1, ("worker", "ready")), role("worker", 2)], ["worker", "launcher"]),
        ([role("c", 1, ("b", "complete")), role("b", 1, ("a", "ready")), role("a")], ["a", "b", "c"]),
        ([role("x"), role("y")], ["x", "y"]),
    ],
)
def test_whoever_is_waited_for_stands_first(roles, order) -> None:
    built = build_runtime(request(roles=roles), runtime(), KUEUE)
    assert list(jobs(built)) == order
    assert "dependsOn" not in jobs(built)[order[0]]
    steps = {name: fields.label(job["template"], words.ANCESTOR_STEP_LABEL) for name, job in jobs(built).items()}
    assert [name for name, step in steps.items() if step == "trainer"] == [roles[0]["name"]]
    assert not has_empty(built["spec"]["template"]["spec"]["replicatedJobs"])


def test_an_edge_of_the_order_is_a_dependency() -> None:
    asked = request(roles=[role("a"), role("b", 1, ("a", "ready")), role("c", 1, ("a", "complete"), ("b", "ready"))])
    built = jobs(build_runtime(asked, runtime(), KUEUE))
    assert built["b"]["dependsOn"] == [{"name": "a", "status": "Ready"}]
    assert built["c"]["dependsOn"] == [{"name": "a", "status": "Complete"}, {"name": "b", "status": "Ready"}]


def test_initializers_stay_and_are_fenced_and_named() -> None:
    first = node("dataset-initializer", "dataset-initializer", "dataset-initializer")
    second = node()
    second["dependsOn"] = [{"name": "dataset-initializer", "status": "Complete"}]
    asked = request(roles=[role("leader"), role("worker", 2, ("leader", "ready"))])
    built = build_runtime(asked, runtime(first, second), KUEUE)
    assert list(jobs(built)) == ["dataset-initializer", "leader", "worker"]
    initializer = jobs(built)["dataset-initializer"]
    assert initializer["template"]["metadata"]["labels"][words.ANCESTOR_STEP_LABEL] == "dataset-initializer"
    assert rank(built, "dataset-initializer")["name"] == "dataset-initializer"
    assert env(built, "dataset-initializer")["DISPATCH_ROLE"] == "dataset-initializer"
    assert "RANK" not in env(built, "dataset-initializer")
    assert pods(built, "dataset-initializer")["spec"]["schedulingGates"] == [{"name": words.FENCE}]
    assert jobs(built)["leader"]["dependsOn"] == [{"name": "dataset-initializer", "status": "Complete"}]
    assert [edge["name"] for edge in jobs(built)["worker"]["dependsOn"]] == ["dataset-initializer", "leader"]


def test_a_role_takes_the_template_of_its_own_name_else_that_of_node() -> None:
    launcher = node("launcher", "trainer", tolerations=[{"key": "l"}])
    workers = node("node", None, tolerations=[{"key": "n"}])
    asked = request(roles=[role("launcher", 1, ("worker", "ready")), role("worker", 2)])
    built = build_runtime(asked, runtime(launcher, workers), KUEUE)
    assert [pods(built, name)["spec"]["tolerations"][0]["key"] for name in ("launcher", "worker")] == ["l", "n"]


def test_a_runtime_with_one_odd_kind_of_pod_is_a_template_too() -> None:
    built = build_runtime(request(), runtime(node("main", container="pytorch")), KUEUE)
    assert list(jobs(built)) == ["node"]
    assert rank(built)["name"] == "node"


@pytest.mark.parametrize(("marked", "taken"), [(None, "x"), ("y", "y")])
def test_without_a_node_the_template_is_what_is_marked_as_training_else_the_first(marked, taken: str) -> None:
    given = [node(name, "trainer" if name == marked else None, tolerations=[{"key": name}]) for name in ("x", "y")]
    built = build_runtime(request(roles=[role("x"), role("y"), role("new")]), runtime(*given), KUEUE)
    assert [pods(built, name)["spec"]["tolerations"][0]["key"] for name in ("x", "y", "new")] == ["x", "y", taken]


def test_a_command_goes_through_unchanged() -> None:
    asked = request(
        command=["sh", "-c", "echo $(HOME) $$ 5$"], readiness={"command": ["test", "$(X)"]}, env={"PRICE": "$9"}
    )
    built = build_runtime(asked, runtime(), KUEUE)
    assert rank(built)["command"] == ["sh", "-c", "echo $$(HOME) $$$$ 5$$"]
    assert rank(built)["readinessProbe"]["exec"]["command"] == ["test", "$$(X)"]
    assert env(built)["PRICE"] == "$$9"


def test_a_secret_is_left_to_the_kubelet() -> None:
    built = build_runtime(request(secrets={"TOKEN": "hugging-face/token"}), runtime(), KUEUE)
    variables = {variable["name"]: variable for variable in rank(built)["env"]}

    assert variables["TOKEN"] == {
        "name": "TOKEN",
        "valueFrom": {"secretKeyRef": {"name": "hugging-face", "key": "token"}},
    }


@pytest.mark.parametrize("text", ["", "$", "$$", "a$b", "$(A)", "$$(A)", "$(", "$é", "x$$$(A)$"])
def test_an_escaped_text_is_expanded_to_itself(text: str) -> None:
    assert expand(escape(text)) == text


def expand(text: str) -> str:
    """What the kubelet makes of a value while no variable is known to it (k8s.io/kubernetes third_party expansion)."""
    out, at = "", 0
    while at < len(text):
        if text[at] == "$" and at + 1 < len(text):
            following = text[at + 1]
            if following == "$":
                out, at = out + "$", at + 2
                continue
            out, at = out + "$" + following, at + 2
            continue
        out, at = out + text[at], at + 1
    return out


@pytest.mark.parametrize(
    ("readiness", "probe"),
    [
        ({"command": ["true"], "period": timedelta(milliseconds=50)}, {"exec": {"command": ["true"]}}),
        ({"tcp_port": 9000}, {"tcpSocket": {"port": 9000}}),
    ],
)
def test_readiness_is_a_probe(readiness, probe) -> None:
    built = rank(build_runtime(request(readiness=readiness), runtime(), KUEUE))["readinessProbe"]
    assert built == {**probe, "periodSeconds": 1, "timeoutSeconds": 10, "failureThreshold": 1}


def test_resources_are_requests_and_limits_alike_over_the_runtimes_own() -> None:
    job = node()
    job["template"]["spec"]["template"]["spec"]["containers"][0]["resources"] = {
        "requests": {"cpu": "1", "memory": "1Gi"},
        "limits": {"memory": "2Gi"},
        "claims": [{"name": "gpu"}],
    }
    asked = request(resources={"cpu": 0.25, "nvidia.com/gpu": 2})
    built = rank(build_runtime(asked, runtime(job), KUEUE))
    assert built["resources"] == {
        "requests": {"cpu": "250m", "memory": "1Gi", "nvidia.com/gpu": "2"},
        "limits": {"cpu": "250m", "memory": "2Gi", "nvidia.com/gpu": "2"},
        "claims": [{"name": "gpu"}],
    }
    assert env(build_runtime(asked, runtime(job), KUEUE))["PET_NPROC_PER_NODE"] == "2"


@pytest.mark.parametrize(
    ("named", "connection", "chosen"), [("a", "b", "a"), (None, "b", "b"), (None, "", "runtime:1")]
)
def test_the_image_of_the_role_then_of_the_connection_then_of_the_runtime(named, connection, chosen) -> None:
    built = build_runtime(request(image=named), runtime(), Terms("team", image=connection))
    assert rank(built)["image"] == chosen


@pytest.mark.parametrize(("grace", "seconds"), [(0, 0), (1.2, 2), (30, 30)])
def test_the_grace_period_is_whole_seconds_after_the_delay_of_term(grace: float, seconds: int) -> None:
    built = build_runtime(request(grace_period=timedelta(seconds=grace)), runtime(), KUEUE)
    assert pods(built)["spec"]["terminationGracePeriodSeconds"] == seconds + TERM_DELAY_SECONDS
    assert rank(built)["lifecycle"] == {"preStop": {"sleep": {"seconds": TERM_DELAY_SECONDS}}}


def test_a_runtime_that_has_its_own_way_to_end_keeps_it() -> None:
    original = runtime()
    own = {"preStop": {"exec": {"command": ["save"]}}}
    original["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0][
        "lifecycle"
    ] = own
    assert rank(build_runtime(request(), original, KUEUE))["lifecycle"] == own


@pytest.mark.parametrize(
    ("spec", "success", "failure"),
    [
        ({}, {"operator": "All"}, None),
        (
            {"success_roles": ["a"], "max_restarts": 2},
            {"operator": "All", "targetReplicatedJobs": ["a"]},
            {"maxRestarts": 2, "restartStrategy": "BlockingRecreate"},
        ),
    ],
)
def test_ends_and_restarts_are_the_jobsets_policies(spec, success, failure) -> None:
    built = build_runtime(request(roles=[role("a"), role("b")], **spec), runtime(), KUEUE)["spec"]["template"]["spec"]
    assert (built["successPolicy"], built.get("failurePolicy")) == (success, failure)
    assert built["network"] == {"enableDNSHostnames": True, "publishNotReadyAddresses": True}


@pytest.mark.parametrize(
    ("state", "source"),
    [
        (StateVolume(host_path="/shared"), {"hostPath": {"path": "/shared", "type": "Directory"}}),
        (StateVolume(claim="team-state"), {"persistentVolumeClaim": {"claimName": "team-state"}}),
    ],
)
def test_the_state_volume_is_one_folder_a_job(state: StateVolume, source) -> None:
    sidecar = {"name": "init", "image": "i"}
    built = build_runtime(request(), runtime(node(initContainers=[sidecar])), Terms("team", "lq", state=state))
    assert pods(built)["spec"]["volumes"] == [{"name": "dispatch-state", **source}]
    mount = {"name": "dispatch-state", "mountPath": f"/dispatch-state/{JOB.lower()}", "subPath": JOB.lower()}
    assert [one["volumeMounts"] for one in (rank(built), pods(built)["spec"]["initContainers"][0])] == [[mount]] * 2


@pytest.mark.parametrize(
    ("asked", "given", "problem"),
    [
        (request(), {"metadata": {"name": "x"}, "spec": {}}, "no replicated job that trains"),
        (request(), runtime(node("launcher"), node("node", None)), "also has launcher"),
        (request(roles=[role("data-initializer")]), runtime(node("data-initializer", None), node()), "initializer"),
        (request(roles=[role("a" * 20, 11)]), runtime(), "shorten the name by 1"),
        (
            request(
                roles=[*(role(f"r{n}") for n in range(6)), role("last", 1, *((f"r{n}", "ready") for n in range(6)))]
            ),
            runtime(),
            "wait for 5 others at most",
        ),
        (
            request(roles=[role(f"r{n}") for n in range(18)]),
            runtime(node("x-initializer", "dataset-initializer"), node()),
            "at most 18",
        ),
    ],
)
def test_what_does_not_go_together_is_told_before_anything_is_sent(asked, given, problem: str) -> None:
    with pytest.raises(SpecError, match=problem):
        build_runtime(asked, given, KUEUE)


def test_no_image_at_all_is_told() -> None:
    job = node()
    del job["template"]["spec"]["template"]["spec"]["containers"][0]["image"]
    with pytest.raises(SpecError, match="neither role 'node'"):
        build_runtime(request(), runtime(job), KUEUE)


def test_a_template_without_a_container_is_told() -> None:
    with pytest.raises(SpecError, match="no container in its trainer's pod template"):
        build_runtime(request(), runtime(node(containers=[])), KUEUE)


def test_the_runtime_goes_with_its_trainjob_and_never_keeps_it() -> None:
    patch = build_owner_patch({"metadata": {"name": NAME, "uid": "u1"}})
    assert patch["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainJob",
            "name": NAME,
            "uid": "u1",
            "blockOwnerDeletion": False,
        }
    ]
