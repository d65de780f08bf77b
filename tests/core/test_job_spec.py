# SPDX-License-Identifier: Apache-2.0
"""What a user may ask for, flat or in roles; what is refused, by field, value and cure, without a secret."""

from __future__ import annotations

import hashlib
import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from pydantic import ValidationError

from airflow_provider_dispatch.core.job_spec import After, JobSpec, Readiness, RoleSpec, When, parse_job_spec
from airflow_provider_dispatch.exceptions import SpecError
from tests.core.strategies import flat_specs

SECRET = "hunter2"
LONG_NAME = "n" * 254


def role(name: str = "a", **fields: Any) -> dict[str, Any]:
    return {"name": name, "command": ["x"], **fields}


def refusal(**fields: object) -> str:
    with pytest.raises(SpecError) as caught:
        JobSpec(**fields)
    assert caught.value.__suppress_context__
    return str(caught.value)


def test_a_flat_job_has_one_role_called_node() -> None:
    fields = {
        "nodes": 2,
        "command": ["python", "train.py"],
        "image": "trainer:1",
        "env": {"A": "1"},
        "resources": {"cpu": "500m"},
        "readiness": {"tcp_port": 80},
    }

    flat, nested = JobSpec(**fields, queue="q"), JobSpec(roles=[fields], queue="q")

    assert flat == nested
    assert flat.digest == nested.digest
    assert flat.roles == (RoleSpec.model_validate({"name": "node", **fields}),)
    assert flat.roles[0].readiness == Readiness(tcp_port=80)


def test_what_a_job_is_unless_told() -> None:
    spec = JobSpec(command=["a"])
    only = spec.roles[0]

    assert (only.name, only.nodes, only.image, only.env, only.resources) == ("node", 1, None, {}, {})
    assert (only.after, only.readiness, only.requests, only.secrets) == ((), None, {}, {})
    assert (spec.success_roles, spec.leading_role, spec.max_restarts, spec.max_preemptions) == (None, None, 0, None)
    assert (spec.grace_period, spec.queue, spec.priority, spec.labels) == (timedelta(seconds=30), None, None, {})
    assert (spec.runtime, spec.working_dir) == (None, None)
    assert Readiness(command=("true",)).period == timedelta(seconds=1)
    assert After(role="a").when is When.READY
    assert [*When] == ["ready", "complete"]


def test_roles_of_a_job() -> None:
    spec = JobSpec(roles=[role("driver"), role("worker", nodes=4, after=[{"role": "driver"}])])

    assert spec.nodes == 5
    assert spec.role("worker").nodes == 4
    assert spec.role("worker").after == (After(role="driver", when=When.READY),)
    assert spec.leader.name == "driver"
    assert spec.required_roles == ("driver", "worker")


def test_a_leading_role_and_success_roles_of_their_own() -> None:
    roles = [role("worker"), role("launcher", after=[{"role": "worker", "when": "complete"}])]
    spec = JobSpec(roles=roles, leading_role="launcher", success_roles=["launcher"])

    assert spec.leader.name == "launcher"
    assert spec.required_roles == ("launcher",)
    assert spec.roles[1].after[0].when is When.COMPLETE


