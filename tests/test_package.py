# SPDX-License-Identifier: Apache-2.0
"""The distribution as others meet it: its metadata, its wheel, what a DAG file pays for importing it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest

import airflow_provider_dispatch
from airflow_provider_dispatch import version_compat
from airflow_provider_dispatch.get_provider_info import get_provider_info

DISTRIBUTION = "airflow-provider-dispatch"
ENTRY_POINT_GROUP = "apache_airflow_provider"
DAG_FACING = ("decorators", "operators", "sensors", "triggers", "hooks", "links")
TOO_HEAVY_FOR_A_DAG_FILE = (
    "aiohttp",
    "kubernetes",
    "kubernetes_asyncio",
    "airflow_provider_dispatch.adapters.kubeflow",
    "airflow_provider_dispatch.adapters.local",
)
IMPORT_AND_COMPARE = """
import importlib, json, sys
from airflow.sdk import DAG
before = set(sys.modules)
for name in sys.argv[1:]:
    importlib.import_module(name)
print(json.dumps(sorted(set(sys.modules) - before)))
"""


@pytest.fixture(scope="session")
def pyproject(repository: Path) -> dict:
    return tomllib.loads((repository / "pyproject.toml").read_text())


@pytest.fixture(scope="session")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=repository, check=True, capture_output=True, timeout=120)
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def provider_info() -> dict:
    """As plain data: what JSON can't hold would fail here."""
    return json.loads(json.dumps(get_provider_info()))


def modules_below(package: str) -> list[str]:
    """Names of the modules in that package of ours, itself included; none where it doesn't exist yet."""
    root = Path(airflow_provider_dispatch.__file__).parent
    paths = sorted((root / package).rglob("*.py"))
    return [".".join(path.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__") for path in paths]


def import_beside_airflow(modules: list[str]) -> list[str]:
    """What a fresh interpreter that knows Airflow loads in addition for these modules."""
    command = [sys.executable, "-W", "error:::airflow_provider_dispatch", "-c", IMPORT_AND_COMPARE, *modules]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def heavy_modules(loaded: list[str]) -> list[str]:
    return [name for name in loaded if any(f"{name}.".startswith(f"{heavy}.") for heavy in TOO_HEAVY_FOR_A_DAG_FILE)]


def test_the_version_is_a_release_number() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", airflow_provider_dispatch.__version__)


def test_the_entry_point_loads_the_provider_info(pyproject: dict) -> None:
    ((name, value),) = pyproject["project"]["entry-points"][ENTRY_POINT_GROUP].items()

    loaded = EntryPoint(name, value, ENTRY_POINT_GROUP).load()

    assert (name, loaded) == ("provider_info", get_provider_info)


def test_the_provider_info_is_what_airflow_wants() -> None:
    schema = json.loads(files("airflow").joinpath("provider_info.schema.json").read_text())

    jsonschema.validate(provider_info(), schema)

    assert schema["required"] == ["name", "description"]


def test_the_provider_info_names_this_distribution(pyproject: dict) -> None:
    """Airflow refuses to start any process otherwise."""
    assert get_provider_info()["package-name"] == pyproject["project"]["name"] == DISTRIBUTION


def test_the_connection_form_is_written_with_hyphens() -> None:
    """Airflow ignores other spellings without a word; the fields' own names are free."""
    (connection,) = provider_info()["connection-types"]

    assert {key for key in connection if "_" in key} == set()
    assert list(connection["conn-fields"]) == [
        "backend",
        "deployment",
        "store",
        "queue",
        "priority",
        "call_timeout_seconds",
        "namespace",
        "kubeconfig",
        "context",
        "runtime",
        "runtime_kind",
        "image",
        "admission_check",
        "lease_namespace",
        "has_controller",
        "state_claim",
        "state_host_path",
    ]
    for field in connection["conn-fields"].values():
        assert set(field) == {"label", "description", "schema"}
        jsonschema.Draft202012Validator.check_schema(field["schema"])


def test_the_connection_form_offers_only_valid_defaults() -> None:
    (connection,) = provider_info()["connection-types"]

    defaults = {name: field["schema"].get("default") for name, field in connection["conn-fields"].items()}

    for name, default in defaults.items():
        jsonschema.validate(default, connection["conn-fields"][name]["schema"])
    assert defaults["backend"] == "local"


def test_airflow_discovers_the_installed_provider() -> None:
    try:
        installed = distribution(DISTRIBUTION)
    except PackageNotFoundError:
        pytest.skip("the distribution isn't installed here, only its sources are on the path")
    from airflow.providers_manager import ProvidersManager

    provider = ProvidersManager().providers[DISTRIBUTION]

    assert provider.version == installed.version == airflow_provider_dispatch.__version__


def test_the_wheel_ships_types_licence_and_entry_point(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    info = next(name.split("/")[0] for name in names if name.endswith(".dist-info/METADATA"))

    assert {"airflow_provider_dispatch/py.typed", f"{info}/licenses/LICENSE"} <= names
    assert "airflow_provider_dispatch/manifests/policies/controller.yaml" in names
    assert f"[{ENTRY_POINT_GROUP}]" in wheel.read(f"{info}/entry_points.txt").decode()
    assert airflow_provider_dispatch.__version__ in info


def test_the_wheel_holds_the_package_alone(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" not in name}

    assert tops == {"airflow_provider_dispatch"}


def test_a_dag_file_loads_no_client_and_no_adapter() -> None:
    modules = [name for package in DAG_FACING for name in modules_below(package)]

    loaded = import_beside_airflow(["airflow_provider_dispatch", *modules])

    assert heavy_modules(loaded) == []
    assert set(modules) <= {*loaded}


def test_a_client_in_a_dag_file_would_be_noticed() -> None:
    assert heavy_modules(import_beside_airflow(["aiohttp"]))


def test_the_provider_info_loads_no_airflow() -> None:
    code = "import sys; import airflow_provider_dispatch.get_provider_info; print('airflow' in sys.modules)"

    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout

    assert printed.strip() == "False"


def test_every_python_file_names_its_licence(repository: Path) -> None:
    folders = [repository / name for name in ("airflow_provider_dispatch", "tests", "example_dags", "docs")]
    python_files = [path for folder in folders for path in folder.rglob("*.py")]

    unmarked = [
        str(path.relative_to(repository))
        for path in python_files
        if path.read_text().splitlines()[:1] != ["# SPDX-License-Identifier: Apache-2.0"]
    ]

    assert python_files
    assert unmarked == []


def test_only_one_module_asks_for_the_airflow_version(repository: Path) -> None:
    asks = re.compile(r"from airflow import __version__|airflow\.__version__|version\([\"']apache-airflow")
    package = repository / "airflow_provider_dispatch"

    asking = {path.name for path in package.rglob("*.py") if asks.search(path.read_text())}

    assert asking == {"version_compat.py"}


def test_the_version_flags_know_this_airflow() -> None:
    from airflow import __version__ as airflow_version

    newer_than = {(3, 3): version_compat.AIRFLOW_V_3_3_PLUS, (3, 4): version_compat.AIRFLOW_V_3_4_PLUS}

    release = tuple(map(int, airflow_version.split(".")[:2]))
    assert newer_than == {version: release >= version for version in newer_than}
