# SPDX-License-Identifier: Apache-2.0
"""The table of capabilities has all of them, and says of this machine what it says of itself."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from airflow_provider_dispatch.adapters.kubeflow.model.preflight import derive_preflight
from airflow_provider_dispatch.adapters.kubeflow.model.preflight.sights import PreflightTerms
from airflow_provider_dispatch.adapters.local.preflight import run_preflight
from airflow_provider_dispatch.adapters.local.settings import LocalSettings
from airflow_provider_dispatch.core.capabilities import REQUIRED, Capability
from tests.adapters.kubeflow.model.preflight.sceneries import ALONE, KUEUE, PLAIN, scene
from tests.docs.pages import read_rows, read_section


@pytest.fixture(scope="module")
def table(repository: Path) -> dict[str, list[str]]:
    """Capability → its answers, in Kueue mode, in plain mode with and without a controller, and locally."""
    section = read_section((repository / "docs/modes.md").read_text(), "Capabilities")
    return {name.strip("`"): answers for name, *answers in read_rows(section)}


def test_the_table_has_every_capability_those_that_jobs_need_first(table: dict[str, list[str]]) -> None:
    assert list(table) == [capability.value for capability in Capability]
    assert list(table)[: len(REQUIRED)] == [capability.value for capability in REQUIRED]
    assert [name for name in REQUIRED if table[name] != ["yes"] * 4] == []


@pytest.mark.parametrize(("column", "terms"), [(0, KUEUE), (1, PLAIN), (2, ALONE)])
def test_the_columns_of_a_cluster_are_what_a_healthy_one_says(
    table: dict[str, list[str]], column: int, terms: PreflightTerms
) -> None:
    found = derive_preflight(scene(terms)).capabilities

    assert {name: answers[column] for name, answers in table.items()} == {
        name.value: finding.value.value for name, finding in found.items()
    }


@pytest.mark.skipif(sys.platform != "linux", reason="the page speaks of Linux")
def test_the_local_column_is_what_a_healthy_machine_says(table: dict[str, list[str]], tmp_path: Path) -> None:
    found = run_preflight(LocalSettings(root=tmp_path / "dispatch"))

    assert {name: answers[3] for name, answers in table.items()} == {
        name.value: finding.value.value for name, finding in found.capabilities.items()
    }
