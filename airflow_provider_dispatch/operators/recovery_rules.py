# SPDX-License-Identifier: Apache-2.0
"""A recovery policy as DAG authors write it: mappings, checked when the DAG is parsed and read when the task runs.

:mod:`.arguments` calls both. The check stops short of building the policy, whose classes load the contract.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_provider_dispatch.exceptions import SpecError
from airflow_provider_dispatch.hooks.deferred_import import deferred
from airflow_provider_dispatch.operators.arguments import NO_TIME, is_policy, read_choice, read_duration

if TYPE_CHECKING:
    from airflow_provider_dispatch.core import recovery, state
    from airflow_provider_dispatch.core.recovery import RecoveryPolicy, RecoveryRule
else:
    recovery = deferred("airflow_provider_dispatch.core.recovery")
    state = deferred("airflow_provider_dispatch.core.state")

# The contract's closed sets, written out: a DAG file that is only parsed must not load the contract.
ACTIONS = ("resubmit", "fail", "hold")
LARGEST_FACTOR = 1000
CAUSES = (
    "preempted",
    "node_lost",
    "out_of_memory",
    "evicted",
    "timeout",
    "no_capacity",
    "image",
    "exited",
    "misconfigured",
    "dependency_failed",
    "stopped",
    "deleted",
    "unknown",
)


class PlainRule(NamedTuple):
    """A rule's values, checked."""

    causes: list[str]
    action: str
    limit: int
    back_off: timedelta
    scale: dict[str, float]


def read_policy(value: object) -> RecoveryPolicy:
    """A recovery policy: as it is, or from a list of mappings with the fields of ``RecoveryRule``.

    :param value: None means the default policy; an empty list means never to submit again.
    :raises SpecError: naming the rule and its field.
    """
    if value is None:
        return recovery.DEFAULT_POLICY
    if isinstance(value, recovery.RecoveryPolicy):
        return value
    return recovery.RecoveryPolicy(tuple(_build_rule(field, rule) for field, rule in _number_rules(value)))


def check_policy(value: object) -> None:
    """The same check without the policy's own classes.

    :raises SpecError: naming the rule and its field.
    """
    if not is_policy(value):
        for field, rule in _number_rules(value):
            if not is_policy(rule):
                read_rule(field, rule)


def _number_rules(value: object) -> list[tuple[str, object]]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise SpecError("recovery", "must be a RecoveryPolicy or a list of mappings", value)
    return [(f"recovery[{index}]", rule) for index, rule in enumerate(value)]


def _build_rule(field: str, rule: object) -> RecoveryRule:
    if isinstance(rule, recovery.RecoveryRule):
        return rule
    plain = read_rule(field, rule)
    return recovery.RecoveryRule(
        causes=tuple(map(state.Cause, plain.causes)),
        action=recovery.Recovery(plain.action),
        limit=plain.limit,
        back_off=plain.back_off,
        scale=plain.scale,
    )


def read_rule(field: str, rule: object) -> PlainRule:
    """A rule written as a mapping.

    :raises SpecError: naming its field.
    """
    if not isinstance(rule, Mapping):
        raise SpecError(field, f"must be a mapping with some of {', '.join(PlainRule._fields)}", rule)
    unknown = next((name for name in rule if name not in PlainRule._fields), None)
    if unknown is not None:
        raise SpecError(f"{field}.{unknown}", f"is not one of {', '.join(PlainRule._fields)}")
    causes = rule.get("causes", ())
    if isinstance(causes, str) or not isinstance(causes, Sequence):
        raise SpecError(f"{field}.causes", "must be a list", causes)
    limit, scale = _read_numbers(field, rule)
    return PlainRule(
        causes=[read_choice(f"{field}.causes", cause, CAUSES) for cause in causes],
        action=read_choice(f"{field}.action", rule.get("action", ACTIONS[0]), ACTIONS),
        limit=limit,
        back_off=read_duration(f"{field}.back_off", rule.get("back_off", NO_TIME)),
        scale=scale,
    )


def _read_numbers(field: str, rule: Mapping[str, Any]) -> tuple[int, dict[str, float]]:
    try:
        limit = int(rule.get("limit", 1))
        scale = {str(name): float(factor) for name, factor in rule.get("scale", {}).items()}
    except (TypeError, ValueError, OverflowError, AttributeError):
        raise SpecError(field, "limit must be a number, scale a mapping of resources to numbers", rule) from None
    if limit < 0:
        raise SpecError(f"{field}.limit", "must not be negative", limit)
    for name, factor in scale.items():
        if not 0 < factor <= LARGEST_FACTOR:
            raise SpecError(f"{field}.scale.{name}", f"must be above 0 and at most {LARGEST_FACTOR}", factor)
    return limit, scale
