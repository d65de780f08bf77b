# SPDX-License-Identifier: Apache-2.0
"""The cgroup tree of each node: made, read and removed under either version of cgroups. Knows no kubelet."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
CONTROLLERS = ("cpu", "cpuset", "io", "memory", "pids")
PATIENCE_SECONDS = 5.0


def is_version_two(root: Path = ROOT) -> bool:
    return (root / "cgroup.controllers").exists()


def find_hierarchies(root: Path = ROOT) -> list[Path]:
    """One under version 2, under version 1 one for each controller."""
    if is_version_two(root):
        return [root]
    return [folder for folder in sorted(root.iterdir()) if (folder / "cgroup.procs").exists()]


def ensure(name: str, root: Path = ROOT) -> None:
    """Make the tree in every hierarchy, able to hold processes."""
    for hierarchy in find_hierarchies(root):
        (hierarchy / name).mkdir(exist_ok=True)
        if is_version_two(root):
            _delegate(hierarchy)
        elif hierarchy.name == "cpuset":  # born without processors and memory, and useless so
            for field in ("cpuset.cpus", "cpuset.mems"):
                (hierarchy / name / field).write_text((hierarchy / field).read_text())


def _delegate(hierarchy: Path) -> None:
    for controller in CONTROLLERS:
        with suppress(OSError):  # one that this kernel doesn't have
            (hierarchy / "cgroup.subtree_control").write_text(f"+{controller}")


def find_pids(name: str, root: Path = ROOT) -> set[int]:
    """All processes in the tree, at any depth."""
    pids: set[int] = set()
    for hierarchy in find_hierarchies(root):
        for listing in (hierarchy / name).rglob("cgroup.procs"):
            with suppress(OSError):  # removed while we looked
                pids.update(map(int, listing.read_text().split()))
    return pids


def remove(name: str, root: Path = ROOT) -> None:
    """Remove the tree, whose processes have ended. The kernel lets go of a group a moment after its last process."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        trees = [hierarchy / name for hierarchy in find_hierarchies(root) if (hierarchy / name).exists()]
        if not trees:
            return
        for tree in trees:
            for folder in sorted((path for path in tree.rglob("*") if path.is_dir()), reverse=True):
                with suppress(OSError):
                    folder.rmdir()
            with suppress(OSError):
                tree.rmdir()
        time.sleep(0.05)
