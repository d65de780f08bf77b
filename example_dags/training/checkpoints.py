# SPDX-License-Identifier: Apache-2.0
"""The state folder of a training: checkpoints that outlive executions, and the fence that keeps old ones from writing.

Every execution of a job has an epoch, and a later one has a higher epoch. An execution claims the folder at its start;
one whose epoch is no longer the newest may read, but never write.
"""

from __future__ import annotations

import fcntl
import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
CHECKPOINT = re.compile(r"checkpoint-e(\d+)-(\d+)\.npz")


class StaleEpochError(Exception):
    """A newer execution has claimed the folder: this one must not write there any more."""


class Checkpoints:
    """The folder, claimed for one epoch."""

    def __init__(self, folder: Path, epoch: int) -> None:
        self._folder, self._epoch = folder, epoch
        folder.mkdir(parents=True, exist_ok=True)
        with self._allowed_to_write():
            self._write("newest-epoch", str(epoch).encode())

    def save(self, step: int, weights: Floats) -> str:
        content = io.BytesIO()
        np.savez(content, step=step, weights=weights)
        name = f"checkpoint-e{self._epoch}-{step}.npz"
        with self._allowed_to_write():
            self._write(name, content.getvalue())
        return name

    def newest(self) -> str | None:
        """By epoch, then step, both as numbers: as text, step 90 would come after step 100."""
        found = [match for path in self._folder.iterdir() if (match := CHECKPOINT.fullmatch(path.name))]
        return max(found, key=lambda match: (int(match[1]), int(match[2])))[0] if found else None

    def load(self, name: str) -> tuple[int, Floats]:
        with np.load(self._folder / name, allow_pickle=False) as saved:
            return int(saved["step"]), saved["weights"]

    @contextmanager
    def _allowed_to_write(self) -> Iterator[None]:
        """Compare and write under one lock: nobody may claim the folder between the two."""
        with (self._folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            claim = self._folder / "newest-epoch"
            newest = int(claim.read_text()) if claim.exists() else 0
            if newest > self._epoch:
                raise StaleEpochError(f"epoch {self._epoch} may not write: epoch {newest} has claimed {self._folder}")
            yield

    def _write(self, name: str, content: bytes) -> None:
        """Whole and on the disk, or not at all: half a checkpoint costs more than none."""
        temporary = self._folder / f".{name}.partial"
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(self._folder / name)
        folder = os.open(self._folder, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
