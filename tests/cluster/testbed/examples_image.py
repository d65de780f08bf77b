# SPDX-License-Identifier: Apache-2.0
"""The layer that makes the trainer image one for the example DAGs: their programs, the digits and a ``python``.

Its working folder is ``/``, so that ``python training/digits.py`` runs in it as it does beside the DAG files.
Reads this checkout and the installed scikit-learn, of which the examples need one data file; imports neither.
"""

from __future__ import annotations

import importlib.util
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

from tests.cluster.testbed.errors import TestbedError

EXAMPLES = Path(__file__).parents[3] / "example_dags"
PROGRAM_FOLDERS = ("training", "maintenance")
DIGITS = Path("datasets", "data", "digits.csv.gz")
PACKAGES = Path("usr", "lib", "python3", "dist-packages")


def build_examples_layer() -> bytes:
    """An uncompressed archive, the same for the same files.

    :raises TestbedError: scikit-learn, which brings the digits, isn't installed.
    """
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        for name, content in _list_files():
            entry = tarfile.TarInfo(str(name))
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
        link = tarfile.TarInfo("usr/local/bin/python")
        link.type, link.linkname = tarfile.SYMTYPE, "/usr/bin/python3"
        archive.addfile(link)
    return layer.getvalue()


def _list_files() -> Iterator[tuple[Path, bytes]]:
    for folder in PROGRAM_FOLDERS:
        for path in sorted((EXAMPLES / folder).glob("*.py")):
            yield Path(folder, path.name), path.read_bytes()
    # The programs look for the package, not only for its file.
    yield PACKAGES / "sklearn" / "__init__.py", b""
    yield PACKAGES / "sklearn" / DIGITS, (_find_scikit_learn() / DIGITS).read_bytes()


def _find_scikit_learn() -> Path:
    found = importlib.util.find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        raise TestbedError("the digits in the examples' image are scikit-learn's, and it isn't installed")
    return Path(found.submodule_search_locations[0])
