# SPDX-License-Identifier: Apache-2.0
"""What DAG authors write, checked in two steps: by hand when the DAG is parsed, in full when the task runs.

Parsing happens every few seconds in a process that never runs a job, so the first step only looks for common mistakes,
and neither builds a model nor imports one. What holds a template or another task's result is left to the second.
Operators call both; neither asks a backend.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_provider_dispatch.exceptions import SpecError
from airflow_provider_dispatch.hooks.deferred_import import deferred

if TYPE_CHECKING:
    from airflow_provider_dispatch.core import clocks, decision, job_spec
    from airflow_provider_dispatch.core.decision import Supervision
    from airflow_provider_dispatch.core.job_spec import JobSpec
    from airflow_provider_dispatch.operators import recovery_rules
else:
    clocks = deferred("airflow_provider_dispatch.core.clocks")
    decision = deferred("airflow_provider_dispatch.core.decision")
    job_spec = deferred("airflow_provider_dispatch.core.job_spec")
    recovery_rules = deferred("airflow_provider_dispatch.operators.recovery_rules")

FIELD_OF_ARGUMENT = {"num_nodes": "nodes", "resources_per_node": "resources"}
"""Where an operator's argument is named otherwise than the field of the job spec."""

CLOCK_OF_ARGUMENT = {
    "gate_timeout": "gated",
    "queue_timeout": "queued",
    "startup_timeout": "starting",
    "run_timeout": "running",
    "hold_timeout": "held",
}
# Closed sets of the contract are written out here: a DAG file that is only parsed must not load the contract.
CHOICES_OF_ARGUMENT = {"on_timeout": ("stop", "hold", "leave"), "on_unfittable": ("fail", "wait")}
SUPERVISION_ARGUMENTS = (*CLOCK_OF_ARGUMENT, *CHOICES_OF_ARGUMENT, "recovery")
SPEC_ARGUMENTS = (
    "command",
    "num_nodes",
    "resources_per_node",
    "image",
    "env",
    "secrets",
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
ROLE_FIELDS = ("name", "nodes", "command", "image", "env", "secrets", "resources", "after", "readiness")
LEAST_OF_NUMBER = {"num_nodes": 1, "max_restarts": 0, "max_preemptions": 0}
CHECK_OF_ARGUMENT = {
    "command": "words",
    **dict.fromkeys(LEAST_OF_NUMBER, "number"),
    **dict.fromkeys(("resources_per_node", "env", "secrets", "labels"), "mapping"),
    "grace_period": "duration",
}
NO_TIME = timedelta(0)
TOO_EARLY_TO_TELL = ("{{", "{%")
Rank = tuple[str | None, int]
LEADING_RANK: tuple[Rank, ...] = ((None, 0),)


def is_literal(value: object) -> bool:
    """True when *value* is what it will be at run time: it holds neither a template nor another task's result."""
    match value:
        case str():
            return "{" not in value or not any(mark in value for mark in TOO_EARLY_TO_TELL)
        case list() | tuple():
            return all(map(is_literal, value))
        case None | int() | float() | timedelta():
            return True
        case Mapping():
            return all(map(is_literal, value)) and all(map(is_literal, value.values()))
        case _:
            return is_policy(value)


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
    _check_roles(arguments.get("roles"))
    for name, value in arguments.items():
        match CHECK_OF_ARGUMENT.get(name):
            case "words" if not value:
                raise SpecError(name, "must not be empty")
            case "words" if isinstance(value, str) and is_literal(value):
                raise SpecError(name, "must be a list of words: nothing is passed through a shell", value)
            case "number" if isinstance(value, int | float):
                least = LEAST_OF_NUMBER[name]
                if isinstance(value, bool) or value < least:
                    raise SpecError(name, f"must be a number of at least {least}", value)
            case "mapping" if isinstance(value, list | tuple | int | float):
                raise SpecError(name, "must be a mapping", type(value).__name__)
            case "duration":
                check_duration(name, value)


def _check_roles(roles: object) -> None:
    """Refuse fields that no role has; what a template or another task will give is left to the run."""
    for number, role in enumerate(roles if isinstance(roles, list | tuple) else ()):
        names = filter(is_literal, role) if isinstance(role, Mapping) else ()
        if wrong := next((name for name in names if name not in ROLE_FIELDS), None):
            raise SpecError(f"roles[{number}].{wrong}", f"there is no such field; a role has {', '.join(ROLE_FIELDS)}")


def check_duration(name: str, value: object) -> None:
    """Refuse what is no length of time; None is no limit.

    :raises SpecError: naming the argument.
    """
    if value is not None and is_literal(value):
        read_duration(name, value)


def read_choice(name: str, value: object, choices: Collection[str]) -> str:
    """A member of a closed set, by its name.

    :raises SpecError: naming the argument and the choices.
    """
    chosen = str(value)
    if chosen not in choices:
        raise SpecError(name, f"must be one of {', '.join(choices)}", value)
    return chosen


def read_duration(name: str, value: object) -> timedelta:
    """A length of time: a timedelta, or a number of seconds (a rendered template is text).

    :raises SpecError: negative, or neither.
    """
    if not isinstance(value, timedelta):
        try:
            value = timedelta(seconds=float(value if isinstance(value, str | int | float) else "none"))
        except (ValueError, OverflowError):
            raise SpecError(name, "must be a timedelta or a number of seconds", value) from None
    if value < NO_TIME:
        raise SpecError(name, "must not be negative", str(value))
    return value


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
    on_timeout, on_unfittable = (
        read_choice(name, arguments.get(name, choices[0]), choices) for name, choices in CHOICES_OF_ARGUMENT.items()
    )
    return decision.Supervision(
        budgets=clocks.Budgets(**limits),
        policy=recovery_rules.read_policy(arguments.get("recovery")),
        on_timeout=decision.OnTimeout(on_timeout),
        on_unfittable=decision.OnUnfittable(on_unfittable),
    )


def check_supervision(arguments: Mapping[str, object]) -> None:
    """Look for mistakes in how a job is to be looked after.

    :raises SpecError: naming the argument.
    """
    for name, value in arguments.items():
        if name in CLOCK_OF_ARGUMENT:
            check_duration(name, value)
        elif is_literal(value):
            if name == "recovery":
                recovery_rules.check_policy(value)
            else:
                read_choice(name, value, CHOICES_OF_ARGUMENT[name])
