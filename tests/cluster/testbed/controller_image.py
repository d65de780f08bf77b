# SPDX-License-Identifier: Apache-2.0
"""The image of the admission controller, made of this checkout: what its Dockerfile builds, without Docker.

Above the Debian and the Python of the trainer image lie the libraries, which are installed once for each set of pinned
versions, and the package. The image's tag is the digest of all three: a node is given another one when the code has
changed, and nothing when it hasn't.
"""

from __future__ import annotations

import hashlib
import io
import platform
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement

from tests.cluster.testbed.build import Builder, remove, run_to_end
from tests.cluster.testbed.errors import TestbedError
from tests.cluster.testbed.image import ensure_trainer, open_layers, read_layers, write_image
from tests.cluster.testbed.leftovers import NODE_NAMES
from tests.cluster.testbed.node import build_socket_path
from tests.cluster.testbed.store import is_image_known, run_ctr

REPOSITORY = Path(__file__).parents[3]
PACKAGE = "airflow_provider_dispatch"
IMAGE_NAME = "localhost/dispatch-admission"
SETTINGS = {"Entrypoint": ["python3", "-m", f"{PACKAGE}.controller"], "User": "65532:65532"}


def load_controller_image(folder: Path, builder: Builder) -> str:
    """Give the image to both nodes of a running instance, unless they have it; its name."""
    trainer = ensure_trainer(builder)
    version = find_python_version(trainer)
    libraries = ensure_libraries(builder, version)
    package = build_package_layer(version)
    digest = hashlib.sha256(f"{trainer.name} {libraries.name} {SETTINGS}".encode() + package).hexdigest()[:12]
    name = f"{IMAGE_NAME}:{digest}"
    sockets = [build_socket_path(folder / node) for node in NODE_NAMES]
    if lacking := [socket for socket in sockets if not is_image_known(socket, name)]:
        with tempfile.TemporaryDirectory(dir=folder) as workshop:
            archive = Path(workshop, "image.tar")
            write_image(archive, [*read_layers(trainer), libraries.read_bytes(), package], name, SETTINGS)
            for socket in lacking:
                run_ctr(socket, "images", "import", str(archive))
    return name


def ensure_libraries(builder: Builder, python_version: str) -> Path:
    """The layer of all that the controller needs, at the versions of the constraints file."""
    constraints = REPOSITORY / "constraints.txt"
    wanted = f"{read_requirements()} {python_version} {platform.machine()} {constraints.read_text()}"
    key = hashlib.sha256(wanted.encode()).hexdigest()[:12]
    build = partial(_build_libraries_layer, constraints=constraints, python_version=python_version)
    return builder.ensure(Path("images", f"controller-libraries-{key}.tar"), build)


def read_requirements(project: Path = REPOSITORY / "pyproject.toml") -> list[str]:
    """What the package needs outside Airflow, and what its extra for the controller adds."""
    declared = tomllib.loads(project.read_text())["project"]
    needed = [*declared["dependencies"], *declared["optional-dependencies"]["controller"]]
    return sorted(one for one in needed if Requirement(one).name != "apache-airflow")


def build_package_layer(python_version: str) -> bytes:
    """An uncompressed archive of the package as it lies here, the same for the same files."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        for name, content in _list_package():
            entry = tarfile.TarInfo(str(_find_site(python_version) / name))
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    return layer.getvalue()


def find_python_version(image: Path) -> str:
    """Of the image's own interpreter, as ``3.11``: libraries are built for one."""
    for layer in open_layers(image):
        for name in layer.getnames():
            program = PurePosixPath(name).name
            if PurePosixPath(name).parent.name == "bin" and program.startswith("python3."):
                return program.removeprefix("python")
    raise TestbedError(f"there is no Python in {image}")


def _list_package() -> Iterator[tuple[Path, bytes]]:
    for path in sorted((REPOSITORY / PACKAGE).rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(REPOSITORY), path.read_bytes()


def _find_site(python_version: str) -> PurePosixPath:
    """Where Debian's Python looks for what doesn't come from Debian."""
    return PurePosixPath("usr", "local", "lib", f"python{python_version}", "dist-packages")


def _build_libraries_layer(path: Path, *, constraints: Path, python_version: str) -> None:
    folder = path.with_suffix(".folder")
    remove(folder)
    # Wheels alone: they suit the image's interpreter, whichever runs here.
    suited = ("--python-version", python_version, "--only-binary", ":all:", "--target", str(folder))
    quiet = ("--quiet", "--disable-pip-version-check", "--no-warn-conflicts")
    install = (sys.executable, "-m", "pip", "install", *quiet, *suited, "--constraint", str(constraints))
    try:
        run_to_end([*install, *read_requirements()])
        with tarfile.open(path, "w") as archive:
            archive.add(folder, str(_find_site(python_version)), filter=_give_to_root)
    finally:
        remove(folder)


def _give_to_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry
