# SPDX-License-Identifier: Apache-2.0
"""Builds what is missing of the testbed, once for all instances of this user; called before an instance starts.

Every part is built beside its place and renamed into it, under a lock: an interrupted build leaves nothing that looks
finished, and two builders at once do the work once. A sum beside it tells a part that was damaged later, which is built
again. Starts nothing, and removes nothing of older versions.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from tests.cluster.testbed import pins
from tests.cluster.testbed.errors import TestbedError

PROGRAM_PACKAGES: Mapping[str, str] = {
    "containerd": "containerd",
    "runc": "runc",
    "ip": "iproute2",
    "iptables": "iptables",
    "mmdebstrap": "mmdebstrap",
    "mount": "mount",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
}
"""Program to the Debian package that brings it."""
BUILD_TIMEOUT_SECONDS = 1800.0
CHUNK_BYTES = 1 << 20
GO_TRIES = 3
"""A build fetches hundreds of modules, and one answer that doesn't come ends it; what has come is kept."""


class Builder:
    """The cache of built parts.

    :param report: told before everything that takes long.
    """

    def __init__(self, cache: Path, *, report: Callable[[str], None] = print) -> None:
        self.cache = cache
        self._report = report

    def ensure_packages(self) -> None:
        """Install the Debian packages whose programs are missing."""
        missing = find_missing_packages()
        if not missing:
            return
        if shutil.which("apt-get") is None:
            raise TestbedError(f"the testbed needs Debian's packages {' '.join(missing)}, and here is no apt-get")
        self._report(f"installing {' '.join(missing)}")
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        run_to_end(["apt-get", "update", "-qq"], env=quiet)
        run_to_end(["apt-get", "install", "-qq", "-y", "--no-install-recommends", *missing], env=quiet)

    def ensure_binary(self, binary: pins.Binary) -> Path:
        """The path of the program, which is built if need be."""
        # A key per module: another version of one of them doesn't build the others again.
        return self.ensure(Path("bin", pins.build_key(binary), binary.name), lambda path: self._go_build(binary, path))

    def ensure_manifests(self, manifests: pins.Manifests) -> Path:
        """A folder with the paths asked for, copied: Go's own module cache may be emptied at any time."""
        target = Path("manifests", pins.build_key(manifests))
        return self.ensure(target, lambda path: self._copy_manifests(manifests, path))

    def ensure(self, target: Path, build: Callable[[Path], None]) -> Path:
        """Let *build* make the file or folder *target*, a path within the cache, unless it is there as it was built."""
        final = self.cache / target
        if is_whole(final):
            return final
        with hold_lock(final.with_name(f".{final.name}.lock")):
            if not is_whole(final):
                began = time.monotonic()
                broken = ", which is no longer what was built" if final.exists() else ""
                self._report(f"building {target.name} ({target.parent.name}){broken}")
                unfinished = final.with_name(f".{final.name}.unfinished")
                remove(unfinished)
                build(unfinished)
                find_sum(final).write_text(compute_sum(unfinished))
                remove(final)
                unfinished.rename(final)
                self._report(f"built {target.name} in {time.monotonic() - began:.0f} s")
        return final

    def _go_build(self, binary: pins.Binary, output: Path) -> None:
        argv = ["build", "-trimpath", "-ldflags", binary.ldflags, "-tags", binary.tags, "-o", str(output)]
        run_go([*argv, binary.package], binary.module, {"CGO_ENABLED": "0"} if binary.is_static else {})

    def _copy_manifests(self, manifests: pins.Manifests, target: Path) -> None:
        run_go(["mod", "download", manifests.source], manifests.module)
        source = Path(run_go(["list", "-m", "-f", "{{.Dir}}", manifests.source], manifests.module).strip())
        for path in manifests.paths:
            # The module cache is read-only, and our copy must be removable.
            shutil.copytree(source / path, target / path, copy_function=shutil.copyfile)
        for folder, _, _ in os.walk(target):
            Path(folder).chmod(0o755)


def is_whole(part: Path) -> bool:
    """Whether a part is there, and as it was built: a power cut or a full disk may have shortened it since.

    A part without a sum was built before sums were kept, and is taken as it is.
    """
    noted = find_sum(part)
    return part.exists() and (not noted.exists() or noted.read_text() == compute_sum(part))


def find_sum(part: Path) -> Path:
    return part.with_name(f".{part.name}.sum")


def compute_sum(part: Path) -> str:
    """Of a file's bytes; of a folder's paths and sizes: a store has thousands of files, and is asked for often.

    Against accidents only: who may write to the cache may write sums too.
    """
    if part.is_dir():
        names = (Path(folder, name) for folder, _, names in os.walk(part) for name in names)
        sizes = sorted(f"{name.relative_to(part)} {name.lstat().st_size}" for name in names)
        return f"{zlib.crc32(chr(10).join(sizes).encode()):08x}"
    total = 0
    with part.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            total = zlib.crc32(chunk, total)
    return f"{total:08x}"


def find_missing_packages(which: Callable[[str], str | None] = shutil.which) -> list[str]:
    return sorted({package for program, package in PROGRAM_PACKAGES.items() if which(program) is None})


def run_go(arguments: Sequence[str], module: str, settings: Mapping[str, str] | None = None) -> str:
    """Run ``go`` in the folder of a pinned module and return what it prints."""
    go = shutil.which("go")
    if go is None:
        raise TestbedError("the testbed is built from Go modules: install Go 1.26 or newer")
    environment, folder = {**os.environ, **(settings or {})}, pins.MODULES_FOLDER / module
    run = partial(run_to_end, [go, *arguments], env=environment, folder=folder)
    for _ in range(GO_TRIES - 1):
        with suppress(TestbedError):
            return run()
    return run()


def run_to_end(argv: Sequence[str], *, env: Mapping[str, str] | None = None, folder: Path | None = None) -> str:
    """Run a command, and return its standard output.

    :raises TestbedError: it failed; shows the end of what it printed.
    """
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, env=env, cwd=folder, timeout=BUILD_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TestbedError(f"could not run {' '.join(argv[:3])}: {error}") from error
    if done.returncode != 0:
        raise TestbedError(f"{' '.join(argv)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Wait for a file lock and hold it; the kernel lifts it when this process ends, however."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def remove(path: Path) -> None:
    """Remove a file or a folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
