# SPDX-License-Identifier: Apache-2.0
"""What DAG authors write, checked in two steps: by hand when the DAG is parsed, in full when the task runs.

Parsing happens every few seconds in a process that never runs a job, so the first step only looks for common mistakes,
and neither builds a model nor imports one. What holds a template or another task's result is left to the second.
Operators call both; neither asks a backend.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

from airflow_provider_dispatch.exceptions import SpecError
from airflow_provider_dispatch.hooks.deferred_import import deferred

if TYPE_CHECKING:
    from airflow_provider_dispatch.core import clocks, decision, job_spec, recovery, state
    from airflow_provider_dispatch.core.decision import Supervision
    from airflow_provider_dispatch.core.job_spec import JobSpec
    from airflow_provider_dispatch.core.recovery import RecoveryPolicy, RecoveryRule
else:
    clocks = deferred("airflow_provider_dispatch.core.clocks")
    decision = deferred("airflow_provider_dispatch.core.decision")
    job_spec = deferred("airflow_provider_dispatch.core.job_spec")
    recovery = deferred("airflow_provider_dispatch.core.recovery")
    state = deferred("airflow_provider_dispatch.core.state")

FIELD_OF_ARGUMENT = {"num_nodes": "nodes", "resources_per_node": "resources"}
"""Where an operator's argument is named otherwise than the field of the job spec."""

CLOCK_OF_ARGUMENT = {
    "gate_timeout": "gated",
    "queue_timeout": "queued",
    "startup_timeout": "starting",
    "run_timeout": "running",
    "hold_timeout": "held",
}
SUPERVISION_ARGUMENTS = (*CLOCK_OF_ARGUMENT, "on_timeout", "on_unfittable", "recovery")
SPEC_ARGUMENTS = (
    "command",
    "num_nodes",
    "resources_per_node",
    "image",
    "env",
    "runtime",
    "roles",
    "success_roles",
    "leading_role",
    "readiness",
    "queue",
    "priority",
    "labels",
    "grace_period",
    "max_restarts",
    "max_preemptions",
    "working_dir",
)
LEAST_OF_NUMBER = {"num_nodes": 1, "max_restarts": 0, "max_preemptions": 0}
RULE_FIELDS = ("causes", "action", "limit", "back_off", "scale")
TOO_EARLY_TO_TELL = ("{{", "{%")
Choice = TypeVar("Choice", bound=StrEnum)
Rank = tuple[str | None, int]
LEADING_RANK: tuple[Rank, ...] = ((None, 0),)


def is_literal(value: object) -> bool:
    """True when *value* is what it will be at run time: it holds neither a template nor another task's result."""
    match value:
        case str():
            return not any(mark in value for mark in TOO_EARLY_TO_TELL)
        case Mapping():
            return all(map(is_literal, value)) and all(map(is_literal, value.values()))
        case list() | tuple():
            return all(map(is_literal, value))
        case _:
            return value is None or isinstance(value, int | float | timedelta) or is_policy(value)


def is_policy(value: object) -> bool:
    """True for the policy's own classes, which only a DAG file that imports them can hold."""
    return type(value).__module__ == "airflow_provider_dispatch.core.recovery"


def keep_given(**arguments: object) -> dict[str, object]:
    """Those arguments that are not None, to be kept and rendered as one templated field."""
    return {name: value for name, value in arguments.items() if value is not None}


def pick_given(arguments: Mapping[str, object], names: Iterable[str]) -> dict[str, object]:
    """Those of some arguments that are not None."""
    return {name: arguments[name] for name in names if arguments[name] is not None}


def check_spec(arguments: Mapping[str, object]) -> None:
    """Look for common mistakes in the description of a job.

    :raises SpecError: naming the argument.
    """
    if ("command" in arguments) == ("roles" in arguments):
        raise SpecError("command", "give either command or roles")
    command = arguments.get("command")
    if isinstance(command, str) and is_literal(command):
        raise SpecError("command", "must be a list of words: nothing is passed through a shell", command)
    if isinstance(command, list | tuple) and not command:
        raise SpecError("command", "must not be empty")
    for name, least in LEAST_OF_NUMBER.items():
        value = arguments.get(name)
        if isinstance(value, int | float) and (isinstance(value, bool) or value < least):
            raise SpecError(name, f"must be a number of at least {least}", value)
    for name in ("env", "resources_per_node", "labels"):
        value = arguments.get(name)
        if isinstance(value, list | tuple | int | float):
            raise SpecError(name, "must be a mapping", type(value).__name__)
    if "grace_period" in arguments:
        check_durations(arguments, ("grace_period",))


def check_durations(arguments: Mapping[str, object], names: Iterable[str]) -> None:
    """Refuse what is no length of time.

    :raises SpecError: naming the argument.
    """
    for name in names:
        value = arguments.get(name)
        if value is not None and is_literal(value):
            read_duration(name, value)


def read_choice(name: str, value: object, choices: type[Choice]) -> Choice:
    """The member of a closed set.

    :raises SpecError: naming the argument and the choices.
    """
    try:
        return choices(str(value))
    except ValueError:
        raise SpecError(name, f"must be one of {', '.join(choices)}", value) from None


