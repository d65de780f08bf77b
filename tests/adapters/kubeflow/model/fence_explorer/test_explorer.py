# SPDX-License-Identifier: Apache-2.0
"""The controller's decisions, driven through every interleaving within bounds: clean, and red without any one rule."""

from __future__ import annotations

import pytest

from tests.adapters.kubeflow.model.fence_explorer.blindness import blind_all, fearless
from tests.adapters.kubeflow.model.fence_explorer.rules import PROTOCOL, SHOWN_ELSEWHERE
from tests.adapters.kubeflow.model.fence_explorer.search import explore
from tests.adapters.kubeflow.model.fence_explorer.spoilt import RULES, Spoilt
from tests.adapters.kubeflow.model.fence_explorer.world import KINDS, Bounds


def test_whatever_goes_wrong_once_no_execution_is_doubled_and_no_job_is_stranded():
    finding = explore(Bounds(actions=1))
    assert finding.is_complete
    assert not finding.violated, str(finding)
    # A search that finds nothing to do would be clean too.
    assert finding.states > 10_000


def _bounds(kinds: str, **others: int) -> Bounds:
    return Bounds(kinds=tuple(kinds.split()), **others)


WITHOUT_HOLDS = " ".join(kind for kind in KINDS if kind not in ("hold", "adapter-crash"))


@pytest.mark.long
@pytest.mark.parametrize(
    "bounds",
    [
        pytest.param(_bounds(WITHOUT_HOLDS, actions=1, controllers=2), id="two controllers"),
        pytest.param(
            _bounds("delete-pod force-delete gc pause miss by-hand fail crash timeout preempt", actions=2),
            id="two mishaps of pods and nodes",
        ),
        pytest.param(
            _bounds("toggle delete-jobset delete-workload preempt restart unreserve crash wanted", actions=2),
            id="two mishaps of objects",
        ),
        pytest.param(_bounds("hold adapter-crash crash delete-workload", actions=2), id="a hold and a mishap"),
        pytest.param(_bounds("new-submission force-delete pause by-hand miss", actions=2), id="a new submission"),
        pytest.param(_bounds("delete-trainjob force-delete pause crash miss", actions=2), id="a deleted TrainJob"),
        pytest.param(_bounds("preempt crash delete-pod force-delete by-hand fail", actions=1, slots=2), id="two ranks"),
        pytest.param(_bounds("force-delete pause gc preempt miss", actions=2, nodes=2), id="two nodes"),
    ],
)
def test_within_wider_bounds_too(bounds):
    finding = explore(bounds)
    assert finding.is_complete
    assert not finding.violated, str(finding)


def test_the_means_of_spoiling_spoil_nothing_by_themselves():
    bounds = _bounds("force-delete preempt by-hand new-submission", actions=1)
    for protocol in (blind_all(lambda sight: sight), fearless(lambda sight: sight)):
        assert not explore(bounds, protocol).violated


QUICK = [name for name, rule in RULES.items() if not rule.is_slow]
SLOW = [name for name, rule in RULES.items() if rule.is_slow]


@pytest.mark.parametrize("name", QUICK)
def test_without_this_rule_something_breaks(name):
    check_red(RULES[name])


@pytest.mark.long
@pytest.mark.parametrize("name", SLOW)
def test_without_this_rule_something_breaks_after_a_longer_search(name):
    check_red(RULES[name])


def test_every_rule_of_the_protocol_is_shown_to_be_needed():
    assert sorted([*RULES, *SHOWN_ELSEWHERE]) == sorted(PROTOCOL)


def check_red(rule: Spoilt) -> None:
    """The spoilt protocol breaks one of the invariants named; the whole one breaks none before."""
    finding = explore(rule.bounds, rule.protocol, overlooks=rule.overlooks)
    assert finding.violated in rule.violates, str(finding)
    assert finding.trace
