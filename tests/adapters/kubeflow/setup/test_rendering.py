# SPDX-License-Identifier: Apache-2.0
"""The manifests: one truth for the command and for kustomize, the least rights, and every name that the code knows."""

from __future__ import annotations

import re
from collections import Counter
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.adapters.kubeflow.model import vocabulary as words
from airflow_provider_dispatch.adapters.kubeflow.model.probe_marks import PROBE_NAME
from airflow_provider_dispatch.adapters.kubeflow.model.resources import TRAINING_RUNTIMES, TRAINJOBS
from airflow_provider_dispatch.adapters.kubeflow.setup.kinds import describe_object, find_resource
from airflow_provider_dispatch.adapters.kubeflow.setup.rendering import (
    INSTANCE_LABEL,
    PART_LABEL,
    Manifest,
    build_manifests,
    write_yaml,
)
from airflow_provider_dispatch.adapters.kubeflow.setup.terms import (
    IMAGE,
    Account,
    JobsNamespace,
    SetupTerms,
    parse_account,
)
from airflow_provider_dispatch.controller.config import parse_config
from airflow_provider_dispatch.exceptions import SpecError

BASE = Path(str(resources.files("airflow_provider_dispatch"))) / "manifests"
DEFAULT = SetupTerms((JobsNamespace("default"),), image=IMAGE)
TWO = SetupTerms((JobsNamespace("a"), JobsNamespace("b", (Account("air", "worker"),))), name="x")


def build_base(folder: Path = BASE) -> list[Manifest]:
    """What kustomize makes of the base: its resources, in order."""
    named = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert set(named) == {"apiVersion", "kind", "resources"}
    found: list[Manifest] = []
    for name in named["resources"]:
        path = folder / name
        found += build_base(path) if path.is_dir() else [one for one in yaml.safe_load_all(path.read_text()) if one]
    return found


def find(manifests: tuple[Manifest, ...], kind: str, name: str, namespace: str | None = None) -> Manifest:
    (found,) = (
        one
        for one in manifests
        if (one["kind"], one["metadata"]["name"], one["metadata"].get("namespace")) == (kind, name, namespace)
    )
    return found


def walk(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for inner in (*value, *value.values()) for text in walk(inner)]
    if isinstance(value, list):
        return [text for inner in value for text in walk(inner)]
    return [value] if isinstance(value, str) else []


def arguments_of(manifests: tuple[Manifest, ...], name: str = "dispatch") -> list[str]:
    deployment = find(manifests, "Deployment", f"{name}-controller", f"{name}-system")
    found: list[str] = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    return found


def test_the_base_is_what_the_command_renders() -> None:
    rendered = {describe_object(one): one for one in build_manifests(DEFAULT)}
    assert {describe_object(one): one for one in build_base()} == rendered
    assert len(rendered) == len(build_manifests(DEFAULT))


def test_the_base_names_every_file() -> None:
    named = {
        path.parent / name
        for path in BASE.rglob("kustomization.yaml")
        for name in yaml.safe_load(path.read_text())["resources"]
    }
    files = {path for path in BASE.rglob("*.yaml") if path.name != "kustomization.yaml"}
    assert files == {path for path in named if path.suffix == ".yaml"}


def test_what_is_printed_reads_back() -> None:
    manifests = build_manifests(TWO)
    assert tuple(yaml.safe_load_all(write_yaml(manifests))) == manifests


@pytest.mark.parametrize("terms", [DEFAULT, TWO], ids=["default", "two"])
def test_every_object_is_marked_and_known(terms: SetupTerms) -> None:
    for manifest in build_manifests(terms):
        labels = manifest["metadata"]["labels"]
        assert (labels[PART_LABEL], labels[INSTANCE_LABEL]) == ("dispatch", terms.name)
        resource = find_resource(manifest)
        assert resource.is_namespaced == ("namespace" in manifest["metadata"]), describe_object(manifest)


def test_no_two_objects_have_one_name() -> None:
    counted = Counter(describe_object(one) for one in build_manifests(TWO))
    assert max(counted.values()) == 1


def test_another_instance_shares_no_name_with_the_first() -> None:
    manifests = build_manifests(TWO)
    names = [text for one in manifests for text in walk(one) if re.fullmatch(r"dispatch-[a-z-]+", text)]
    assert set(names) == {words.LEASE_NAME}
    first = {describe_object(one) for one in build_manifests(DEFAULT)}
    assert first.isdisjoint(describe_object(one) for one in manifests)


