# SPDX-License-Identifier: Apache-2.0
"""The image of the example DAGs, as an archive; that a node can run it is shown by the example itself."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

from tests.cluster.testbed.examples_image import build_examples_layer
from tests.cluster.testbed.image import read_layers, write_image


def test_an_image_has_its_layers_in_order(tmp_path: Path):
    write_image(tmp_path / "image.tar", [b"below", b"above"], "localhost/two:1", {"Cmd": ["run"]})
    assert read_layers(tmp_path / "image.tar") == [b"below", b"above"]


def test_the_examples_layer_is_the_same_twice_and_trains(tmp_path: Path):
    layer = build_examples_layer()
    assert layer == build_examples_layer()
    with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
        assert archive.getmember("usr/local/bin/python").linkname == "/usr/bin/python3"
        archive.extractall(tmp_path, filter="tar", members=[one for one in archive if one.isfile()])
    packages = tmp_path / "usr/lib/python3/dist-packages"
    done = subprocess.run(
        [sys.executable, "training/digits.py", "--steps=1", "--checkpoint-every=1"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(packages), "PATH": os.defpath},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "epoch 0 step 1/1" in done.stdout