def test_requests_are_counted_per_node() -> None:
    spec = JobSpec(command=["a"], resources={"cpu": "500m", "memory": "1Gi", "example.com/gpu": 2})

    assert spec.roles[0].requests == {"cpu": 500, "memory": 2**30, "example.com/gpu": 2}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "roles: Field required"),
        ({"roles": None}, "roles: Input should be a valid tuple"),
        ({"roles": []}, "roles: Tuple should have at least 1 item after validation, not 0"),
        ({"roles": [role(f"r{n}") for n in range(19)]}, "roles: Tuple should have at most 18 items"),
        ({"nodes": 2}, "command: Field required"),
        ({"command": []}, "command: Tuple should have at least 1 item after validation, not 0"),
        ({"command": "python train.py"}, "command = 'python train.py': give a list of words, such as ['python', "),
        ({"command": [""]}, "command: the program's name is empty"),
        ({"command": ["a", 5]}, "command[1] = 5: Input should be a valid string"),
        ({"command": ["a", "b\0"]}, "command[1] = 'b\\x00': must not hold a NUL character"),
        ({"command": ["\ud800"]}, "command[0] = '\\ud800': Input should be a valid string, unable to parse"),
        ({"command": ["a"], "nodes": 0}, "nodes = 0: Input should be greater than or equal to 1"),
        ({"command": ["a"], "nodes": -2}, "nodes = -2: Input should be greater than or equal to 1"),
        ({"command": ["a"], "nodes": 1_000_001}, "nodes = 1000001: Input should be less than or equal to 1000000"),
        ({"command": ["a"], "nodes": 1.5}, "nodes = 1.5: Input should be a valid integer"),
        ({"command": ["a"], "nodes": True}, "nodes = True: must be a number, not true or false"),
        ({"command": ["a"], "max_restarts": True}, "max_restarts = True: must be a number, not true or false"),
        ({"command": ["a"], "max_preemptions": False}, "max_preemptions = False: must be a number, not true or false"),
        ({"command": ["a"], "priority": True}, "priority = True: must be a number, not true or false"),
        ({"command": ["a"], "image": ""}, "image = '': String should have at least 1 character"),
        ({"command": ["a"], "image": "a\0"}, "image = 'a\\x00': must not hold a NUL character"),
        ({"command": ["a"], "resources": {"cpu": "-1"}}, "resources.cpu = '-1': must be a quantity that is not "),
        ({"command": ["a"], "resources": {"cpu": []}}, "resources.cpu = []: must be a quantity"),
        ({"command": ["a"], "resources": {"cpu": True}}, "resources.cpu = True: must be a quantity"),
        ({"command": ["a"], "resources": {"cpu": None}}, "resources.cpu: must be a quantity"),
        ({"command": ["a"], "resources": "cpu=1"}, "resources = 'cpu=1': Input should be a valid dictionary"),
        ({"command": ["a"], "readiness": {}}, "readiness: give either command or tcp_port"),
        ({"command": ["a"], "readiness": {"command": ["a"], "tcp_port": 1}}, "readiness: give either command or tcp_"),
        ({"command": ["a"], "readiness": {"command": []}}, "readiness.command: Tuple should have at least 1 item"),
        ({"command": ["a"], "readiness": {"command": "a"}}, "readiness.command = 'a': give a list of words"),
        ({"command": ["a"], "readiness": {"tcp_port": 0}}, "readiness.tcp_port = 0: Input should be greater"),
        ({"command": ["a"], "readiness": {"tcp_port": 65536}}, "readiness.tcp_port = 65536: Input should be less"),
        ({"command": ["a"], "readiness": {"tcp_port": 1, "period": 0.049}}, "readiness: period must be at least 50 ms"),
        ({"command": ["a"], "roles": [role()]}, "spec: give either roles or command"),
        ({"command": ["a"], "nodes": 1, "roles": []}, "spec: give either roles or nodes, command"),
        ({"roles": [role(), {"name": "b"}]}, "roles[1].command: Field required"),
        ({"roles": [role(resources={"gpu": "x"})]}, "roles[0].resources.gpu = 'x': must be a quantity"),
        ({"roles": [role(after=[{"role": "b", "when": "late"}])]}, "roles[0].after[0].when = 'late': Input should be "),
        ({"roles": [role(readiness={"tcp_port": -1})]}, "roles[0].readiness.tcp_port = -1: Input should be greater"),
        ({"roles": [role(readiness={})]}, "roles[0].readiness: give either command or tcp_port"),
        ({"roles": [role("A")]}, "roles[0].name = 'A': String should match pattern"),
        ({"roles": [role("a" * 21)]}, "roles[0].name = 'aaaaaaaaaaaaaaaaaaaaa': String should match pattern"),
        ({"roles": [role("a"), role("a")]}, "spec: two roles have the same name"),
        ({"roles": [role(after=[{"role": "b"}])]}, "spec: role 'a' waits for 'b', which is not one of a"),
        ({"roles": [role(after=[{"role": "a"}])]}, "spec: the startup order has a cycle: a → a"),
        ({"roles": [role()], "success_roles": ["b"]}, "spec: role 'b' is not one of a"),
        ({"roles": [role()], "success_roles": []}, "success_roles: Tuple should have at least 1 item"),
        ({"roles": [role()], "leading_role": "b"}, "spec: role 'b' is not one of a"),
        ({"command": ["a"], "max_restarts": -1}, "max_restarts = -1: Input should be greater than or equal to 0"),
        ({"command": ["a"], "max_restarts": 1001}, "max_restarts = 1001: Input should be less than or equal to 1000"),
        ({"command": ["a"], "max_preemptions": -1}, "max_preemptions = -1: Input should be greater"),
        ({"command": ["a"], "max_preemptions": 1001}, "max_preemptions = 1001: Input should be less"),
        ({"command": ["a"], "grace_period": -1}, "grace_period = '-1 day, 23:59:59': Input should be greater "),
        (
            {"command": ["a"], "grace_period": timedelta(days=367)},
            "grace_period = '367 days, 0:00:00': Input should be less ",
        ),
        ({"command": ["a"], "queue": ""}, "queue = '': String should have at least 1 character"),
        ({"command": ["a"], "queue": LONG_NAME}, "queue = 'nnn"),
        ({"command": ["a"], "runtime": ""}, "runtime = '': String should have at least 1 character"),
        ({"command": ["a"], "runtime": LONG_NAME}, "runtime = 'nnn"),
        ({"command": ["a"], "working_dir": ""}, "working_dir = '': String should have at least 1 character"),
        ({"command": ["a"], "working_dir": "a\0b"}, "working_dir = 'a\\x00b': must not hold a NUL character"),
        ({"command": ["a"], "labels": {"a": 1}}, "labels.a = 1: Input should be a valid string"),
        ({"command": ["a"], "comand": 1}, "comand: there is no such field; correct its name or leave it out"),
        ({"roles": [role(nods=1)]}, "roles[0].nods: there is no such field; correct its name or leave it out"),
    ],
)
def test_a_wrong_job_is_refused_by_field_value_and_cure(fields: dict, message: str) -> None:
    assert refusal(**fields).startswith(message)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"": SECRET}, "env: the name that begins with '' is empty, or holds = or NUL"),
        ({f"TOKEN={SECRET}": SECRET}, "env: the name that begins with 'TOKEN' is empty, or holds = or NUL"),
        ({"A\0": SECRET}, "env: the name that begins with 'A\\x00' is empty, or holds = or NUL"),
        ({"A": f"{SECRET}\0"}, "env.A: must not hold a NUL character"),
        ({"A": [SECRET]}, "env.A: Input should be a valid string"),
        ({"DISPATCH_EPOCH": SECRET}, "env: DISPATCH_EPOCH: names that begin with DISPATCH_ are set by the adapter"),
        (f"A={SECRET}", "env: Input should be a valid dictionary"),
    ],
)
def test_no_error_shows_the_value_of_an_environment_variable(env: object, message: str) -> None:
    for field in ("env", "environment", "Env"):
        assert SECRET not in refusal(command=["a"], **{field: env})
        assert SECRET not in refusal(roles=[role() | {field: env}])
        assert SECRET not in refusal(roles=[role()], **{field: env})
    assert refusal(command=["a"], env=env) == message
    assert refusal(roles=[role(env=env)]) == f"roles[0].{message}"
    with pytest.raises(SpecError) as caught:
        RoleSpec(name="a", command=("x",), env=env)  # type: ignore[arg-type]  # that is the point
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("secrets", "message"),
    [
        ({"A": SECRET}, "secrets.A: name a secret and a key in it, such as hugging-face/token; never the value itself"),
        ({"A": [SECRET]}, "secrets.A: Input should be a valid string"),
        ({"DISPATCH_EPOCH": "a/b"}, "secrets: DISPATCH_EPOCH: names that begin with DISPATCH_ are set by the adapter"),
        (f"A={SECRET}", "secrets: Input should be a valid dictionary"),
    ],
)
def test_a_secret_is_named_and_a_value_in_its_place_is_not_shown(secrets: object, message: str) -> None:
    assert refusal(command=["a"], secrets=secrets) == message
    assert refusal(roles=[role(secrets=secrets)]) == f"roles[0].{message}"


def test_a_variable_has_one_source() -> None:
    fields: dict[str, Any] = {"env": {"A": "1", "B": "2"}, "secrets": {"B": "team/b", "A": "team/a"}}

    assert refusal(command=["a"], **fields) == "secrets: A is in env, too; leave one out"
    assert refusal(roles=[role(**fields)]) == "roles[0].secrets: A is in env, too; leave one out"


def test_a_spec_in_words_has_the_names_of_secrets_and_no_value() -> None:
    spec = JobSpec(command=["a"], env={"TOKEN": SECRET}, secrets={"OTHER": "team/token"})

    assert SECRET not in f"{spec!r} {spec} {spec.roles}"
    assert "team/token" in repr(spec)


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (Readiness, {}, "spec: give either command or tcp_port"),
        (After, {"role": 5}, "role = 5: Input should be a valid string"),
        (RoleSpec, {"command": ()}, "command: Tuple should have at least 1 item after validation, not 0"),
    ],
)
def test_the_parts_of_a_job_refuse_in_the_same_way(kind: type, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        kind(**fields)

    assert str(caught.value) == message


def test_an_error_keeps_its_parts_for_programs() -> None:
    with pytest.raises(SpecError) as caught:
        JobSpec(command=["a"], resources={"cpu": "x"})

    assert (caught.value.field, caught.value.value) == ("resources.cpu", "x")


@pytest.mark.parametrize("name", ["a", "a" * 20, "a-b", "a1"])
def test_a_role_name_fits_into_object_names(name: str) -> None:
    assert JobSpec(roles=[role(name)]).role(name).name == name


@pytest.mark.parametrize("name", ["", "1a", "a-", "-a", "a_b", "a.b", "é", "a" * 21, "a\n"])
def test_other_role_names_are_refused(name: str) -> None:
    assert refusal(roles=[role(name)]).startswith(f"roles[0].name = {name!r}: String should match pattern")


def test_the_borders_are_inside() -> None:
    spec = JobSpec(
        command=["a", "", "ü\n"],
        nodes=1_000_000,
        max_restarts=1000,
        max_preemptions=1000,
        grace_period=timedelta(days=366),
        queue="n" * 253,
        runtime="n" * 253,
        readiness={"tcp_port": 65535, "period": 0.05},
    )

    assert spec.roles[0].command == ("a", "", "ü\n")
    assert JobSpec(command=["a"], grace_period=0, max_preemptions=0).grace_period == timedelta(0)
    assert len(JobSpec(roles=[role(f"r{n}") for n in range(18)]).roles) == 18
    assert JobSpec(command=["a"], readiness={"tcp_port": 1}).roles[0].readiness == Readiness(tcp_port=1)


def test_a_spec_is_read_from_plain_data() -> None:
    fields = {"command": ["a"], "queue": "team-a"}

    assert parse_job_spec(fields) == JobSpec(**fields)


@pytest.mark.parametrize(
    ("fields", "kind"), [("x", "str"), (None, "NoneType"), ([("command", ["a"])], "list"), ({1: "a"}, "dict")]
)
def test_other_data_is_no_spec(fields: object, kind: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_job_spec(fields)

    assert str(caught.value) == f"spec = {kind!r}: must be a mapping of the fields of JobSpec"


def test_a_spec_cannot_be_changed() -> None:
    spec = JobSpec(command=["a"])

    with pytest.raises(ValidationError, match="frozen"):
        spec.queue = "other"


def test_the_digest_is_a_hash_over_the_canonical_form() -> None:
    spec = JobSpec(command=["a"], resources={"cpu": "500m"}, env={"B": "ü", "A": ""})

    plain_role = {
        "name": "node", "nodes": 1, "command": ["a"], "image": None, "env": {"A": "", "B": "ü"},
        "resources": {"cpu": 500}, "after": [], "readiness": None,
    }  # fmt: skip
    plain: dict[str, object] = {
        "roles": [plain_role], "success_roles": None, "leading_role": None, "max_restarts": 0, "max_preemptions": None,
        "grace_period": "PT30S", "queue": None, "priority": None, "labels": {}, "runtime": None, "working_dir": None,
    }  # fmt: skip
    canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    assert spec.digest == hashlib.sha256(canonical.encode()).hexdigest()
    plain_role["secrets"] = {"C": "team/token"}
    canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    fields = {"command": ["a"], "resources": {"cpu": "500m"}, "env": {"B": "ü", "A": ""}}
    named = JobSpec(**fields, secrets={"C": "team/token"})
    assert named.digest == hashlib.sha256(canonical.encode()).hexdigest()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"resources": {"cpu": 1}}, {"resources": {"cpu": "1000m"}}),
        ({"resources": {"cpu": 1}}, {"resources": {"cpu": 1.0}}),
        ({"env": {"A": "1", "B": "2"}}, {"env": {"B": "2", "A": "1"}}),
        ({"grace_period": 30}, {}),
        ({"secrets": {}}, {}),
    ],
)
def test_specs_that_mean_the_same_have_the_same_digest(one: dict, other: dict) -> None:
    assert JobSpec(command=["a"], **one).digest == JobSpec(command=["a"], **other).digest


@given(flat_specs(), flat_specs())
def test_different_specs_have_different_digests(one: JobSpec, other: JobSpec) -> None:
    assert (one.digest == other.digest) == (one == other)