def test_names_of_ours_in_the_manifests_are_those_of_the_code() -> None:
    known = {value for value in vars(words).values() if isinstance(value, str)} | {f"{words.DOMAIN}/controller"}
    texts = " ".join(text for one in build_manifests(DEFAULT) for text in walk(one))
    used = set(re.findall(rf"{re.escape(words.DOMAIN)}/[a-z-]+", texts))
    assert used
    assert used <= known


def test_the_controller_takes_its_arguments() -> None:
    config = parse_config(arguments_of(build_manifests(TWO), "x"))
    assert config.namespaces == ("a", "b")
    assert (config.admission_check, config.lease_namespace) == ("x-admission", "x-system")
    assert config.lease_name == words.LEASE_NAME
    deployment = find(build_manifests(TWO), "Deployment", "x-controller", "x-system")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"metrics": config.metrics_port, "health": config.health_port}


def test_the_defaults_are_those_of_a_connection() -> None:
    assert DEFAULT.names == {
        "admission_check": words.DEFAULT_CHECK,
        "lease_namespace": words.LEASE_NAMESPACE,
    }


def test_the_controller_runs_without_any_privilege() -> None:
    pod = find(build_manifests(DEFAULT), "Deployment", "dispatch-controller", "dispatch-system")["spec"]["template"][
        "spec"
    ]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"livenessProbe", "readinessProbe", "startupProbe", "resources"} <= container.keys()


def test_no_rule_gives_more_than_it_names() -> None:
    rules = [(one["metadata"]["name"], rule) for one in build_manifests(TWO) for rule in one.get("rules", ())]
    assert rules
    for name, rule in rules:
        words_of_it = {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
        assert "*" not in words_of_it, name
        assert "secrets" not in rule["resources"], name
        assert not {"deletecollection", "escalate", "impersonate", "bind", "update"} & set(rule["verbs"]), name


def test_nothing_of_airflow_is_bound_in_the_whole_cluster_but_reading() -> None:
    manifests = build_manifests(TWO)
    wide = [one for one in manifests if one["kind"] == "ClusterRoleBinding" and "airflow" in one["metadata"]["name"]]
    assert [one["roleRef"]["name"] for one in wide] == ["x-airflow"]
    role = find(manifests, "ClusterRole", "x-airflow")
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"get", "list"}


def test_accounts_that_are_named_are_bound_and_none_is_made() -> None:
    manifests = build_manifests(TWO)
    accounts = [describe_object(one) for one in manifests if one["kind"] == "ServiceAccount"]
    assert accounts == ["ServiceAccount x-system/x-controller", "ServiceAccount a/x-airflow"]
    given = {"kind": "ServiceAccount", "name": "worker", "namespace": "air"}
    own = {"kind": "ServiceAccount", "name": "x-airflow", "namespace": "a"}
    assert find(manifests, "RoleBinding", "x-airflow", "b")["subjects"] == [given]
    assert find(manifests, "RoleBinding", "x-airflow", "a")["subjects"] == [own]
    assert find(manifests, "ClusterRoleBinding", "x-airflow")["subjects"] == [own, given]


def test_a_controller_of_all_namespaces_is_bound_once() -> None:
    terms = SetupTerms((JobsNamespace("a"), JobsNamespace("b", is_watched=False)), watches_all=True)
    manifests = build_manifests(terms)
    binding = find(manifests, "ClusterRoleBinding", "dispatch-controller-jobs")
    assert binding["roleRef"]["name"] == "dispatch-controller-jobs"
    assert not [
        one
        for one in manifests
        if one["metadata"]["name"] == "dispatch-controller-jobs" and one["kind"] == "RoleBinding"
    ]
    assert parse_config(arguments_of(manifests)).namespaces == ()
    assert "dispatch.phpboyscout.uk/controller" not in walk(find(manifests, "RoleBinding", "dispatch-airflow", "b"))


def test_without_a_controller_there_is_none_and_the_namespace_says_so() -> None:
    manifests = build_manifests(SetupTerms((JobsNamespace("a", is_watched=False),)))
    assert not [one for one in manifests if one["kind"] in ("Deployment", "AdmissionCheck", "Namespace")]
    binding = find(manifests, "RoleBinding", "dispatch-airflow", "a")
    assert binding["metadata"]["labels"]["dispatch.phpboyscout.uk/controller"] == "none"


