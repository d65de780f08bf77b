# SPDX-License-Identifier: Apache-2.0
"""What a rank is told about itself."""

from __future__ import annotations

import pytest

from airflow_provider_dispatch.adapters.local.environment import build_rank_environment
from airflow_provider_dispatch.core.identity import Identity
from airflow_provider_dispatch.core.job_spec import JobSpec
from tests.core.strategies import JOB

ROLES = [{"name": "worker", "nodes": 2, "command": ["true"]}, {"name": "leader", "nodes": 1, "command": ["true"]}]


@pytest.mark.parametrize(
    ("leading_role", "role", "rank", "own"),
    [("leader", "leader", 0, "0"), ("leader", "worker", 1, "2"), (None, "worker", 1, "1"), (None, "leader", 0, "2")],
)
def test_ranks_that_meet_at_one_port_have_different_numbers(leading_role, role, rank, own):
    spec = JobSpec(roles=ROLES, leading_role=leading_role)
    environment = build_rank_environment(
        {}, spec, spec.role(role), Identity(JOB, 1, 1, 1, 0), rank=rank, port=29500, known_here={}
    )

    torch = {name: environment[name] for name in ("RANK", "WORLD_SIZE", "PET_NODE_RANK", "PET_NNODES")}
    assert torch == {"RANK": own, "WORLD_SIZE": "3", "PET_NODE_RANK": own, "PET_NNODES": "3"}
    assert environment["DISPATCH_RANK"] == str(rank)
    assert environment["DISPATCH_NODES"] == str(spec.role(role).nodes)