def read_duration(name: str, value: object) -> timedelta:
    """A length of time: a timedelta, or a number of seconds (a rendered template is text).

    :raises SpecError: negative, or neither.
    """
    if not isinstance(value, timedelta):
        try:
            value = timedelta(seconds=float(value if isinstance(value, str | int | float) else "none"))
        except (ValueError, OverflowError):
            raise SpecError(name, "must be a timedelta or a number of seconds", value) from None
    if value < timedelta(0):
        raise SpecError(name, "must not be negative", str(value))
    return value


def read_policy(value: object) -> RecoveryPolicy:
    """A recovery policy: as it is, or from a list of mappings with the fields of ``RecoveryRule``.

    :param value: None means the default policy; an empty list means never to submit again.
    :raises SpecError: naming the rule and its field.
    """
    if value is None:
        return recovery.DEFAULT_POLICY
    if isinstance(value, recovery.RecoveryPolicy):
        return value
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise SpecError("recovery", "must be a RecoveryPolicy or a list of mappings", value)
    return recovery.RecoveryPolicy(tuple(_read_rule(f"recovery[{index}]", rule) for index, rule in enumerate(value)))


def _read_rule(field: str, rule: object) -> RecoveryRule:
    if isinstance(rule, recovery.RecoveryRule):
        return rule
    if not isinstance(rule, Mapping):
        raise SpecError(field, f"must be a mapping with some of {', '.join(RULE_FIELDS)}", rule)
    unknown = next((name for name in rule if name not in RULE_FIELDS), None)
    if unknown is not None:
        raise SpecError(f"{field}.{unknown}", f"is not one of {', '.join(RULE_FIELDS)}")
    causes, scale = rule.get("causes", ()), rule.get("scale", {})
    if isinstance(causes, str) or not isinstance(causes, Sequence):
        raise SpecError(f"{field}.causes", "must be a list", causes)
    try:
        limit, factors = int(rule.get("limit", 1)), {str(name): float(factor) for name, factor in scale.items()}
    except (TypeError, ValueError, AttributeError):
        raise SpecError(field, "limit must be a number, scale a mapping of resources to numbers", rule) from None
    return recovery.RecoveryRule(
        causes=tuple(read_choice(f"{field}.causes", cause, state.Cause) for cause in causes),
        action=read_choice(f"{field}.action", rule.get("action", "resubmit"), recovery.Recovery),
        limit=limit,
        back_off=read_duration(f"{field}.back_off", rule.get("back_off", 0)),
        scale=factors,
    )


def read_ranks(stream_ranks: object) -> tuple[Rank, ...]:
    """Ranks whose output is shown: numbers (of the leading role), or pairs of role and number.

    :raises SpecError: something else.
    """
    if not isinstance(stream_ranks, list | tuple):
        raise SpecError("stream_ranks", "must be a list of ranks, or of pairs of a role and a rank", stream_ranks)
    return tuple(map(_read_rank, stream_ranks))


def _read_rank(rank: object) -> Rank:
    match rank:
        case [role, number] if role is None or isinstance(role, str):
            pass
        case _:
            role, number = None, rank
    if isinstance(number, str) and number.isdecimal():
        number = int(number)
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise SpecError("stream_ranks", "must hold ranks from 0 on, or pairs of a role and a rank", rank)
    return role, number


def build_spec(arguments: Mapping[str, object]) -> JobSpec:
    """The whole check, by the model itself.

    :param arguments: by the names that the operator gives them.
    :raises SpecError: naming the operator's argument.
    """
    fields = {FIELD_OF_ARGUMENT.get(name, name): value for name, value in arguments.items()}
    if "grace_period" in fields:
        fields["grace_period"] = read_duration("grace_period", fields["grace_period"])
    try:
        return job_spec.parse_job_spec(fields)
    except SpecError as error:
        named = {field: name for name, field in FIELD_OF_ARGUMENT.items()}
        first, dot, rest = error.field.partition(".")
        raise SpecError(named.get(first, first) + dot + rest, error.problem, error.value) from None


def build_supervision(arguments: Mapping[str, object]) -> Supervision:
    """How a job is looked after.

    :param arguments: the five clocks, ``recovery``, ``on_timeout`` and ``on_unfittable``, where given.
    :raises SpecError: naming the argument.
    """
    limits = {
        clock: read_duration(name, arguments[name])
        for name, clock in CLOCK_OF_ARGUMENT.items()
        if arguments.get(name) is not None
    }
    return decision.Supervision(
        budgets=clocks.Budgets(**limits),
        policy=read_policy(arguments.get("recovery")),
        on_timeout=read_choice("on_timeout", arguments.get("on_timeout", "stop"), decision.OnTimeout),
        on_unfittable=read_choice("on_unfittable", arguments.get("on_unfittable", "fail"), decision.OnUnfittable),
    )


def check_supervision(arguments: Mapping[str, object]) -> None:
    """Look for mistakes in how a job is to be looked after.

    :raises SpecError: naming the argument.
    """
    literal = {name: value for name, value in arguments.items() if is_literal(value)}
    check_durations(literal, CLOCK_OF_ARGUMENT)
    # Each closed set is imported only for a DAG that names a member of it.
    if "on_timeout" in literal:
        read_choice("on_timeout", literal["on_timeout"], decision.OnTimeout)
    if "on_unfittable" in literal:
        read_choice("on_unfittable", literal["on_unfittable"], decision.OnUnfittable)
    if "recovery" in literal:
        read_policy(literal["recovery"])