def test_without_kueue_there_is_no_check() -> None:
    manifests = build_manifests(SetupTerms((JobsNamespace("a"),), has_kueue=False))
    assert "AdmissionCheck" not in {one["kind"] for one in manifests}
    assert "Deployment" in {one["kind"] for one in manifests}


def test_policies_come_before_the_rights_that_they_limit() -> None:
    kinds = [one["kind"] for one in build_manifests(TWO)]
    last_policy = max(place for place, kind in enumerate(kinds) if kind.startswith("ValidatingAdmissionPolicy"))
    first_right = min(place for place, kind in enumerate(kinds) if kind.endswith(("Role", "RoleBinding")))
    assert last_policy < first_right


def test_every_policy_is_bound_to_a_side_and_refuses() -> None:
    manifests = build_manifests(DEFAULT)
    policies = {one["metadata"]["name"]: one for one in manifests if one["kind"] == "ValidatingAdmissionPolicy"}
    bindings = [one for one in manifests if one["kind"] == "ValidatingAdmissionPolicyBinding"]
    assert {one["spec"]["policyName"] for one in bindings} == set(policies)
    for binding in bindings:
        assert binding["spec"]["validationActions"] == ["Deny"]
        param = binding["spec"]["paramRef"]
        # In the object's own namespace for Airflow's side, in the controller's for the controller.
        assert find(manifests, "RoleBinding", param["name"], param.get("namespace", "default"))
    for policy in policies.values():
        assert policy["spec"]["failurePolicy"] == "Fail"


@pytest.mark.parametrize("terms", [DEFAULT, TWO], ids=["default", "two"])
def test_what_the_controller_may_delete_is_limited_to_the_marks_of_a_probe(terms: SetupTerms) -> None:
    manifests = build_manifests(terms)
    roles = [one for one in manifests if one["kind"] in ("ClusterRole", "Role") and "controller" in fields.name(one)]
    rules = [rule for role in roles for rule in role["rules"] if "delete" in rule["verbs"]]
    deleted = {(*rule["apiGroups"], *rule["resources"]) for rule in rules}
    assert deleted == {(one.group, one.plural) for one in (TRAINJOBS, TRAINING_RUNTIMES)}
    spec = find(manifests, "ValidatingAdmissionPolicy", f"{terms.name}-controller-probes")["spec"]
    (matched,) = spec["matchConstraints"]["resourceRules"]
    assert (matched["operations"], *matched["apiGroups"]) == (["DELETE"], TRAINJOBS.group)
    assert {*matched["resources"]} == {TRAINJOBS.plural, TRAINING_RUNTIMES.plural}
    said = {one["name"]: one["expression"] for one in spec["variables"]}
    # Probes have one name everywhere, whatever an installation is called.
    for mark in (
        f"name.matches('^{PROBE_NAME.pattern}$')",
        f"variables.oldLabels['{words.KIND_LABEL}'] == '{words.PROBE_KIND}'",
        f"'{words.PROBE_UNTIL_ANNOTATION}' in variables.oldNotes",
    ):
        assert mark in said["isMarked"]
    assert f"variables.oldNotes['{words.ADMISSION_GATED_BY}'] == '{words.GATE}'" in said["isGated"]
    assert f"!('{words.JOB_LABEL}' in variables.oldLabels)" in spec["validations"][1]["expression"]


@pytest.mark.parametrize("text", ["worker", "a/", "/b", "a/b/c", "A/b"])
def test_a_wrong_account_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="airflow_account"):
        parse_account(text)


@pytest.mark.parametrize("name", ["", "Team", "a.b", "a/b", "-a", "x" * 64])
def test_a_wrong_namespace_is_refused(name: str) -> None:
    with pytest.raises(SpecError, match="namespace"):
        JobsNamespace(name)


@pytest.mark.parametrize("field", ["name", "image"])
def test_wrong_terms_are_refused(field: str) -> None:
    wrong: Any = {"name": "A b"} if field == "name" else {"image": ""}
    with pytest.raises(SpecError, match=field):
        SetupTerms((JobsNamespace("a"),), **wrong)
