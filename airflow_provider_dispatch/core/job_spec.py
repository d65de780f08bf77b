# SPDX-License-Identifier: Apache-2.0
"""What a user wants run: roles, their order and what they need. Untrusted input enters here, so it is pydantic.

Operators, the command and plain programs build one; adapters read it. Validation happens before anything is sent and
its errors name the field; values of environment variables never appear in them, nor in how a spec is written out for
people. The models are built on first use, because importing this module is part of parsing a DAG file.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Annotated

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from airflow_provider_dispatch.core.quantity import parse_quantity
from airflow_provider_dispatch.core.secret_reference import parse_secret_reference
from airflow_provider_dispatch.core.startup_order import check_order
from airflow_provider_dispatch.exceptions import SpecError

WHOLE = "spec"
ONLY_ROLE = "node"
RESERVED_PREFIX = "DISPATCH_"
FLAT_ROLE_FIELDS = ("nodes", "command", "image", "env", "secrets", "resources", "readiness")
MOST_NODES = 1_000_000
LONGEST_NAME = 253
ROLE_NAME = r"^[a-z]([-a-z0-9]{0,18}[a-z0-9])?$"
ENV_NAME = re.compile(r"[^=\0]+")
VARIABLES = ("env", "secrets")
"""Fields whose content no error shows: somebody may have written a value where a name belongs."""


def _refuse_line(value: object) -> object:
    match value:
        case str():
            raise ValueError("give a list of words, such as ['python', 'train.py']: no shell takes a line apart")
        case _:
            return value


def _refuse_truth(value: object) -> object:
    match value:
        case bool():
            # pydantic would take it for 1 or 0.
            raise ValueError("must be a number, not true or false")
        case _:
            return value


def _refuse_nul(value: str) -> str:
    if "\0" in value:
        raise ValueError("must not hold a NUL character")
    return value


def _refuse_nameless(value: tuple[str, ...]) -> tuple[str, ...]:
    if not value[0]:
        raise ValueError("the program's name is empty")
    return value


def _refuse_value(reference: str) -> str:
    parse_secret_reference(reference)
    return reference


Word = Annotated[str, AfterValidator(_refuse_nul)]
Secret = Annotated[str, AfterValidator(_refuse_value)]
Name = Annotated[str, Field(min_length=1), AfterValidator(_refuse_nul)]
Command = Annotated[
    tuple[Word, ...], Field(min_length=1), BeforeValidator(_refuse_line), AfterValidator(_refuse_nameless)
]
Count = Annotated[int, BeforeValidator(_refuse_truth)]
Seconds = Annotated[timedelta, Field(ge=timedelta(0), le=timedelta(days=366))]


class _SpecModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True, str_max_length=1_000_000)

    def __init__(self, **fields: object) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            # pydantic's own message shows what was put in, values of environment variables among it.
            raise _translate(error) from None


class When(StrEnum):
    """What a role waits for in another: all its ranks ready, or all of them ended well."""

    READY = "ready"
    COMPLETE = "complete"


class After(_SpecModel):
    """One edge of the startup order."""

    role: str
    when: When = When.READY


class Readiness(_SpecModel):
    """How to see that a rank can serve others: a command that exits 0, or a TCP port that accepts. Exactly one."""

    command: Command | None = None
    tcp_port: Count | None = Field(default=None, ge=1, le=65535)
    period: Seconds = timedelta(seconds=1)

    @model_validator(mode="after")
    def _has_one_check(self) -> Readiness:
        if (self.command is None) == (self.tcp_port is None):
            raise ValueError("give either command or tcp_port")
        if self.period < timedelta(milliseconds=50):
            raise ValueError("period must be at least 50 ms")
        return self


class RoleSpec(_SpecModel):
    """Ranks that run the same command.

    :param resources: per node, as Kubernetes quantities; requests and limits alike.
    :param image: container image; means nothing to the local adapter.
    :param env: variables and their values, which anybody who may look at the job can read.
    :param secrets: variables whose values stand in a secret, as ``name/key``: on a cluster a Secret of the job's
        namespace, locally a file of the store.
    """

    name: str = Field(default=ONLY_ROLE, pattern=ROLE_NAME)
    nodes: Count = Field(default=1, ge=1, le=MOST_NODES)
    command: Command
    image: Name | None = None
    env: dict[str, Word] = Field(default={}, repr=False)
    secrets: dict[str, Secret] = {}
    resources: dict[str, str | int | float] = {}
    after: tuple[After, ...] = ()
    readiness: Readiness | None = None

    @field_validator(*VARIABLES)
    @classmethod
    def _has_free_names(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if not ENV_NAME.fullmatch(name):
                # What follows a "=" may be the value, written in the wrong place.
                start = name.partition("=")[0]
                raise ValueError(f"the name that begins with {start!r} is empty, or holds = or NUL")
            if name.startswith(RESERVED_PREFIX):
                raise ValueError(f"{name}: names that begin with {RESERVED_PREFIX} are set by the adapter")
        return value

    @model_validator(mode="after")
    def _has_one_source_a_variable(self) -> RoleSpec:
        if twice := self.env.keys() & self.secrets.keys():
            raise SpecError("secrets", f"{min(twice)} is in env, too; leave one out")
        return self

    @field_validator("resources", mode="before")
    @classmethod
    def _has_quantities(cls, value: object) -> object:
        # Before pydantic looks: it would take True for 1, and name a member of the union instead of the resource.
        if isinstance(value, Mapping):
            for resource, quantity in value.items():
                parse_quantity(resource, quantity)
        return value

    @property
    def requests(self) -> dict[str, int]:
        """Per node: cpu in millicores, memory in bytes, anything else counted."""
        return {resource: parse_quantity(resource, quantity) for resource, quantity in self.resources.items()}


class JobSpec(_SpecModel):
    """A multi-node job.

    A job of one role may be written flat: ``JobSpec(command=["python", "train.py"], nodes=2)``; its role is ``node``.

    :param success_roles: roles whose ranks must all exit 0 for success; None means all. The rest is ended then.
    :param leading_role: whose rank 0 speaks for the job (log, result, address); None means the first.
    :param max_restarts: restarts inside a submission after a non-zero exit.
    :param max_preemptions: preemptions after which the job fails; None means any number.
    :param grace_period: between TERM and KILL, for a hold, a stop and a preemption alike.
    :param runtime: training runtime by name, for instance ``torch-distributed``; None where the backend has one only.
    :param working_dir: folder of the processes on a backend that shares this machine's files.

    :raises SpecError: at construction, naming the first wrong field.
    """

    roles: tuple[RoleSpec, ...] = Field(min_length=1, max_length=18)
    success_roles: tuple[str, ...] | None = Field(default=None, min_length=1)
    leading_role: str | None = None
    max_restarts: Count = Field(default=0, ge=0, le=1000)
    max_preemptions: Count | None = Field(default=None, ge=0, le=1000)
    grace_period: Seconds = timedelta(seconds=30)
    queue: str | None = Field(default=None, min_length=1, max_length=LONGEST_NAME)
    priority: Annotated[str | int | None, BeforeValidator(_refuse_truth)] = None
    labels: dict[str, str] = {}
    runtime: str | None = Field(default=None, min_length=1, max_length=LONGEST_NAME)
    working_dir: Name | None = None

    def __init__(self, **fields: object) -> None:
        try:
            super().__init__(**fields)
        except SpecError as error:
            # Whoever wrote the spec flat knows nothing of roles[0].
            name = error.field if "roles" in fields else error.field.removeprefix("roles[0].")
            raise SpecError(name, error.problem, error.value) from None

    @model_validator(mode="before")
    @classmethod
    def _fold_flat_role(cls, fields: object) -> object:
        if not isinstance(fields, Mapping):
            return fields
        flat = {name: fields[name] for name in FLAT_ROLE_FIELDS if name in fields}
        if flat and fields.get("roles") is not None:
            raise ValueError(f"give either roles or {', '.join(flat)}")
        rest = {name: value for name, value in fields.items() if name not in flat}
        return rest | {"roles": (flat,)} if flat else rest

    @model_validator(mode="after")
    def _has_sound_roles(self) -> JobSpec:
        check_order({role.name: tuple(after.role for after in role.after) for role in self.roles}, len(self.roles))
        names = {role.name for role in self.roles}
        for named in (*(self.success_roles or ()), *((self.leading_role,) if self.leading_role else ())):
            if named not in names:
                raise ValueError(f"role {named!r} is not one of {', '.join(sorted(names))}")
        return self

    def role(self, name: str) -> RoleSpec:
        """The role of that name; it exists."""
        return next(role for role in self.roles if role.name == name)

    @property
    def leader(self) -> RoleSpec:
        """The role whose rank 0 speaks for the job."""
        return self.role(self.leading_role) if self.leading_role else self.roles[0]

    @property
    def required_roles(self) -> tuple[str, ...]:
        """Names of the roles that must succeed."""
        return self.success_roles or tuple(role.name for role in self.roles)

    @property
    def nodes(self) -> int:
        """Ranks of all roles together."""
        return sum(role.nodes for role in self.roles)

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical form: equal specs have equal digests, also where a quantity is spelt otherwise.

        A field that came later counts only where it is set: the digests of jobs that run already must stay.
        """
        plain = self.model_dump(mode="json")
        for role, plain_role in zip(self.roles, plain["roles"], strict=True):
            plain_role["resources"] = role.requests
            if not role.secrets:
                del plain_role["secrets"]
        canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


