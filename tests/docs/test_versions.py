# SPDX-License-Identifier: Apache-2.0
"""The versions on the pages are those that are required, and those that tests run with."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.cluster.testbed.pins import JOBSET, KUBERNETES, KUEUE, TRAINER, read_version
from tests.docs.pages import read_rows, read_section

TESTED = {
    "Kubernetes": ("kubernetes", KUBERNETES),
    "Kueue": ("kueue", KUEUE),
    "JobSet": ("jobset", JOBSET),
    "Kubeflow Trainer": ("trainer", TRAINER),
}


@pytest.fixture(scope="module")
def versions(repository: Path) -> dict[str, list[str]]:
    """Part → supported and tested versions, as the page has them."""
    page = (repository / "docs/upgrading.md").read_text()
    return {name: cells for name, *cells in read_rows(read_section(page, "What works with what"))}


def test_the_cluster_that_tests_run_on_is_the_one_of_the_page(versions: dict[str, list[str]]) -> None:
    pinned = {name: read_version(*place).removeprefix("v") for name, place in TESTED.items()}

    assert {name: versions[name][1] for name in pinned} == pinned


def test_what_must_be_installed_is_what_the_page_supports(versions: dict[str, list[str]], repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    (airflow,) = (found for found in project["dependencies"] if found.startswith("apache-airflow>"))
    pinned = dict(re.findall(r"^([\w-]+)==(\S+)", (repository / "constraints.txt").read_text(), re.MULTILINE))

    assert versions["Python"][0].startswith(f"{project['requires-python'].removeprefix('>=')} or newer")
    assert versions["Airflow"][0].startswith(f"{airflow.partition('>=')[2]} or newer")
    assert pinned["apache-airflow"].startswith(f"{versions['Airflow'][1]}.")


def test_installing_asks_for_the_same_versions(versions: dict[str, list[str]], repository: Path) -> None:
    page = " ".join((repository / "docs/install.md").read_text().split())
    asked = dict(re.findall(r"\[?(Kubeflow Trainer|JobSet|Kueue|Kubernetes)\]?(?:\([^)]*\))? ([\d.]+) or newer", page))

    assert asked == {name: versions[name][0].partition(" ")[0] for name in TESTED}
