# SPDX-License-Identifier: Apache-2.0
"""Which variables the agent and the ranks see. Lists of what is allowed: the process that starts an agent may be an
Airflow worker, whose environment holds its secrets.

Pure: environments come in and go out as mappings.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import airflow_provider_dispatch
from airflow_provider_dispatch.core.identity import Identity, build_identity_environment
from airflow_provider_dispatch.core.job_spec import JobSpec, RoleSpec

# LD_LIBRARY_PATH: where it is set, Python itself or the GPU's libraries may not load without it.
_ALLOWED = ("HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "SHELL", "LD_LIBRARY_PATH")
_ALLOWED_PREFIX = "LC_"
_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
_LEADER = "127.0.0.1"


def build_base_environment(inherited: Mapping[str, str], pass_env: Iterable[str] = ()) -> dict[str, str]:
    """What is allowed of *inherited*, with the running Python's folder first in ``PATH``.

    :param pass_env: further names that a user has allowed.
    """
    allowed = {*_ALLOWED, *pass_env}
    kept = {name: value for name, value in inherited.items() if name in allowed or name.startswith(_ALLOWED_PREFIX)}
    folder = str(Path(sys.executable).parent)
    others = [part for part in inherited.get("PATH", _DEFAULT_PATH).split(":") if part and part != folder]
    return kept | {"PATH": ":".join([folder, *others])}


def build_agent_environment(inherited: Mapping[str, str], pass_env: Iterable[str] = ()) -> dict[str, str]:
    """For the agent: as above, and ``PYTHONPATH`` so that it finds the very package that starts it.

    pydantic's plug-ins would be looked for in everything that is installed, before the agent could answer.
    """
    root = str(Path(airflow_provider_dispatch.__file__).parents[1])
    paths = [root, *(part for part in inherited.get("PYTHONPATH", "").split(":") if part and part != root)]
    return build_base_environment(inherited, pass_env) | {
        "PYTHONPATH": ":".join(paths),
        "PYDANTIC_DISABLE_PLUGINS": "__all__",
    }


def build_rank_environment(
    base: Mapping[str, str],
    spec: JobSpec,
    role: RoleSpec,
    identity: Identity,
    *,
    rank: int,
    port: int,
    known_here: Mapping[str, str],
) -> dict[str, str]:
    """For one rank. What a runtime promises can be overridden by the job; who the rank is can't.

    ``RANK`` and ``WORLD_SIZE`` count through all roles, since all meet at one ``MASTER_PORT``: the leading role first,
    the others in the order of the spec. ``DISPATCH_RANK`` and ``DISPATCH_NODES`` count within the role.

    :param port: on the loopback, free when the execution began.
    :param known_here: variables that only this machine can fill: its files and folders, and the values of secrets.
    """
    world, own = str(spec.nodes), str(_count_ranks_before(spec, role) + rank)
    torch = {
        "MASTER_ADDR": _LEADER,
        "MASTER_PORT": str(port),
        "RANK": own,
        "WORLD_SIZE": world,
        "LOCAL_RANK": "0",
        "PET_NNODES": world,
        "PET_NODE_RANK": own,
        "PET_NPROC_PER_NODE": "1",
        "PET_MASTER_ADDR": _LEADER,
        "PET_MASTER_PORT": str(port),
    }
    # Output goes through a pipe: without this, Python would keep it to itself until the rank ends.
    unbuffered = {"PYTHONUNBUFFERED": "1"}
    named = build_identity_environment(identity, role=role.name, rank=rank, nodes=role.nodes)
    return {**base, **unbuffered, **torch, **role.env, **named, "DISPATCH_LEADER_ADDR": _LEADER, **known_here}


def _count_ranks_before(spec: JobSpec, role: RoleSpec) -> int:
    """How many ranks of the job come before the first of *role*."""
    in_order = sorted(spec.roles, key=lambda other: other.name != spec.leader.name)
    names = [other.name for other in in_order]
    return sum(other.nodes for other in in_order[: names.index(role.name)])
