# SPDX-License-Identifier: Apache-2.0
"""The controller's image, as far as it can be looked at without a node; that it runs there is shown by its pods."""

from __future__ import annotations

import io
import re
import tarfile
from pathlib import Path

from tests.cluster.testbed.controller_image import build_package_layer, find_python_version, read_requirements
from tests.cluster.testbed.image import write_image


def test_the_testbeds_image_holds_what_the_dockerfile_installs(repository: Path):
    dockerfile = (repository / "airflow_provider_dispatch/controller/Dockerfile").read_text()
    assert sorted(re.findall(r'"(\S+>=\S+)"', dockerfile)) == read_requirements()


def test_the_package_is_the_same_twice_and_has_its_manifests_and_nothing_compiled():
    layer = build_package_layer("3.11")
    assert layer == build_package_layer("3.11")
    with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
        names = archive.getnames()
    site = "usr/local/lib/python3.11/dist-packages/airflow_provider_dispatch"
    assert {f"{site}/controller/__main__.py", f"{site}/manifests/controller/deployment.yaml"} <= set(names)
    assert not [name for name in names if "__pycache__" in name]


def test_the_interpreter_of_an_image_is_found_in_any_of_its_layers(tmp_path: Path):
    def build_layer(*names: str) -> bytes:
        layer = io.BytesIO()
        with tarfile.open(fileobj=layer, mode="w") as archive:
            for name in names:
                archive.addfile(tarfile.TarInfo(name))
        return layer.getvalue()

    layers = [build_layer("./etc/python3.9"), build_layer("./usr/bin/python3", "./usr/bin/python3.13")]
    write_image(tmp_path / "image.tar", layers, "localhost/any:1", {})
    assert find_python_version(tmp_path / "image.tar") == "3.13"
