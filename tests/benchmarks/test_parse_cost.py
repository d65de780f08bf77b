# SPDX-License-Identifier: Apache-2.0
"""What parsing a DAG file loads, and bounds of its cost so wide that only a change of kind can pass them.

The benchmarks measure closely: ``python -m tests.benchmarks --only parse``.
"""

from __future__ import annotations

import statistics

import pytest

from tests.benchmarks.building import run_examples
from tests.benchmarks.importing import (
    FreshImport,
    compile_package,
    find_forbidden,
    import_fresh,
    list_dag_facing_modules,
)

CONTRACT = "airflow_provider_dispatch.core"
LARGEST_SHARE = 0.1
LARGEST_RATIO = 2.0


@pytest.fixture(scope="module")
def imported() -> FreshImport:
    """All DAG-facing modules, in a fresh interpreter."""
    compile_package()
    return import_fresh(list_dag_facing_modules())


def test_the_provider_tells_of_the_modules_that_dag_files_name() -> None:
    rooms = {name.split(".")[1] for name in list_dag_facing_modules()}

    assert rooms == {"hooks", "operators", "sensors", "triggers"}


def test_a_dag_file_loads_neither_a_client_nor_an_adapter_nor_the_contract(imported: FreshImport) -> None:
    contract = [name for name in imported.loaded if name.startswith(CONTRACT)]

    assert (find_forbidden(imported.loaded), contract) == ([], [])


def test_forbidden_modules_are_told_by_their_whole_names() -> None:
    loaded = ["kubernetes.client", "kubernetes", "kubernetes_like", "airflow_provider_dispatch.adapters.local.adapter"]

    assert find_forbidden(loaded) == [name for name in loaded if name != "kubernetes_like"]


def test_importing_is_a_small_part_of_what_airflow_itself_takes(imported: FreshImport) -> None:
    """It takes a hundredth. A client alone would take half as much as Airflow."""
    assert imported.cost < LARGEST_SHARE * imported.airflow_cost


def test_building_a_dag_is_no_matter_of_another_kind_than_with_empty_operators() -> None:
    ratios = {example.name: example.ratio for example in run_examples(21)}

    assert statistics.median(ratios.values()) < LARGEST_RATIO, ratios