def parse_job_spec(fields: object) -> JobSpec:
    """Read a spec from plain data.

    :raises SpecError: not a mapping of the fields of :class:`JobSpec`, or a wrong value.
    """
    if not isinstance(fields, Mapping) or not all(isinstance(name, str) for name in fields):
        raise SpecError(WHOLE, "must be a mapping of the fields of JobSpec", type(fields).__name__)
    return JobSpec(**fields)


def _translate(error: ValidationError) -> SpecError:
    first = error.errors(include_url=False)[0]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
    inner = first.get("ctx", {}).get("error")
    if isinstance(inner, SpecError):
        return SpecError(_join(path, inner.field), inner.problem, inner.value)
    if first["type"] == "extra_forbidden":
        # Its value isn't shown: it may be an environment under a misspelt name.
        return SpecError(path, "there is no such field; correct its name or leave it out")
    problem = first["msg"].removeprefix("Value error, ")
    given = str(first["input"]) if isinstance(first["input"], timedelta) else first["input"]
    is_hidden = not set(VARIABLES).isdisjoint(first["loc"])
    shown = None if is_hidden or not isinstance(given, str | int | float) else given
    return SpecError(path or WHOLE, problem, shown)


def _join(path: str, inner: str) -> str:
    """The field that a model or a check inside *path* complains of."""
    if inner == WHOLE:
        return path or WHOLE
    return inner if not path or inner.startswith(f"{path}.") else f"{path}.{inner}"
