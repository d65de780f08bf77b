# SPDX-License-Identifier: Apache-2.0
"""The images as a containerd keeps them, unpacked once for all nodes of all instances.

Unpacking thousands of files for each node, and removing them again, would take longer than all the rest. A node's
containerd gets a root of its own whose layers are links to ours: containers read layers and never write them.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.cluster.testbed.build import Builder, remove, run_to_end
from tests.cluster.testbed.errors import TestbedError
from tests.cluster.testbed.supervisor import Component, Supervisor

LAYERS = Path("io.containerd.snapshotter.v1.overlayfs", "snapshots")


def ensure_store(builder: Builder, containerd: Path, archives: Sequence[Path]) -> Path:
    """A containerd root that knows the images of *archives*; made if need be."""
    version = run_to_end([str(containerd), "--version"])
    key = hashlib.sha256(f"{version} {[archive.name for archive in archives]}".encode()).hexdigest()[:12]
    return builder.ensure(Path("stores", key), partial(_build_store, containerd=containerd, archives=archives))


def clone_store(store: Path, root: Path) -> None:
    """Make *root*, which doesn't exist, a containerd root that knows what *store* knows."""

    def skip_layers(folder: str, names: list[str]) -> list[str]:
        return names if Path(folder) == store / LAYERS else []

    shutil.copytree(store, root, ignore=skip_layers, copy_function=_link_or_copy)
    for layer in (store / LAYERS).iterdir():
        (root / LAYERS / layer.name).symlink_to(layer, target_is_directory=True)


def _link_or_copy(source: str, target: str) -> None:
    """Databases are written to, blobs never; and blobs are large."""
    if "blobs" in Path(source).parts:
        Path(target).hardlink_to(source)
    else:
        shutil.copyfile(source, target)


def _build_store(root: Path, *, containerd: Path, archives: Sequence[Path]) -> None:
    workshop = root.with_name(f"{root.name}.workshop")
    remove(workshop)
    workshop.mkdir(parents=True)
    socket = workshop / "containerd.sock"
    flags = (f"--root={root}", f"--state={workshop / 'state'}", f"--address={socket}", "--log-level=warn")
    supervisor = Supervisor(workshop)
    try:
        supervisor.start(Component("containerd", (str(containerd), *flags), partial(containerd_answers, socket)))
        supervisor.wait_ready("containerd")
        for archive in archives:
            run_ctr(socket, "images", "import", str(archive))
        supervisor.stop("containerd")
    finally:
        supervisor.close()
    remove(workshop)


def containerd_answers(socket: Path) -> bool:
    try:
        run_ctr(socket, "version")
    except TestbedError:
        return False
    return True


def is_image_known(socket: Path, name: str) -> bool:
    return name in run_ctr(socket, "images", "list", "--quiet").split()


def run_ctr(socket: Path, *arguments: str) -> str:
    """In the name space of Kubernetes; what it prints."""
    address = ["--address", str(socket), "--connect-timeout", "1s", "--namespace", "k8s.io"]
    return run_to_end(["ctr", *address, *arguments])
