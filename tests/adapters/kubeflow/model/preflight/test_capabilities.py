# SPDX-License-Identifier: Apache-2.0
"""Capabilities follow from the checks: none is yes while one that it rests on isn't, whatever was seen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_dispatch.adapters.kubeflow.model.preflight import CHECKS, derive_preflight, list_checks
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.access import (
    LOG_RIGHT,
    RIGHTS_IN_THE_CLUSTER,
    RIGHTS_IN_THE_NAMESPACE,
    Right,
    list_rights,
)
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.capabilities import RESTS_ON, derive_capabilities
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.selectors import matches_labels
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.sights import Unseen
from airflow_provider_dispatch.adapters.kubeflow.model.resources import LEASES, WORKLOADS
from airflow_provider_dispatch.adapters.kubeflow.setup.rendering import build_manifests
from airflow_provider_dispatch.adapters.kubeflow.setup.terms import JobsNamespace, SetupTerms
from airflow_provider_dispatch.core.capabilities import (
    REQUIRED,
    Answer,
    Capability,
    Finding,
    Source,
    may_start,
)
from tests.adapters.kubeflow.model.preflight import sceneries as at
from tests.adapters.kubeflow.model.preflight.sceneries import scene

YES, NO = Finding(Answer.YES, Source.PROBED, "seen"), Finding(Answer.NO, Source.PROBED, "missing", "add it")
ANSWERS = st.builds(Finding, st.sampled_from(Answer), st.sampled_from(Source), st.just("why"), st.just("how"))
TERMS = st.sampled_from([at.KUEUE, at.PLAIN, at.ALONE])


def test_what_rests_on_something_names_a_check_and_the_required_rest_on_most() -> None:
    resting = {name for names in RESTS_ON.values() for name in names}
    assert resting <= set(CHECKS)
    assert set(CHECKS) - resting == {"kubernetes", "policies", "quota"}


@pytest.mark.parametrize("terms", [at.KUEUE, at.PLAIN, at.ALONE])
@pytest.mark.parametrize("name", CHECKS)
def test_a_check_that_fails_takes_its_capabilities_with_its_line_and_no_others(terms, name: str) -> None:
    names = list_checks(terms)
    checks = dict.fromkeys(names, YES) | ({name: NO} if name in names else {})
    found = derive_capabilities(checks, scene(terms))
    lost = {capability for capability, finding in found.items() if finding.reason == f"{name}: missing"}
    assert lost == {one for one, rests in RESTS_ON.items() if name in rests and name in names}
    assert all(found[one].cure == "add it" for one in lost)


@given(st.fixed_dictionaries(dict.fromkeys(CHECKS, ANSWERS)), TERMS)
def test_nothing_is_yes_while_a_check_that_it_rests_on_is_not(answers, terms) -> None:
    checks = {name: answers[name] for name in list_checks(terms)}
    found = derive_capabilities(checks, scene(terms))
    assert set(found) == set(Capability)
    for capability, rests in RESTS_ON.items():
        if found[capability].is_yes:
            assert all(checks[name].is_yes for name in rests if name in checks)


def test_without_checks_of_a_controller_what_we_do_ourselves_is_declared() -> None:
    found = derive_preflight(scene(at.ALONE)).capabilities
    assert may_start(found)
    assert {found[one].source for one in REQUIRED if one is not Capability.START_GATE} == {Source.DECLARED}
    assert found[Capability.POD_FENCE].value is Answer.NO


def test_logs_and_all_else_are_allowed_apart() -> None:
    only_logs = derive_preflight(scene(denied=(LOG_RIGHT,)))
    assert may_start(only_logs.capabilities)
    assert only_logs.capabilities[Capability.LOGS].value is Answer.NO
    assert not only_logs.is_proved
    others = derive_preflight(scene(denied=(Right(WORKLOADS, "patch"),)))
    assert not may_start(others.capabilities)
    assert others.capabilities[Capability.LOGS].is_yes
    unknown = derive_preflight(scene(denied=Unseen("403")))
    assert {unknown.capabilities[one].value for one in (*REQUIRED, Capability.LOGS)} == {Answer.UNKNOWN}


def list_granted(kind: str, name: str) -> set[tuple[str, str, str]]:
    """Group, resource and verb of a role that `dispatch setup` makes."""
    made = build_manifests(SetupTerms((JobsNamespace("team"),)))
    (role,) = (one for one in made if one["kind"] == kind and one["metadata"]["name"] == name)
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.mark.parametrize(
    ("role", "rights"),
    [("dispatch-airflow-jobs", RIGHTS_IN_THE_NAMESPACE), ("dispatch-airflow", RIGHTS_IN_THE_CLUSTER)],
)
def test_what_is_asked_for_is_what_setup_grants(role: str, rights: tuple[Right, ...]) -> None:
    asked = {
        (one.resource.group, "/".join(filter(None, (one.resource.plural, one.subresource))), one.verb) for one in rights
    }
    assert asked == list_granted("ClusterRole", role)


def test_what_a_connection_does_not_need_is_not_asked_for() -> None:
    assert list_rights(has_queue=True, is_fenced=True) == (*RIGHTS_IN_THE_NAMESPACE, *RIGHTS_IN_THE_CLUSTER)
    left_out = set(list_rights(has_queue=True, is_fenced=True)) - set(list_rights(has_queue=False, is_fenced=False))
    assert {one.resource.group for one in left_out} == {WORKLOADS.group, LEASES.group}


@pytest.mark.parametrize(
    ("selector", "is_picked"),
    [
        (None, False),
        ({}, True),
        ({"matchLabels": {"team": "a"}}, True),
        ({"matchLabels": {"team": "b"}}, False),
        ({"matchExpressions": [{"key": "team", "operator": "In", "values": ["a", "b"]}]}, True),
        ({"matchExpressions": [{"key": "team", "operator": "In", "values": ["b"]}]}, False),
        ({"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["a"]}]}, False),
        ({"matchExpressions": [{"key": "other", "operator": "NotIn", "values": ["a"]}]}, True),
        ({"matchExpressions": [{"key": "team", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "other", "operator": "Exists"}]}, False),
        ({"matchExpressions": [{"key": "other", "operator": "DoesNotExist"}]}, True),
        ({"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}, False),
        ({"matchExpressions": [{"key": "team", "operator": "Odd"}]}, False),
        ({"matchLabels": {"team": "a"}, "matchExpressions": [{"key": "other", "operator": "Exists"}]}, False),
    ],
)
def test_a_selector_picks_as_kubernetes_does(selector, *, is_picked: bool) -> None:
    assert matches_labels(selector, {"team": "a"}) is is_picked


def test_plain_mode_is_fenced_where_a_controller_watches() -> None:
    assert replace(at.KUEUE, queue="").is_fenced
