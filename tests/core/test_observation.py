# SPDX-License-Identifier: Apache-2.0
"""The parts of an observation start empty: fields are only ever added, and an older writer leaves them out."""

from __future__ import annotations

from airflow_provider_dispatch.core.observation import Evidence, FailedRank, Gates, Pending, Progress, RoleRanks


def test_parts_claim_nothing_that_they_were_not_told() -> None:
    assert Evidence("pod", "phase", "Failed") == Evidence("pod", "phase", "Failed", at=None)
    assert FailedRank("worker", 1) == FailedRank("worker", 1, exit_code=None, signal=None)
    assert RoleRanks("worker", 4) == RoleRanks("worker", 4, ready=0, running=0, succeeded=0, failed=0)
    assert Pending("Quota", "no room") == Pending("Quota", "no room", "", position=None, evictions=0, since=None)
    assert Gates() == Gates(is_open=False, others=())
    assert Progress() == Progress(percent=None, remaining_seconds=None, metrics={})


def test_two_observations_share_no_metrics() -> None:
    assert Progress().metrics is not Progress().metrics
