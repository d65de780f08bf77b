# SPDX-License-Identifier: Apache-2.0
"""Clears what an instance leaves in the kernel: processes, mounts, network, cgroups. Called after every instance, and
for crashed ones before the next.

All is found from the instance's folder and the slot's names alone, so that it works when every process that knew more
is dead. Never touches what carries neither.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tests.cluster.testbed import cgroups, pins
from tests.cluster.testbed.build import remove
from tests.cluster.testbed.errors import TestbedError
from tests.cluster.testbed.slots import Slot

NODE_NAMES = ("node-1", "node-2")
PROGRAMS = frozenset({*pins.BINARIES, pins.FAKE_NODES.name, "containerd", "containerd-shim-runc-v2", "runc", "ctr"})
LOG_LINKS, NETWORK_NOTES = Path("/var/log/containers"), Path("/var/lib/cni/results")
PATIENCE_SECONDS = 20.0


def clear_instance(folder: Path, slot: Slot) -> None:
    """End, unmount and remove all of an instance but its folder's plain files. May be called again.

    :raises TestbedError: a process or mount is still there.
    """
    trees = [slot.cgroup(node) for node in NODE_NAMES]
    end_processes(folder, trees)
    unmount_beneath(folder)
    for node in NODE_NAMES:
        remove_shim_sockets(folder / node)
    remove_strays(folder, slot)
    subprocess.run(["ip", "link", "delete", slot.bridge], capture_output=True, check=False)  # if it exists
    for tree in trees:
        cgroups.remove(tree)


def end_processes(folder: Path, trees: Iterable[str]) -> None:
    """KILL what runs in the cgroup trees and what works in the folder, until nothing is left."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while pids := {*find_processes(folder), *(pid for tree in trees for pid in cgroups.find_pids(tree))}:
        if time.monotonic() > deadline:
            raise TestbedError(f"processes {sorted(pids)} of {folder} could not be ended")
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def find_processes(folder: Path) -> list[int]:
    """Of the testbed's own programs those whose command line names a path in *folder*, and the guard that works there.

    A person's editor or ``tail`` on a log isn't among them.
    """
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal() and _is_ours(entry, folder)]


def _is_ours(process: Path, folder: Path) -> bool:
    try:
        arguments = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
        if arguments == [""]:  # a kernel thread, or a zombie that its parent has to see
            return False
        if any(argument.endswith("process_guard.py") for argument in arguments):
            return (process / "cwd").readlink().is_relative_to(folder)
    except OSError:
        return False  # ended while we looked
    return Path(arguments[0]).name in PROGRAMS and any(f"{folder}/" in argument for argument in arguments)


def unmount_beneath(folder: Path) -> None:
    """Deepest first, and lazily: what somebody still looks into goes when he has left."""
    for _ in range(3):  # one mount may hide another
        points = find_mounts(folder)
        if not points:
            return
        for point in points:
            subprocess.run(["umount", "--lazy", str(point)], capture_output=True, check=False)
    if points := find_mounts(folder):
        raise TestbedError(f"could not unmount {', '.join(map(str, points))}")


def find_mounts(folder: Path) -> list[Path]:
    rows = (line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines())
    points = (Path(row[4].encode().decode("unicode_escape")) for row in rows)
    return sorted((point for point in points if point.is_relative_to(folder)), reverse=True)


def remove_shim_sockets(node: Path) -> None:
    """They lie in a folder of the whole machine, under names that only containerd's notes tell."""
    for note in node.glob("containerd-state/io.containerd.runtime.v2.task/*/*/address"):
        with suppress(OSError):
            Path(note.read_text().strip().removeprefix("unix://")).unlink()


def remove_strays(folder: Path, slot: Slot) -> None:
    """Notes about pods that kubelet and network plugins keep in places of the whole machine."""
    for link in LOG_LINKS.glob("*.log"):
        if link.is_symlink() and link.readlink().is_relative_to(folder):
            link.unlink(missing_ok=True)
    for note in NETWORK_NOTES.glob(f"{slot.bridge}-*-eth0"):
        sandbox = note.name.removeprefix(f"{slot.bridge}-").removesuffix("-eth0")
        (NETWORK_NOTES / f"cni-loopback-{sandbox}-lo").unlink(missing_ok=True)
        note.unlink(missing_ok=True)


def remove_folder(folder: Path) -> None:
    """The instance's files, once nothing is mounted there.

    :raises TestbedError: something is left; names what can't be removed.
    """
    if find_mounts(folder):
        raise TestbedError(f"{folder} still has mounts")
    # What goes by itself meanwhile, such as a socket of a process that ends, is no obstacle.
    shutil.rmtree(folder, ignore_errors=True)
    if os.path.lexists(folder):
        try:
            remove(folder)
        except OSError as error:
            raise TestbedError(f"{folder} could not be removed: {error}") from error
