# SPDX-License-Identifier: Apache-2.0
"""What every test needs before Airflow is imported: a throw-away home and nothing of the caller's own Airflow."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

import hypothesis
import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
pytest_plugins = ["tests.cluster.fixtures"]


def _isolate_airflow() -> Path:
    """Airflow reads its environment once, when it's first imported; all that it starts inherits this one."""
    if "airflow" in sys.modules:
        raise RuntimeError("Airflow was imported before its throw-away home was made")
    for name in [name for name in os.environ if name.startswith(("AIRFLOW__", "AIRFLOW_CONN_", "AIRFLOW_VAR_"))]:
        del os.environ[name]
    home = Path(tempfile.mkdtemp(prefix="dispatch-tests-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    os.environ["AIRFLOW_HOME"] = str(home)
    os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
    os.environ["AIRFLOW__CORE__UNIT_TEST_MODE"] = "True"
    return home


AIRFLOW_HOME = _isolate_airflow()

# No time limit for an example: how fast it runs says more about the machine than about the code.
hypothesis.settings.register_profile("here", deadline=None)
# The same examples in every run: a red CI is about the change, and finding new examples is for the desk.
hypothesis.settings.register_profile("ci", parent=hypothesis.settings.get_profile("here"), derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "here")


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def airflow_home() -> Path:
    """The home that this test run's Airflow uses; removed when the run ends."""
    return AIRFLOW_HOME


TOGETHER = ("airflow", "demo", "docs", "example_dags")
"""Folders whose tests share something dear, such as a running Airflow, and so stay in one process."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say which tests must not be parted when several processes share the work, and which take long.

    The long ones start whole Airflows and play thousands of histories: measuring their coverage would double that,
    and the quick ones reach all the code.
    """
    for item in items:
        folder = item.path.relative_to(REPOSITORY / "tests").parts[0]
        if folder in TOGETHER:
            item.add_marker(pytest.mark.xdist_group(folder))
        if folder in TOGETHER or item.path.name.startswith("test_histories"):
            item.add_marker(pytest.mark.long)
